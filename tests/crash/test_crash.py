"""Hundreds of kills within the suite; `python -m tests.crash.soak` does thousands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.crash.kill_points import POINTS
from tests.crash.soak import run_life
from tests.marks import LEDGER

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("loops")

SEEDS = (20261115, 20261116)
KILLS = 150


@LEDGER
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_promise_is_broken_by_kills_and_power_cuts(seed: int, tmp_path: Path) -> None:
    outcome = run_life(tmp_path, seed, 840, "--kills", str(KILLS))
    assert outcome["broken"] == [], outcome["again"]
    assert outcome["kills"] == KILLS
    assert set(outcome["by_way"]) == {"line", "function", "clock", "power"}
    died_in = {point.name for point in POINTS if point.function in outcome["by_function"]}
    assert len(died_in) >= len(POINTS) // 2, f"only in {died_in}"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_writer_that_acknowledges_before_it_writes_is_caught(tmp_path: Path) -> None:
    outcome = run_life(tmp_path, SEEDS[0], 840, "--broken")
    assert outcome["broken"]
    assert "was acknowledged and is lost" in outcome["broken"][0]


def test_every_kill_point_is_a_function_of_the_store() -> None:
    """A renamed function would never be reached, and nobody would notice."""
    import importlib
    import pkgutil

    import orbitmq.storage

    known = set()
    for module in pkgutil.iter_modules(orbitmq.storage.__path__):
        for value in vars(importlib.import_module(f"orbitmq.storage.{module.name}")).values():
            known.add(getattr(value, "__qualname__", ""))
            if isinstance(value, type):
                known |= {getattr(member, "__qualname__", "") for member in vars(value).values()}
    assert {point.function for point in POINTS} <= known
