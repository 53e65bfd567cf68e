"""Waiting until messages are as safe as the broker promises, many waiters per flush, none of them on the event loop.

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
    from orbitmq.errors import StorageError
    from orbitmq.storage.store import Store

_Waiter = asyncio.Future[None]


class Durability:
    def __init__(self, store: Store, timeout_seconds: float, most_waiting: int) -> None:
        self._store = store
        self._most_waiting = most_waiting
        self._unanswered = 0
        self._timeout_seconds = timeout_seconds
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_Waiter] = []
        self._end = 0
        self.is_immediate = store.config.flush_mode is FlushMode.ASYNC

    def check_room(self) -> None:
        """Refuse a message before it is stored, when the disk is too far behind to answer it in time."""
        if self._unanswered >= self._most_waiting:
            raise RequestFailed(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD] {self._unanswered} messages wait for the disk already",
                hint="send more slowly; sendThreadPoolQueueCapacity is the limit",
            )

    async def wait(self, end: int) -> ResponseCode:
        """Until the log is flushed to `end`. The message is stored in any case: a time-out says only "not known"."""
        if self.is_immediate:
            return ResponseCode.SUCCESS
        waiter = self._loop.create_future()
        if not self._waiting:
            # All sends of this turn of the loop ask for one flush together.
            self._loop.call_soon(self._ask)
        self._waiting.append(waiter)
        self._end = max(self._end, end)
        self._unanswered += 1
        try:
            done, _ = await asyncio.wait((waiter,), timeout=self._timeout_seconds)
        finally:
            self._unanswered -= 1
        if not done:
            waiter.cancel()
            return ResponseCode.FLUSH_DISK_TIMEOUT
        return ResponseCode.SUCCESS if waiter.exception() is None else ResponseCode.FLUSH_DISK_TIMEOUT

    def _ask(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._store.when_durable(self._end, partial(self._from_flusher, waiting))

    def _from_flusher(self, waiting: list[_Waiter], error: StorageError | None) -> None:
        self._loop.call_soon_threadsafe(_resolve, waiting, error)


def _resolve(waiting: list[_Waiter], error: StorageError | None) -> None:
    for waiter in waiting:
        if waiter.done():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)
