"""Thousands of kills and power cuts of the store alone: `python -m tests.crash.soak --minutes 60`; some of each `make soak`.

Runs lives of the crash harness on two processors until the time is over, each from a seed of its own. A broken promise stops
it, prints what was broken with the command that does it again, and leaves the store directory in place.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

KILLS_IN_A_LIFE = 250


def run_life(directory: Path, seed: int, seconds: float, *more: str) -> dict[str, Any]:
    """One life of the harness, in a process of its own."""
    command = [
        sys.executable, "-m", "tests.crash.harness", str(directory), "--seed", str(seed),
        "--kills", str(KILLS_IN_A_LIFE), "--seconds", str(seconds), *more,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    if not done.stdout:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    outcome: dict[str, Any] = json.loads(done.stdout)
    outcome["again"] = " ".join(command[1:])
    return outcome


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--seed", type=int, default=random.randrange(10**6), help="of the first life; the next has one more"
    )
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    total, ways, seed = Counter[str](), Counter[str](), options.seed
    base = Path(tempfile.mkdtemp(prefix="orbitmq-soak-"))
    with ThreadPoolExecutor(options.processes) as pool:
        while (left := deadline - time.monotonic()) > 0:
            seeds = range(seed, seed + options.processes)
            seed += options.processes
            for outcome in pool.map(lambda number: run_life(base, number, left), seeds):
                total.update({name: outcome[name] for name in ("kills", "clean_stops", "acked")})
                ways.update(outcome["by_way"])
                if outcome["broken"]:
                    _say("\n".join([*outcome["broken"], f"again: python {outcome['again']}"]))
                    sys.exit(1)
            _say(f"seeds up to {seed - 1}: {total['kills']} kills, {total['acked']} messages acknowledged, none lost")
    base.rmdir()
    _say(f"all promises kept: {dict(total)}, by way of dying: {dict(ways)}")


if __name__ == "__main__":
    main()
