"""One queue of a topic with `queue.type=BatchCQ`: an entry leads to a record that may hold many messages.

    offset  size  field
    0       8     commit-log offset
    8       4     record size
    12      8     tag hash; 0 for an inner batch
    20      8     stored at, ms
    28      8     queue offset of the record's first message
    36      2     messages in the record
    38      4     compacted offset, -1
    42      4     reserved, 0

Entries are found by bisection over the queue offset, not by position. A read that starts inside a batch gets its record.

Java: BatchConsumeQueue
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.storage.entry_log import NOWHERE_SIZE, EntryLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from orbitmq.storage.entry_log import EntryFiles

ENTRY: Final = struct.Struct(
    ">q"  # offset in the commit log
    "i"  # record size
    "q"  # tag hash
    "q"  # stored at
    "q"  # queue offset of the first message
    "h"  # messages in the record
    "i"  # compacted offset
    "i"  # reserved
)
ENTRY_BYTES: Final = ENTRY.size
_NOT_COMPACTED: Final = -1
_MOST_MESSAGES: Final = 0x7FFF  # that one entry can speak of


class BatchEntry(NamedTuple):
    physical: int
    size: int
    tags_code: int
    stored_at_ms: int
    base: int
    messages: int


class BatchQueueIndex:
    """Guarded like QueueIndex, and with the same face where the two are used alike."""

    __slots__ = (
        "_kept_to", "_make_room", "begun_again", "log", "max_physical", "min_offset", "next_offset", "queue_id", "topic"
    )  # fmt: skip

    def __init__(
        self, topic: str, queue_id: int, files: EntryFiles, make_room: Callable[[BatchQueueIndex, int], None]
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.log = EntryLog(files, ENTRY_BYTES)
        self.min_offset = 0
        self.next_offset = 0
        self.max_physical = -1
        self.begun_again = 0
        self._kept_to = 0  # by entries that were cut off, and are to be there again once the queue is trusted
        self._make_room = make_room

    def put(self, base: int, physical: int, size: int, tags_code: int, stored_at_ms: int, count: int) -> bool:
        """Add a record of `count` messages. False if it is there already."""
        if physical + size <= self.max_physical:
            return False
        if base < self.next_offset:
            if self._next_real(self._number_of(base)) == self.log.next:
                return False  # that number is kept for what is lost
            self._make_room(self, base)
        if self.log.next == self.log.first:
            self.min_offset = base
        self.log.tail += ENTRY.pack(physical, size, tags_code, stored_at_ms, base, count, _NOT_COMPACTED, 0)
        self.max_physical = physical + size
        self.next_offset = base + count
        return True

    def entries_from(self, offset: int, count: int) -> list[BatchEntry]:
        """Up to `count` entries, the first one that which holds message `offset`."""
        data = self.log.read(self._number_of(offset), count)
        return [BatchEntry(*fields[:6]) for fields in ENTRY.iter_unpack(data)]

    def offsets_from(self, physical: int) -> Iterator[list[int]]:
        """The log offsets that entries lead to, from `physical` on, some at a time."""
        entries = map(self._entry, range(self._first_behind(physical), self.log.next))
        if found := [entry.physical for entry in entries if entry.size != NOWHERE_SIZE]:
            yield found

    def last_record(self) -> tuple[int, int] | None:
        """Commit-log offset and size of the record the last entry leads to; None if it leads nowhere."""
        if self.log.next == self.log.first:
            return None
        last = self._entry(self.log.next - 1)
        return None if last.size == NOWHERE_SIZE else (last.physical, last.size)

    def drop_last(self) -> None:
        self.log.cut(self.log.next - 1)
        self._find_ends()

    def cut_back(self, base: int) -> None:
        """Make `base` the next number, whatever has it now."""
        self.log.cut(self._number_of(base))
        self._find_ends()
        self.begun_again += 1

    def keep_numbers_to(self, offset: int) -> None:
        """Give out no number below `offset` again, though the messages that had them are lost: entries that lead nowhere have them."""
        if offset <= self.next_offset:
            return
        stored_at_ms = 0
        if self.log.next > self.log.first:
            stored_at_ms = self._entry(self.log.next - 1).stored_at_ms
        else:
            self.next_offset = offset - 1  # nothing is here yet: one number is enough
        while self.next_offset < offset:
            count = min(offset - self.next_offset, _MOST_MESSAGES)
            self.log.tail += ENTRY.pack(0, NOWHERE_SIZE, 0, stored_at_ms, self.next_offset, count, _NOT_COMPACTED, 0)
            self.next_offset += count

    def lead_nowhere(self, start: int, end: int) -> None:
        """Let the entries of records in [start, end) of the log lead to no byte at all: size 0x7FFFFFFF at offset 0."""
        for number in range(self._first_behind(start), self.log.next):
            entry = self._entry(number)
            if entry.physical >= end:
                break
            nowhere = ENTRY.pack(0, NOWHERE_SIZE, 0, entry.stored_at_ms, entry.base, entry.messages, _NOT_COMPACTED, 0)
            self.log.overwrite(number, nowhere)

    def base_of(self, number: int) -> int:
        """The queue offset of the first message of an entry; behind the last entry, the next offset."""
        return self._entry(number).base if number < self.log.next else self.next_offset

    def load(self, *, trust: bool) -> None:
        self.log.load(valid_entries, trust=trust)
        self._find_ends()

    def distrust_from(self, physical: int) -> None:
        """As QueueIndex; here all that a power cut may have damaged is entered anew."""
        if self.log.next > self.log.first and self.last_record() is None:
            self._kept_to = self.next_offset
        self.log.cut(self.log.first_leading_to(physical))
        self._find_ends()

    def trust(self) -> bool:
        """As QueueIndex. What was cut off is there again, but for numbers that no record tells."""
        kept_to, self._kept_to = self._kept_to, 0
        is_more = kept_to > self.next_offset
        self.keep_numbers_to(kept_to)
        return is_more

    def truncate(self, physical: int) -> None:
        if self.max_physical > physical:
            self.log.cut(self._first_behind(physical))
            self._find_ends()

    def correct_min(self, log_start: int) -> None:
        self.min_offset = self.base_of(self._next_real(self._first_behind(log_start)))

    def delete_below(self, log_start: int) -> int:
        self.correct_min(log_start)
        return self.log.drop_files_below(self._next_real(self._first_behind(log_start)))

    def search(self, before: Callable[[BatchEntry], bool]) -> int:
        """The number of the first entry for which `before` is false; entries must be sorted by it."""
        low, high = self.log.first, self.log.next
        while low < high:
            middle = (low + high) // 2
            if before(self._entry(middle)):
                low = middle + 1
            else:
                high = middle
        return low

    def _first_behind(self, physical: int) -> int:
        """The number of the first entry that leads to log offset `physical` or further.

        Entries that lead nowhere stand for the next one that leads somewhere.
        """
        low, high = self.log.first, self.log.next
        while low < high:
            middle = (low + high) // 2
            probe = self._next_real(middle)
            if probe < high and self._entry(probe).physical < physical:
                low = probe + 1
            else:
                high = middle
        return low

    def _next_real(self, number: int) -> int:
        """The first entry from `number` on that leads somewhere; behind the last one if there is none."""
        while number < self.log.next and self._entry(number).size == NOWHERE_SIZE:
            number += 1
        return number

    def _number_of(self, offset: int) -> int:
        """The number of the entry that holds message `offset`, or of the next one."""
        return self.search(lambda entry: entry.base + entry.messages <= offset)

    def _entry(self, number: int) -> BatchEntry:
        return BatchEntry(*ENTRY.unpack(self.log.read(number, 1))[:6])

    def _find_ends(self) -> None:
        self.max_physical = -1
        if self.log.next > self.log.first:
            last = self._entry(self.log.next - 1)
            self.next_offset = last.base + last.messages
            self.min_offset = self._entry(self.log.first).base
            for number in range(self.log.next - 1, self.log.first - 1, -1):
                entry = self._entry(number)
                if entry.size != NOWHERE_SIZE:
                    self.max_physical = entry.physical + entry.size
                    break
        else:
            self.next_offset = self.min_offset = 0


def valid_entries(data: bytes) -> int:
    """How many entries at the start of `data` are written ones."""
    count = 0
    for physical, size, _, _, base, messages, _, _ in ENTRY.iter_unpack(data[: len(data) // ENTRY_BYTES * ENTRY_BYTES]):
        if physical < 0 or size <= 0 or base < 0 or messages <= 0:
            break
        count += 1
    return count
