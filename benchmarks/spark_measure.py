"""Measuring jobs on Spark: rows a second by the clock, and the processor time that each part of the machinery took for a row.

The clock says what a user sees on a quiet machine; on a busy one only processor time can be compared. Whole trees of processes are
counted, children that have ended included: the JVM, Python's workers below it, and the broker.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_TICKS = os.sysconf("SC_CLK_TCK")


def children_by_parent() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(") ")[2].split()
        except OSError:  # it has ended since
            continue
        found.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    return found


def tree_seconds(pid: int) -> float:
    """Processor time of a process and all below it."""
    children = children_by_parent()
    total, waiting = 0.0, [pid]
    while waiting:
        one = waiting.pop()
        waiting += children.get(one, [])
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15])) / _TICKS
    return total


def own_seconds(pid: int) -> float:
    """Of the process alone, with children that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(map(int, fields[11:13])) / _TICKS


class Bench:
    """Runs each job several times and keeps the best."""

    def __init__(self, folder: Path, count: int, runs: int, only: str, jvm: int, brokers: Mapping[str, int]) -> None:
        self.folder = folder
        self.count = count
        self.runs = runs
        self.figures: dict[str, dict[str, Any]] = {}
        self._only = only
        self._jvm = jvm
        self._brokers = brokers

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
            work(scratch)
            rate = rows / (time.perf_counter() - started)
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
        jvm = own_seconds(self._jvm)
        parts = {"JVM": jvm, "workers": tree_seconds(self._jvm) - jvm}
        return parts | {name: tree_seconds(pid) for name, pid in self._brokers.items()}
