"""Waiting until messages are as safe as the broker promises: on its disk, many waiters per flush, and on its slaves.

All sends of one turn of the event loop are a group: one question to the flushing thread, one timer, however many they are.

Java: CommitLog.GroupCommitService
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from orbitmq.errors import RequestFailed
from orbitmq.protocol.codes import ResponseCode
from orbitmq.storage.config import FlushMode
from orbitmq.storage.health import RunningFlags

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.broker.replication.master import Slaves
    from orbitmq.errors import StorageError
    from orbitmq.storage.store import Store


class _Group:
    __slots__ = ("end", "timer", "waiting")

    def __init__(self) -> None:
        self.end = 0
        self.waiting: list[tuple[int, Callable[[ResponseCode], None], int]] = []
        self.timer: asyncio.TimerHandle | None = None


class Durability:
    def __init__(
        self, store: Store, timeout_seconds: float, most_waiting: int, slaves: Slaves | None = None, copies: int = 0
    ) -> None:
        """`copies` is how many slaves must have a message before its sender is told that it is safe."""
        self._store = store
        self._slaves = slaves if copies else None
        self._copies = copies
        self._flushes = store.config.flush_mode is FlushMode.SYNC
        self._most_waiting = most_waiting
        self._unanswered = 0
        self._timeout_seconds = timeout_seconds
        self._loop = asyncio.get_running_loop()
        self._group = _Group()
        self.is_immediate = not self._flushes and self._slaves is None

    @property
    def unanswered(self) -> int:
        """Messages whose senders wait."""
        return self._unanswered

    @property
    def has_room(self) -> bool:
        return self._unanswered < self._most_waiting

    def check_room(self) -> None:
        """Refuse a message before it is stored, when the disk is too far behind to answer it in time."""
        if not self.has_room:
            raise RequestFailed(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD] {self._unanswered} messages wait for the disk or for slaves already",
                hint="send more slowly; sendThreadPoolQueueCapacity is the limit",
            )

    async def wait(self, end: int) -> ResponseCode:
        """Until the log is safe up to `end`. The message is stored in any case: a time-out says only "not known"."""
        waiter: asyncio.Future[ResponseCode] = self._loop.create_future()
        self.tell(end, partial(_resolve, waiter))
        return await waiter

    async def keep_promise(self, end: int) -> None:
        """As `wait`, for answers that know only yes and no. StorageError when the log never will be safe up to `end`.

        A disk that is slow, and slaves that are late or away, do not keep messages from their consumers.
        """
        broken = self.broken_promise(await self.wait(end))
        if broken is not None:
            raise broken

    def broken_promise(self, verdict: ResponseCode) -> StorageError | None:
        """Why what was waited for never will be safe: after a failed sync, a power cut takes it back."""
        health = self._store.health
        fenced = verdict is ResponseCode.FLUSH_DISK_TIMEOUT and RunningFlags.FENCED in health.flags
        return health.refuse() if fenced else None

    def tell(self, end: int, told: Callable[[ResponseCode], None], messages: int = 1) -> None:
        """As `wait`, without a task: `told` hears once for all these messages, from the event loop."""
        self._unanswered += messages
        if not self._flushes:
            self._tell_of_slaves(end, told, messages)
            return
        group = self._group
        if not group.waiting:
            self._loop.call_soon(self._ask)
        group.waiting.append((end, told, messages))
        group.end = max(group.end, end)

    def _ask(self) -> None:
        group, self._group = self._group, _Group()
        group.timer = self._loop.call_later(self._timeout_seconds, self._settle, group, False)
        self._store.when_durable(group.end, partial(self._from_flusher, group))

    def _from_flusher(self, group: _Group, error: StorageError | None) -> None:
        self._loop.call_soon_threadsafe(self._settle, group, error is None)

    def _settle(self, group: _Group, is_safe: bool) -> None:
        waiting, group.waiting = group.waiting, []  # the flusher and the timer both come; the first counts
        if group.timer is not None:
            group.timer.cancel()
        if is_safe and waiting:
            self._store.dispatch()  # who is told that a message is safe may ask for it at once
        for end, told, messages in waiting:
            if is_safe:
                self._tell_of_slaves(end, told, messages)
            else:
                self._answer(told, messages, ResponseCode.FLUSH_DISK_TIMEOUT)

    def _tell_of_slaves(self, end: int, told: Callable[[ResponseCode], None], messages: int) -> None:
        if self._slaves is None:
            self._answer(told, messages, ResponseCode.SUCCESS)
        else:
            self._slaves.tell(end, self._copies, partial(self._answer, told, messages))

    def _answer(self, told: Callable[[ResponseCode], None], messages: int, verdict: ResponseCode) -> None:
        self._unanswered -= messages
        told(verdict)


async def until_durable(store: Store, end: int) -> None:
    """Return once the log is on the device up to `end`. StorageError if it never will be."""
    loop = asyncio.get_running_loop()
    safe: asyncio.Future[None] = loop.create_future()

    def settle(error: StorageError | None) -> None:
        if safe.done():
            return
        if error is None:
            safe.set_result(None)
        else:
            safe.set_exception(error)

    def from_flusher(error: StorageError | None) -> None:
        loop.call_soon_threadsafe(settle, error)

    store.when_durable(end, from_flusher)
    await safe


def _resolve(waiter: asyncio.Future[ResponseCode], verdict: ResponseCode) -> None:
    if not waiter.done():
        waiter.set_result(verdict)
