"""A thread with an event loop of its own, where a server lives beside a test that knows nothing of asyncio."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Final

from orbitmq.errors import OrbitError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

PATIENCE_SECONDS: Final = 60.0


class LoopThread:
    """Started once: `start` returns when what it was given is open, `stop` when it is closed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked_to_stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None

    def start(self, server: AbstractAsyncContextManager[object]) -> None:
        self._thread = threading.Thread(target=self._run, args=(server,), name=self._name, daemon=True)
        self._thread.start()
        if not self._ready.wait(PATIENCE_SECONDS):
            raise OrbitError(f"{self._name} did not start within {PATIENCE_SECONDS:.0f} s")
        self._raise_failure()

    def stop(self) -> None:
        """What failed while it closed is raised here."""
        if self._thread is not None and self._loop is not None and self._asked_to_stop is not None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._asked_to_stop.set)
            self._thread.join(PATIENCE_SECONDS)
            if self._thread.is_alive():
                raise OrbitError(f"{self._name} did not stop within {PATIENCE_SECONDS:.0f} s")
            self._thread = None
            self._raise_failure()

    def call(self, function: Callable[[], None]) -> None:
        """Have the loop call it, soon."""
        assert self._loop is not None, "the server is not running"
        self._loop.call_soon_threadsafe(function)

    def called(self, function: Callable[[], None]) -> None:
        """The same, and wait until it did. What it raises is raised here."""
        outcome: Future[None] = Future()

        def call() -> None:
            try:
                function()
            except BaseException as error:
                outcome.set_exception(error)
                if not isinstance(error, Exception):
                    raise  # the loop is to end
            else:
                outcome.set_result(None)

        self.call(call)
        done, _ = wait([outcome], PATIENCE_SECONDS)
        if not done:
            raise OrbitError(f"{self._name} did nothing for {PATIENCE_SECONDS:.0f} s", hint="is it paused?")
        outcome.result()

    def _raise_failure(self) -> None:
        """Once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _run(self, server: AbstractAsyncContextManager[object]) -> None:
        try:
            asyncio.run(self._serve(server))
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self, server: AbstractAsyncContextManager[object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._asked_to_stop = asyncio.Event()
        async with server:
            self._ready.set()
            await self._asked_to_stop.wait()
