"""A store directory without a broker, live or dead, ours or Apache's: for tools and for Spark. It never writes.

    reader = StoreReader(Path("/var/lib/orbitmq/store"))
    for queue in reader.queues():
        print(queue.topic, queue.queue_id, queue.min_offset, queue.max_offset)
        for message in reader.messages(queue.topic, queue.queue_id):
            ...

A broker that runs or was killed has not yet written the newest entries of its queues. The reader finds those messages in the
log itself, from where the checkpoint says that log and queues agree, so it shows what the broker would show after a restart.
Messages of a deleted topic are not among them, nor what gives way to those of one that was made again under its name.
`refresh` shows what came since; a view of a record stays valid whatever the broker does meanwhile.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from orbitmq.errors import MessageError, StorageError
from orbitmq.message.properties import (
    INNER_BASE,
    INNER_NUM,
    KEYS,
    LONG_DIGITS,
    UNIQUE_KEY,
    decode_properties,
    property_number,
)
from orbitmq.message.record import decode_entry, decode_record, stored_at_ms
from orbitmq.message.record_check import check_record
from orbitmq.message.sysflags import INNER_BATCH, TRANSACTION_PREPARED
from orbitmq.storage.checkpoint import read_checkpoint
from orbitmq.storage.deletions import read_deletions
from orbitmq.storage.files import LocalDisk
from orbitmq.storage.index_file import IndexFile, infer_slots
from orbitmq.storage.java_object import JavaObject
from orbitmq.storage.json_file import read_table_or_backup
from orbitmq.storage.key_index import find_offsets, list_index_files
from orbitmq.storage.lock import ABORT_NAME, LOCK_NAME
from orbitmq.storage.log_walk import LogRecord, walk
from orbitmq.storage.queue_view import Place, QueueView
from orbitmq.storage.segmented_log import SegmentedLog
from orbitmq.storage.unfinished_batch import unfinished_range

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from orbitmq.message.message import StoredMessage
    from orbitmq.message.record import RecordEntry
    from orbitmq.storage.files import Disk

T = TypeVar("T", bound=JavaObject)

_OF_EVERY_STORE: Final = ("commitlog", "consumequeue", "checkpoint", "abort")  # one of them at least, also of a new one
_FOREVER_MS: Final = 2**63 - 1
_QUEUES_TO_ASK: Final = 16  # the busiest ones, for where log and queues agree
_QUEUE_DIRECTORIES: Final = (("consumequeue", False), ("batchconsumequeue", True))


class QueueRange(NamedTuple):
    """Messages [min_offset, max_offset) of a queue can be read."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    is_batch: bool


class RecordSlice(NamedTuple):
    """A record as it stands in the log. The view keeps its file's memory alive: do not hoard."""

    queue_offset: int
    commit_log_offset: int
    data: memoryview


class StoreReader:
    """Not thread-safe; open one per thread or task. Opening costs a listing and a few reads a queue."""

    def __init__(self, directory: Path, *, commit_log_directory: Path | None = None, disk: Disk | None = None) -> None:
        self.directory = directory
        self._disk: Disk = disk or LocalDisk()
        if commit_log_directory is None and not self._is_store(
            directory
        ):  # of any folder at all nothing would be wrong
            inner = directory / "store"
            hint = f"did you mean {inner}?" if self._is_store(inner) else "name the broker's storePathRootDir"
            raise StorageError(f"there is no store in {directory}", hint=hint)
        self._log_directory = commit_log_directory or directory / "commitlog"
        self.log = self._open_log()
        self._views: dict[tuple[str, int], QueueView] = {}
        self._unindexed: dict[tuple[str, int], list[Place]] = {}
        self._log_end = 0
        self._look()

    def _is_store(self, directory: Path) -> bool:
        return any(self._disk.stat(directory / name) is not None for name in _OF_EVERY_STORE)

    def refresh(self) -> None:
        """See what the broker wrote and deleted since."""
        if self.log.segments:
            self.log.reload()
        else:
            self.log = self._open_log()
        for view in self._views.values():
            view.close()
        self._look()

    def close(self) -> None:
        for view in self._views.values():
            view.close()
        self.log.close()

    def __enter__(self) -> StoreReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def owner(self) -> int | None:
        """The process that has this directory open; 0 if it cannot be named, None if nobody does."""
        return self._disk.lock_owner(self.directory / LOCK_NAME)

    @property
    def is_clean(self) -> bool:
        """Nobody runs on it and the last one stopped properly."""
        return self._disk.stat(self.directory / ABORT_NAME) is None

    @property
    def log_range(self) -> tuple[int, int]:
        """The offsets of the commit log, up to the end of the last record."""
        return self.log.start, self._log_end

    def topics(self) -> list[str]:
        """Every topic that has a queue on disk, sorted."""
        return sorted({topic for topic, _ in self.queue_keys()})

    def queue_keys(self) -> list[tuple[str, int]]:
        """Topic and id of every queue, sorted: without looking into any, as `queues` does."""
        return sorted({*self._views, *self._unindexed})

    def queues(self, topic: str | None = None) -> list[QueueRange]:
        return [self.queue(*key) for key in self.queue_keys() if topic in (None, key[0])]

    def queue(self, topic: str, queue_id: int) -> QueueRange:
        """An empty range for a queue that is not there."""
        view = self._views.get((topic, queue_id))
        unindexed = self._unindexed.get((topic, queue_id), [])
        low = high = 0
        if view is not None:
            low, high = view.min_offset(self.log.start), view.max_offset
        if unindexed:
            low = low if view is not None and view.next > view.first else unindexed[0].queue_offset
            high = unindexed[-1].queue_offset + unindexed[-1].messages
        return QueueRange(topic, queue_id, low, high, view is not None and view.is_batch)

    def slices(self, topic: str, queue_id: int, start: int = 0, stop: int | None = None) -> Iterator[RecordSlice]:
        """The records of messages [start, stop), without decoding. A record that is not where its entry says is left out."""
        for place in self.places(topic, queue_id, start, stop):
            data = self._record(place.commit_log_offset, place.size)
            if data is not None:
                yield RecordSlice(place.queue_offset, place.commit_log_offset, data)

    def places(self, topic: str, queue_id: int, start: int = 0, stop: int | None = None) -> Iterator[Place]:
        """Where the records of messages [start, stop) are in the log."""
        end = _FOREVER_MS if stop is None else stop
        view = self._views.get((topic, queue_id))
        if view is not None:
            yield from view.places(max(start, view.min_offset(self.log.start)), end)
        for place in self._unindexed.get((topic, queue_id), []):
            if place.queue_offset + place.messages > start and place.queue_offset < end:
                yield place

    def unindexed(self, topic: str, queue_id: int) -> list[Place]:
        """The newest messages of a queue that its files do not have yet; their tag hashes are not known."""
        return self._unindexed.get((topic, queue_id), [])

    def messages(self, topic: str, queue_id: int, start: int = 0, stop: int | None = None) -> Iterator[StoredMessage]:
        for record in self.slices(topic, queue_id, start, stop):
            with suppress(MessageError):
                message = decode_record(record.data)
                if (message.topic, message.queue_id) == (topic, queue_id) or topic.startswith("%LMQ%"):
                    yield message

    def records(self, start: int | None = None, stop: int | None = None) -> Iterator[RecordSlice]:
        """The log itself, all topics, from a record's offset on. Damaged bytes are stepped over."""
        begin = self.log.start if start is None else start
        for found in walk(self.log.segments, begin, check_crc=False):
            if isinstance(found, LogRecord):
                if stop is not None and found.offset >= stop:
                    return
                data = found.data
                yield RecordSlice(decode_entry(data, 0, found.offset).queue_offset, found.offset, data)

    def at(self, commit_log_offset: int) -> StoredMessage | None:
        """The message whose record begins there; None if none does."""
        segment = self.log.segment_of(commit_log_offset)
        if segment is None:
            return None
        try:
            message = decode_record(segment.memory, commit_log_offset - segment.start)
        except MessageError:
            return None
        return message if message.commit_log_offset == commit_log_offset else None

    def is_deleted(self, topic: str, commit_log_offset: int) -> bool:
        """Whether what the log has of a topic there was deleted with it."""
        return commit_log_offset < self._deleted.get(topic, 0)

    def entry(self, commit_log_offset: int) -> RecordEntry | None:
        """As `at`, without the body, and whatever the record says of its own place."""
        segment = self.log.segment_of(commit_log_offset)
        if segment is None:
            return None
        try:
            return decode_entry(segment.memory, commit_log_offset - segment.start, commit_log_offset)
        except MessageError:
            return None

    def view(self, topic: str, queue_id: int) -> QueueView | None:
        """A queue as its files have it."""
        return self._views.get((topic, queue_id))

    def views(self) -> list[QueueView]:
        """The queues as their files have them, without what only the log has."""
        return [view for _, view in sorted(self._views.items())]

    def find(
        self, topic: str, key: str, *, limit: int = 64, begin_ms: int = 0, end_ms: int = _FOREVER_MS
    ) -> list[StoredMessage]:
        """Messages that carry `key` among their keys or as their unique key, newest first; the key is compared."""
        found: list[StoredMessage] = []
        # Hashes collide and the newest messages may not be in the index: ask for more than are wanted.
        offsets, _ = find_offsets(self._index_files(), topic, key, 10 * limit, begin_ms, end_ms)
        unindexed = {place.commit_log_offset for places in self._unindexed.values() for place in places}
        for offset in sorted({*offsets, *unindexed}, reverse=True):
            message = self.at(offset)
            if message is not None and message.topic == topic and _carries(message, key):
                if begin_ms <= message.stored_at_ms <= end_ms:
                    found.append(message)
                if len(found) == limit:
                    break
        return found

    def table(self, name: str, shape: type[T]) -> T:
        """One of the tables in `config/` (see tables.py), as last saved."""
        return read_table_or_backup(self._disk, self.directory / "config" / name, shape)

    def _open_log(self) -> SegmentedLog:
        sizes = [file.size for file in self._disk.list(self._log_directory) if not file.is_directory and file.size]
        # Of files of several lengths the most usual counts; `orbitmq store verify` names the others.
        segment_bytes = max(sizes, key=sizes.count, default=0)
        return SegmentedLog(self._disk, self._log_directory, segment_bytes, writable=False)

    def _look(self) -> None:
        self._views = {}
        for name, is_batch in _QUEUE_DIRECTORIES:
            for topic in self._disk.list(self.directory / name):
                for queue in self._disk.list(self.directory / name / topic.name) if topic.is_directory else []:
                    if queue.is_directory and queue.name.removeprefix("-").isdecimal():
                        path = self.directory / name / topic.name / queue.name
                        view = QueueView(self._disk, path, topic.name, int(queue.name), is_batch=is_batch)
                        self._views[topic.name, int(queue.name)] = view
        self._unindexed = {}
        self._last_known: dict[tuple[str, int], int] = {}  # log offset of the last record that a queue's files lead to
        self._deleted = read_deletions(self._disk, self.directory)
        self._log_end = self.log.start
        self._follow_log()

    def _follow_log(self) -> None:
        """Find the end of the log and, behind a stop that was not clean, what the queues' files do not have yet."""
        clean = self.is_clean
        start = self._indexed_to(clean)
        for found in walk(self.log.segments, start, check_crc=False):
            if not isinstance(found, LogRecord):
                continue
            self._log_end = found.offset + found.size
            entry = decode_entry(found.data, 0, found.offset)
            if entry.sys_flag & TRANSACTION_PREPARED or self.is_deleted(entry.topic, found.offset):
                continue
            key = (entry.topic, entry.queue_id)
            first, count = message_numbers(entry)
            if not self._has_entry(key, first, found.offset):
                places = self._unindexed.setdefault(key, [])
                while places and places[-1].queue_offset >= first:
                    places.pop()  # of a topic that was deleted and made again
                places.append(Place(first, count, found.offset, found.size, 0))
        # Asked only now: a broker that runs may have begun one while we walked.
        unfinished = unfinished_range(self._disk, self.directory, self.log)
        if unfinished is not None and unfinished.start < self._log_end:
            self._forget_from(unfinished.start)
        self._log_end = max(self._log_end, start)

    def _forget_from(self, commit_log_offset: int) -> None:
        """Of what only the log has."""
        self._log_end = commit_log_offset
        unindexed, self._unindexed = self._unindexed, {}
        for key, places in unindexed.items():
            kept = [place for place in places if place.commit_log_offset < commit_log_offset]
            if kept:
                self._unindexed[key] = kept

    def _has_entry(self, key: tuple[str, int], number: int, commit_log_offset: int) -> bool:
        """Files of a queue that a later record does not fit into, because its number is taken, are passed over from now on."""
        view = self._views.get(key)
        if view is None or view.next == view.first or number >= view.max_offset:
            return False
        if key not in self._last_known:
            last = view.last
            self._last_known[key] = -1 if last is None else last.commit_log_offset
        if commit_log_offset <= self._last_known[key] or not any(view.places(number, _FOREVER_MS)):
            return True  # or it is damaged, and its number is kept for it
        self._views.pop(key).close()
        return False

    def _indexed_to(self, clean: bool) -> int:
        """A record's offset in the log before which every record is in the queues' files."""
        newest = [(place.commit_log_offset, view) for view in self._views.values() if (place := view.last) is not None]
        newest = [(offset, view) for offset, view in newest if self.at(offset) is not None]
        if not newest:
            return self.log.start
        newest.sort(key=lambda pair: pair[0], reverse=True)
        if clean:
            return newest[0][0]
        safe_until_ms = read_checkpoint(self._disk, self.directory / "checkpoint", _FOREVER_MS // 2).safe_until_ms
        return max(self._stored_until(view, safe_until_ms) for _, view in newest[:_QUEUES_TO_ASK])

    def _stored_until(self, view: QueueView, until_ms: int) -> int:
        """The offset of the queue's last record stored at or before a time; the log's start if there is none."""
        low, high = view.first, view.next
        found = self.log.start
        while low < high:
            middle = (low + high) // 2
            place = next(iter(view.read(middle, 1)), None)
            data = self._record(place.commit_log_offset, place.size) if place is not None else None
            if place is None or data is None:
                low = middle + 1
            elif stored_at_ms(data) <= until_ms:
                found, low = place.commit_log_offset, middle + 1
            else:
                high = middle
        return found

    def _record(self, offset: int, size: int) -> memoryview | None:
        """The bytes at `offset` if they are a record of that size."""
        segment = self.log.segment_of(offset)
        if segment is None:
            return None
        position = offset - segment.start
        try:
            if check_record(segment.memory, position, len(segment.memory), check_crc=False) != size:
                return None
        except MessageError:
            return None
        return segment.memory[position : position + size]

    def _index_files(self) -> tuple[IndexFile, ...]:
        files = []
        for path, _ in list_index_files(self._disk, self.directory / "index"):
            file = self._disk.map(path)
            slots = infer_slots(file.memory)
            if slots is not None:
                files.append(IndexFile(file, slots, writable=False))
            file.close()  # the memory stays as long as it is looked at
        return tuple(files)


def message_numbers(entry: RecordEntry) -> tuple[int, int]:
    """The queue offset of the first message in a record, and how many it holds."""
    if entry.sys_flag & INNER_BATCH:
        properties = decode_properties(entry.properties)
        base = property_number(properties.get(INNER_BASE), -1, LONG_DIGITS)
        count = property_number(properties.get(INNER_NUM), -1)
        if base >= 0 and count >= 0:
            return base, count
    return entry.queue_offset, 1


def _carries(message: StoredMessage, key: str) -> bool:
    properties: dict[str, Any] = message.properties
    return key == properties.get(UNIQUE_KEY) or key in properties.get(KEYS, "").split(" ")
