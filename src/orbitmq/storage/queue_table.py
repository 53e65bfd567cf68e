"""All queues of a store, and the one lock that guards their entries in memory.

    consumequeue/<topic>/<queue id>/         20-byte entries    (queue_index.py)
    batchconsumequeue/<topic>/<queue id>/    46-byte entries    (batch_queue_index.py)

Two threads meet here. The owner (in the broker, the event loop's) adds and reads entries, holding `lock` for memory work only.
The flushing thread takes a copy of what is unwritten under `lock`, writes it without, and says so under it again; while a
queue's files are being written, `_files_lock` keeps the owner from deleting them. The owner never waits for a sync unless it
deletes a topic, or finds that its master has.

Java: ConsumeQueueStore
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Lock
from typing import TYPE_CHECKING, Final, TypeVar

from orbitmq.storage.batch_queue_index import BatchQueueIndex
from orbitmq.storage.entry_log import EntryFiles, load_entry_files
from orbitmq.storage.open_files import PAGE_BYTES
from orbitmq.storage.queue_index import QueueIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from orbitmq.storage.config import StorageConfig
    from orbitmq.storage.files import Disk

logger = logging.getLogger(__name__)

AnyQueue = QueueIndex | BatchQueueIndex
_Item = TypeVar("_Item")

_SYNC_THREADS: Final = 8
_WORTH_THREADS: Final = 32  # syncs
_SYNCED_AT_ONCE: Final = 64  # whoever deletes a topic waits for no more


class KnownOffsets:
    """The log offsets that queues lead to, given out in the order of the log, so that never many are held at once."""

    def __init__(self, streams: list[Iterator[list[int]]]) -> None:
        self._waiting = [next(stream, []) for stream in streams]  # of each a piece that was not given out, ascending
        self._streams = streams

    def before(self, offset: int) -> set[int]:
        """Those before `offset` that were not given out yet."""
        found: set[int] = set()
        for number, piece in enumerate(self._waiting):
            if piece and piece[0] < offset:
                while piece and piece[-1] < offset:
                    found.update(piece)
                    piece = next(self._streams[number], [])
                count = bisect_left(piece, offset)
                found.update(piece[:count])
                self._waiting[number] = piece[count:]
        return found


class _Syncing:
    """Many syncs by several threads: the file system then writes its journal once for several of them, not for each."""

    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(_SYNC_THREADS, "orbitmq-sync") if count >= _WORTH_THREADS else None

    def __enter__(self) -> _Syncing:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._threads is not None:
            self._threads.shutdown()

    def do(self, sync: Callable[[_Item], None], items: list[_Item]) -> None:
        """All of them are tried; the first failure is raised."""
        if self._threads is None:
            for item in items:
                sync(item)
            return
        tried = [self._threads.submit(sync, item) for item in items]
        wait(tried)
        for each in tried:
            each.result()


class QueueTable:
    def __init__(self, disk: Disk, config: StorageConfig, is_batch_topic: Callable[[str], bool]) -> None:
        self.lock = Lock()
        self.queues: dict[tuple[str, int], AnyQueue] = {}
        self._disk = disk
        self._config = config
        self._is_batch_topic = is_batch_topic
        self._files_lock = Lock()
        self._dirty: dict[AnyQueue, None] = {}  # have entries in memory only; in the order they got them
        self._unsynced: dict[AnyQueue, int] = {}  # bytes written since the last sync
        self._unnamed: set[Path] = set()  # directories with new names in them

    def load(self, *, trust: bool) -> None:
        """Open every queue there is a directory for; `trust` after a clean stop."""
        self._load_kind(self._config.queues_path, self._config.queue_file_bytes, QueueIndex, trust=trust)
        self._load_kind(
            self._config.batch_queues_path, self._config.batch_queue_file_bytes, BatchQueueIndex, trust=trust
        )

    def open(self, topic: str, queue_id: int) -> AnyQueue:
        """The queue, made in memory if it is new; its directory appears with its first entries."""
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            config = self._config
            if self._is_batch_topic(topic):
                path, file_bytes = config.batch_queues_path, config.batch_queue_file_bytes
                files = self._files(path, topic, queue_id, file_bytes)
                queue = BatchQueueIndex(topic, queue_id, files, self._make_room)
            else:
                path, file_bytes = config.queues_path, config.queue_file_bytes
                files = self._files(path, topic, queue_id, file_bytes)
                queue = QueueIndex(topic, queue_id, files, self._make_room)
            self.queues[(topic, queue_id)] = queue
        return queue

    def touched(self, queues: Iterable[AnyQueue]) -> None:
        """These have new entries. The caller holds `lock`."""
        self._dirty.update(dict.fromkeys(queues))

    @property
    def max_physical(self) -> int:
        """The end of the newest record that any queue knows; -1 if none does."""
        return max((queue.max_physical for queue in self.queues.values()), default=-1)

    def next_offsets(self) -> dict[tuple[str, int], int]:
        return {key: queue.next_offset for key, queue in self.queues.items()}

    def known_from(self, physical: int) -> KnownOffsets:
        """The records from log offset `physical` on that have an entry."""
        behind = [queue for queue in self.queues.values() if queue.max_physical > physical]
        return KnownOffsets([queue.offsets_from(physical) for queue in behind])

    def write_out(self) -> None:
        """Put what is in memory into the files. Entries stay readable throughout; a failure leaves them in memory."""
        with self.lock:
            dirty, self._dirty = list(self._dirty), {}
        for number, queue in enumerate(dirty):
            try:
                self._write_queue(queue)
            except BaseException:
                with self.lock:
                    self.touched(dirty[number:])
                raise

    def sync(self, least_pages: int = 0) -> None:
        """Make written entries durable, of queues with at least so many pages of them; without a number, of all."""
        due = [queue for queue, size in self._unsynced.items() if size >= least_pages * PAGE_BYTES]
        with _Syncing(len(due)) as syncing:
            for at in range(0, len(due), _SYNCED_AT_ONCE):
                with self._files_lock:
                    syncing.do(self._sync_queue, due[at : at + _SYNCED_AT_ONCE])
        if not least_pages:
            self._sync_names()

    def _sync_queue(self, queue: AnyQueue) -> None:
        size = self._unsynced.pop(queue, None)
        if size is not None:
            try:
                queue.log.files.sync()
            except BaseException:
                self._unsynced[queue] = size
                raise

    def _sync_names(self) -> None:
        """A new queue's directories must survive a power cut as well as its file does. From the leaves to the root."""
        roots = (self._config.queues_path, self._config.batch_queues_path)
        for directories in ([path for path in self._unnamed if path not in roots], self._unnamed.intersection(roots)):
            due = sorted(directories)
            with _Syncing(len(due)) as syncing:
                for at in range(0, len(due), _SYNCED_AT_ONCE):
                    with self._files_lock:
                        syncing.do(self._sync_directory, due[at : at + _SYNCED_AT_ONCE])

    def _sync_directory(self, directory: Path) -> None:
        if self._disk.stat(directory) is not None:
            self._disk.sync_directory(directory)
        self._unnamed.discard(directory)

    def distrust(self) -> None:
        """Entries that a killed process wrote may be in the page cache alone: the next thorough sync covers all files."""
        with self._files_lock:
            for queue in self.queues.values():
                files = queue.log.files
                files.distrust()
                self._unsynced.setdefault(queue, PAGE_BYTES)
                self._unnamed.update((files.directory.parent, files.directory.parent.parent))

    def distrust_from(self, physical: int) -> None:
        """After a power cut: entries of records from `physical` on are held against what the walk enters, until `trust`."""
        with self._files_lock, self.lock:
            for queue in self.queues.values():
                queue.distrust_from(physical)
                self._changed_in_place(queue)

    def trust(self) -> None:
        with self.lock:
            changed = [queue for queue in self.queues.values() if queue.trust()]
            self.touched(changed)
        if changed:  # nothing in the log would bring those entries back
            self.write_out()

    def truncate(self, physical: int) -> None:
        """The log was cut at `physical`: forget what lies behind it."""
        with self._files_lock, self.lock:
            for queue in self.queues.values():
                queue.truncate(physical)
                self._changed_in_place(queue)

    def sync_changes(self) -> None:
        """Make durable what was cut off or changed where it stands. Before other records come to where those were that are cut off:
        a power cut that brought their entries back would have them lead into the middle of the others."""
        with self._files_lock:
            for queue in self.queues.values():
                if queue.log.files.needs_sync:
                    queue.log.files.sync()

    def lead_nowhere(self, start: int, end: int) -> None:
        """The bytes [start, end) of the log are damaged: serve nothing from there."""
        with self._files_lock, self.lock:
            for queue in self.queues.values():
                queue.lead_nowhere(start, end)
                self._changed_in_place(queue)

    def keep_numbers(self, queues: Iterable[tuple[AnyQueue, int]]) -> None:
        """Let each queue give out no number below its own again, though nothing in the log has them: so they are written now."""
        kept = dict(queues)
        for queue, next_offset in kept.items():
            queue.keep_numbers_to(next_offset)
        if kept:
            with self.lock:
                self.touched(kept)
            self.write_out()

    def correct_min(self, log_start: int) -> None:
        with self.lock:
            for queue in self.queues.values():
                queue.correct_min(log_start)

    def delete_below(self, log_start: int) -> int:
        """The log now begins at `log_start`: remove files that lead nowhere and correct the minimum of each queue."""
        count = 0
        for queue in list(self.queues.values()):
            with self._files_lock, self.lock:
                count += queue.delete_below(log_start)
        return count

    def delete_topic(self, topic: str) -> int:
        """Remove all queues of a topic; how many there were."""
        return self._remove(topic, [key for key in self.queues if key[0] == topic])

    def keep_deleted(self, topic: str, log_offset: int) -> None:
        """The topic was deleted when the log ended at `log_offset`: what the log has brought back of it goes again.

        A queue with messages of the topic made again stays, and the numbers that deleted ones have in it lead nowhere: theirs are damaged.
        """
        own = {key: queue for key, queue in self.queues.items() if key[0] == topic}
        self._remove(topic, [key for key, queue in own.items() if _leads_only_to_before(queue, log_offset)])
        with self._files_lock, self.lock:
            for queue in own.values():
                if self.queues.get((topic, queue.queue_id)) is queue:
                    queue.lead_nowhere(0, log_offset)
                    self._changed_in_place(queue)

    def _remove(self, topic: str, keys: list[tuple[str, int]]) -> int:
        for key in keys:
            with self._files_lock, self.lock:
                queue = self.queues.pop(key)
                self._dirty.pop(queue, None)
                self._unsynced.pop(queue, None)
                queue.log.files.destroy()
        if keys and not any(key[0] == topic for key in self.queues):
            for path in {self._config.queues_path / topic, self._config.batch_queues_path / topic}:
                if self._disk.stat(path) is not None:
                    self._disk.remove_directory(path)
        return len(keys)

    def destroy(self) -> None:
        """Remove every queue: there is no log they could lead to."""
        for topic in {topic for topic, _ in self.queues}:
            self.delete_topic(topic)

    def close(self) -> None:
        """Write and sync everything, and give the files back."""
        self.write_out()
        self.sync()
        self.abandon()

    def abandon(self) -> None:
        """Give the files back as they are."""
        for queue in self.queues.values():
            queue.log.files.close()

    def _make_room(self, queue: AnyQueue, number: int) -> None:
        """The log has a later record with a number that is taken. The caller holds `lock`, and lets it go here for a moment:
        whoever takes both locks takes the files' first."""
        logger.info("queue %d of %s begins again at %d", queue.queue_id, queue.topic, number)
        self.lock.release()
        with self._files_lock:
            self.lock.acquire()
            queue.cut_back(number)
            self._changed_in_place(queue)

    def _changed_in_place(self, queue: AnyQueue) -> None:
        if queue.log.files.needs_sync:
            self._unsynced.setdefault(queue, PAGE_BYTES)

    def _write_queue(self, queue: AnyQueue) -> None:
        with self._files_lock:
            with self.lock:
                if self.queues.get((queue.topic, queue.queue_id)) is not queue:
                    return  # deleted since
                first, data = queue.log.unwritten()
            if not data:
                return
            fresh = not queue.log.files.starts
            queue.log.files.write(first * queue.log.entry_bytes, data)
            with self.lock:
                queue.log.mark_written(first, len(data))
            self._unsynced[queue] = self._unsynced.get(queue, 0) + len(data)
            if fresh:
                topic_directory = queue.log.files.directory.parent
                self._unnamed |= {topic_directory, topic_directory.parent}

    def _files(self, path: Path, topic: str, queue_id: int, file_bytes: int) -> EntryFiles:
        return EntryFiles(self._disk, path / topic / str(queue_id), file_bytes)

    def _load_kind(
        self, path: Path, file_bytes: int, kind: type[QueueIndex] | type[BatchQueueIndex], *, trust: bool
    ) -> None:
        for topic in self._disk.list(path):
            if not topic.is_directory:
                continue
            for directory in self._disk.list(path / topic.name):
                if not directory.is_directory or not directory.name.removeprefix("-").isdecimal():
                    continue  # Apache's broker passes over these as well
                files = load_entry_files(self._disk, path / topic.name / directory.name, file_bytes)
                queue = kind(topic.name, int(directory.name), files, self._make_room)
                queue.load(trust=trust)
                self.queues[(topic.name, int(directory.name))] = queue


def _leads_only_to_before(queue: AnyQueue, log_offset: int) -> bool:
    """Not one that leads nowhere but has given out numbers: those are of damaged records, wherever they were."""
    return queue.max_physical <= log_offset and (queue.max_physical >= 0 or queue.next_offset == 0)
