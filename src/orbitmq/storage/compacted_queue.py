"""One queue of a topic with `cleanup.policy=COMPACTION`: copies of its records, of which only the last of each key is kept.

    compaction/compactionLog/<topic>/<queue id>/<20 digits>    records as in the commit log, their own offset changed to this log's
    compaction/compactionCq/<topic>/<queue id>/<20 digits>     one 46-byte entry a record, as in batch_queue_index.py

A file of records has a file of entries of the same name, and both are closed together: an entry with offset -1, and after the last
record i32 bytes left, i32 0xCBD43194. Queue offsets stay what they were, so a compacted queue has holes.

Compaction reads all files but the last and writes what stays into `compacting/` beside them. A list of what replaces what (`ready`)
makes the exchange atomic: found at the next start, it is finished; not found, the folder is thrown away. Java looks into neither.

Java: CompactionLog, SparseConsumeQueue
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from orbitmq.errors import MessageError, StorageError
from orbitmq.message.properties import KEYS, TAGS, property_finder
from orbitmq.message.record import decode_entry, encode_blank, own_offset, record_layout, with_offset
from orbitmq.message.record_check import check_record
from orbitmq.message.tags import tag_code
from orbitmq.storage.batch_queue_index import ENTRY, ENTRY_BYTES
from orbitmq.storage.open_files import clear_pages
from orbitmq.storage.reading import ReadResult, ReadStatus
from orbitmq.storage.segmented_log import is_segment_name, segment_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from orbitmq.storage.files import Disk
    from orbitmq.storage.open_files import MappedFile

logger = logging.getLogger(__name__)

_BLANK_BYTES: Final = 8
_END_ENTRY: Final = ENTRY.pack(-1, 0, 0, 0, 0, 0, -1, 0)
_BASE: Final = 4  # the field of an entry that holds the queue offset
_FOLDER: Final = "compacting"
_READY: Final = "ready"
_MOST_RECORDS: Final = 32

_find_keys: Final = property_finder(KEYS)
_find_tags: Final = property_finder(TAGS)


class Exchange(msgspec.Struct):
    """Which files the compacted ones take the place of. Kept in `ready` until it is done."""

    old: list[str]
    new: list[str]
    looked_to: int = -1  # the last queue offset in the old ones


class Record(NamedTuple):
    queue_offset: int
    key: bytes
    tags_code: int
    stored_at_ms: int
    data: memoryview


class _Pair:
    """A file of records and the file of their entries."""

    __slots__ = ("count", "end", "entries", "is_dirty", "records", "start")

    def __init__(self, start: int, records: MappedFile, entries: MappedFile) -> None:
        self.start = start
        self.records = records
        self.entries = entries
        self.count = bisect_left(range(entries.size // ENTRY_BYTES), True, key=lambda at: not self._is_written(at))
        self.end = self._end()
        self.is_dirty = True  # whoever wrote it may have been killed

    def entry(self, number: int) -> tuple[int, ...]:
        return ENTRY.unpack_from(self.entries.memory, number * ENTRY_BYTES)

    def base(self, number: int) -> int:
        """The queue offset of an entry."""
        base: int = self.entry(number)[_BASE]
        return base

    @property
    def last_offset(self) -> int:
        return self.base(self.count - 1) if self.count else -1

    def record(self, number: int) -> memoryview:
        physical, size, *_ = self.entry(number)
        at = physical - self.start
        return self.records.memory[at : at + size]

    def has_room(self, size: int) -> bool:
        """For a record of this size and its entry, and for what closes the files."""
        entries_end = (self.count + 1) * ENTRY_BYTES
        return entries_end < self.entries.size and self.end + size + _BLANK_BYTES <= self.records.size

    def put(self, record: Record) -> None:
        at, size = self.end, len(record.data)
        self.records.memory[at : at + size] = with_offset(record.data, self.start + at)
        ENTRY.pack_into(self.entries.memory, self.count * ENTRY_BYTES, *_fields(record, self.start + at))
        self.count += 1
        self.end = at + size
        self.is_dirty = True

    def finish(self) -> None:
        """Nothing more comes into these files."""
        at = self.count * ENTRY_BYTES
        if at + ENTRY_BYTES <= self.entries.size:
            self.entries.memory[at : at + ENTRY_BYTES] = _END_ENTRY
        if self.end + _BLANK_BYTES <= self.records.size:
            self.records.memory[self.end : self.end + _BLANK_BYTES] = encode_blank(self.records.size - self.end)
        self.is_dirty = True

    def sound_entries(self, sure_to: int) -> int:
        """How many come before the first that a power cut took a page of. Those of messages before `sure_to` are believed."""
        end, last, room = 0, -1, self.entries.size // ENTRY_BYTES
        for number in range(room):
            physical, size, _, _, base, *_ = self.entry(number)
            follows = physical == self.start + end and base > last
            if not self._is_written(number) or (base >= sure_to and not (follows and self._is_sound(number))):
                return number
            end, last = physical + size - self.start, base
        return room

    def cut(self, count: int) -> None:
        """Keep so many entries, and have nothing behind them that could be taken for one."""
        self.count = count
        self.end = self._end()
        clear_pages(self.entries.memory[count * ENTRY_BYTES :])

    def sync(self) -> None:
        self.is_dirty = False  # first: what is put meanwhile may not be covered
        try:
            self.records.sync()
            self.entries.sync()
        except StorageError:
            self.is_dirty = True
            raise

    def close(self) -> None:
        self.records.close()
        self.entries.close()

    def begins_by(self, queue_offset: int) -> bool:
        """Whether its first message has this number, or one before."""
        return self._is_written(0) and self.base(0) <= queue_offset

    def ends_after(self, count: int) -> bool:
        """Whether the files were closed after so many entries."""
        at = count * ENTRY_BYTES
        return self.entries.memory[at : at + ENTRY_BYTES] == _END_ENTRY

    def _is_written(self, number: int) -> bool:
        physical, size, _, _, base, messages, *_ = self.entry(number)
        return physical >= 0 and size > 0 and base >= 0 and messages > 0

    def _is_sound(self, number: int) -> bool:
        """Whether entry and record say the same. The CRC covers the body alone, but lost pages read as zeroes, and no text has any."""
        physical, size, *_ = fields = self.entry(number)
        memory, at = self.records.memory, physical - self.start
        try:
            if check_record(memory, at, self.records.size) != size:
                return False
        except MessageError:
            return False
        _, _, _, topic_at, topic_end = record_layout(memory, at, at + size)
        texts = bytes(memory[topic_at:topic_end]) + bytes(memory[topic_end + 2 : at + size])
        return (
            b"\0" not in texts
            and own_offset(memory, at) == physical
            and fields == _fields(record_of(memory[at : at + size]), physical)
        )

    def _end(self) -> int:
        if not self.count:
            return 0
        physical, size, *_ = self.entry(self.count - 1)
        return physical + size - self.start


class CompactedQueue:
    """Put and read belong to one thread. `compact` may run in another: it reads closed files and writes new ones."""

    def __init__(
        self,
        disk: Disk,
        records_path: Path,
        entries_path: Path,
        records_bytes: int,
        entries_bytes: int,
        *,
        sure_to: int | None,
    ) -> None:
        """After a power cut, messages before number `sure_to` were synced, and the log has the others; None: there was none."""
        self._disk = disk
        self._records_path = records_path
        self._entries_path = entries_path
        self._records_bytes = records_bytes
        self._entries_bytes = entries_bytes
        self._compacting = Lock()  # held by the thread that does it
        self._is_given_up = False  # what that thread does
        self.looked_to = -1  # by a compaction that only this opening has finished
        self._finish_exchange()
        self._pairs = self._load(records_path, entries_path)
        if sure_to is not None:
            self._drop_unsound(sure_to)

    @property
    def min_offset(self) -> int:
        return next((pair.base(0) for pair in self._pairs if pair.count), 0)

    @property
    def next_offset(self) -> int:
        """Of the next message that this queue does not know yet."""
        return next((pair.last_offset + 1 for pair in reversed(self._pairs) if pair.count), 0)

    def put(self, record: Record) -> None:
        """Records come in the order of the queue; one that is there already changes nothing."""
        if record.queue_offset < self.next_offset:
            return
        if len(record.data) + _BLANK_BYTES > self._records_bytes:
            logger.error("a record of %d bytes does not fit into a file of %s", len(record.data), self._records_path)
            return
        if not self._pairs or not self._pairs[-1].has_room(len(record.data)):
            if self._pairs:
                self._pairs[-1].finish()
            start = self._pairs[-1].start + self._records_bytes if self._pairs else 0
            self._pairs.append(self._new_pair(self._records_path, self._entries_path, start))
        self._pairs[-1].put(record)

    def read(
        self,
        offset: int,
        max_count: int,
        max_bytes: int,
        tag_codes: AbstractSet[int] | None = None,
        accept: Callable[[memoryview], bool] | None = None,
        may_want: object = None,
    ) -> ReadResult:
        """As `Store.read`; offsets that lead into a hole mean the next message."""
        low, high = self.min_offset, self.next_offset
        result = ReadResult(ReadStatus.NO_MATCHED_MESSAGE, offset, low, high)
        if high == 0:
            return ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, 0)
        if offset >= high:
            status = ReadStatus.OFFSET_OVERFLOW_ONE if offset == high else ReadStatus.OFFSET_OVERFLOW_BADLY
            return ReadResult(status, offset if offset == high else (low and high), low, high)
        buffers: list[memoryview] = []
        offsets: list[int] = []
        found_in: _Pair | None = None
        for pair, number in self._from(offset):
            _, size, tags_code, _, base, *_ = pair.entry(number)
            is_full = len(buffers) >= min(max_count, _MOST_RECORDS) or result.total_bytes + size > max_bytes
            if found_in is not None and (is_full or found_in is not pair):  # one file at a time, as Java
                break
            result.next_offset = base + 1
            record = pair.record(number)
            if (tag_codes is None or tags_code in tag_codes) and (accept is None or accept(record)):
                found_in = pair
                buffers.append(record)
                offsets.append(base)
                result.total_bytes += size
        if buffers:
            result.status = ReadStatus.FOUND
        result.buffers, result.queue_offsets, result.count = buffers, offsets, len(buffers)
        return result

    def sync(self) -> None:
        for pair in self._pairs:
            if pair.is_dirty:
                pair.sync()

    def close(self) -> None:
        for pair in self._pairs:
            pair.close()

    def cut(self, next_offset: int) -> None:
        """Forget the messages from this number on. Durable on return: a power cut must not bring them back beside others with
        their numbers.
        """
        self._end_compaction()
        kept = [pair for pair in self._pairs if pair.count and pair.base(0) < next_offset]
        self._keep(len(kept), bisect_left(range(kept[-1].count), next_offset, key=kept[-1].base) if kept else 0)

    def _drop_unsound(self, sure_to: int) -> None:
        first = max((number for number, pair in enumerate(self._pairs) if pair.begins_by(sure_to)), default=0)
        for number, pair in enumerate(self._pairs[first:], first):
            sound = pair.sound_entries(sure_to)
            if not pair.ends_after(sound):
                self._keep(number + 1, sound)
                return

    def _keep(self, pairs: int, entries: int) -> None:
        """So many pairs, and of the last so many entries; none without any, which could not be searched."""
        if pairs and not entries:
            pairs -= 1
            entries = self._pairs[pairs - 1].count if pairs else 0
        for pair in reversed(self._pairs[pairs:]):
            pair.close()
            self._disk.remove(pair.entries.path)  # first: `_load` takes records without entries for nothing
            self._disk.remove(pair.records.path)
        del self._pairs[pairs:]
        if self._pairs:
            self._pairs[-1].cut(entries)
            self._pairs[-1].sync()
        for path in (self._entries_path, self._records_path):
            self._disk.sync_directory(path)

    def remove(self) -> None:
        """The topic is gone."""
        self._end_compaction()
        self.close()
        self._pairs = []
        for path in (self._records_path, self._entries_path):
            self._remove_folder(path)

    # ---- compaction

    def compact(self, compacted_to: int, safe_to: int) -> int | None:
        """Write what stays of all files but the last; `exchange` then puts it in their place.

        `compacted_to` is the last queue offset that an earlier round looked at; those before `safe_to` will not be lost. The last
        one of this round, or None if there is nothing new to look at, or the queue was changed meanwhile.
        """
        with self._compacting:
            closed = [pair for pair in self._pairs[:-1] if pair.last_offset < safe_to]
            fresh = [pair for pair in closed if pair.last_offset > compacted_to]
            if not fresh:
                return None
            latest: dict[bytes, int] = {}
            for record in self._records(fresh):
                if record.queue_offset > compacted_to:
                    latest[record.key] = record.queue_offset
            looked_to = fresh[-1].last_offset
            writer = _Writer(self)
            for record in self._records(closed):
                if record.key and record.queue_offset >= latest.get(record.key, -1):
                    writer.put(record)
            if self._is_given_up:
                writer.close()
                return None
            names = writer.finish()
            ready = Exchange([segment_name(pair.start) for pair in closed], names, looked_to)
            self._disk.replace(self._records_path / _FOLDER / _READY, msgspec.json.encode(ready))
            return looked_to

    def give_up(self) -> None:
        """Let a thread that compacts end soon, and none begin: the broker stops."""
        self._is_given_up = True

    def exchange(self) -> bool:
        """Put the compacted files in the place of the old ones. Views that readers hold of those stay valid.

        False if there are none: the queue was changed since.
        """
        if self._disk.stat(self._records_path / _FOLDER / _READY) is None:
            return False
        last = self._pairs[-1]
        for pair in self._pairs[:-1]:
            pair.close()
        self._finish_exchange()
        *compacted, again = self._load(self._records_path, self._entries_path)
        again.close()
        self._pairs = [*compacted, last]
        return True

    def new_pair_in_folder(self, start: int) -> _Pair:
        return self._new_pair(self._records_path / _FOLDER, self._entries_path / _FOLDER, start)

    def _end_compaction(self) -> None:
        """Before the files change under it. What the thread made of them is thrown away, `ready` first: it must not outlive the rest."""
        self._is_given_up = True
        with self._compacting:
            self._is_given_up = False
            if self._disk.stat(self._records_path / _FOLDER) is not None:
                self._disk.remove(self._records_path / _FOLDER / _READY)
                self._disk.sync_directory(self._records_path / _FOLDER)
            for path in (self._records_path, self._entries_path):
                self._remove_folder(path / _FOLDER)

    def _records(self, pairs: list[_Pair]) -> Iterator[Record]:
        """For the thread that compacts: they end where it is to end."""
        for pair in pairs:
            for number in range(pair.count):
                if self._is_given_up:
                    return
                yield record_of(pair.record(number))

    def _finish_exchange(self) -> None:
        ready = self._records_path / _FOLDER / _READY
        if self._disk.stat(ready) is not None:
            plan = msgspec.json.decode(self._disk.read(ready), type=Exchange)
            for path in (self._records_path, self._entries_path):
                for name in plan.new:
                    if self._disk.stat(path / _FOLDER / name) is not None:
                        self._disk.rename(path / _FOLDER / name, path / name)
                for name in plan.old:
                    if name not in plan.new:
                        self._disk.remove(path / name)
                self._disk.sync_directory(path)
            self._disk.remove(ready)
            self.looked_to = plan.looked_to
        for path in (self._records_path, self._entries_path):
            self._remove_folder(path / _FOLDER)

    # ---- files

    def _from(self, offset: int) -> Iterator[tuple[_Pair, int]]:
        first = bisect_left(self._pairs, offset, key=lambda pair: pair.last_offset)
        for pair in self._pairs[first:]:
            for number in range(bisect_left(range(pair.count), offset, key=pair.base), pair.count):
                yield pair, number

    def _load(self, records_path: Path, entries_path: Path) -> list[_Pair]:
        entries = {file.name for file in self._disk.list(entries_path) if is_segment_name(file.name)}
        pairs = []
        for file in self._disk.list(records_path):
            if not is_segment_name(file.name):
                continue
            if file.name not in entries:  # a crash between the two: nothing can be in it
                self._disk.remove(records_path / file.name)
                continue
            records = self._disk.map(records_path / file.name, writable=True)
            pairs.append(_Pair(int(file.name), records, self._disk.map(entries_path / file.name, writable=True)))
        return pairs

    def _new_pair(self, records_path: Path, entries_path: Path, start: int) -> _Pair:
        name = segment_name(start)
        records = self._disk.allocate(records_path / name, self._records_bytes)
        return _Pair(start, records, self._disk.allocate(entries_path / name, self._entries_bytes))

    def _remove_folder(self, path: Path) -> None:
        if self._disk.stat(path) is None:
            return
        for file in self._disk.list(path):
            self._disk.remove(path / file.name)
        self._disk.remove_directory(path)


class _Writer:
    """The compacted files, in the folder beside the old ones."""

    def __init__(self, queue: CompactedQueue) -> None:
        self._queue = queue
        self._pairs = [queue.new_pair_in_folder(0)]

    def put(self, record: Record) -> None:
        last = self._pairs[-1]
        if not last.has_room(len(record.data)):
            last.finish()
            last = self._queue.new_pair_in_folder(last.start + last.records.size)
            self._pairs.append(last)
        last.put(record)

    def finish(self) -> list[str]:
        """Durable on return; the files' names."""
        self._pairs[-1].finish()
        for pair in self._pairs:
            pair.sync()
        self.close()
        return [segment_name(pair.start) for pair in self._pairs]

    def close(self) -> None:
        for pair in self._pairs:
            pair.close()


def _fields(record: Record, physical: int) -> tuple[int, ...]:
    """Of the entry of a record that lies there."""
    return physical, len(record.data), record.tags_code, record.stored_at_ms, record.queue_offset, 1, -1, 0


def record_of(data: memoryview) -> Record:
    entry = decode_entry(data, 0, 0)
    tags = _find_tags(entry.properties)
    code = 0 if tags is None else tag_code(tags.decode("utf-8", "replace"))
    return Record(entry.queue_offset, _find_keys(entry.properties) or b"", code, entry.stored_at_ms, data)
