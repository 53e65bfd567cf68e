"""Measuring jobs on Spark: rows a second by the clock, and the processor time that each part of the machinery took for a row.

The clock says what a user sees on a quiet machine; on a busy one only processor time can be compared. Whole trees of processes are
counted, children that have ended included: the JVM, Python's workers below it, and the broker.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_LOOK_SECONDS: Final = 1.0  # a look takes some milliseconds


def children_by_parent() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        fields = _fields(int(stat.parent.name))
        if fields is not None:
            found.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    return found


def _fields(pid: int) -> list[str] | None:
    """Of /proc/<pid>/stat, from the process's state on; None if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


class Tree:
    """The processor time of a process and all below it, also of those that have ended: of each, what was seen last.

    A process's own count of its children does not do: the daemon of Python's workers ignores SIGCHLD, so Linux adds the time of a
    worker that ends to nobody's, and the sum would go back.
    """

    def __init__(self, root: int) -> None:
        self.root = root
        self._seen: dict[tuple[int, str], float] = {}  # by pid and when it started: pids come again

    def look(self) -> None:
        children = children_by_parent()
        waiting = [self.root]
        while waiting:
            pid = waiting.pop()
            waiting += children.get(pid, [])
            fields = _fields(pid)
            if fields is not None:
                self._seen[pid, fields[19]] = (int(fields[11]) + int(fields[12])) / _TICKS

    def root_and_below(self) -> tuple[float, float]:
        """Seconds so far: of the process itself, and of all the others."""
        self.look()
        of_root = sum(seconds for (pid, _), seconds in self._seen.items() if pid == self.root)
        return of_root, sum(self._seen.values()) - of_root


class Bench:
    """Runs each job several times and keeps the best."""

    def __init__(self, folder: Path, count: int, runs: int, only: str, jvm: int, brokers: Mapping[str, int]) -> None:
        self.folder = folder
        self.count = count
        self.runs = runs
        self.figures: dict[str, dict[str, Any]] = {}
        self._only = only
        self._jvm = Tree(jvm)
        self._brokers = {name: Tree(pid) for name, pid in brokers.items()}

    def measure(self, name: str, work: Callable[[Path], None], count: int | None = None) -> None:
        """`count`: rows of one run, when they are not all."""
        if self._only not in name:
            return
        rows = count or self.count
        best: dict[str, Any] = {}
        for run in range(self.runs):
            scratch = self.folder / f"run-{run}"
            before = self._seconds()
            started = time.perf_counter()
            with self._watched():
                work(scratch)
                ended = time.perf_counter()
            rate = rows / (ended - started)
            if not best or rate > best["rows a second"]:
                used = {part: after - before[part] for part, after in self._seconds().items()}
                micros = {part: round(1e6 * seconds / rows, 2) for part, seconds in used.items()}
                best = {"rows a second": round(rate), "processor microseconds a row": micros}
            shutil.rmtree(scratch, ignore_errors=True)
        self.figures[name] = best
        micros = best["processor microseconds a row"]
        parts = "  ".join(f"{part} {micros[part]:.2f}" for part in micros if micros[part] >= 0.005)
        print(f"  {name:44} {best['rows a second']:>11,} rows/s   us a row: {parts}", flush=True)

    def _seconds(self) -> dict[str, float]:
        """The JVM's own time, and that of the workers below it."""
        jvm, workers = self._jvm.root_and_below()
        brokers = {name: sum(tree.root_and_below()) for name, tree in self._brokers.items()}
        return {"JVM": jvm, "workers": workers, **brokers}

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Look at the workers now and then: what one did since the last look is lost when it ends."""
        done = Event()

        def watch() -> None:
            while not done.wait(_LOOK_SECONDS):
                self._jvm.look()

        watching = Thread(target=watch, name="watching workers")
        watching.start()
        try:
            yield
        finally:
            done.set()
            watching.join()
