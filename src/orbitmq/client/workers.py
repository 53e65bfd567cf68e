"""Calling the handler: so many at once, one message or a batch each; what it does decides what becomes of them.

Java: ConsumeMessageConcurrentlyService.ConsumeRequest, ConsumeMessageOrderlyService.ConsumeRequest
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from orbitmq.client.watching import Watchers
from orbitmq.errors import OrbitError
from orbitmq.tasks import is_cancelled

if TYPE_CHECKING:
    from orbitmq.client.consumer_options import ConsumerOptions
    from orbitmq.client.inbox import Inbox
    from orbitmq.client.received import ReceivedMessage, Settler

logger = logging.getLogger(__name__)

Handler = Callable[[Any], Awaitable[None] | None]
"""Takes a message, or a list of them when the consumer has a batch_size."""

_call: contextvars.ContextVar[Sequence[asyncio.Task[Any]]] = contextvars.ContextVar("_call", default=())
"""In a handler's thread, and in what it has the event loop do: the task that waits for it, as long as it does."""

_TURNS: Final = 32  # calls in a row before others on the event loop get their turn


class Workers:
    """Runs the handler of one consumer."""

    def __init__(self, group: str, handler: Handler, options: ConsumerOptions, inbox: Inbox, settler: Settler) -> None:
        self._group = group
        self._handler = handler
        self._count = options.concurrency
        self._batch_size = options.batch_size
        self._hooks = options.hooks
        self._watchers = Watchers(options.hooks, group)
        self._inbox = inbox
        self._settler = settler
        self._threads: ThreadPoolExecutor | None = None
        if not is_async(handler):
            self._threads = ThreadPoolExecutor(options.concurrency, thread_name_prefix=f"orbitmq-{group}")
        self._tasks: list[asyncio.Task[None]] = []
        self._excused: set[asyncio.Task[Any]] = set()
        self._one_more: asyncio.Future[None] | None = None  # is excused

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._work(), name=f"handler {number} of {self._group}")
            for number in range(self._count)
        ]

    def excuse_caller(self) -> None:
        """`finish` need not wait for the handler that runs here, if one does: it waits for that, as it closes its own consumer."""
        self._excused.update(_call.get())  # may be another consumer's, if its handler has started this one
        task = asyncio.current_task()
        if task is not None:
            self._excused.add(task)
        if self._one_more is not None and not self._one_more.done():
            self._one_more.set_result(None)

    async def finish(self, seconds: float) -> None:
        """Wait for running handlers; the inbox must be closed already. Who takes longer is cancelled, its message comes again."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while late := self._busy():
            self._one_more = loop.create_future()
            left = max(0.0, deadline - loop.time())  # those that have nothing to do end even without time
            done, _ = await asyncio.wait([*late, self._one_more], timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
        if late:
            logger.warning("%d handlers of group %s did not end within %g s", len(late), self._group, seconds)
        for task in late:
            task.cancel()
        ended = [task for task in self._tasks if task not in self._excused]
        for outcome in await asyncio.gather(*ended, return_exceptions=True):
            if isinstance(outcome, Exception):
                logger.error("a worker of group %s ended with %r", self._group, outcome, exc_info=outcome)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _busy(self) -> list[asyncio.Task[None]]:
        return [task for task in self._tasks if not task.done() and task not in self._excused]

    async def handle(self, messages: list[ReceivedMessage]) -> Exception | None:
        """Call the handler once; what it raised."""
        argument: Any = messages if self._batch_size > 1 else messages[0]
        try:
            if self._threads is None:
                waiting = self._handler(argument)
                if waiting is not None:
                    await waiting
            else:
                found = await self._handled_in_thread(argument)
                if inspect.isawaitable(found):  # a lambda around an async function; any other value means nothing
                    await found
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            failure = OrbitError(
                "the handler waited for something that was cancelled", hint="expect CancelledError there"
            )
            failure.__cause__ = error
            return failure
        except Exception as error:
            return error
        return None

    async def _handled_in_thread(self, argument: Any) -> Any:
        loop, context, task = asyncio.get_running_loop(), contextvars.copy_context(), asyncio.current_task()
        call = [] if task is None else [task]
        context.run(_call.set, call)
        try:
            return await loop.run_in_executor(self._threads, lambda: context.run(self._handler, argument))
        finally:
            call.clear()

    async def _work(self) -> None:
        turns = 0
        take_now, settler, batch_size = self._inbox.take_now, self._settler, self._batch_size
        while True:
            messages = take_now(batch_size) or await self._inbox.take(batch_size)
            if not messages:
                return  # closed
            try:
                error = await (self._handle_watched(messages) if self._hooks else self.handle(messages))
                if error is None:
                    settler.ack(messages)
                else:
                    await settler.retry(messages, settler.report(messages, error))
            except (Exception, asyncio.CancelledError) as failure:
                if is_cancelled():
                    raise
                logger.error("group %s cannot settle %r", self._group, messages[0], exc_info=failure)
            turns += 1
            if turns % _TURNS == 0:
                await asyncio.sleep(0)

    async def _handle_watched(self, messages: list[ReceivedMessage]) -> Exception | None:
        watch = self._watchers.begin(messages)
        error = await self.handle(messages)
        watch.end(error)
        return error


def is_async(handler: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function_behind(handler))


def function_behind(handler: Callable[..., Any]) -> Callable[..., Any]:
    """What a partial or a callable object runs in the end."""
    function: Callable[..., Any] = handler
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__
