"""Pulled messages waiting for a handler: in one line for all, or one line a queue with one at a time at its head.

Java: ConsumeMessageConcurrentlyService, ConsumeMessageOrderlyService (their queues)
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol

from orbitmq.client.queue_locks import TRUSTED_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.client.process_queue import ProcessQueue
    from orbitmq.client.received import ReceivedMessage


class Inbox(Protocol):
    """Where handlers get their messages from."""

    def put(self, held: ProcessQueue, messages: list[ReceivedMessage]) -> None: ...

    def take_now(self, count: int) -> list[ReceivedMessage]:
        """Up to `count` messages of one queue; empty when none is ready."""
        ...

    async def take(self, count: int) -> list[ReceivedMessage]:
        """As `take_now`, but waits for some; empty only once the inbox is closed."""
        ...

    def close(self) -> None:
        """Hand out nothing more; whoever waits is told."""
        ...


class _Waiting:
    """Tasks that wait for something to be put. One is woken at a time, and wakes the next if more is there than it takes: a
    handler that never waits then needs one task, however many there are.
    """

    def __init__(self) -> None:
        self.closed = False
        self._futures: deque[asyncio.Future[None]] = deque()
        self._waking = False  # one was woken and has not run yet

    async def until_taken(self, take_now: Callable[[int], list[ReceivedMessage]], count: int) -> list[ReceivedMessage]:
        """What `take_now` gives, once it gives something; nothing only when all is closed."""
        while not self.closed:
            taken = take_now(count)
            if taken:
                return taken
            await self._wait()
        return []

    async def _wait(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():  # we were woken: somebody else must go in our place
                self._waking = False
                self.wake()
            raise
        self._waking = False

    def wake(self) -> None:
        futures = self._futures
        while futures and not self._waking:
            future = futures.popleft()
            if not future.done():
                future.set_result(None)
                self._waking = True

    def close(self) -> None:
        self.closed = True
        for future in self._futures:
            if not future.done():
                future.set_result(None)
        self._futures.clear()


class ConcurrentInbox:
    """One line for all queues; as many are handled at once as there are takers. What came together waits together."""

    def __init__(self) -> None:
        self._ready: deque[list[ReceivedMessage]] = deque()  # each list of one queue, its next message last
        self._waiting = _Waiting()

    def put(self, held: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        self._ready.append(messages[::-1])
        self._waiting.wake()

    def take_now(self, count: int) -> list[ReceivedMessage]:
        ready = self._ready
        if self._waiting.closed:
            return []
        while ready:
            piece = ready[0]
            held = piece[-1].holder
            if held is None or held.dropped:
                ready.popleft()  # somebody else's by now
                continue
            if count == 1:
                taken = [piece.pop()]
            else:
                taken = piece[: -count - 1 : -1]
                del piece[-count:]
            if not piece:
                ready.popleft()
            now = asyncio.get_running_loop().time()
            for message in taken:
                message.taken_at = now
            if ready:
                self._waiting.wake()
            return taken
        return []

    async def take(self, count: int) -> list[ReceivedMessage]:
        return await self._waiting.until_taken(self.take_now, count)

    def close(self) -> None:
        self._waiting.close()


class OrderlyInbox:
    """A line for each queue. While one of its messages is being handled, the queue waits."""

    def __init__(self, *, needs_lock: bool) -> None:
        self._needs_lock = needs_lock
        self._ready: deque[ProcessQueue] = deque()
        self._waiting = _Waiting()
        self._timers: set[asyncio.TimerHandle] = set()

    def put(self, held: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        held.pending.extend(messages)
        self.offer(held)

    def offer(self, held: ProcessQueue) -> None:
        """The queue may be able to go on: it has messages, its lock back, or its rest behind it."""
        if held.pending and not held.handed_out and not held.dropped:
            self._ready.append(held)
            self._waiting.wake()

    def take_now(self, count: int) -> list[ReceivedMessage]:
        now = asyncio.get_running_loop().time()
        while self._ready and not self._waiting.closed:
            held = self._ready.popleft()
            if held.handed_out or held.dropped or not held.pending or held.suspended_until > now:
                continue
            if self._needs_lock and (held.locked_at is None or now - held.locked_at > TRUSTED_SECONDS):
                continue  # offered again when the lock is renewed
            taken = [held.pending.popleft() for _ in range(min(count, len(held.pending)))]
            held.handed_out = len(taken)
            held.idle.clear()
            for message in taken:
                message.taken_at = now
            if self._ready:
                self._waiting.wake()
            return taken
        return []

    async def take(self, count: int) -> list[ReceivedMessage]:
        return await self._waiting.until_taken(self.take_now, count)

    def done(self, held: ProcessQueue, count: int) -> None:
        """So many of what was taken are done with; after the last, the next may be handled."""
        held.handed_out -= count
        if not held.handed_out:
            held.idle.set()
            self.offer(held)

    def put_back(self, held: ProcessQueue, messages: list[ReceivedMessage], rest_seconds: float) -> None:
        """Handle these, which were taken, again before any other of their queue, after a rest."""
        loop = asyncio.get_running_loop()
        if held.dropped:
            self.done(held, len(messages))
            return
        # By their places: those given back before them, one by one, may come before them.
        held.pending = deque(sorted([*messages, *held.pending], key=lambda message: message.place))
        held.suspended_until = loop.time() + rest_seconds

        def go_on() -> None:
            self._timers.discard(timer)
            held.suspended_until = 0.0
            self.offer(held)

        timer = loop.call_later(rest_seconds, go_on)
        self._timers.add(timer)
        self.done(held, len(messages))

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._waiting.close()
