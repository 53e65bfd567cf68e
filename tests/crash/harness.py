"""Kills a writer again and again, on the same directory, and checks after each kill that every promise was kept.

    python -m tests.crash.harness DIRECTORY --seed 7 --kills 200          one life of many kills
    python -m tests.crash.harness DIRECTORY --seed 7 --kills 200 --broken  the same with a writer that acks before it writes

Writer and checker run in processes forked from this one, so a round costs milliseconds. A round's every choice comes from the
seed; with the flushing threads off, so does the line it dies at. The result is printed as one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from orbitmq.storage.open_files import MappedFile
from tests.crash.check import check_after_crash
from tests.crash.kill_points import POINTS, KillAtLine, KillInFunction, die, install
from tests.crash.ledger import Ledger, read_ledger
from tests.crash.page_writes import writing_by_pages
from tests.crash.workload import clock_of, write
from tests.storage.faulty_disk import FaultyDisk

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS_ON_ONE_DIRECTORY = 25
_BROKEN_PROMISE = 3


@dataclass
class Outcome:
    seed: int
    kills: int = 0
    clean_stops: int = 0
    acked: int = 0
    by_way: Counter[str] = field(default_factory=Counter)
    by_function: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def as_json(self) -> str:
        return json.dumps(vars(self))


def torture(base: Path, seed: int, kills: int, seconds: float, *, acks_before_writing: bool = False) -> Outcome:
    """Until `kills` writers were killed, `seconds` have passed, or a promise was found broken."""
    outcome = Outcome(seed)
    deadline = time.monotonic() + seconds
    number = 0
    while outcome.kills < kills and not outcome.broken and time.monotonic() < deadline:
        directory, ledger_path = base / f"store-{seed}-{number}", base / f"ledger-{seed}-{number}"
        _forget(directory, ledger_path)
        for round_number in range(ROUNDS_ON_ONE_DIRECTORY):
            run = f"{number}.{round_number}"
            _round(outcome, directory, ledger_path, Random(f"{seed}/{run}"), run, acks_before_writing)
            if outcome.broken or outcome.kills >= kills or time.monotonic() >= deadline:
                break
        promised = read_ledger(ledger_path)
        outcome.acked += len(promised.acked)
        outcome.by_function.update(where.rsplit(" line ", 1)[0] for where in promised.kills)
        if not outcome.broken:
            _forget(directory, ledger_path)
        number += 1
    return outcome


def _forget(directory: Path, ledger_path: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    ledger_path.unlink(missing_ok=True)
    clock_of(directory).unlink(missing_ok=True)


def _round(
    outcome: Outcome, directory: Path, ledger_path: Path, random: Random, run: str, acks_before_writing: bool
) -> None:
    way = random.choice(("line", "function", "function", "clock", "power"))
    error_path = Path(f"{ledger_path}.error")
    writer = _fork(lambda: _write(directory, ledger_path, random, run, way, acks_before_writing), error_path)
    if way == "clock":
        time.sleep(random.random() * 0.08)
        os.kill(writer, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1])
    if status == -signal.SIGKILL:
        outcome.kills += 1
        outcome.by_way[way] += 1
    elif status == 0:
        outcome.clean_stops += 1
    else:
        outcome.broken.append(f"seed {outcome.seed} run {run} ({way}): the writer failed: {error_path.read_text()}")
        return
    close = random.random() < 0.5
    checker = _fork(lambda: _check(directory, ledger_path, close=close, power_cut=way == "power"), error_path)
    status = os.waitstatus_to_exitcode(os.waitpid(checker, 0)[1])
    if status:
        outcome.broken.append(f"seed {outcome.seed} run {run} ({way}): {error_path.read_text()}")


def _write(directory: Path, ledger_path: Path, random: Random, run: str, way: str, acks_before_writing: bool) -> None:
    ledger = Ledger(ledger_path)
    directory.mkdir(exist_ok=True)
    if way != "clock":  # which may kill within a real call
        MappedFile.write = writing_by_pages()  # type: ignore[method-assign,assignment]
    disk = FaultyDisk(directory) if way == "power" else None
    # At a power cut everything not synced is gone, or any part of it.
    pages = Random(run) if random.random() < 0.7 else None
    last_act: Callable[[], None] = partial(disk.crash, pages) if disk is not None else _nothing
    if way == "function" or (way == "power" and random.random() < 0.5):
        point = random.choice(POINTS)
        visit = 1 + int(point.visits * random.random() ** 2)
        install(KillInFunction(point, visit, 1 + int(32 * random.random() ** 2)), ledger, last_act)
    elif way != "clock":
        install(KillAtLine(int(2 ** (random.random() * 15))), ledger, last_act)
    with_threads = way == "clock" or (way != "power" and random.random() < 0.3)
    # A power cut also takes what killed processes before it left unsynced.
    for earlier in range(random.randrange(3) if way == "power" else 0):
        write(directory, ledger, random, f"{run}.{earlier}", with_threads=False, disk=disk, abandon=True)
    write(directory, ledger, random, run, with_threads=with_threads, acks_before_writing=acks_before_writing, disk=disk)
    if way == "power" or random.random() < 0.5:
        last_act()
        die(ledger, "after the end")


def _nothing() -> None:
    """What happens to the disk when only a process dies."""


def _check(directory: Path, ledger_path: Path, *, close: bool, power_cut: bool) -> None:
    checked = check_after_crash(directory, read_ledger(ledger_path), close=close, power_cut=power_cut)
    if checked.broken:
        Path(f"{ledger_path}.error").write_text("\n".join(checked.broken[:20]))
        os._exit(_BROKEN_PROMISE)
    if checked.lost or checked.torn:
        lost = (f"lost {name}" for name in checked.lost)
        Ledger(ledger_path).note(*lost, *(f"torn {' '.join(names)}" for names in checked.torn))


def _fork(work: Callable[[], None], error_path: Path) -> int:
    """Run `work` in a child that leaves without any clean-up of ours. What it raises is left at `error_path`."""
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    except BaseException:
        error_path.write_text(traceback.format_exc())
        os._exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--broken", action="store_true")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    outcome = torture(
        options.directory, options.seed, options.kills, options.seconds, acks_before_writing=options.broken
    )
    sys.stdout.write(outcome.as_json() + "\n")
    sys.exit(1 if outcome.broken else 0)


if __name__ == "__main__":
    main()
