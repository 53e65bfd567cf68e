"""Consuming messages as a member of a group: with a handler, or with `async for`.

    pull loops ─> inbox ─> handler ─> ack: the offset moves on; exception: delivered again later

Java: DefaultMQPushConsumer, DefaultMQPushConsumerImpl
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from orbitmq.client import instance as instances
from orbitmq.client import questions
from orbitmq.client.expiry import give_back_expired
from orbitmq.client.filters import Sql, subscription
from orbitmq.client.inbox import ConcurrentInbox, OrderlyInbox
from orbitmq.client.membership import Membership
from orbitmq.client.names import check_group, check_topic_name, retry_topic
from orbitmq.client.namespaces import wrapped
from orbitmq.client.offsets import LocalOffsets, Offsets, RemoteOffsets, default_directory
from orbitmq.client.republishing import Republisher
from orbitmq.client.settling import ConcurrentSettler, OrderlySettler
from orbitmq.client.stats import ConsumerStats
from orbitmq.client.watching import WatchedSettler, Watchers
from orbitmq.client.workers import Workers
from orbitmq.errors import AlreadyClosed, ConfigError
from orbitmq.tasks import Once, Tasks, every, shared

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    from orbitmq.client.config import ClientConfig
    from orbitmq.client.consumer_options import ConsumerOptions, Start
    from orbitmq.client.inbox import Inbox
    from orbitmq.client.instance import Instance
    from orbitmq.client.process_queue import ProcessQueue
    from orbitmq.client.received import ReceivedMessage, Settler
    from orbitmq.client.workers import Handler
    from orbitmq.message import QueueRef

_PASSIVELY = "CONSUME_PASSIVELY"


class Consumer:
    """A member of a consumer group. Made by `Client.consumer`.

    With a handler it works until it is closed. Without, iterate over it: `async for message in consumer`, and settle each
    message with `async with message.process()`, or with `ack()` and `retry()`.
    """

    def __init__(
        self,
        config: ClientConfig,
        group: str,
        topics: Mapping[str, str | Sql | None],
        options: ConsumerOptions,
        handler: Handler | None,
    ) -> None:
        check_group(group)
        for topic in topics:
            check_topic_name(topic)
        self.group = wrapped(config.namespace, group)
        self.stats = ConsumerStats()
        self._config = config
        self._topics = dict(topics)
        self._options = options
        self._handler = handler
        self._tasks = Tasks()
        self._instance: Instance | None = None
        self._member: Membership | None = None
        self._inbox: Inbox = OrderlyInbox(needs_lock=not options.broadcasting) if options.orderly else ConcurrentInbox()
        self._settler: Settler | None = None
        self._watched: WatchedSettler | None = None  # what settles, where hooks look on and there is no handler
        self._workers: Workers | None = None
        self._starting: asyncio.Future[None] | None = None  # under way, or done
        self._closed = asyncio.Event()
        self._closing = False
        self._ending = Once()

    # ---- life

    async def start(self) -> Self:
        """Join the group. Returns when the queues that are ours are being read, or after a few seconds if brokers do not answer.

        A second call meanwhile waits for the same, and fails with the first.
        """
        if self._closing:
            raise AlreadyClosed(f"consumer {self.group!r} is closed", hint="make a new one")
        if self._starting is not None:
            await shared(
                self._starting,
                lambda: AlreadyClosed(f"the start of consumer {self.group!r} was cancelled", hint="make a new one"),
            )
            return self
        starting = self._starting = asyncio.get_running_loop().create_future()
        try:
            await self._start()
        except BaseException as error:
            self._starting = None  # one that could not join may try again
            if isinstance(error, Exception):
                starting.set_exception(error)
                starting.exception()  # nobody may be waiting
            else:
                starting.cancel()
            raise
        starting.set_result(None)
        return self

    async def _start(self) -> None:
        options = self._options
        instance = instances.acquire(self._config, consumer_group=self.group, fixed_name=options.broadcasting)
        self._instance = instance
        try:
            await self._join(instance)
        except BaseException:
            if not self._closing:  # else it leaves the instance, too
                self._instance = self._member = self._workers = None
                await instances.release(instance, consumer_group=self.group)
            raise
        assert self._member is not None
        try:
            await self._member.balanced_once()
        except BaseException:  # who is cancelled here leaves nothing that goes on
            await self.close()
            raise
        if self._closing:
            raise AlreadyClosed(f"consumer {self.group!r} was closed while it started", hint="make a new one")
        # Nothing is awaited behind this: handlers may name the consumer, which their program has once this returns.
        if self._workers is not None:
            self._workers.start()

    async def _join(self, instance: Instance) -> None:
        options = self._options
        offsets: Offsets = RemoteOffsets(instance.cluster, self.group)
        if options.broadcasting:
            directory = options.offset_directory or default_directory()
            offsets = LocalOffsets(directory, instance.client_id, self.group)
        republisher = Republisher(instance.cluster, self.group)
        settler: ConcurrentSettler | OrderlySettler
        if isinstance(self._inbox, OrderlyInbox):
            settler = OrderlySettler(self.group, options, offsets, self.stats, self._inbox, republisher)
        else:
            assert isinstance(self._inbox, ConcurrentInbox)
            settler = ConcurrentSettler(
                instance.cluster, self.group, options, offsets, self.stats, self._inbox, republisher
            )
        self._settler = settler
        if self._handler is not None:
            self._workers = Workers(self.group, self._handler, options, self._inbox, settler)
        elif options.hooks:
            self._watched = WatchedSettler(Watchers(options.hooks, self.group), settler)
        member = self._member = Membership(
            instance,
            self.group,
            options,
            offsets,
            self.stats,
            consume_type=_PASSIVELY,
            deliver=self._deliver,
            lock_renewed=self._lock_renewed,
            handle_now=self._handle_now if self._workers is not None else None,
        )
        for topic, wanted in self._topics.items():
            await self._add_subscription(member, topic, wanted)
        if not options.broadcasting:
            member.subscribe(subscription(retry_topic(self.group), None))
        await member.start()
        if isinstance(settler, ConcurrentSettler):
            self._tasks.start(self._expire(member, self._watched or settler), f"expiry of {self.group}")

    async def close(self) -> None:
        """Let running handlers end, commit what is done, leave the group. What was pulled and not handled is not lost.

        Who is cancelled meanwhile leaves it going on; a second call waits for its end.
        """
        self._closing = True
        if self._workers is not None:
            self._workers.excuse_caller()
        await self._ending.run(self._end, f"closing consumer {self.group}")

    async def _end(self) -> None:
        member, instance = self._member, self._instance
        if member is None or instance is None:
            self._inbox.close()  # whoever iterates waits for nothing
            self._closed.set()
            return
        try:
            await self._tasks.close()
            await member.stop_pulling()
            self._inbox.close()
            if self._workers is not None:
                await self._workers.finish(self._options.close_timeout_seconds)
            if isinstance(self._settler, ConcurrentSettler):
                self._settler.close()
        finally:
            try:
                await member.leave()
            finally:
                self._instance = None
                self._closed.set()
                await instances.release(instance, consumer_group=self.group)

    @property
    def closed(self) -> bool:
        """Whether somebody has begun to close it."""
        return self._closing

    async def wait_closed(self) -> None:
        """Until somebody closes this consumer: what a program does whose work is its handler."""
        await self._closed.wait()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ---- messages without a handler

    def __aiter__(self) -> Self:
        if self._handler is not None:
            raise ConfigError(
                "this consumer has a handler, which gets its messages", hint="leave handler= out to iterate"
            )
        return self

    async def __anext__(self) -> ReceivedMessage:
        messages = self._inbox.take_now(1) or await self._taken()
        if not messages:
            raise StopAsyncIteration
        if self._watched is not None:
            self._watched.hand_out(messages[0])
        return messages[0]

    async def _taken(self) -> list[ReceivedMessage]:
        if self._starting is None and not self._closing:
            self._running()  # which says that it is not
        return await self._inbox.take(1)

    # ---- steering

    @property
    def assigned(self) -> list[QueueRef]:
        """The queues that are ours now, without those of the group's retry topic."""
        again = retry_topic(self.group)
        return sorted(held.public_queue for queue, held in self._running().queues.items() if queue.topic != again)

    async def subscribe(self, topic: str, filter: str | Sql | None = None) -> None:  # noqa: A002 - the public face's word
        """Consume one more topic, or the same with another filter. Do the same in every member of the group."""
        member = self._running()
        check_topic_name(topic)
        await self._add_subscription(member, topic, filter)
        await member.subscriptions_changed()
        await member.balanced_once()

    async def unsubscribe(self, topic: str) -> None:
        """Consume this topic no longer. Do the same in every member of the group."""
        member = self._running()
        check_topic_name(topic)
        member.unsubscribe(wrapped(self._config.namespace, topic))
        await member.subscriptions_changed()

    def pause(self, queues: Iterable[QueueRef] | None = None) -> None:
        """Pull no more from these queues, or from all and those that come; what is here already is still handled.

        It holds until `resume`, whatever offset the queues are sent to meanwhile, and whoever has them: for a queue that comes,
        or goes and comes back, too.
        """
        self._running().pause(queues)

    def resume(self, queues: Iterable[QueueRef] | None = None) -> None:
        """Pull again."""
        self._running().resume(queues)

    async def seek(self, queue: QueueRef, to: int | Start) -> None:
        """Go on at this offset of a queue that is ours, or at `earliest`, `latest` or a point in time.

        Raises ConfigError for a queue that is not `assigned` to this member, or goes to another one meanwhile.
        """
        await self._running().seek(queue, to)

    # ---- inside

    def _running(self) -> Membership:
        if self._member is None or self._closing:
            what = "closed" if self._closing else "not started"
            raise AlreadyClosed(
                f"consumer {self.group!r} is {what}", hint="use it inside `async with client.consumer(...)`"
            )
        return self._member

    async def _add_subscription(self, member: Membership, topic: str, wanted: str | Sql | None) -> None:
        assert self._instance is not None
        made = subscription(wrapped(self._config.namespace, topic), wanted)
        await questions.check_filter(self._instance.cluster, self.group, self._instance.client_id, made)
        member.subscribe(made)

    def _deliver(self, held: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        held.settler = self._watched or self._settler
        self._inbox.put(held, messages)

    def _lock_renewed(self, held: ProcessQueue) -> None:
        if isinstance(self._inbox, OrderlyInbox):
            self._inbox.offer(held)

    async def _handle_now(self, message: ReceivedMessage) -> Exception | None:
        assert self._workers is not None
        return await self._workers.handle([message])

    async def _expire(self, member: Membership, settler: Settler) -> None:
        seconds = self._options.consume_timeout_seconds
        await every(
            lambda: seconds,
            lambda: give_back_expired(member.queues.values(), settler, seconds),
            f"giving back expired messages of {self.group}",
        )
