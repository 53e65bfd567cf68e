"""Answers of one connection that come later: of handlers that wait, each a task, and those that express handlers owe."""

from __future__ import annotations

import asyncio
import types
from typing import TYPE_CHECKING, Any, TypeVar, cast

from orbitmq.transport.failures import failure_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from orbitmq.protocol.command import Command
    from orbitmq.transport.connection import Connection
    from orbitmq.transport.request_times import RequestTimes

T = TypeVar("T")


class LateAnswers:
    __slots__ = ("_connection", "_most", "_on_room", "_owed", "_paid", "_tasks", "_times", "_waiting")

    def __init__(
        self, connection: Connection, most: int, times: RequestTimes | None, on_room: Callable[[], None]
    ) -> None:
        """`on_room` hears when there are no longer as many as may be."""
        self._connection = connection
        self._most = most
        self._times = times
        self._on_room = on_room
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting = 0  # tasks: asked at every read, so not counted each time
        self._owed = 0  # by express handlers
        self._paid: asyncio.Future[None] | None = None  # done when nothing is owed, for who waits for that

    def is_full(self) -> bool:
        return self._waiting + self._owed >= self._most

    def owe(self, answers: int) -> None:
        self._owed += answers

    def pay(self, answers: int) -> bool:
        """They are no longer owed. True if there was no room for others until now."""
        was_full = self.is_full()
        self._owed -= answers
        if not self._owed and self._paid is not None and not self._paid.done():
            self._paid.set_result(None)
        return was_full

    def unfinished(self) -> set[asyncio.Future[None]]:
        """What to wait for until every one of them is there."""
        if not self._owed:
            return set(self._tasks)
        if self._paid is None or self._paid.done():
            self._paid = asyncio.get_running_loop().create_future()
        return {self._paid, *self._tasks}

    def finish(self, request: Command, coroutine: Coroutine[Any, Any, Command | None], waiting_for: Any) -> None:
        """A handler that was stepped once by hand turned out to wait: have it go on as a task."""
        task = asyncio.get_running_loop().create_task(self._finish(request, coroutine, waiting_for))
        self._tasks.add(task)
        self._waiting += 1
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        was_full = self.is_full()
        self._tasks.discard(task)
        self._waiting -= 1
        if was_full:
            self._on_room()

    async def _finish(self, request: Command, coroutine: Coroutine[Any, Any, Command | None], waiting_for: Any) -> None:
        times = self._times
        if times is not None:
            times.waiting[request.code] += 1
        try:
            answer = await _resumed(coroutine, waiting_for)
        except Exception as error:  # whatever it is, the peer gets an answer
            answer = failure_answer(request, error, self._connection.peer)
        finally:
            if times is not None:
                times.waiting[request.code] -= 1
        if answer is not None:
            self._connection.answer(request, answer, is_held=False)


@types.coroutine
def _resumed(coroutine: Coroutine[Any, Any, T], waiting_for: Any) -> Generator[Any, Any, T]:
    """Go on with it: wait for what it waits for, then hand over to it."""
    while True:
        try:
            sent = yield waiting_for
        except BaseException as error:
            try:
                waiting_for = coroutine.throw(error)
            except StopIteration as finished:
                return cast("T", finished.value)
        else:
            try:
                waiting_for = coroutine.send(sent)
            except StopIteration as finished:
                return cast("T", finished.value)
