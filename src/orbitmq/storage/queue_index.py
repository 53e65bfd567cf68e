"""One queue: its entries say where in the commit log each of its messages is.

    offset  size  field
    0       8     commit-log offset
    8       4     record size
    12      8     tag hash; delivery time of a delayed message; or an address in the queue's extension

Message q of the queue is entry q: a queue offset needs no search. Where messages are missing (a queue that begins late because
its older ones expired, a log that lost a file) stand entries that lead nowhere, so that the others keep their numbers.

The log decides. Where a later record has a number that is taken, the topic was deleted and made again: the queue ended at that number
when the record was written, so what has it, and what comes behind, gives way. Java's queue takes such records for known ones.

Java: ConsumeQueue
"""

from __future__ import annotations

import re
import struct
from itertools import starmap
from typing import TYPE_CHECKING, Final

from orbitmq.storage.entry_log import NOWHERE_SIZE, EntryLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from orbitmq.storage.entry_log import EntryFiles

ENTRY: Final = struct.Struct(
    ">q"  # offset in the commit log
    "i"  # record size
    "q"  # tag hash, or delivery time for delayed messages
)
ENTRY_BYTES: Final = ENTRY.size
NOWHERE: Final = ENTRY.pack(0, NOWHERE_SIZE, 0)  # an entry without a message

_NO_ENTRY: Final = (0, 0, 0)
_NEGATIVE: Final = re.compile(rb"[\x80-\xff]")
_MANY_ENTRIES: Final = 4096
_SOME_ENTRIES: Final = 128  # held for each of ten thousand queues while they are walked along the log
_SOME_OFFSETS: Final = struct.Struct(">" + "q12x" * _SOME_ENTRIES)  # of so many entries the first field alone


class QueueIndex:
    """Not thread-safe by itself: `QueueTable` guards all queues with one lock, taken once for many entries."""

    __slots__ = (
        "_make_room", "_min_physical", "begun_again", "is_distrusted", "log", "max_physical", "min_offset", "queue_id", "topic",
    )  # fmt: skip

    def __init__(
        self, topic: str, queue_id: int, files: EntryFiles, make_room: Callable[[QueueIndex, int], None]
    ) -> None:
        """`make_room` is to `cut_back` the queue to a number, while nobody writes its files."""
        self.topic = topic
        self.queue_id = queue_id
        self.log = EntryLog(files, ENTRY_BYTES)
        self.min_offset = 0
        self.max_physical = -1  # end of the newest record that has an entry
        self._min_physical = -1  # the log offset that entry `min_offset` leads to; -1 if nobody looked
        self.is_distrusted = False  # while recovery holds the entries against their records
        self.begun_again = 0  # how often, since it was opened
        self._make_room = make_room

    @property
    def next_offset(self) -> int:
        """The number the next message gets. (Java: getMaxOffsetInQueue)"""
        return self.log.next

    def put(self, queue_offset: int, physical: int, size: int, tags_code: int) -> bool:
        """Add an entry. False if it is there already: indexing the same record again changes nothing."""
        log = self.log
        entry = ENTRY.pack(physical, size, tags_code)
        expected = log.written + len(log.tail) // ENTRY_BYTES
        if physical + size <= self.max_physical and not self.is_distrusted:
            return False
        if queue_offset < expected:
            if self.is_distrusted and log.read(queue_offset, 1) == entry:
                return False
            if not self._gives_way(queue_offset, physical):
                if self.is_distrusted and queue_offset >= log.first:
                    log.overwrite(queue_offset, entry)
                return False
            self._make_room(self, queue_offset)
        elif queue_offset > expected:
            self._skip_to(queue_offset)
        log.tail += entry
        self.max_physical = physical + size
        return True

    def put_run(self, queue_offset: int, places: list[tuple[int, int, int]]) -> None:
        """`put` for messages that follow each other: commit-log offset, size and tag hash of each."""
        log = self.log
        tail = log.tail
        if places[0][0] >= self.max_physical and queue_offset == log.written + len(tail) // ENTRY_BYTES:
            physical, size, tags_code = places[-1]
            tail += ENTRY.pack(physical, size, tags_code) if len(places) == 1 else b"".join(starmap(ENTRY.pack, places))
            self.max_physical = physical + size
        else:
            for number, (physical, size, tags_code) in enumerate(places, queue_offset):
                self.put(number, physical, size, tags_code)

    def put_packed(self, queue_offset: int, packed: bytearray, start: int, end: int) -> None:
        """`put_run` for entries as the file holds them; their records lie in the log from `start` to `end`."""
        log = self.log
        if start >= self.max_physical and queue_offset == log.written + len(log.tail) // ENTRY_BYTES:
            log.tail += packed
            self.max_physical = end
        else:
            self.put_run(queue_offset, list(ENTRY.iter_unpack(packed)))

    def entries(self, offset: int, count: int) -> bytes:
        """Up to `count` entries from `offset`, all of one file; nothing where the queue has none."""
        return self.log.read(offset, count)

    def entry(self, offset: int) -> tuple[int, int, int]:
        """Commit-log offset, size and tag hash; size 0 where there is no entry."""
        data = self.log.read(offset, 1)
        return ENTRY.unpack(data) if len(data) == ENTRY_BYTES else _NO_ENTRY

    def next_file_offset(self, offset: int) -> int:
        """The first number of the file after the one that would hold `offset`."""
        return offset - offset % self.log.per_file + self.log.per_file

    def offsets_from(self, physical: int) -> Iterator[list[int]]:
        """The log offsets that entries lead to, from `physical` on, some at a time."""
        # Whoever asks looks at the end of the log: the last entries, which lead there, are looked at before older ones.
        number = max(self.log.first, self.next_offset - _SOME_ENTRIES)
        data = self.log.read(number, _SOME_ENTRIES)
        if number > self.log.first and (not data or ENTRY.unpack_from(data)[0] >= physical or NOWHERE in data):
            number = self.search(lambda offset, _size: offset < physical)
            data = self.log.read(number, _SOME_ENTRIES)
        while number < self.next_offset:
            if len(data) == _SOME_OFFSETS.size and NOWHERE not in data:
                yield list(_SOME_OFFSETS.unpack(data))
            elif found := [offset for offset, size, _ in ENTRY.iter_unpack(data) if size != NOWHERE_SIZE]:
                yield found
            number = number + len(data) // ENTRY_BYTES if data else self.next_file_offset(number)
            data = self.log.read(number, _SOME_ENTRIES) if number < self.next_offset else b""

    def last_record(self) -> tuple[int, int] | None:
        """Commit-log offset and size of the record the last entry leads to; None if it leads nowhere."""
        if self.next_offset == self.log.first:
            return None
        physical, size, _ = self.entry(self.next_offset - 1)
        return None if size == NOWHERE_SIZE else (physical, size)

    def drop_last(self) -> None:
        self.log.cut(self.next_offset - 1)
        self._min_physical = -1
        self._find_max_physical()

    def cut_back(self, number: int) -> None:
        """Make `number` the next one, whatever has it now."""
        log = self.log
        log.cut(max(number, log.first))
        if number < log.first:
            self._skip_to(number)
        self.min_offset = min(self.min_offset, number)
        self._min_physical = -1
        self._find_max_physical()
        self.begun_again += 1

    def keep_numbers_to(self, offset: int) -> None:
        """Give out no number below `offset` again, though the messages that had them are lost."""
        if offset > self.next_offset:
            self._skip_to(offset)

    def lead_nowhere(self, start: int, end: int) -> None:
        """Blank the entries of records in [start, end) of the log: those bytes are damaged."""
        offset = self._next_real(self.search(lambda physical, _size: physical < start))
        self._min_physical = -1
        while offset < self.next_offset and self.entry(offset)[0] < end:
            self.log.overwrite(offset, NOWHERE)
            offset = self._next_real(offset + 1)

    def load(self, *, trust: bool) -> None:
        """Find the last entry on disk; `trust` after a clean stop."""
        entries = self.log.load(valid_entries, trust=trust)
        self.min_offset = self.log.first
        if entries and NOWHERE not in (entries[:ENTRY_BYTES], entries[-ENTRY_BYTES:]):
            self._min_physical, _, _ = ENTRY.unpack_from(entries)
            physical, size, _ = ENTRY.unpack_from(entries, len(entries) - ENTRY_BYTES)
            self.max_physical = physical + size
        else:
            self._find_max_physical()

    def distrust_from(self, physical: int) -> None:
        """A power cut keeps any page of what was not synced: an entry on two of them may be half there.

        Until `trust`, what is put again mends the entry that stands there.
        """
        self.is_distrusted = True

    def trust(self) -> bool:
        """Whether there are entries by that which are to be written."""
        if self.is_distrusted:
            self.is_distrusted = False
            self._find_max_physical()
        return False

    def _gives_way(self, number: int, physical: int) -> bool:
        """Whether entries from `number` on lead to before log offset `physical`. Those alone do not count that lead nowhere: damaged
        records keep their numbers. Nor does what stands at `number` itself where a power cut may have damaged it."""
        found = self._next_real(max(number + self.is_distrusted, self.log.first))
        return found < self.next_offset and self.entry(found)[0] < physical

    def truncate(self, physical: int) -> None:
        """Forget entries whose record begins at or after `physical`: the log was cut there."""
        if self.is_distrusted:
            keep = self.log.first_leading_to(physical)
            if keep == self.next_offset:
                return  # numbers at the end that are kept for damaged records are kept
        elif self.max_physical <= physical:
            return
        else:
            keep = self.search(lambda offset, _size: offset < physical)
        while keep > self.log.first and self.entry(keep - 1)[1] == NOWHERE_SIZE:
            keep -= 1
        self.log.cut(keep)
        self.min_offset = min(self.min_offset, keep)
        self._min_physical = -1
        self._find_max_physical()

    def correct_min(self, log_start: int) -> None:
        """Find the first entry whose record still exists; all gone leaves the minimum at the next number."""
        if self._min_physical >= log_start:
            return  # it was the first that leads somewhere, and nothing has expired since
        first = self.log.first
        if self.next_offset > first:
            low = max(self.min_offset, first)
            self.min_offset = self._next_real(self.search(lambda offset, _size: offset < log_start, low))
            self._min_physical = self.entry(self.min_offset)[0] if self.min_offset < self.next_offset else -1

    def delete_below(self, log_start: int) -> int:
        """Remove leading files that lead to nothing at or after `log_start`, never the last; how many went."""
        self.correct_min(log_start)
        return self.log.drop_files_below(self.min_offset)

    def search(self, before: Callable[[int, int], bool], low: int | None = None) -> int:
        """The first number for whose entry `before(physical, size)` is false; entries must be sorted by it.

        Entries that lead nowhere stand for the next one that leads somewhere.
        """
        low, high = self.log.first if low is None else low, self.next_offset
        while low < high:
            middle = (low + high) // 2
            probe = self._next_real(middle)
            if probe >= high:
                high = middle
                continue
            physical, size, _ = self.entry(probe)
            if before(physical, size):
                low = probe + 1
            else:
                high = middle
        return low

    def _next_real(self, offset: int) -> int:
        """The first entry from `offset` on that leads somewhere; the next number if there is none."""
        end = self.next_offset
        while offset < end:
            data = self.log.read(offset, 1)
            if data != NOWHERE:
                return offset if data else self._next_real(self.next_file_offset(offset))
            run = self.log.read(offset, _MANY_ENTRIES)
            count = len(run) // ENTRY_BYTES
            if run == NOWHERE * count:
                offset += count
            else:
                offset += next(i for i in range(count) if run[i * ENTRY_BYTES : (i + 1) * ENTRY_BYTES] != NOWHERE)
        return end

    def _skip_to(self, queue_offset: int) -> None:
        """Make `queue_offset` the next number: what would stand between leads nowhere."""
        log = self.log
        expected = log.next
        first_in_file = queue_offset - queue_offset % log.per_file
        if expected == log.first:
            # Nothing is here yet: the queue begins now, in the middle of a file.
            for start in log.files.starts:
                log.files.drop(start)
            self.min_offset = queue_offset
            self._min_physical = -1
        elif first_in_file <= expected:
            log.tail += NOWHERE * (queue_offset - expected)
            return
        else:
            # Whole files are missing in between. Finish the one begun, go on in the one that has the number.
            log.tail += NOWHERE * (-expected % log.per_file)
            log.files.write(log.written * ENTRY_BYTES, bytes(log.tail))
        log.written = first_in_file
        log.tail = bytearray(NOWHERE * (queue_offset - first_in_file))

    def _find_max_physical(self) -> None:
        self.max_physical = -1
        for number in range(self.next_offset - 1, self.log.first - 1, -1):
            physical, size, _ = self.entry(number)
            if size != NOWHERE_SIZE:
                self.max_physical = physical + size
                break


class QueueRun:
    """Messages that follow each other in a queue, gathered to be entered at once."""

    __slots__ = ("next", "places", "queue")

    def __init__(self, queue: QueueIndex, queue_offset: int) -> None:
        self.queue = queue
        self.next = queue_offset  # what the next message must have to belong here
        self.places: list[tuple[int, int, int]] = []  # commit-log offset, size, tag hash

    def enter(self) -> None:
        if self.places:
            self.queue.put_run(self.next - len(self.places), self.places)
            self.places = []


def valid_entries(data: bytes) -> int:
    """How many entries at the start of `data` are written ones: offset not negative, size positive.

    Looks at one byte of all entries at a time, which keeps the loop in C.
    """
    count = len(data) // ENTRY_BYTES
    end = count * ENTRY_BYTES
    size_columns = [data[8 + byte : end : ENTRY_BYTES] for byte in range(4)]
    any_bit = 0
    for column in size_columns:
        any_bit |= int.from_bytes(column, "big")
    empty = any_bit.to_bytes(count, "big").find(0)
    valid = count if empty < 0 else empty
    for sign_column in (size_columns[0], data[0:end:ENTRY_BYTES]):
        negative = _NEGATIVE.search(sign_column, 0, valid)
        if negative:
            valid = negative.start()
    return valid
