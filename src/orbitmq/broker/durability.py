"""Waiting until messages are as safe as the broker promises, many waiters per flush, none of them on the event loop.

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

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.errors import StorageError
    from orbitmq.storage.store import Store


class _Group:
    __slots__ = ("end", "timer", "waiting")

    def __init__(self) -> None:
        self.end = 0
        self.waiting: list[Callable[[bool], None]] = []
        self.timer: asyncio.TimerHandle | None = None


class Durability:
    def __init__(self, store: Store, timeout_seconds: float, most_waiting: int) -> None:
        self._store = store
        self._most_waiting = most_waiting
        self._unanswered = 0
        self._timeout_seconds = timeout_seconds
        self._loop = asyncio.get_running_loop()
        self._group = _Group()
        self.is_immediate = store.config.flush_mode is FlushMode.ASYNC

    @property
    def has_room(self) -> bool:
        return self._unanswered < self._most_waiting

    def check_room(self) -> None:
        """Refuse a message before it is stored, when the disk is too far behind to answer it in time."""
        if not self.has_room:
            raise RequestFailed(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD] {self._unanswered} messages wait for the disk already",
                hint="send more slowly; sendThreadPoolQueueCapacity is the limit",
            )

    async def wait(self, end: int) -> ResponseCode:
        """Until the log is flushed to `end`. The message is stored in any case: a time-out says only "not known"."""
        if self.is_immediate:
            return ResponseCode.SUCCESS
        waiter: asyncio.Future[bool] = self._loop.create_future()
        self.tell(end, partial(_resolve, waiter))
        return ResponseCode.SUCCESS if await waiter else ResponseCode.FLUSH_DISK_TIMEOUT

    def tell(self, end: int, told: Callable[[bool], None]) -> None:
        """As `wait`, without a task: `told` hears once, from the event loop, whether it is flushed in time."""
        group = self._group
        if not group.waiting:
            self._loop.call_soon(self._ask)
        group.waiting.append(told)
        group.end = max(group.end, end)
        self._unanswered += 1

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
        self._unanswered -= len(waiting)
        for told in waiting:
            told(is_safe)


def _resolve(waiter: asyncio.Future[bool], is_safe: bool) -> None:
    if not waiter.done():
        waiter.set_result(is_safe)
