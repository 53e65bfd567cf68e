"""The two threads that wait for the disk: one for the commit log, one for everything that can be built again from it.

    LogFlusher      asynchronous: every half second, if enough pages are dirty, and every ten seconds in any case
                    synchronous: as soon as something is appended; one sync serves all who came while the last one ran
                    with a write pool: copies it to the files five times a second, besides
    IndexFlusher    every second: queue entries from memory to their files, the checkpoint; a thorough sync every minute

A failed sync of the log ends all writing: the kernel may have dropped the pages and called them clean, so a retry that
succeeds would prove nothing. What fails in the indexes can be tried again, because their content is still in the log.

Java: CommitLog.GroupCommitService, FlushRealTimeService; DefaultMessageStore.FlushConsumeQueueService
"""

from __future__ import annotations

import heapq
import itertools
import logging
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Final

from orbitmq.errors import StorageError, StoreFenced
from orbitmq.storage.config import FlushMode
from orbitmq.storage.health import RunningFlags
from orbitmq.storage.open_files import PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from orbitmq.storage.checkpoint import Checkpoint, CheckpointFile
    from orbitmq.storage.commit_log import CommitLog
    from orbitmq.storage.config import StorageConfig
    from orbitmq.storage.health import Health
    from orbitmq.storage.indexer import Indexer
    from orbitmq.storage.key_index import KeyIndex
    from orbitmq.storage.queue_table import QueueTable
    from orbitmq.storage.threads import Threads

logger = logging.getLogger(__name__)

_KEPT_BYTES: Final = 4 << 20  # at the end of a log whose flushed part is forgotten: its last records are read once more


class LogFlusher:
    def __init__(
        self,
        log: CommitLog,
        config: StorageConfig,
        checkpoint: Checkpoint,
        health: Health,
        on_flushed: Callable[[], None],
        threads: Threads,
    ) -> None:
        self.flushed = log.end  # everything before this log offset is on the device
        self.failed: StoreFenced | None = None
        self._is_cut = False  # what a cut cleared and removed may still be on the device
        self._log = log
        self._config = config
        self.is_synchronous = config.flush_mode is FlushMode.SYNC
        self.forgets = False  # what is flushed need not stay in memory
        self._forgotten_to = log.end
        self._checkpoint = checkpoint
        self._health = health
        self._on_flushed = on_flushed
        self._waiting_lock = Lock()
        self._waiting: list[tuple[int, int, Callable[[StorageError | None], None]]] = []  # a heap by offset
        self._order = itertools.count()  # so that callbacks are never compared
        self._flushing = Lock()  # the flushing thread's, or that of whoever flushes by hand
        self._rounds_skipped = 0
        every_ms = config.commit_every_ms if config.write_pool_buffers else config.flush_every_ms
        self._thorough_after = max(1, config.flush_thorough_every_ms // every_ms)
        self._rounds = threads.repeat("orbitmq-log-flush", self._round, self._is_due, every_ms / 1000)

    @property
    def idle(self) -> bool:
        """The thread sleeps: an append that must not wait for the interval wakes it."""
        return self._rounds.idle

    def start(self) -> None:
        self._rounds.start()

    def when_durable(self, end: int, callback: Callable[[StorageError | None], None]) -> None:
        """Call back once the log is on the device up to `end`: at once if it is, else from the flushing thread."""
        with self._waiting_lock:
            must_wait = end > self.flushed and self.failed is None
            if must_wait:
                heapq.heappush(self._waiting, (end, next(self._order), callback))
        if must_wait:
            self._rounds.wake()
        else:
            callback(None if end <= self.flushed else self.failed)

    def wake(self) -> None:
        """Something was appended that must be flushed soon, though nobody waits for it."""
        self._rounds.wake()

    def flush(self) -> None:
        """Make everything appended so far durable, in this thread. Raises StoreFenced once a sync has failed."""
        with self._flushing:
            if self.failed is not None:
                raise self.failed.with_traceback(None)  # it is raised for each send, and would remember them all
            stored_at_ms = self._log.last_stored_at_ms  # before the end: the record it speaks of is surely included
            self._log.commit()
            end = self._log.readable_end
            if end <= self.flushed and not self._is_cut:
                return
            try:
                if self._is_cut:
                    self._log.files.sync_cut(self.flushed)
                self._log.files.sync(self.flushed, end)
            except StorageError as cause:
                self._fence(cause)
            self.flushed, self._is_cut = end, False
            self._checkpoint.log_synced_ms = max(self._checkpoint.log_synced_ms, stored_at_ms)
            self._forget_before(end - _KEPT_BYTES)
        try:
            self._on_flushed()  # before the answers: who is told that a message is safe may look for it at once
        finally:
            self._answer()

    @contextmanager
    def cutting_back(self, end: int) -> Iterator[None]:
        """While the log is cut back to `end`, nothing is flushed; what comes behind it afterwards is not flushed yet.

        The next flush makes the cut durable, even if nothing came behind it. Who waits for what was cut off hears that it never will be.
        """
        with self._flushing:
            self._is_cut = True
            yield
            self.flushed = min(self.flushed, end)
        with self._waiting_lock:
            in_vain = [callback for wanted, _, callback in self._waiting if wanted > end]
            self._waiting = [waiter for waiter in self._waiting if waiter[0] <= end]
            heapq.heapify(self._waiting)
        cut = StorageError(
            f"the log was cut back to {end}: what was waited for is gone",
            hint="nothing is to be done: what the master has in its place is copied from there",
        )
        for callback in in_vain:
            _call(callback, cut)

    def stop(self) -> None:
        """End the thread; what is not flushed stays so."""
        self._rounds.stop()

    def _forget_before(self, end: int) -> None:
        if self.forgets and end > self._forgotten_to:
            self._log.files.forget(self._forgotten_to, end)
        self._forgotten_to = end

    def _fence(self, cause: StorageError) -> None:
        failed = StoreFenced(
            f"a sync of the commit log failed, so nothing more is written: {cause.message}",
            hint="move the store to a sound disk and start again; what was acknowledged as flushed is safe",
        )
        failed.__cause__ = cause
        self._health.report(RunningFlags.FENCED, failed)
        with self._waiting_lock:
            self.failed = failed
            waiting, self._waiting = self._waiting, []
        for _, _, callback in waiting:
            _call(callback, failed)
        raise failed.with_traceback(None)

    def _answer(self) -> None:
        due = []
        with self._waiting_lock:
            while self._waiting and self._waiting[0][0] <= self.flushed:
                due.append(heapq.heappop(self._waiting)[2])
        for callback in due:
            _call(callback, None)

    def _is_due(self) -> bool:
        return self._log.end > self.flushed and (self.is_synchronous or bool(self._waiting))

    def _round(self) -> bool:
        wanted = self._is_due()
        self._rounds_skipped += 1
        readable = self._log.readable_end
        self._log.commit()
        dirty = self._log.readable_end - self.flushed
        if self._log.readable_end > readable:
            self._on_flushed()
        enough = dirty >= self._config.flush_least_pages * PAGE_BYTES
        if wanted or enough or self._rounds_skipped >= self._thorough_after:
            self._rounds_skipped = 0
            try:
                self.flush()
            except StoreFenced:
                return False
        return True


def _call(callback: Callable[[StorageError | None], None], error: StorageError | None) -> None:
    """Whoever waits may be broken; the others who wait, and the disk, are not to suffer for it."""
    try:
        callback(error)
    except Exception:
        logger.exception("whoever waited for the disk could not take the answer")


class IndexFlusher:
    """Also saves the checkpoint, whose times may only advance after the syncs they speak of."""

    def __init__(
        self,
        queues: QueueTable,
        keys: KeyIndex | None,
        indexer: Indexer,
        config: StorageConfig,
        checkpoint: Checkpoint,
        checkpoint_file: CheckpointFile,
        health: Health,
        threads: Threads,
    ) -> None:
        self.sync_failed = False  # once it has, a stop is no clean one
        self._queues = queues
        self._keys = keys
        self._indexer = indexer
        self._config = config
        self._checkpoint = checkpoint
        self._checkpoint_file = checkpoint_file
        self._health = health
        self._flushing = Lock()  # the flushing thread's, or that of whoever flushes by hand
        self._rounds_done = 0
        every_ms = config.queue_flush_every_ms
        self._thorough_after = max(1, config.queue_flush_thorough_every_ms // every_ms)
        self._rounds = threads.repeat("orbitmq-index-flush", self._round, lambda: False, every_ms / 1000)

    def start(self) -> None:
        self._rounds.start()

    def flush(self, *, thorough: bool) -> None:
        """Write queue entries and save the checkpoint; with `thorough`, sync every queue first."""
        with self._flushing:
            try:
                self._flush(thorough=thorough)
            except StorageError as error:
                self._health.report(RunningFlags.QUEUE_ERROR, error)
                raise
            self._health.clear(RunningFlags.QUEUE_ERROR)

    def stop(self) -> None:
        self._rounds.stop()

    def _flush(self, *, thorough: bool) -> None:
        with self._queues.lock:
            indexed_until_ms = self._indexer.last_stored_at_ms
        self._indexer.enter_waiting_keys()
        keys_complete = RunningFlags.INDEX_ERROR not in self._health.flags
        self._queues.write_out()
        try:
            self._queues.sync(0 if thorough else self._config.queue_flush_least_pages)
        except StorageError:
            # The kernel may have dropped those pages and call them clean from now on. The next start must index again what
            # they held, so this run vouches for nothing more.
            self.sync_failed = True
            raise
        if thorough and keys_complete and not self.sync_failed:
            self._checkpoint.queues_synced_ms = max(self._checkpoint.queues_synced_ms, indexed_until_ms)
        if self._keys is not None:
            self._checkpoint.index_synced_ms = max(self._checkpoint.index_synced_ms, self._keys.sync())
        self._checkpoint_file.save(self._checkpoint)

    def _round(self) -> bool:
        self._rounds_done += 1
        try:
            self.flush(thorough=self._rounds_done % self._thorough_after == 0)
        except StorageError:
            return True  # reported; the next round tries again
        return True
