"""The timer wheel: for every moment of the next days, where the chain of its timers begins in the timer log.

    <root>/timerwheel    1,209,600 slots of 32 bytes, two turns of seven days of seconds

    offset  size  field of a slot
    0       8     tick: the time in units of the precision; a slot with another tick than the one sought is empty
    8       8     where the first unit of the chain is in the timer log
    16      8     where the last one is; each leads to the one before it
    24      4     messages put into the slot, less those recalled; not lowered when they fire
    28      4     unused

The number of slots does not depend on the precision. The file is sparse and written by pwrite, so that a wheel nobody uses
takes no room. What a killed process wrote is there; after a power cut the timer log tells what is missing (`timer_store.py`).

Java: TimerWheel, Slot
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.errors import StoreCorrupt

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from orbitmq.storage.files import Disk
    from orbitmq.storage.open_files import PlainFile

SLOTS: Final = 2 * 7 * 86_400
NOWHERE: Final = -1

_SLOT: Final = struct.Struct(
    ">q"  # tick
    "q"  # first
    "q"  # last
    "i"  # messages
    "i"  # unused
)
WHEEL_BYTES: Final = SLOTS * _SLOT.size
_SLOTS_PER_READ: Final = 4096
_EMPTY: Final = bytes(_SLOT.size * _SLOTS_PER_READ)


class Slot(NamedTuple):
    tick: int
    first: int = NOWHERE
    last: int = NOWHERE
    messages: int = 0


class TimerWheel:
    def __init__(self, disk: Disk, path: Path) -> None:
        found = disk.stat(path)
        self.is_new = found is None or found.size == 0
        if found is not None and found.size not in (0, WHEEL_BYTES):
            raise StoreCorrupt(
                f"{path} has {found.size} bytes where {WHEEL_BYTES} are needed",
                hint="it belongs to another kind of store; move it away, and the timer log rebuilds it",
            )
        if found is None:
            self._file: PlainFile = disk.create_sparse(path, WHEEL_BYTES)
            disk.sync_directory(path.parent)
        else:
            self._file = disk.open(path, writable=True)
            if self.is_new:
                self._file.truncate(WHEEL_BYTES)

    def slot(self, tick: int) -> Slot:
        """Of a tick nothing was put for, an empty one."""
        data = self._file.pread(_SLOT.size, tick % SLOTS * _SLOT.size)
        found, first, last, messages, _ = _SLOT.unpack(data)
        return Slot(found, first, last, messages) if found == tick else Slot(tick)

    def put(self, slot: Slot) -> None:
        self._file.pwrite(_SLOT.pack(*slot, 0), slot.tick % SLOTS * _SLOT.size)

    def used(self, start: int, stop: int) -> Iterator[Slot]:
        """Slots of the ticks from `start` to before `stop` that something was put into, in the order of time."""
        stop = min(stop, start + SLOTS)
        while start < stop:
            at = start % SLOTS
            count = min(stop - start, SLOTS - at, _SLOTS_PER_READ)
            data = self._file.pread(count * _SLOT.size, at * _SLOT.size)
            if data != _EMPTY[: len(data)]:
                for tick, (found, first, last, messages, _) in enumerate(_SLOT.iter_unpack(data), start):
                    if found == tick:
                        yield Slot(tick, first, last, messages)
            start += count

    def clear(self, tick: int) -> None:
        self._file.pwrite(_EMPTY[: _SLOT.size], tick % SLOTS * _SLOT.size)

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()
