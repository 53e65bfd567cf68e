"""One file of the key index: a hash table with chains, byte for byte Java's.

    offset     size      field
    0          8         begin: store time of the first entry, ms
    8          8         end: store time of the last entry
    16         8         commit-log offset of the first entry's record
    24         8         commit-log offset of the last entry's record
    32         4         slots in use
    36         4         number of the next entry; the first entry is number 1
    40         4 * S     slots: number of the newest entry of the chain, 0 for none
    40 + 4*S   20 * N    entries, entry n at + 20*n: key hash i32, record offset i64, seconds since begin i32,
                         number of the next older entry of the chain i32 (0 ends it)

The file has its full length (420 MB by default) from birth but not its blocks: header and slots are reserved at once,
since hashing touches them all, entries a megabyte at a time ahead of use. Stores through the map are therefore quick and
can never meet a full disk; reserving can, and raises StoreFull before anything is changed. It may have to wait for the file system's
journal, so where entries come quickly a thread does it early (`reserve_ahead`).

Entries are written before the slots that lead to them, slots in the order of the entries, and the header when all keys of a
record (or of many) are in. A killed process therefore leaves at most some slots that point at entries the header does not
count; opening for writing takes those back.

Java: IndexFile, IndexHeader
"""

from __future__ import annotations

import struct
import sys
from array import array
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from orbitmq.errors import StorageError
from orbitmq.message.tags import java_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from orbitmq.storage.open_files import MappedFile

# Offset, store time, topic, unique key and KEYS of a record that shall be found by them.
KeyedRecord = tuple[int, int, str, bytes | None, bytes | None]

HEADER: Final = struct.Struct(
    ">q"  # begin, ms
    "q"  # end, ms
    "q"  # first record's offset
    "q"  # last record's offset
    "i"  # slots in use
    "i"  # next entry number
)
SLOT: Final = struct.Struct(">i")
ENTRY: Final = struct.Struct(
    ">i"  # key hash
    "q"  # record offset
    "i"  # seconds since begin
    "i"  # next older entry of the chain
)
_pack_header, _pack_entry, _pack_slot = HEADER.pack_into, ENTRY.pack_into, SLOT.pack_into
_unpack_slot = SLOT.unpack_from
_SLOTS_AT: Final = HEADER.size
_SLOT_BYTES: Final = SLOT.size
_ENTRY_BYTES: Final = ENTRY.size

DEFAULT_SLOTS: Final = 5_000_000
DEFAULT_ENTRIES: Final = 20_000_000

_RESERVE_ENTRIES: Final = (1 << 20) // ENTRY.size
_LOW_ENTRIES: Final = _RESERVE_ENTRIES // 2
_MAX_INT: Final = 2**31 - 1
_LEAST_LED_TO: Final = 0.8  # of the entries, by the slots of a file that makes sense


def file_bytes(slots: int, entries: int) -> int:
    return HEADER.size + SLOT.size * slots + ENTRY.size * entries


def key_hash(topic: str, key: str) -> int:
    """What an entry keeps of a key: never negative."""
    return positive(java_hash(f"{topic}#{key}"))


def positive(value: int) -> int:
    """Java's abs(), which leaves the smallest int negative, made 0 there."""
    return abs(value) & _MAX_INT


def positive_all(values: Iterable[int]) -> list[int]:
    """The same for hashes modulo 2**32."""
    return [value if value <= _MAX_INT else -value & _MAX_INT for value in values]


class IndexFile:
    __slots__ = (
        "_could_not_reserve", "_entries_at", "_reserved", "_reserving", "_slot_words", "begin_ms", "begin_offset", "capacity",
        "end_ms", "end_offset", "file", "memory", "next_entry", "slots", "slots_used",
    )  # fmt: skip

    def __init__(self, file: MappedFile, slots: int, *, writable: bool) -> None:
        self.file = file
        self.memory = file.memory
        self.slots = slots
        self._entries_at = HEADER.size + SLOT.size * slots
        self.capacity = (file.size - self._entries_at) // ENTRY.size
        self._slot_words = self.memory[_SLOTS_AT : self._entries_at].cast("I")  # in this machine's order of bytes
        self._reserved = 0
        # Some file systems reserve by writing: two at once could undo what was put in between.
        self._reserving = Lock()
        self._could_not_reserve = False
        self.begin_ms = self.end_ms = self.begin_offset = self.end_offset = self.slots_used = 0
        self.next_entry = 1
        self.load()
        if writable:
            self._take_back_uncounted()

    def load(self) -> None:
        """Take the header from the file again: another process may be writing it."""
        (self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.slots_used, next_entry) = (
            HEADER.unpack_from(self.memory)
        )
        self.next_entry = min(max(next_entry, 1), self.capacity)

    @property
    def room(self) -> int:
        """How many more entries fit."""
        return self.capacity - self.next_entry

    @property
    def is_full(self) -> bool:
        return self.next_entry >= self.capacity

    def continue_from(self, previous: IndexFile) -> None:
        """Preset the bounds of a new file; its first entry replaces the beginning."""
        self.begin_ms = self.end_ms = previous.end_ms
        self.begin_offset = self.end_offset = previous.end_offset
        self._write_header()

    def put(self, hashes: Sequence[int], offset: int, stored_at_ms: int) -> None:
        """Entries for one record. There must be room: the caller counts. Nearly every message comes by here: locals only."""
        number = self.next_entry
        if number + len(hashes) > self._reserved:
            self._reserve(number + len(hashes))
        memory, slots, entries_at, used = self.memory, self.slots, self._entries_at, self.slots_used
        begin_ms, begin_offset = self.begin_ms, self.begin_offset
        for hashed in hashes:
            slot_at = _SLOTS_AT + _SLOT_BYTES * (hashed % slots)
            older = _unpack_slot(memory, slot_at)[0]
            if not 0 < older < number:
                older = 0
                used += 1
            seconds = (stored_at_ms - begin_ms) // 1000 if 0 < begin_ms < stored_at_ms else 0
            if seconds > _MAX_INT:
                seconds = _MAX_INT
            _pack_entry(memory, entries_at + _ENTRY_BYTES * number, hashed, offset, seconds, older)
            _pack_slot(memory, slot_at, number)
            if number == 1:
                self.begin_offset, self.begin_ms = begin_offset, begin_ms = offset, stored_at_ms
            number += 1
        self.next_entry, self.slots_used = number, used
        self.end_offset, self.end_ms = offset, stored_at_ms
        _pack_header(memory, 0, begin_ms, stored_at_ms, begin_offset, offset, used, number)

    def put_many(self, hashes: Sequence[int], offsets: Sequence[int], stored_at_ms: Sequence[int]) -> None:
        """`put` for the keys of many records at once, a hash with its record's offset and time each. There must be room.

        Leaves the very same bytes for a third of the work: all entries in one piece, one header.
        """
        first = self.next_entry
        count = len(hashes)
        if first + count > self._reserved:
            self._reserve(first + count)
        words = self._slot_words
        numbers = [hashed % self.slots for hashed in hashes]
        older = _swapped([words[number] for number in numbers])
        begin_ms = self.begin_ms
        earliest, latest = min(stored_at_ms), max(stored_at_ms)
        if (
            first == 1
            or len(set(numbers)) < count  # one of them leads to another of them
            or max(older) >= first  # a slot that makes no sense
            or not 0 < begin_ms <= earliest
            or (latest - begin_ms) // 1000 > _MAX_INT
        ):
            for hashed, offset, at_ms in zip(hashes, offsets, stored_at_ms, strict=True):
                self.put((hashed,), offset, at_ms)
            return
        if (earliest - begin_ms) // 1000 == (latest - begin_ms) // 1000:
            seconds = [(latest - begin_ms) // 1000] * count
        else:
            seconds = [(at_ms - begin_ms) // 1000 for at_ms in stored_at_ms]
        entries_at = self._entries_at + _ENTRY_BYTES * first
        self.memory[entries_at : entries_at + _ENTRY_BYTES * count] = b"".join(
            map(ENTRY.pack, hashes, offsets, seconds, older)
        )
        for number, entry in zip(numbers, _swapped(range(first, first + count)), strict=True):
            words[number] = entry
        self.next_entry = first + count
        self.slots_used += older.count(0)
        self.end_offset, self.end_ms = offsets[-1], stored_at_ms[-1]
        self._write_header()

    def put_compiled(self, loops: Any, records: list[KeyedRecord], topic_hash: Callable[[str], int]) -> bool:
        """`put` for many records, by the accelerator's loops. False, and nothing entered, if they are unusual."""
        first, count = self.next_entry, loops.count_keys(records)
        if count < 0 or first + count > self.capacity:
            return False
        if first + count > self._reserved:
            self._reserve(first + count)
        used = loops.put_keys(self.memory, self.slots, first, self.capacity, self.begin_ms, records, topic_hash)
        if used < 0:
            return False
        self.next_entry = first + count
        self.slots_used += used
        self.end_offset, self.end_ms = records[-1][:2]
        self._write_header()
        return True

    def open_keys(self, new_keys: Callable[..., Any], count: int, topic_hash: Callable[[str], int]) -> Any:
        """What the accelerator enters up to `count` keys into, or as many as fit. `take_over` what it has entered."""
        end = min(self.next_entry + count, self.capacity)
        if end > self._reserved:
            self._reserve(end)
        return new_keys(self.memory, self.slots, self.next_entry, self._reserved, self.begin_ms, topic_hash)

    def take_over(self, keys: Any) -> None:
        """What was entered by `open_keys` counts from here on."""
        keys.close()
        if keys.end_offset:
            self.next_entry = keys.number
            self.slots_used += keys.newly_used
            self.end_offset, self.end_ms = keys.end_offset, keys.end_ms
            self._write_header()

    def entry(self, number: int) -> tuple[int, int, int, int]:
        """Key hash, record offset, seconds since begin, next older entry."""
        return ENTRY.unpack_from(self.memory, self._entries_at + ENTRY.size * number)

    def find(
        self, hashed: int, begin_ms: int, end_ms: int, limit: int = _MAX_INT, most_looks: int = _MAX_INT
    ) -> tuple[list[int], int]:
        """Offsets of records whose key has this hash and which were stored in the range, newest first, and how many entries
        were looked at: `most_looks` of them if there may be more.

        An entry knows its time to the second, so the edges of the range are taken generously. The chain of a slot may be as long
        as the file, so there are locals only. It ends at the first link that makes no sense.
        """
        unpack, memory, entries_at, counted = ENTRY.unpack_from, self.memory, self._entries_at, self.next_entry
        number: int = _unpack_slot(memory, _SLOTS_AT + _SLOT_BYTES * (hashed % self.slots))[0]
        # A slot may run ahead of the header: while a record is being put, and in a dead file after a kill.
        ceiling = self.capacity
        found: list[int] = []
        looks = 0
        while 0 < number < ceiling and looks < most_looks and len(found) < limit:
            entry_hash, offset, seconds, older = unpack(memory, entries_at + _ENTRY_BYTES * number)
            looks += 1
            if number < counted:
                # Entry 1 began the file; its seconds were counted from the file before, as Java counts them.
                stored_at_ms = self.begin_ms + (seconds * 1000 if number > 1 else 0)
                if seconds < 0 or stored_at_ms + 999 < begin_ms:
                    break
                if entry_hash == hashed and stored_at_ms <= end_ms:
                    found.append(offset)
            ceiling, number = number, older
        return found, looks

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        return begin_ms <= self.end_ms and self.begin_ms <= end_ms

    def hashes_of_last_record(self) -> list[int]:
        """The key hashes already entered for the record at `end_offset`."""
        hashes = []
        for number in range(self.next_entry - 1, 0, -1):
            entry_hash, offset, _, _ = self.entry(number)
            if offset != self.end_offset:
                break
            hashes.append(entry_hash)
        return hashes

    def truncate(self, offset: int) -> None:
        """Take back the entries of records at or after `offset`. They are the newest, so this is an exact undo."""
        number = self.next_entry
        while number > 1 and self.entry(number - 1)[1] >= offset:
            number -= 1
            self._take_back(number)
        if number == self.next_entry:
            return
        self.next_entry = number
        if number > 1:
            _, self.end_offset, seconds, _ = self.entry(number - 1)
            self.end_ms = min(self.end_ms, self.begin_ms + seconds * 1000)
        else:
            self.begin_ms = self.end_ms = self.begin_offset = self.end_offset = 0
        self._write_header()

    def _take_back(self, number: int) -> None:
        entry_hash, _, _, older = self.entry(number)
        slot_at = HEADER.size + SLOT.size * (entry_hash % self.slots)
        if SLOT.unpack_from(self.memory, slot_at)[0] == number:
            SLOT.pack_into(self.memory, slot_at, older)
            if not older:
                self.slots_used -= 1

    def _take_back_uncounted(self) -> None:
        """Undo what a kill left half done: entries the header does not count, and a header of two halves."""
        if self.next_entry > 1:
            self.end_offset = self.entry(self.next_entry - 1)[1]
        used = self.slots_used
        end = self.next_entry
        while end < self.capacity and self._slot_of_entry(end) >= end:
            end += 1
        for number in range(end - 1, self.next_entry - 1, -1):
            self._take_back(number)
        self.slots_used = used  # the header never counted them

    def _slot_of_entry(self, number: int) -> int:
        slot: int = SLOT.unpack_from(self.memory, HEADER.size + SLOT.size * (self.entry(number)[0] % self.slots))[0]
        return slot

    def _reserve(self, entries: int) -> None:
        if not self._reserved:
            self.file.reserve(0, self._entries_at)  # a file Java wrote has holes where no key has led to yet
        self._could_not_reserve = False
        with self._reserving:
            end = min(entries + _RESERVE_ENTRIES, self.capacity)
            start = max(self._reserved, self.next_entry)
            if end > start:
                self.file.reserve(self._entries_at + ENTRY.size * start, ENTRY.size * (end - start))
                self._reserved = end

    @property
    def is_low(self) -> bool:
        """More entries will be needed soon than there are blocks for."""
        left = self._reserved - self.next_entry
        return left < _LOW_ENTRIES and 0 < self._reserved < self.capacity and not self._could_not_reserve

    def reserve_ahead(self) -> None:
        """From another thread than the one that puts. StorageError if it failed, once: who puts will meet the same, and say so."""
        with self._reserving:
            start = self._reserved
            end = min(start + _RESERVE_ENTRIES, self.capacity)
            at, size = self._entries_at + ENTRY.size * start, ENTRY.size * (end - start)
            if not size:  # the other has done it meanwhile
                return
            try:
                self.file.reserve(at, size)
            except StorageError:
                self._could_not_reserve = True
                raise
            self._reserved = end
        self.file.make_storable(at, at + size)

    def _write_header(self) -> None:
        HEADER.pack_into(
            self.memory, 0,
            self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.slots_used, self.next_entry,
        )  # fmt: skip


def _swapped(values: Iterable[int]) -> array[int]:
    """Between this machine's order of bytes and the file's, which is Java's."""
    swapped = array("I", values)
    if sys.byteorder == "little":
        swapped.byteswap()
    return swapped


def infer_slots(memory: memoryview) -> int | None:
    """How many slots a file of unknown settings has; None for an empty one and for one that makes no sense.

    The default unless its length says otherwise. Else by where the first entry stands, or the last: they hold the offsets that the
    header repeats. Of all numbers of slots that agree with that, the one with which most of the file makes sense.
    """
    if len(memory) == file_bytes(DEFAULT_SLOTS, DEFAULT_ENTRIES):
        return DEFAULT_SLOTS
    if len(memory) < HEADER.size or (len(memory) - HEADER.size) % SLOT.size:
        return None
    _, _, begin_offset, end_offset, slots_used, next_entry = HEADER.unpack_from(memory)
    if next_entry <= 1:
        return None
    image = bytes(memory)
    most = (len(image) - HEADER.size - ENTRY.size * next_entry) // SLOT.size
    least = (len(image) - HEADER.size) // SLOT.size % (ENTRY.size // SLOT.size)
    every = range(least, most + 1, ENTRY.size // SLOT.size)  # what they leave is a whole number of entries
    if begin_offset:
        guesses: tuple[Iterable[int], ...] = (_slots_before(image, 1, begin_offset),)
    elif end_offset:  # the log's first record is in every zero of the file
        guesses = (_slots_before(image, next_entry - 1, end_offset), every)
    else:
        guesses = (every,)
    for guess in guesses:
        sense = [(_sense(image, slots, slots_used, next_entry), slots) for slots in guess if slots and slots in every]
        best = max(sense, default=((0.0, 0), 0))
        if best[0][0] >= _LEAST_LED_TO:
            return best[1]
    return None


def _slots_before(image: bytes, number: int, offset: int) -> Iterator[int]:
    """With how many slots the entry of that number is one of the record at `offset`."""
    wanted = struct.pack(">q", offset)
    found = image.find(wanted, HEADER.size)
    while found >= 0:
        slots, odd = divmod(found - SLOT.size - ENTRY.size * number - HEADER.size, SLOT.size)
        if not odd:
            yield slots
        found = image.find(wanted, found + 1)


def _sense(image: bytes, slots: int, slots_used: int, next_entry: int) -> tuple[float, int]:
    """How well a file read with so many slots agrees with itself: the share of entries that slots lead to, and by how many slots in use it is off.

    The share is 0 if it is off by more than some damage explains, which others shall name.
    """
    entries_at = HEADER.size + SLOT.size * slots
    sample = range(1, min(next_entry, 100))
    led_to = 0
    for number in sample:
        at = entries_at + ENTRY.size * number
        hashed = SLOT.unpack_from(image, at)[0]
        newest = SLOT.unpack_from(image, HEADER.size + SLOT.size * (hashed % slots))[0]
        led_to += number <= newest < next_entry and any(image[at : at + ENTRY.size])
    if led_to < _LEAST_LED_TO * len(sample):
        return 0.0, 0
    used = sum(value != 0 for (value,) in SLOT.iter_unpack(image[HEADER.size : entries_at]))
    off = abs(used - slots_used)
    return (led_to / len(sample), -off) if off <= 3 + slots_used // 10 else (0.0, 0)
