"""The simulation in processes of its own: a minute of the schedules that `make simulate` runs by the thousand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.bugs import BUGS

pytestmark = pytest.mark.timeout(900)

_ROOT = Path(__file__).parents[2]
_QUICK = 60  # schedules in which a bug must show


def simulate(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    """Without the accelerator: it does the same, and the bugs are switched on in Python."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "ORBITMQ_ACCELERATOR": "0"}
    command = [sys.executable, "-W", "error", "-m", "tests.simulation", *arguments]
    return subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False)


def test_a_seed_is_the_same_schedule_in_every_process() -> None:
    runs = [simulate("--seeds", "0-4", "--digest", hash_seed=seed) for seed in ("1", "2")]
    told = [[line for line in one.stdout.splitlines() if len(line.split()) == 2] for one in runs]
    assert told[0] == told[1], runs[0].stderr
    assert len(told[0]) == 5
    assert len({line.split()[1] for line in told[0]}) == 5


@pytest.mark.parametrize("seeds", ["0-6", "7-13", "14-20"])
def test_every_promise_is_kept_whatever_goes_wrong(seeds: str) -> None:
    done = simulate("--seeds", seeds)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_found_and_its_seed_is_told(name: str) -> None:
    done = simulate("--bugs", name, "--seeds", f"0-{_QUICK - 1}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{name}: found by seed" in done.stdout
