"""The store: all that the broker sees of the disk.

    Store(...)   lock the directory and recover; `start` the threads that wait for the disk
    append       one message or a batch; findable after `dispatch`
    read         records of a queue, as they stand in the log
    find         by key, by where it is stored, by time
    close        everything to disk, so that the next start has nothing to repair

One thread owns a store: it opens, appends, dispatches, deletes and closes. Reading and finding may come from any thread.
Nothing here waits for the device except opening, `flush`, `delete_topic` and `close`; to learn when an append is durable, leave
a callback with `when_durable`, which the flushing thread calls.

Java: DefaultMessageStore
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.clock import SystemClock
from orbitmq.errors import MessageError, StorageError, StoreFull
from orbitmq.message.record import END_OF_FILE, decode_entry, own_offset, stored_at_ms
from orbitmq.message.record_check import check_record
from orbitmq.storage.appended import AppendCode
from orbitmq.storage.batch_queue_index import BatchQueueIndex
from orbitmq.storage.checkpoint import CheckpointFile, read_checkpoint
from orbitmq.storage.commit_log import CommitLog
from orbitmq.storage.config import FlushMode
from orbitmq.storage.deletions import Deletions
from orbitmq.storage.files import LocalDisk
from orbitmq.storage.flush import IndexFlusher, LogFlusher
from orbitmq.storage.health import Health
from orbitmq.storage.indexer import Indexer
from orbitmq.storage.key_index import KeyIndex
from orbitmq.storage.lock import LastExit, last_exit, mark_running, mark_stopped, take_lock
from orbitmq.storage.offset_search import Boundary, offset_by_time
from orbitmq.storage.queue_extension import LAST_EXTENSION_ADDRESS, QueueExtensions
from orbitmq.storage.queue_index import ENTRY, QueueIndex
from orbitmq.storage.queue_table import QueueTable
from orbitmq.storage.reading import MAX_READ_BYTES, QueueReader
from orbitmq.storage.recovery import recover
from orbitmq.storage.replica import Replica
from orbitmq.storage.sending_on import SendingOn
from orbitmq.storage.threads import OwnThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from orbitmq.clock import Clock
    from orbitmq.message.batch import BatchMember
    from orbitmq.storage.appended import Appended, AppendedBatch
    from orbitmq.storage.config import StorageConfig
    from orbitmq.storage.files import Disk
    from orbitmq.storage.queue_extension import ExtensionUnit
    from orbitmq.storage.reading import ReadResult
    from orbitmq.storage.threads import Threads

DISPATCH_AT: Final = 256  # records waiting to be indexed; then the append does it itself
FOREVER_MS: Final = 2**63 - 1


class QueueRange(NamedTuple):
    min_offset: int
    max_offset: int  # the number the next message gets


class FoundByKey(NamedTuple):
    records: list[memoryview]  # in the order of the log
    last_stored_at_ms: int  # how far the index goes
    last_offset: int
    is_whole: bool = True  # False: it took too long, and there may be others


class Store:
    def __init__(
        self,
        config: StorageConfig,
        store_host: bytes,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        threads: Threads | None = None,
        is_batch_topic: Callable[[str], bool] = lambda _topic: False,
    ) -> None:
        """`store_host` is the broker's own address, packed: it stands in every record and message id."""
        self.config = config
        self.clock = clock or SystemClock()
        self.disk = disk or LocalDisk()
        self._threads = threads = threads or OwnThreads()
        self.health = Health()
        # Something waits for `dispatch`. The first is called by the appending thread; the second by the flushing thread, when
        # more was flushed, or copied from the write pool.
        self.on_appended: Callable[[], None] | None = None
        self.on_flushed: Callable[[], None] | None = None
        with ExitStack() as undo:
            self._lock = take_lock(self.disk, config.directory)
            undo.callback(self._lock.release)
            self.last_exit = last_exit(self.disk, config.directory)
            self.checkpoint = read_checkpoint(self.disk, config.checkpoint_path, self.clock.now_ms())
            self.log = CommitLog(self.disk, config, self.clock, store_host, threads)
            undo.callback(self.log.files.close)
            undo.callback(self.log.unfinished.close)
            self.queues = QueueTable(self.disk, config, is_batch_topic)
            undo.callback(self.queues.abandon)
            self.queues.load(trust=self.last_exit is not LastExit.CRASHED)
            self.keys = self._open_keys() if config.key_index else None
            if self.keys is not None:
                undo.callback(self.keys.abandon)
            self._checkpoint_file = CheckpointFile(self.disk, config.checkpoint_path)
            undo.callback(self._checkpoint_file.close)
            self._vouch_for_kept_keys()
            self._extensions = QueueExtensions(self.disk, config)
            undo.callback(self._extensions.close)
            self._deletions = Deletions(self.disk, config.directory)
            self._indexer = Indexer(
                self.log, self.queues, self.keys, self._extensions, config, self.health, self._deletions
            )
            self.recovered = recover(
                self.disk,
                config,
                self.log,
                self.queues,
                self.keys,
                self._indexer,
                self.checkpoint,
                self._deletions,
                self.last_exit,
            )
            self.log.unfinished.forget()
            self._vouch_for_known_entries()
            self._log_flusher = LogFlusher(self.log, config, self.checkpoint, self.health, self._flushed, threads)
            if self.last_exit is not LastExit.CLEAN:
                self._make_safe_what_a_kill_left()
            mark_running(self.disk, config.directory)
            undo.pop_all()
        self.reader = QueueReader(self.log, self.queues, self._extensions, config, _physical_memory_bytes())
        self._index_flusher = IndexFlusher(
            self.queues, self.keys, self._indexer, config, self.checkpoint, self._checkpoint_file, self.health, threads
        )
        self.replica: Replica | None = None  # of a slave's store
        self._recent = self.log.recent
        self.sending_on = SendingOn(self.log, self.health, self.clock.now_ms, self.appended)
        self._synchronous = config.flush_mode is FlushMode.SYNC
        self._closed = False

    def settle_at(self, store_host: bytes) -> None:
        """Records from now on carry this address: a port that the system chose is known only after the store is open."""
        self.log.settle_at(store_host)

    def start(self) -> None:
        """Start the threads that flush. Without them nothing reaches the device but by `flush` and `close`."""
        self._log_flusher.start()
        self._index_flusher.start()

    def follow(self) -> Replica:
        """From now on the log is written by copying another broker's, and by nothing else."""
        self.replica = Replica(self.disk, self.log, self.queues, self._indexer, self._log_flusher, self._deletions)
        if self.recovered.last_record is not None and self.log.end == self.recovered.end:
            self.replica.cut_if_torn(self.recovered.last_record)
        return self.replica

    # Appending

    def append(
        self,
        topic: str,
        queue_id: int,
        body: bytes | memoryview,
        properties: bytes,
        born_at_ms: int,
        born_host: bytes,
        flag: int = 0,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> Appended:
        """Write one message. Its queue knows it after the next `dispatch`.

        Raises MessageError if it can never be stored, StorageError if not now; both carry a response code.
        """
        if self.health.refuses_writes:
            self._check_writable()
        try:
            appended = self.log.append(
                topic, queue_id, body, properties, born_at_ms, born_host, flag, sys_flag, reconsume_times,
                prepared_transaction_offset,
            )  # fmt: skip
        except StorageError as error:
            raise _with_code(error) from error
        waiting = len(self._recent)
        if waiting == 1 or waiting >= DISPATCH_AT or self._synchronous:
            self.appended(1)
        return appended

    def append_batch(
        self,
        topic: str,
        queue_id: int,
        members: Sequence[BatchMember],
        properties: bytes,
        born_at_ms: int,
        born_host: bytes,
        sys_flag: int = 0,
        reconsume_times: int = 0,
    ) -> AppendedBatch:
        """Write all members, as messages of their own, or none. `properties` are the batch's, added to each member's."""
        if self.health.refuses_writes:
            self._check_writable()
        try:
            appended = self.log.append_batch(
                topic, queue_id, members, properties, born_at_ms, born_host, sys_flag, reconsume_times
            )
        except StorageError as error:
            raise _with_code(error) from error
        self.appended(len(members))
        return appended

    def dispatch(self) -> None:
        """Index what was appended and may be seen: it can be read afterwards, and whoever waits for a queue is woken."""
        if self.replica is None:
            self._indexer.catch_up(self.confirmed_offset)
        else:
            self.replica.index(self.confirmed_offset)

    @property
    def indexes_whole_batches(self) -> bool:
        """Whether those who append may note a batch as one entry (message/log_entry.py)."""
        return self._indexer.is_compiled and self.log.is_mapped

    def mark_with(self, filter_bitmap: Callable[[str, bytes], bytes]) -> None:
        """With queue extensions, keep `filter_bitmap(topic, properties)` beside each entry from now on."""
        self._indexer.filter_bitmap = filter_bitmap

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """What delay level 1, 2, ... means for messages from now on."""
        return self._indexer.delay_levels_ms

    @delay_levels_ms.setter
    def delay_levels_ms(self, levels: tuple[int, ...]) -> None:
        self._indexer.delay_levels_ms = levels

    def delete_below(self, log_start: int) -> int:
        """Remove files of the extensions that no entry leads to; for the cleaning, after the queues' own files."""
        removed = 0
        with self.queues.lock:
            firsts = [
                (queue.topic, queue.queue_id, queue.entry(queue.min_offset)[2])
                for queue in self.queues.queues.values()
                if isinstance(queue, QueueIndex) and queue.min_offset < queue.next_offset
            ]
        for topic, queue_id, code in firsts:
            if code <= LAST_EXTENSION_ADDRESS:
                removed += self._extensions.delete_below(topic, queue_id, code)
        return removed

    def listen(self, on_arrival: Callable[[str, int, int], None] | None) -> None:
        """Call `on_arrival(topic, queue_id, next_offset)` once for each queue that a `dispatch` adds messages to."""
        self._indexer.on_arrival = on_arrival

    # Durability

    @property
    def flushed_offset(self) -> int:
        """Everything before this log offset is on the device."""
        return self._log_flusher.flushed

    @property
    def confirmed_offset(self) -> int:
        """Everything before this log offset may be read: what is flushed, with synchronous flush, else all.

        With a write pool, what has been copied from it.
        """
        return self._log_flusher.flushed if self._synchronous else self.log.readable_end

    @property
    def dispatched_offset(self) -> int:
        """Everything before this log offset is indexed."""
        return self._indexer.indexed_to

    def when_durable(self, end: int, callback: Callable[[StorageError | None], None]) -> None:
        """Call back when the log is on the device up to `end`, or never will be.

        Called at once if it is already, otherwise from the flushing thread: hand over to your own from there.
        """
        self._log_flusher.when_durable(end, callback)

    def flush(self) -> None:
        """Put everything on the device now, and wait for it."""
        self._log_flusher.flush()
        self.dispatch()
        self._index_flusher.flush(thorough=True)

    # Reading

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int = 32,
        max_bytes: int = MAX_READ_BYTES,
        tag_codes: AbstractSet[int] | None = None,
        accept: Callable[[memoryview], bool] | None = None,
        may_want: Callable[[ExtensionUnit], bool] | None = None,
        *,
        bulk: bool = False,
    ) -> ReadResult:
        """Records of a queue from `offset` on: at least one if any is there, whatever its size.

        `tag_codes` keeps messages whose tag hash is among them; `accept` decides by the record itself, `may_want` before
        that by what stands beside its entry. Buffers are views of the mapped log: they stay valid as long as they are held,
        also when their file is deleted. A `bulk` read may be as large as it asks for, within reason.
        """
        return self.reader.read(topic, queue_id, offset, max_count, max_bytes, tag_codes, accept, may_want, bulk=bulk)

    def record_at(self, commit_log_offset: int) -> memoryview | None:
        """The record that begins at this offset of the log; None if none does.

        Believes the bytes that stand there, which may be a message's body: for an offset that somebody else names, and on which
        more than showing the record depends, take `message_at`.
        """
        segment = self.log.files.segment_of(commit_log_offset)
        if segment is None or commit_log_offset >= self.log.readable_end:
            return None
        position = commit_log_offset - segment.start
        try:
            size = check_record(segment.memory, position, len(segment.memory), check_crc=False)
        except MessageError:
            return None
        if size == END_OF_FILE or own_offset(segment.memory, position) != commit_log_offset:
            return None
        return self.log.read(commit_log_offset, size)

    def message_at(self, commit_log_offset: int) -> memoryview | None:
        """The record that begins at this offset of the log and that its queue leads to; None if there is none.

        Bodies are their senders' to fill, also with what looks like a record of any topic; queue entries are made by the store alone.
        For the thread that owns the store.
        """
        record = self.record_at(commit_log_offset)
        if record is None:
            return None
        if commit_log_offset >= self.dispatched_offset:
            self.dispatch()
        told = decode_entry(record, 0, commit_log_offset)
        found = self.queue_entries(told.topic, told.queue_id, told.queue_offset, 1)
        return record if found and found[0][:2] == (commit_log_offset, len(record)) else None

    def find_by_key(
        self, topic: str, key: str, limit: int = 64, begin_ms: int = 0, end_ms: int = FOREVER_MS
    ) -> FoundByKey:
        """Records whose KEYS or unique key may hold `key`: only hashes are kept, so the asker compares."""
        if self.keys is None:
            return FoundByKey([], 0, 0)
        self._indexer.enter_waiting_keys()
        matches = self.keys.find(topic, key, limit, begin_ms, end_ms)
        records = [self.record_at(offset) for offset in sorted(set(matches.offsets))]
        found = [record for record in records if record is not None]
        return FoundByKey(found, matches.last_stored_at_ms, matches.last_offset, matches.is_whole)

    # Queues

    def queue_range(self, topic: str, queue_id: int) -> QueueRange:
        """Both 0 for a queue that does not exist."""
        queue = self.queues.queues.get((topic, queue_id))
        if queue is None:
            return QueueRange(0, 0)
        with self.queues.lock:
            return QueueRange(queue.min_offset, queue.next_offset)

    def begun_again(self, topic: str, queue_id: int) -> int:
        """How often the numbers of a queue have begun again since the store was opened: its topic was deleted, on the master, and made again."""
        queue = self.queues.queues.get((topic, queue_id))
        return 0 if queue is None else queue.begun_again

    def queue_ends(self, topic: str, queue_ids: Iterable[int]) -> list[int]:
        """The numbers that the next messages of these queues get; 0 for a queue that does not exist."""
        queues = self.queues.queues
        with self.queues.lock:
            found = [queues.get((topic, queue_id)) for queue_id in queue_ids]
            return [0 if queue is None else queue.next_offset for queue in found]

    def queue_ranges(self, topic: str | None = None) -> dict[tuple[str, int], QueueRange]:
        """Of all queues, or those of one topic."""
        with self.queues.lock:
            return {
                key: QueueRange(queue.min_offset, queue.next_offset)
                for key, queue in self.queues.queues.items()
                if topic is None or key[0] == topic
            }

    def queue_entries(self, topic: str, queue_id: int, start: int, count: int) -> list[tuple[int, int, int]] | None:
        """Log offset, size and tag hash of up to `count` messages of a queue; None if there is no such queue."""
        queue = self.queues.queues.get((topic, queue_id))
        if queue is None:
            return None
        with self.queues.lock:
            if isinstance(queue, BatchQueueIndex):
                return [(entry.physical, entry.size, entry.tags_code) for entry in queue.entries_from(start, count)]
            found: list[tuple[int, int, int]] = []
            at, stop = max(start, queue.min_offset), min(start + count, queue.next_offset)
            while at + len(found) < stop:
                data = queue.entries(at + len(found), stop - at - len(found))  # of one file at a time
                found += ENTRY.iter_unpack(data) if data else [queue.entry(at + len(found))]
            return found

    def packed_entries(self, topic: str, queue_id: int, start: int, count: int) -> bytes:
        """As `queue_entries`, as they are stored, of one file; nothing where there is none, or the queue is of batches."""
        queue = self.queues.queues.get((topic, queue_id))
        if not isinstance(queue, QueueIndex):
            return b""
        with self.queues.lock:
            return queue.entries(start, min(count, queue.next_offset - start)) if start >= queue.min_offset else b""

    def topics(self) -> set[str]:
        """Those that have queues."""
        with self.queues.lock:
            return {topic for topic, _ in self.queues.queues}

    def offset_by_time(self, topic: str, queue_id: int, at_ms: int, boundary: Boundary = Boundary.LOWER) -> int:
        queue = self.queues.queues.get((topic, queue_id))
        if queue is None:
            return 0
        with self.queues.lock:
            return offset_by_time(self.log, queue, at_ms, boundary)

    def stored_at_ms(self, topic: str, queue_id: int, offset: int) -> int | None:
        """When a message of a queue was stored; None if there is none at this offset."""
        found = self.read(topic, queue_id, offset, max_count=1)
        return stored_at_ms(found.buffers[0]) if found.buffers and found.queue_offsets[0] <= offset else None

    def earliest_stored_at_ms(self) -> int | None:
        """Of the oldest message in the log."""
        record = self.record_at(self.log.start)
        return None if record is None else stored_at_ms(record)

    def deletions(self) -> Mapping[str, int]:
        """Of topics that were deleted: where the log ended then. Some may have been made again since."""
        return self._deletions.log_offsets

    def delete_topic(self, topic: str) -> int:
        """Forget a topic's queues, for good; how many there were. Its records stay in the log until their files expire.

        One that is made again under the same name begins with number 0.
        """
        if any(queue[0] == topic for queue in self.log.next_queue_offsets):
            # First: behind the noted offset everything is a later topic's, so the log must never end before it.
            self._log_flusher.flush()
            self._deletions.note(topic, self.log.start, self.log.end)
        self.dispatch()
        recent = self.log.recent
        kept = [entry for entry in recent if entry[0][0] != topic]
        recent.clear()
        recent.extend(kept)
        self.log.forget_topic(topic)
        if topic in self.topics():  # a name from the network may be no name of a directory
            self._extensions.delete_topic(topic)
        return self.queues.delete_topic(topic)

    def close(self) -> None:
        """Everything to disk. Whatever fails, the directory is given back; the first failure is raised at the end.

        Only if nothing failed does the next start, ours or Apache's, find a clean stop.
        """
        if self._closed:
            return
        self._closed = True
        self._log_flusher.stop()
        self._index_flusher.stop()
        clean = False
        try:
            if self.replica is not None:
                self.replica.cut_partial_record()
            self._log_flusher.flush()
            self.dispatch()
            self._index_flusher.flush(thorough=True)
            if self.keys is not None:
                self.keys.close()
            self.queues.close()
            everything_indexed = self._indexer.indexed_to == self.log.end
            clean = everything_indexed and not self.health.refuses_writes and not self._index_flusher.sync_failed
        finally:
            self._give_back(clean=clean)

    def abandon(self) -> None:
        """Give files and threads back without writing anything: what a crash would leave is what is left."""
        if self._closed:
            return
        self._closed = True
        self._log_flusher.stop()
        self._index_flusher.stop()
        self._give_back(clean=False)

    def __enter__(self) -> Store:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _give_back(self, *, clean: bool) -> None:
        self.queues.abandon()
        self._extensions.close()
        self._checkpoint_file.close()
        if self.keys is not None:
            self.keys.abandon()
        self.log.unfinished.close()
        self.log.files.close(written_to=self.log.end if clean else None)
        if clean:
            mark_stopped(self.disk, self.config.directory)
        self._lock.release()

    def appended(self, records: int) -> None:
        """So many records were appended to the log just now: have them flushed and indexed as is due."""
        if self._synchronous and self._log_flusher.idle:
            self._log_flusher.wake()
        waiting = len(self._recent)
        if waiting == records and self.on_appended is not None:  # none waited before
            self.on_appended()
        elif waiting >= DISPATCH_AT:
            self.dispatch()

    def _flushed(self) -> None:
        if self.on_flushed is not None:
            self.on_flushed()

    def _check_writable(self) -> None:
        """Keys that a full disk kept out of the index are tried again here, in the thread that may do so."""
        try:
            self._indexer.retry_keys()
        except StorageError as error:
            raise _with_code(error) from error
        if self.health.refuses_writes:
            raise self.health.refuse()

    def _vouch_for_kept_keys(self) -> None:
        """Files of the key index that are about to be built again are not synced, though those before them were."""
        kept_until_ms = self.keys.files[-1].end_ms if self.keys is not None and self.keys.files else 0
        if self.checkpoint.index_synced_ms > kept_until_ms:
            self.checkpoint.index_synced_ms = kept_until_ms
            self._checkpoint_file.save(self.checkpoint)

    def _vouch_for_known_entries(self) -> None:
        """Until the next sync only entries that recovery found are safe, whatever the checkpoint of another run said."""
        if self.recovered.unindexed_from_ms is not None:
            known_until_ms = self.recovered.unindexed_from_ms - 1
            self.checkpoint.queues_synced_ms = min(self.checkpoint.queues_synced_ms, known_until_ms)
            self._checkpoint_file.save(self.checkpoint)

    def _make_safe_what_a_kill_left(self) -> None:
        """It may be in the page cache only. It is served, so the log is flushed now, and the queues with the next thorough sync."""
        self.queues.distrust()
        self._log_flusher.flushed = self.log.start
        self._log_flusher.flush()

    def _open_keys(self) -> KeyIndex:
        trusted_until_ms = self.checkpoint.index_synced_ms if self.last_exit is LastExit.CRASHED else None
        return KeyIndex(
            self.disk,
            self.config.index_path,
            self.clock,
            slots=self.config.index_slots,
            entries=self.config.index_entries,
            trusted_until_ms=trusted_until_ms,
            threads=self._threads,
        )


def _with_code(error: StorageError) -> StorageError:
    code = AppendCode.SERVICE_NOT_AVAILABLE if isinstance(error, StoreFull) else AppendCode.SYSTEM_ERROR
    return type(error)(error.message, hint=error.hint, code=code)


def _physical_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
