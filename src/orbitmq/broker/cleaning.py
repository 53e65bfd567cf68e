"""Making room: expired files go, a full disk refuses sends until it is less full. The work is done by a thread.

Java: CleanCommitLogService, CleanConsumeQueueService
"""

from __future__ import annotations

import asyncio
import logging
from threading import Event
from typing import TYPE_CHECKING

from orbitmq.errors import StorageError, StoreFull
from orbitmq.storage.health import RunningFlags
from orbitmq.storage.retention import Retention

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.storage.retention import FollowsLog
    from orbitmq.storage.store import Store

logger = logging.getLogger(__name__)


class Cleaning:
    def __init__(self, store: Store, configuration: BrokerConfiguration, others: Sequence[FollowsLog] = ()) -> None:
        """`others` lead into the log as well, beside the store's own indexes."""
        self._store = store
        self._configuration = configuration
        self._generation = configuration.generation
        self._stopping = Event()
        self._one_at_a_time = asyncio.Lock()
        self._working: asyncio.Future[None] | None = None
        followers: list[FollowsLog] = [store.queues, *others]
        if store.keys is not None:
            followers.append(store.keys)
        self._retention = Retention(
            store.disk, store.config, store.clock, store.log.files, followers, self._stopping.wait
        )

    def ask(self) -> None:
        """Let expired files go soon, whatever the hour."""
        self._retention.ask()

    async def round(self) -> None:
        """Look how full the disk is and let go what may go; what fails is tried again in the next round."""
        await self._in_thread(self._clean)

    async def follow(self) -> None:
        """Remove index files that lead to nothing any more."""
        await self._in_thread(self._follow)

    async def stop(self) -> None:
        """Return once no thread works on the store's files any more."""
        self._stopping.set()
        if self._working is not None:
            await asyncio.wait((self._working,))

    async def _in_thread(self, work: Callable[[], None]) -> None:
        async with self._one_at_a_time:
            if self._stopping.is_set():
                return
            # Whoever waits may be cancelled; the thread cannot be, so `stop` has to find it.
            self._working = asyncio.ensure_future(asyncio.to_thread(work))
            await asyncio.shield(self._working)

    def _clean(self) -> None:
        if self._generation != self._configuration.generation:
            self._generation = self._configuration.generation
            self._retention.use(self._configuration.settings.storage_config())
        try:
            cleaned = self._retention.clean()
        except StorageError as error:
            logger.error("cannot clean the store: %s", error)
            return
        health = self._store.health
        if self._retention.disk_full:
            used, directory = cleaned.used_percent, self._store.config.commit_log_path
            full = StoreFull(f"the disk is {used}% full: {directory}", hint="make room; sending goes on by itself then")
            health.report(RunningFlags.DISK_FULL, full)
        else:
            health.clear(RunningFlags.DISK_FULL)

    def _follow(self) -> None:
        try:
            removed = self._retention.follow()
        except StorageError as error:
            logger.error("cannot clean the indexes: %s", error)
            return
        logger.info("removed %d index files that led to nothing", removed)
