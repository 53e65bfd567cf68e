"""An event loop in a thread of its own, for programs that have none. One per process, while anybody needs it."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from orbitmq.errors import ConfigError
from orbitmq.transport.loop import new_event_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

T = TypeVar("T")

_lock = threading.Lock()
_current: Portal | None = None
# A child process must not touch its parent's loop, not even to close it: both would watch the same sockets.
_left_by_parent: list[Portal] = []


class Portal:
    """Runs coroutines for other threads."""

    def __init__(self) -> None:
        self.users = 0
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="orbitmq", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for it; an interruption of the waiting thread cancels it."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise ConfigError(
                "the blocking client cannot be used on its own event loop", hint="in async handlers use orbitmq.connect"
            )
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin it, and go on."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def soon(self, function: Callable[[], object]) -> None:
        """Run it on the loop, in the order given, without waiting."""
        self._loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()


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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
