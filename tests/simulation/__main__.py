"""Run schedules: `python -m tests.simulation --seeds 0-999`, or one with everything that happened in it: `--seed 17 --trace`.

With `--bugs ack_before_flush,...` (or `all`) the code is broken on purpose, and each bug has to be found.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.bugs import BUGS, hunt
from tests.simulation.checks import summary
from tests.simulation.schedule import Outcome, plan, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="0-499", help="first-last")
    parser.add_argument("--seed", type=int, help="this one only, with its story")
    parser.add_argument("--trace", action="store_true", help="with every event")
    parser.add_argument("--digest", action="store_true", help="print the hash of what happened")
    parser.add_argument("--bugs", default="", help="names, separated by commas; all")
    options = parser.parse_args()
    if options.bugs:
        return _find(list(BUGS) if options.bugs == "all" else options.bugs.split(","), _range(options.seeds))
    if options.seed is not None:
        return _tell(run(plan(options.seed), keep_trace=options.trace))
    seeds = _range(options.seeds)
    began, broken, acked = time.monotonic(), 0, 0
    for seed in seeds:
        outcome = run(plan(seed))
        acked += outcome.acked
        if options.digest:
            print(seed, outcome.digest)
        if outcome.broken:
            broken += 1
            print(f"seed {seed} ({outcome.mode}): {summary(outcome.broken)}; {outcome.broken[0]}", flush=True)
    minutes = (time.monotonic() - began) / 60
    print(
        f"{len(seeds)} schedules, {acked} messages acknowledged, {broken} broken; {len(seeds) / minutes:.0f} a minute"
    )
    return 1 if broken else 0


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _find(names: list[str], seeds: range) -> int:
    missed = 0
    for name in names:
        outcome = hunt(BUGS[name], seeds)
        missed += outcome is None
        if outcome is None:
            print(f"{name}: not found in {len(seeds)} schedules", flush=True)
        else:
            first = next(line for line in outcome.broken if line.startswith(BUGS[name].shows_as))
            print(f"{name}: found by seed {outcome.seed}: {first}", flush=True)
    return 1 if missed else 0


def _tell(outcome: Outcome) -> int:
    for line in outcome.trace:
        print(line)
    print(
        f"seed {outcome.seed}: {outcome.mode}; {outcome.seconds:.0f} s, {outcome.steps} steps, digest {outcome.digest}"
    )
    print(f"sent {outcome.sent}, acknowledged {outcome.acked}, received {outcome.received}")
    for fault in outcome.faults:
        print(f"  {fault.at:.3f} s: {fault.what} ({fault.machine})")
    for line in outcome.broken:
        print(f"  BROKEN {line}")
    return 1 if outcome.broken else 0


if __name__ == "__main__":
    sys.exit(main())
