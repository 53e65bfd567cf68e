"""A cluster under random faults, for as long as you like: `make soak MINUTES=60`.

    python -m tests.faults.soak --minutes 60                    SYNC_FLUSH and SYNC_MASTER: nothing may be lost
    python -m tests.faults.soak --minutes 30 --mode all         all modes, one life of each after the other
    python -m tests.faults.soak --minutes 4 --seed 7            the plan of seed 7 again
    python -m tests.faults.soak --minutes 4 --seed 7 --plan     only print it

The time is cut into lives of ten minutes, each with a cluster and a seed of its own: three name servers, a master and two slaves.
Between two lives the store is killed some hundred times on its own, in-process (tests/crash/). A broken promise is printed with
the command that does it again, its cluster's folder stays, and the soak goes on. The report is written after each life.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.crash.soak import run_life
from tests.faults.cluster import MODES
from tests.faults.life import Life
from tests.faults.plan import make_plan
from tests.faults.report import write_report

if TYPE_CHECKING:
    from tests.faults.outcome import Outcome

LIFE_SECONDS: Final = 600.0
STORE_SECONDS: Final = 10.0
STORE_KILLS: Final = "300"


class Soak:
    def __init__(self, base: Path, report: Path, modes: list[str], pause_seconds: float) -> None:
        self.broken = 0
        self._base = base
        self._report = report
        self._modes = modes
        self._pause_seconds = pause_seconds
        self._outcomes: list[Outcome] = []
        self._store = Counter[str]()
        self._started = time.time()

    def cluster_life(self, seed: int, seconds: float) -> None:
        mode = MODES[self._modes[len(self._outcomes) % len(self._modes)]]
        folder = self._base / f"life-{seed}"
        life = Life(folder, seed, seconds, mode, pause_seconds=self._pause_seconds)
        again = f"again: python -m tests.faults.soak --minutes {seconds / 60:g} --seed {seed} --mode {mode.name}"
        try:
            outcome = asyncio.run(life.live(make_plan(seed, seconds, mode)))
        except Exception:  # whatever a broken cluster does to its supervisor is a finding, and the soak goes on
            _say("\n".join([traceback.format_exc(), again, f"left behind: {folder}"]))
            self.broken += 1
            return
        self._outcomes.append(outcome)
        _say(
            f"seed {seed} {mode.name}: {outcome.faults().total()} faults, "
            f"{outcome.figures['sends acknowledged']} sends acknowledged, {len(outcome.broken)} promises broken"
        )
        if outcome.broken:
            _say("\n".join([*outcome.first_of_each(), again, f"left behind: {folder}"]))
            self.broken += len(outcome.broken)
        else:
            shutil.rmtree(folder)
        self.write()

    def store_life(self, seed: int) -> None:
        outcome = run_life(self._base, seed, STORE_SECONDS, "--kills", STORE_KILLS)
        self._store.update({name: outcome[name] for name in ("kills", "acked")})
        if outcome["broken"]:
            _say("\n".join([*outcome["broken"], f"again: python {outcome['again']}"]))
            self.broken += len(outcome["broken"])

    def write(self) -> None:
        begun = time.strftime("%Y-%m-%d %H:%M", time.gmtime(self._started))
        lines = [
            f"Begun {begun} UTC; `make soak MINUTES=...` does it again. Three name servers, a master and two slaves, each a "
            "process; the supervisor keeps the ledgers. The terms of each mode are in [guarantees.md](guarantees.md).",
            "",
            f"Besides, the store alone was killed or lost its power {self._store['kills']:,} times in-process, with "
            f"{self._store['acked']:,} messages acknowledged in between.",
        ]
        write_report(self._report, "A soak under faults", self._outcomes, lines)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument(
        "--seed", type=int, default=random.randrange(10**6), help="of the first life; the next has one more"
    )
    parser.add_argument("--mode", choices=(*MODES, "all"), default="sync")
    parser.add_argument("--pause", type=float, default=0.05, help="seconds between two messages of a sender")
    parser.add_argument("--report", type=Path, default=Path("build/soak-report.md"))
    parser.add_argument("--plan", action="store_true", help="print the plan of the first life, and do nothing")
    options = parser.parse_args()
    modes = list(MODES) if options.mode == "all" else [options.mode]
    if options.plan:
        seconds = min(60 * options.minutes, LIFE_SECONDS)
        _say("\n".join(str(fault) for fault in make_plan(options.seed, seconds, MODES[modes[0]])))
        return
    logging.getLogger("orbitmq").setLevel(logging.CRITICAL)  # the clients of a broken cluster have much to say
    options.report.parent.mkdir(parents=True, exist_ok=True)
    base = Path(tempfile.mkdtemp(prefix="orbitmq-soak-"))
    soak = Soak(base, options.report, modes, options.pause)
    left, seed = 60 * options.minutes, options.seed
    while left > 0:
        seconds = min(left, LIFE_SECONDS)
        soak.cluster_life(seed, seconds)
        soak.store_life(seed)
        left -= seconds
        seed += 1
    soak.write()
    _say(
        f"{'all promises kept' if not soak.broken else f'{soak.broken} promises broken'}; the report is {options.report}"
    )
    sys.exit(1 if soak.broken else 0)


if __name__ == "__main__":
    main()
