"""Background tasks with an owner: whoever starts them ends them, and a crash is told rather than lost."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from orbitmq.errors import OrbitError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Tasks:
    """The tasks of one owner."""

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[Any], None] = {}  # in the order they were started
        self._closed = False

    def start(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any] | None:
        """Run it beside everything else; after `close` nothing is started any more."""
        if self._closed:
            coroutine.close()
            return None
        task = asyncio.create_task(coroutine, name=name)
        self._running[task] = None
        task.add_done_callback(self._finished)
        return task

    async def close(self) -> None:
        """Cancel what runs and wait until it is gone. The task that closes, if one of these, is left alone."""
        self._closed = True
        current = asyncio.current_task()
        ending = [task for task in self._running if task is not current]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        _tell_of_crash(task)


class Once:
    """Work that is done once and to its end: who is cancelled while waiting for it leaves it going on."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    async def run(self, begin: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """The first caller begins it, all wait for its end."""
        if self._task is None:
            self._task = asyncio.create_task(begin(), name=name)
        try:
            await asyncio.shield(self._task)
        except asyncio.CancelledError:
            self._task.add_done_callback(_tell_of_crash)  # nobody may be left to hear of it
            raise


async def every(
    seconds: float | Callable[[], float], action: Callable[[], Awaitable[object] | None], what: str
) -> None:
    """Repeat `action` for ever. Its failures are reported when they begin and when they end, not each time."""
    failing = False
    while True:
        await asyncio.sleep(seconds() if callable(seconds) else seconds)
        try:
            running = action()
            if running is not None:
                await running
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled():
                raise
            if not failing and isinstance(error, OrbitError):
                logger.warning("%s fails: %s", what, error)
            elif not failing:
                logger.error("%s fails: %r", what, error, exc_info=error)
            failing = True
        else:
            if failing:
                logger.info("%s works again", what)
            failing = False


def is_cancelled() -> bool:
    """Whether somebody has cancelled the task that runs.

    A CancelledError without that comes out of something it waited for, which was cancelled: a failure like any other.
    """
    task = asyncio.current_task()
    return task is not None and bool(task.cancelling())


async def shared(task: asyncio.Future[T], given_up: Callable[[], OrbitError]) -> T:
    """What a task comes to that others wait for, too. Who is cancelled leaves it going on; when it is cancelled itself, all get
    `given_up()`: nobody has cancelled them.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled() and not is_cancelled():
            raise given_up() from None
        raise


async def set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Whether it is set by then; None: wait for it.

    Unlike `asyncio.wait_for` of Python 3.11, a cancellation that meets the event is not lost: whoever cancels waits for it.
    """
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _tell_of_crash(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        error = task.exception()
        if error is not None:
            logger.error("%s ended with %r", task.get_name(), error, exc_info=error)
    elif not task.cancelling():
        logger.error("%s ended, though nobody cancelled it: what it waited for was cancelled", task.get_name())
