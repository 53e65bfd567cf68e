"""The timer log: one unit for each message on the wheel, chained slot by slot, never changed once written.

    <root>/timerlog/<20 digits>    files of 100 MiB

    offset  size  field of a unit
    0       4     52
    4       8     where the unit before it in the same slot is; -1: there is none
    12      4     kind: 1, | 2 to be put on the wheel again when it fires, | 4 a recall
    16      8     when it was put on the wheel, ms, cut to the precision
    24      4     ms from then to when it fires
    28      8     the message's offset in the commit log
    36      4     the size of its record
    40      4     Java's hash of the topic it is for
    44      8     0

    at the end of a file that has no room for a unit and this: i32 bytes left, i64 0, i32 0xCBD43194

Java: TimerLog
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.storage.segmented_log import SegmentedLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from orbitmq.storage.files import Disk
    from orbitmq.storage.segmented_log import Segment

PLAIN: Final = 1
ROLL: Final = 2
RECALL: Final = 4
_ALL_KINDS: Final = 0xF

_UNIT: Final = struct.Struct(
    ">i"  # size of the unit
    "q"  # previous
    "i"  # kind
    "q"  # put on the wheel at, ms
    "i"  # fires after, ms
    "q"  # commit log offset
    "i"  # record size
    "i"  # topic hash
    "q"  # 0
)
UNIT_BYTES: Final = _UNIT.size
_BLANK: Final = struct.Struct(">iqI")
_BLANK_MAGIC: Final = 0xCBD43194
_KIND: Final = struct.Struct(">I")
_KIND_AT: Final = 12
_PAGE: Final = bytes(4096)


class TimerUnit(NamedTuple):
    previous: int
    kind: int
    put_at_ms: int
    delay_ms: int
    commit_log_offset: int
    size: int
    topic_hash: int

    @property
    def fires_ms(self) -> int:
        return self.put_at_ms + self.delay_ms


class TimerLog:
    """`delete_below` may come from the cleaning thread; all else belongs to the owner's."""

    def __init__(self, disk: Disk, directory: Path, file_bytes: int) -> None:
        self.files = SegmentedLog(disk, directory, file_bytes)
        self.end = 0  # until `recover` has found it

    @property
    def start(self) -> int:
        return self.files.start

    def append(self, unit: TimerUnit) -> int:
        """Where it is now."""
        segment = self.room() or self._begin_file()
        at = self.end
        _UNIT.pack_into(segment.memory, at - segment.start, UNIT_BYTES, *unit, 0)
        self.end = at + UNIT_BYTES
        return at

    def _begin_file(self) -> Segment:
        last, following = self.files.last, self.files.roll()
        if last is not None:
            _BLANK.pack_into(last.memory, self.end - last.start, last.end - self.end, 0, _BLANK_MAGIC)
        self.end = following.start
        return following

    def room(self) -> Segment | None:
        """The file that the next unit goes to; None if there is no room in it, and `append` has to begin another."""
        last = self.files.last
        return last if last is not None and last.end - self.end >= UNIT_BYTES + _BLANK.size else None

    def unit(self, position: int) -> TimerUnit | None:
        """None if there is none: its file was deleted with the messages it spoke of."""
        segment = self.files.segment_of(position)
        if segment is None or not self.files.start <= position < self.end:
            return None
        size, previous, kind, put_at_ms, delay_ms, offset, record_size, topic_hash, _ = _UNIT.unpack_from(
            segment.memory, position - segment.start
        )
        return (
            TimerUnit(previous, kind, put_at_ms, delay_ms, offset, record_size, topic_hash)
            if size == UNIT_BYTES
            else None
        )

    def units_from(self, position: int) -> Iterator[tuple[int, TimerUnit]]:
        """All from the file that holds `position` on, with where they are; ends at what is no unit."""
        for segment in self.files.segments:
            if segment.end <= position:
                continue
            for at in range(0, len(segment.memory) - UNIT_BYTES + 1, UNIT_BYTES):
                (magic,) = _KIND.unpack_from(segment.memory, at + _KIND_AT)
                if magic == _BLANK_MAGIC:
                    break
                size, *fields, _ = _UNIT.unpack_from(segment.memory, at)
                if size != UNIT_BYTES or magic > _ALL_KINDS:
                    return
                yield segment.start + at, TimerUnit(*fields)

    def recover(self, trusted_to: int, is_sound: Callable[[TimerUnit], bool], *, power_cut: bool) -> None:
        """Find the end. Behind `trusted_to` each unit must be sound as well: a power cut may have torn it."""
        end = self.files.start
        for at, unit in self.units_from(trusted_to - self.files.segment_bytes):
            if at >= trusted_to and not is_sound(unit):
                break
            end = at + UNIT_BYTES
        self.files.truncate(end)
        last = self.files.last
        self.end = end if last is not None else 0
        if power_cut and last is not None:
            # Pages reach the disk in any order, and whatever looks like a unit is taken for one later.
            for at in range(end - last.start, len(last.memory), len(_PAGE)):
                page = last.memory[at : at + len(_PAGE)]
                if page != _PAGE[: len(page)]:
                    page[:] = _PAGE[: len(page)]

    def sync(self, start: int, end: int) -> None:
        self.files.sync(start, end)

    def delete_below(self, log_start: int) -> int:
        """Remove leading files whose last unit speaks of a message that is not in the commit log any more."""
        removed = 0
        while len(self.files.segments) > 1:
            segment = self.files.segments[0]
            room = len(segment.memory) - _BLANK.size
            unit = _UNIT.unpack_from(segment.memory, room // UNIT_BYTES * UNIT_BYTES - UNIT_BYTES)
            if unit[5] >= log_start or self.files.delete_oldest() is None:
                break
            removed += 1
        return removed

    def close(self) -> None:
        self.files.close(written_to=self.end)
