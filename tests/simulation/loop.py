"""An event loop without sockets, threads or waiting: time jumps to the next timer, and chance decides who runs next.

Callbacks belong to lanes, one for each process of the simulated cluster: the lane is in the callback's context, which tasks and
timers inherit. Within a lane callbacks run in the order they came in, as asyncio promises; between lanes the seed decides. What
threads would do is done by callbacks, a little later. A lane that ends is a process that was killed: nothing of it runs again, no
`finally`, no `close`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
from collections import deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

_MOST_STEPS: Final = 3_000_000  # of one schedule; only one that turns in a circle comes so far


class Killed(BaseException):
    """Passes through code whose process has just ended."""


class Lane:
    """The callbacks of one process, from its start to its end."""

    __slots__ = ("alive", "context", "host", "is_busy", "name", "ready")

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.alive = True
        self.ready: deque[asyncio.Handle] = deque()
        self.is_busy = False
        self.context = contextvars.copy_context()
        self.context.run(_LANE.set, self)


_LANE: contextvars.ContextVar[Lane] = contextvars.ContextVar("lane")


def current_lane() -> Lane:
    """Of the process whose code runs."""
    return _LANE.get()


class SimulatedLoop(asyncio.BaseEventLoop):
    def __init__(self, random: Random) -> None:
        super().__init__()
        self.steps = 0
        self.failures: list[str] = []  # what callbacks raised that nobody caught
        self._random = random
        self._now = 0.0
        self._timers: list[tuple[float, float, int, asyncio.TimerHandle]] = []
        self._count = 0
        self._busy: list[Lane] = []
        self._world = Lane("world", "")
        self._kept: list[
            asyncio.Task[Any]
        ] = []  # so that no task of a dead process is collected, and runs its `finally`
        self.set_task_factory(self._keep_task)
        self.set_exception_handler(_note_failure)

    # ---- lanes

    def in_lane(self, lane: Lane, callback: Callable[..., object], *arguments: object) -> None:
        """Run it soon, as that process."""
        self.call_soon(callback, *arguments, context=lane.context)

    def end(self, lane: Lane) -> None:
        lane.alive = False
        lane.ready.clear()

    def close(self) -> None:
        for task in self._kept:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(BaseException):  # what its `finally` meets is a world that has ended
                    task.get_coro().close()
        super().close()

    # ---- what asyncio calls

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._enter(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """From a thread: nobody knows how soon."""
        return self.call_later(self._random.random() * 0.002, callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._count += 1
        heapq.heappush(self._timers, (when, self._random.random(), self._count, handle))
        return handle

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                if not future.cancelled():
                    future.set_exception(error)
            else:
                if not future.cancelled():
                    future.set_result(result)

        self.call_later(self._random.random() * 0.005, work)
        return future

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # it is passed over when its time comes

    def _run_once(self) -> None:
        """One callback."""
        if not self._busy:
            self._go_to_next_timer()
        busy = self._busy
        index = int(self._random.random() * len(busy)) if len(busy) > 1 else 0
        lane = busy[index]
        ready = lane.ready
        handle = ready.popleft() if ready else None
        if handle is not None and not handle._cancelled:
            self.steps += 1
            handle._run()
        if not ready:
            busy[index] = busy[-1]
            busy.pop()
            lane.is_busy = False

    # ---- inside

    def _enter(self, handle: asyncio.Handle) -> None:
        lane = handle._context.get(_LANE, self._world)  # type: ignore[attr-defined]
        if lane.alive:
            lane.ready.append(handle)
            if not lane.is_busy:
                lane.is_busy = True
                self._busy.append(lane)

    def _go_to_next_timer(self) -> None:
        timers = self._timers
        while not self._busy:
            if not timers:
                raise RuntimeError("nothing will ever happen again")
            if self.steps > _MOST_STEPS:
                raise RuntimeError(f"{self.steps} callbacks, and no end")
            self._now = max(self._now, timers[0][0])
            while timers and timers[0][0] <= self._now:
                handle = heapq.heappop(timers)[3]
                if not handle._cancelled:
                    self._enter(handle)

    def _keep_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, context=context)
        self._kept.append(task)
        return task

    def _process_events(self, event_list: object) -> None:
        """There are none: no selector."""

    def _write_to_self(self) -> None:
        """Nobody sleeps who had to be woken."""


def _note_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if isinstance(error, Killed):
        return
    assert isinstance(loop, SimulatedLoop)
    loop.failures.append(f"{context.get('message')}: {error!r}")
