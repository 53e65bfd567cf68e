"""Killing a process between any two lines of the storage code: a trace function counts lines and pulls the trigger.

`KillAtLine(n)` counts every line executed in src/orbitmq/storage; `KillInFunction(point, visit, line)` counts inside one of
POINTS only. Both follow all threads started after `install`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import orbitmq.storage

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from tests.crash.ledger import Ledger

_STORAGE = os.path.dirname(orbitmq.storage.__file__)  # noqa: PTH120  compared with co_filename, which is a str


class Point(NamedTuple):
    """A function whose every line is worth dying at."""

    name: str
    function: str  # qualified name
    visits: int  # how often a workload comes by, roughly


POINTS = (
    Point("append", "CommitLog.append", 40),
    Point("special append", "CommitLog._append_special", 10),
    Point("record write", "CommitLog._write", 10),
    Point("batch append", "CommitLog.append_batch", 5),
    Point("batch write", "CommitLog._write_batch", 5),
    Point("batch noted", "UnfinishedBatch.begin", 5),
    Point("batch finished", "UnfinishedBatch.finish", 5),
    Point("large batch", "CommitLog.write_together", 2),
    Point("page of a large batch", "MappedFile.write", 12),
    Point("unfinished batch", "unfinished_range", 2),
    Point("file roll", "CommitLog._roll", 4),
    Point("file allocation", "LocalDisk.allocate", 4),
    Point("log flush", "LogFlusher.flush", 5),
    Point("queue files", "QueueTable._write_queue", 20),
    Point("queue sync", "QueueTable.sync", 5),
    Point("checkpoint", "CheckpointFile.save", 5),
    Point("index roll", "KeyIndex._writable", 60),
    Point("index entry", "IndexFile.put", 60),
    Point("index entries", "IndexFile.put_many", 10),
    Point("config save", "LocalDisk.replace", 6),
    Point("expiry", "Retention.clean", 1),
    Point("expiry of the log", "SegmentedLog.delete_oldest", 1),
    Point("expiry of queues", "QueueTable.delete_below", 1),
    Point("recovery", "recover", 1),
    Point("recovery cut", "clear_behind", 1),
    Point("clean stop", "Store.close", 1),
    Point("giving back", "Store._give_back", 1),
    Point("abort file", "mark_stopped", 1),
)


class Trigger(Protocol):
    def line(self, frame: FrameType) -> bool:
        """Called at each line; True to die before it."""
        ...

    def wants(self, frame: FrameType) -> bool:
        """Whether this call's lines count."""
        ...


class KillAtLine:
    def __init__(self, line: int) -> None:
        self._left = line

    def wants(self, frame: FrameType) -> bool:
        return True

    def line(self, frame: FrameType) -> bool:
        self._left -= 1
        return self._left == 0


class KillInFunction:
    def __init__(self, point: Point, visit: int, line: int) -> None:
        self._function = point.function
        self._visits_left = visit
        self._lines_left = line

    def wants(self, frame: FrameType) -> bool:
        if frame.f_code.co_qualname != self._function:
            return False
        self._visits_left -= 1
        return self._visits_left == 0

    def line(self, frame: FrameType) -> bool:
        self._lines_left -= 1
        return self._lines_left == 0


def install(trigger: Trigger, ledger: Ledger, last_act: Callable[[], None] = lambda: None) -> None:
    """Arm it, for this thread and those it starts. `last_act` is what the world does at the moment of death."""

    def on_call(frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        path = frame.f_code.co_filename
        if not path.startswith(_STORAGE) or path.endswith("config.py") or not trigger.wants(frame):
            return None
        return on_line

    def on_line(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        if event == "line" and trigger.line(frame):
            sys.settrace(None)
            last_act()
            die(ledger, f"{frame.f_code.co_qualname} line {frame.f_lineno - frame.f_code.co_firstlineno}")
        return on_line

    threading.settrace(on_call)
    sys.settrace(on_call)


def die(ledger: Ledger, where: str) -> None:
    ledger.note(f"kill {where}")
    os.kill(os.getpid(), signal.SIGKILL)
