"""An event loop in a thread of its own, for programs that have none. One per process, while anybody needs it."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Final, TypeVar

from orbitmq.errors import AlreadyClosed, ConfigError
from orbitmq.transport.loop import new_event_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

T = TypeVar("T")

_END_SECONDS: Final = 5.0  # for what is still under way when the last user leaves

_lock = threading.Lock()
_current: Portal | None = None
# A child process must not touch its parent's loop, not even to close it: both would watch the same sockets.
_left_by_parent: list[Portal] = []


class Portal:
    """Runs coroutines for other threads."""

    def __init__(self) -> None:
        self.users = 0
        self._open = True
        self._entering = threading.Lock()  # what comes after the loop was stopped would never end
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="orbitmq", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for it; an interruption of the waiting thread cancels it."""
        try:
            self.check_thread()
        except ConfigError:
            coroutine.close()
            raise
        future = self.submit(coroutine)
        try:
            return future.result()
        except CancelledError:
            if self._open:
                raise
            raise _closed() from None
        except BaseException:
            future.cancel()
            raise

    def check_thread(self) -> None:
        """ConfigError in the one thread that cannot wait for the loop: its own."""
        if threading.current_thread() is self._thread:
            raise ConfigError(
                "the blocking client cannot be used on its own event loop", hint="in async handlers use orbitmq.connect"
            )

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin it, and go on."""
        with self._entering:
            if self._open:
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        raise _closed()

    def soon(self, function: Callable[[], object]) -> None:
        """Run it on the loop, in the order given, without waiting; nothing once all is closed."""
        with self._entering:
            if self._open:
                self._loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        """Threads that wait for something hear that it was closed."""
        with self._entering:
            self._open = False
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def was_forked(self) -> None:
        """This is a copy in a child. A thread that is not here may hold its lock."""
        self._entering = threading.Lock()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(_end_all())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()


async def _end_all() -> None:
    """Nobody runs this loop any more afterwards, so who waits for a task must hear now that it will not end."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=_END_SECONDS)


def _closed() -> AlreadyClosed:
    return AlreadyClosed("the client was closed", hint="connect() makes a new one")


def enter() -> Portal:
    """The portal of this process; each enter needs a leave."""
    global _current
    with _lock:
        if _current is None:
            _current = Portal()
        _current.users += 1
        return _current


def leave(portal: Portal) -> None:
    global _current
    with _lock:
        portal.users -= 1
        if portal.users:
            return
        if _current is portal:
            _current = None
    portal.stop()


def _after_fork() -> None:
    global _current, _lock
    _lock = threading.Lock()
    if _current is not None:
        _left_by_parent.append(_current)
        _current = None
    for portal in _left_by_parent:
        portal.was_forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
