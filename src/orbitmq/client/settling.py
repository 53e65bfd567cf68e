"""What becomes of a message once its handler has ended: done with, or to be delivered again.

    concurrent   ack: offset may move on    retry: the broker delivers it again later, from the group's retry topic
    orderly      ack: the next one's turn   retry: in its place, after a rest; given up only after max_retries

Java: ConsumeMessageConcurrentlyService.processConsumeResult, ConsumeMessageOrderlyService.processConsumeResult
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from orbitmq.client import questions
from orbitmq.client.consumer_options import DEFAULT_MAX_RETRIES
from orbitmq.errors import OrbitError, RetryLater
from orbitmq.message import properties as names

if TYPE_CHECKING:
    from orbitmq.client.cluster import Cluster
    from orbitmq.client.consumer_options import ConsumerOptions
    from orbitmq.client.inbox import ConcurrentInbox, OrderlyInbox
    from orbitmq.client.offsets import Offsets
    from orbitmq.client.process_queue import ProcessQueue
    from orbitmq.client.received import ReceivedMessage
    from orbitmq.client.republishing import Republisher
    from orbitmq.client.stats import ConsumerStats

logger = logging.getLogger(__name__)

_AGAIN_HERE_SECONDS: Final = 5.0
_NO_LIMIT: Final = 2**31 - 1


def report(group: str, messages: list[ReceivedMessage], error: Exception) -> int:
    """Log what a handler raised, unless it is its way to ask for the message again; the delay level to use."""
    if isinstance(error, RetryLater):
        return error.delay_level
    logger.error("a handler of group %s failed on %r", group, messages[0], exc_info=error)
    return 0


def _count(held: ProcessQueue, messages: list[ReceivedMessage], *, is_done: bool) -> None:
    held.consumed_at = taken_at = messages[0].taken_at
    seconds = asyncio.get_running_loop().time() - taken_at
    held.figures.handled(seconds, len(messages) if is_done else 0, 0 if is_done else len(messages))


class ConcurrentSettler:
    """Messages end in any order."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        options: ConsumerOptions,
        offsets: Offsets,
        stats: ConsumerStats,
        inbox: ConcurrentInbox,
        republisher: Republisher,
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._broadcasting = options.broadcasting
        self._max_retries = DEFAULT_MAX_RETRIES if options.max_retries is None else options.max_retries
        self._offsets = offsets
        self._stats = stats
        self._inbox = inbox
        self._republisher = republisher
        self._timers: set[asyncio.TimerHandle] = set()

    def ack(self, messages: list[ReceivedMessage]) -> None:
        held = messages[0].holder
        assert held is not None
        if self._let_go(held, messages):
            _count(held, messages, is_done=True)

    def _let_go(self, held: ProcessQueue, messages: list[ReceivedMessage]) -> int:
        """How many of them were not settled before."""
        settled = held.remove(messages)
        self._stats.acked += settled
        if not held.dropped:
            self._offsets.advance(held.queue, held.commit_offset)
        return settled

    async def retry(self, messages: list[ReceivedMessage], delay_level: int) -> None:
        held = messages[0].holder
        assert held is not None
        _count(held, messages, is_done=False)
        if self._broadcasting:
            # Nobody could deliver it to us again without delivering it to everybody.
            logger.warning("%d messages of %s are given up: broadcasting has no retries", len(messages), held.queue)
            self._let_go(held, messages)
            return
        for message in messages:
            if held.dropped or not held.holds(message):
                continue  # its next owner gets it; or it is settled already, or expired
            if await self._given_back(message, held, delay_level):
                self._stats.retried += 1
                held.remove([message])
            else:
                self._again_here(message, held)
        if not held.dropped:
            self._offsets.advance(held.queue, held.commit_offset)

    def report(self, messages: list[ReceivedMessage], error: Exception) -> int:
        self._stats.failed += 1
        return report(self._group, messages, error)

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()

    async def _given_back(self, message: ReceivedMessage, held: ProcessQueue, delay_level: int) -> bool:
        try:
            await questions.send_back(self._cluster, self._group, message, held.queue, delay_level, self._max_retries)
            return True
        except OrbitError as error:
            logger.warning("broker %s did not take %r back: %s", held.queue.broker_name, message, error)
        try:
            wire_topic = message.properties.get(names.RETRY_TOPIC) or held.queue.topic
            await self._republisher.publish(message, wire_topic, self._max_retries)
            return True
        except OrbitError as error:
            logger.warning("%r cannot go to its retry topic either: %s", message, error)
        return False

    def _again_here(self, message: ReceivedMessage, held: ProcessQueue) -> None:
        """Nobody else takes it, so we keep it and handle it once more in a while."""
        message.attempt += 1
        message.taken_at = 0.0

        def put_back() -> None:
            self._timers.discard(timer)
            if held.holds(message):
                self._inbox.put(held, [message])

        timer = asyncio.get_running_loop().call_later(_AGAIN_HERE_SECONDS, put_back)
        self._timers.add(timer)


class OrderlySettler:
    """Messages of a queue end in their order: the next is not handed out before."""

    def __init__(
        self,
        group: str,
        options: ConsumerOptions,
        offsets: Offsets,
        stats: ConsumerStats,
        inbox: OrderlyInbox,
        republisher: Republisher,
    ) -> None:
        self._group = group
        self._max_retries = _NO_LIMIT if options.max_retries is None else options.max_retries
        self._rest_seconds = options.suspend_seconds
        self._offsets = offsets
        self._stats = stats
        self._inbox = inbox
        self._republisher = republisher

    def ack(self, messages: list[ReceivedMessage]) -> None:
        held, taken = _taken(messages)
        if not taken:
            return  # settled already
        held.remove(taken)
        if not held.dropped:
            self._stats.acked += len(taken)
            _count(held, taken, is_done=True)
            self._offsets.advance(held.queue, held.commit_offset)
        self._inbox.done(held, len(taken))

    async def retry(self, messages: list[ReceivedMessage], delay_level: int) -> None:
        held, taken = _taken(messages)
        if not taken:
            return
        if held.dropped:  # its next owner handles them
            held.remove(taken)
            self._inbox.done(held, len(taken))
            return
        _count(held, taken, is_done=False)
        for message in taken:
            message.taken_at = 0.0  # nobody else settles it while we wait
        try:
            for message in taken:
                is_last = delay_level < 0 or message.attempt > self._max_retries
                if is_last and await self._given_up(message, held):
                    held.remove([message])
                    self._inbox.done(held, 1)
        finally:  # of one that was cancelled, too: what it has not settled is nobody else's to settle
            self._put_back([message for message in taken if held.holds(message)], held)

    def _put_back(self, messages: list[ReceivedMessage], held: ProcessQueue) -> None:
        for message in messages:
            message.attempt += 1
        self._stats.retried += len(messages)
        if not held.dropped:
            self._offsets.advance(held.queue, held.commit_offset)
        if messages:
            self._inbox.put_back(held, messages, self._rest_seconds)

    def report(self, messages: list[ReceivedMessage], error: Exception) -> int:
        self._stats.failed += 1
        return report(self._group, messages, error)

    def close(self) -> None:
        """Nothing waits here: messages that rest do so in the inbox."""

    async def _given_up(self, message: ReceivedMessage, held: ProcessQueue) -> bool:
        """The broker puts a message with this many attempts into the dead-letter topic."""
        try:
            wire_topic = message.properties.get(names.RETRY_TOPIC) or held.queue.topic
            await self._republisher.publish(message, wire_topic, min(self._max_retries, message.attempt - 1))
        except OrbitError as error:
            logger.warning("%r cannot be given up yet: %s", message, error)
            return False
        return True


def _taken(messages: list[ReceivedMessage]) -> tuple[ProcessQueue, list[ReceivedMessage]]:
    """Their queue, and those of them that are out to be handled: not settled yet, nor waiting for another turn."""
    held = messages[0].holder
    assert held is not None
    return held, [message for message in messages if message.taken_at and held.holds(message)]
