"""Walking the commit log from record to record, also over damage, without an index and without changing anything.

Bytes that are no record are damage if a record that names its own offset follows them in the same file; if none does, they are
the unwritten rest of the file. Either way the walk goes on behind them, in the next file if need be. What a producer put into a body may
look like a record, too: bodies of records that are not whole are looked into only where nothing says how far they reach.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.errors import MessageError
from orbitmq.message.record import END_OF_FILE, MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC
from orbitmq.message.record_check import check_record, size_by_parts, valid_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from orbitmq.storage.segmented_log import Segment

_LONG: Final = struct.Struct(">q")
_OWN_OFFSET_AT: Final = 28
_MAGIC_AT: Final = 4
_MAGICS: Final = tuple(struct.pack(">i", magic) for magic in (MAGIC_V1, MAGIC_V2))
_RUN_RECORDS: Final = 4096
_WINDOW_BYTES: Final = 1 << 20
_ZEROES: Final = bytes(_WINDOW_BYTES)
_ZERO_WINDOWS: Final = 16  # behind so many zeroes nothing was ever written


class LogRecord(NamedTuple):
    segment: Segment
    offset: int
    size: int

    @property
    def data(self) -> memoryview:
        position = self.offset - self.segment.start
        return self.segment.memory[position : position + self.size]


class NoRecord(NamedTuple):
    """Bytes [start, end) of one file that are no records."""

    segment: Segment
    start: int
    end: int
    reason: str

    @property
    def is_rest_of_file(self) -> bool:
        """Nothing follows in this file: it was written to here, or all behind is lost."""
        return self.end == self.segment.end

    def is_blank(self) -> bool:
        """All zeroes: never written."""
        memory, position = self.segment.memory, self.start - self.segment.start
        end = self.end - self.segment.start
        return all(
            bytes(memory[at : min(at + _WINDOW_BYTES, end)]) == _ZEROES[: min(_WINDOW_BYTES, end - at)]
            for at in range(position, end, _WINDOW_BYTES)
        )


class Run(NamedTuple):
    """Records of one file, one behind the other."""

    segment: Segment
    positions: list[int]  # where in the file each begins
    end: int  # where the last one ends, as an offset of the log


class EndOfFile(NamedTuple):
    """The blank record that closes a file."""

    segment: Segment


def walk(
    segments: Iterable[Segment], start: int = 0, *, check_crc: bool = True, property_crc: bool = False
) -> Iterator[LogRecord | NoRecord]:
    """Everything from offset `start` on, which must be where a record begins, or the start of a file."""
    for found in walk_runs(segments, start, check_crc=check_crc, property_crc=property_crc):
        if isinstance(found, Run):
            segment, positions, end = found
            ends = (*positions[1:], end - segment.start)
            for position, record_end in zip(positions, ends, strict=True):
                yield LogRecord(segment, segment.start + position, record_end - position)
        elif isinstance(found, NoRecord):
            yield found


def walk_runs(
    segments: Iterable[Segment], start: int = 0, *, check_crc: bool = True, property_crc: bool = False
) -> Iterator[Run | NoRecord | EndOfFile]:
    """The same with many records at a time, which is what makes a restart quick."""
    for segment in segments:
        if segment.end <= start:
            continue
        memory, length = segment.memory, len(segment.memory)
        position = max(0, start - segment.start)
        whole = 0  # where the first one is that follows what is broken; known once for all of that
        while position < length:
            if not (check_crc and property_crc):
                positions, end = valid_run(memory, position, length, _RUN_RECORDS, check_crc=check_crc)
                if positions:
                    yield Run(segment, positions, segment.start + end)
                    position = end
                    continue
            try:
                size = check_record(memory, position, length, check_crc=check_crc, property_crc=property_crc)
            except MessageError as error:
                resumed = behind_broken(segment, position)
                if resumed < length and _is_whole(segment, position, check_crc, property_crc):
                    continue  # a broker that runs stored it meanwhile, and what was found behind it
                whole = max(whole, resumed)
                while whole < length and not _is_whole(segment, whole, check_crc, property_crc):
                    whole = behind_broken(segment, whole)
                if whole == length:
                    resumed = length  # nothing is damaged: it was being written
                yield NoRecord(segment, segment.start + position, segment.start + resumed, error.message)
                position = resumed
                continue
            if size == END_OF_FILE:
                yield EndOfFile(segment)
                break
            yield Run(segment, [position], segment.start + position + size)
            position += size


def _is_whole(segment: Segment, position: int, check_crc: bool, property_crc: bool) -> bool:
    memory = segment.memory
    try:
        check_record(memory, position, len(memory), check_crc=check_crc, property_crc=property_crc)
    except MessageError:
        return False
    return True


def behind_broken(segment: Segment, position: int, come: int | None = None) -> int:
    """Where the walk goes on, with a record at `position` that is not whole; the file's length if nothing follows.

    `come`: what lies from there on has not come yet, so nothing is known of it.
    """
    memory, length = segment.memory, len(segment.memory)
    if not _names_its_place(segment, position):
        return next_record(segment, position + 1)
    ends = _told_ends(segment, position)
    if ends and come is not None and come < ends[0] + _OWN_OFFSET_AT + _LONG.size:
        return length
    for end in ends:
        if _is_blank(segment, end) or _names_its_place(segment, end):
            return end
        head = bytes(memory[end : end + _OWN_OFFSET_AT])
        if end == ends[0] and head == _ZEROES[: len(head)]:
            return next_record(segment, end)  # it was the last one, or the start of the next is lost as well
    if SIZE_AND_MAGIC.unpack_from(memory, position)[0] == 0:
        return length  # as far as anybody can tell, it was being stored
    return next_record(segment, position + 1)


def _told_ends(segment: Segment, position: int) -> list[int]:
    """Where the record ends that names its place, by all that it says of itself; the surest first.

    Size and magic are stored last. Who was killed may have stored any part of them, and damage may hit them alone: where the magic
    is not right, the lengths of the parts, which are the broker's word as well, tell more than the size does.
    """
    memory, length = segment.memory, len(segment.memory)
    size: int
    size, magic = SIZE_AND_MAGIC.unpack_from(memory, position)
    by_parts = size_by_parts(memory, position, length)
    told = [size, by_parts] if magic in (MAGIC_V1, MAGIC_V2) else [by_parts, size]
    return [position + told_size for told_size in told if told_size is not None and 0 < told_size <= length - position]


def _names_its_place(segment: Segment, position: int) -> bool:
    """Whether what stands there says of itself that it begins there."""
    at = position + _OWN_OFFSET_AT
    if at + _LONG.size > len(segment.memory):
        return False
    own_offset: int = _LONG.unpack_from(segment.memory, at)[0]
    return own_offset == segment.start + position


def _is_blank(segment: Segment, position: int) -> bool:
    try:
        return check_record(segment.memory, position, len(segment.memory), check_crc=False) == END_OF_FILE
    except MessageError:
        return False


def next_record(segment: Segment, position: int) -> int:
    """Where, from `position` on, a whole record begins that says itself that it belongs there; else the file's length."""
    memory, length = segment.memory, len(segment.memory)
    zero_windows = 0
    for at in range(position, length, _WINDOW_BYTES):
        window = bytes(memory[at : at + _WINDOW_BYTES])
        if window == _ZEROES[: len(window)]:
            zero_windows += 1
            if zero_windows == _ZERO_WINDOWS:
                break
            continue
        zero_windows = 0
        window += bytes(memory[at + _WINDOW_BYTES : at + _WINDOW_BYTES + _MAGIC_AT + 3])
        for found in sorted(_magics_in(window)):
            candidate = at + found - _MAGIC_AT
            if candidate >= position and is_record(segment, candidate):
                return candidate
    return length


def is_record(segment: Segment, position: int) -> bool:
    """Whether a whole record with the right CRC and the right offset begins there."""
    try:
        size = check_record(segment.memory, position, len(segment.memory))
    except MessageError:
        return False
    own_offset: int = _LONG.unpack_from(segment.memory, position + _OWN_OFFSET_AT)[0]
    return size != END_OF_FILE and own_offset == segment.start + position


def _magics_in(window: bytes) -> Iterator[int]:
    for magic in _MAGICS:
        found = window.find(magic)
        while found >= 0:
            yield found
            found = window.find(magic, found + 1)
