"""Reading at one's own pace: any queue at any offset with `fetch`, or a share of a group's queues with `poll`.

Java: DefaultMQPullConsumer, DefaultLitePullConsumer
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from orbitmq.client import instance as instances
from orbitmq.client import questions
from orbitmq.client.consumer_options import check_count
from orbitmq.client.fetching import Fetched, Fetcher
from orbitmq.client.filters import Sql, Subscription, subscription
from orbitmq.client.inbox import ConcurrentInbox
from orbitmq.client.incoming import Incoming
from orbitmq.client.membership import Membership
from orbitmq.client.names import LIGHT_PREFIX, check_group, check_topic_name, retry_topic
from orbitmq.client.namespaces import wrapped
from orbitmq.client.offsets import RemoteOffsets
from orbitmq.client.option_checks import check_whole
from orbitmq.client.stats import ConsumerStats
from orbitmq.client.watching import Watchers
from orbitmq.errors import AlreadyClosed, ConfigError, RequestFailed
from orbitmq.message import QueueRef
from orbitmq.protocol.codes import ResponseCode
from orbitmq.tasks import Once

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime
    from types import TracebackType

    from orbitmq.client.config import ClientConfig
    from orbitmq.client.consumer_options import ConsumerOptions
    from orbitmq.client.instance import Instance
    from orbitmq.client.received import ReceivedMessage

_ACTIVELY = "CONSUME_ACTIVELY"


class PullConsumer:
    """Reads queues of a cluster. Made by `Client.pull_consumer`.

    `fetch` needs no preparation. For `poll`, `subscribe` joins the group and shares the topic's queues with its other
    members, or `assign` names the queues; then each `poll` gives the next messages, and commits those of the one before.
    """

    def __init__(self, config: ClientConfig, group: str, options: ConsumerOptions, *, auto_commit: bool) -> None:
        check_group(group)
        self.group = wrapped(config.namespace, group)
        self.stats = ConsumerStats()
        self._config = config
        self._options = options
        self._auto_commit = auto_commit
        self._watchers = Watchers(options.hooks, self.group) if options.hooks else None
        self._instance: Instance | None = None
        self._fetcher: Fetcher | None = None
        self._offsets: RemoteOffsets | None = None
        self._member: Membership | None = None
        self._joining = asyncio.Lock()  # one that is given up leaves before the next begins
        self._inbox = ConcurrentInbox()
        self._polled: list[ReceivedMessage] = []
        self._ending = Once()
        self.closed = False

    # ---- life

    async def start(self) -> Self:
        """Join the client's connections; the group is joined by `subscribe`."""
        if self.closed:
            raise AlreadyClosed(f"pull consumer {self.group!r} is closed", hint="make a new one")
        if self._instance is None:
            instance = self._instance = instances.acquire(self._config, consumer_group=self.group)
            incoming = Incoming(self._config.namespace, retry_topic(self.group))
            self._fetcher = Fetcher(instance.cluster, self.group, incoming)
            self._offsets = RemoteOffsets(instance.cluster, self.group)
        return self

    async def close(self) -> None:
        """Leave the group. Offsets are committed as far as `commit`, or the next `poll`, has said.

        Who is cancelled meanwhile leaves it going on; a second call waits for its end.
        """
        self.closed = True
        self._inbox.close()
        await self._ending.run(self._end, f"closing pull consumer {self.group}")

    async def _end(self) -> None:
        instance, self._instance = self._instance, None
        if instance is None:
            return
        try:
            if self._member is not None:
                await self._member.stop_pulling()
                await self._member.leave()
        finally:
            await instances.release(instance, consumer_group=self.group)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._auto_commit and self._member is not None:
            self._ack_polled()  # the program got through its last poll
        await self.close()

    # ---- any queue, any offset

    async def queues(self, topic: str) -> list[QueueRef]:
        """The readable queues of a topic."""
        check_topic_name(topic)
        route = await self._running().cluster.route(self._wire_name(topic))
        if route is None:
            raise RequestFailed(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {topic!r} does not exist", hint="create it, or send to it first"
            )
        return [QueueRef(topic, queue.broker_name, queue.queue_id) for queue in route.readable]

    async def fetch(
        self,
        queue: QueueRef,
        *,
        offset: int,
        max: int = 32,  # noqa: A002 - the public face's word
        filter: str | Sql | None = None,  # noqa: A002
        wait: float = 0.0,
    ) -> Fetched:
        """Up to `max` messages from `offset` on, and where to go on. With none there, wait up to `wait` seconds for one."""
        check_count(max)
        wire = await self._known(queue)
        assert self._fetcher is not None
        made = subscription(wire.topic, filter)
        fetched = await self._fetcher.fetch(wire, queue, made, offset, max, wait)
        self.stats.received += len(fetched)
        return fetched

    async def min_offset(self, queue: QueueRef) -> int:
        """The first message still kept."""
        return await questions.min_offset(self._running().cluster, await self._known(queue))

    async def max_offset(self, queue: QueueRef) -> int:
        """One beyond the last message."""
        return await questions.max_offset(self._running().cluster, await self._known(queue))

    async def offset_at(self, queue: QueueRef, when: datetime) -> int:
        """The first message stored at `when` or later."""
        return await questions.offset_at(
            self._running().cluster, await self._known(queue), int(when.timestamp() * 1000)
        )

    async def committed(self, queue: QueueRef) -> int | None:
        """How far the group has come; None when it was never here."""
        return await questions.committed_offset(self._running().cluster, self.group, await self._known(queue))

    async def commit_offset(self, queue: QueueRef, offset: int) -> None:
        """Say how far the group has come: everything before `offset` is done with."""
        check_whole("offset", offset)
        if offset < 0:
            raise ConfigError(f"offset {offset} cannot be committed", hint="give 0 or more")
        wire = await self._known(queue)
        cluster = self._running().cluster
        address = cluster.vip(questions.any_address(cluster, wire.broker_name))
        await cluster.ask(address, questions.commit(self.group, wire, offset), questions.SECONDS)
        assert self._offsets is not None
        self._offsets.set(wire, offset)

    # ---- poll

    async def subscribe(self, topic: str, filter: str | Sql | None = None) -> None:  # noqa: A002
        """Share this topic's queues with the other members of the group."""
        check_topic_name(topic)
        wanted = await self._checked(self._wire_name(topic), filter)
        async with self._joining:
            member = self._member
            if member is None:
                member = self._member = self._membership(None)
                member.subscribe(wanted)
                await self._start(member)
                return
            if member.is_fixed:
                raise ConfigError("this pull consumer has assigned queues", hint="use another one to subscribe")
            member.subscribe(wanted)
            await member.subscriptions_changed()
            await member.balanced_once()

    async def assign(self, queues: Iterable[QueueRef], filter: str | Sql | None = None) -> None:  # noqa: A002
        """Read exactly these queues, whoever else reads them."""
        self._running()
        async with self._joining:
            if self._member is not None:
                raise ConfigError("this pull consumer has its queues already", hint="assign or subscribe once")
            wire = [await self._known(queue) for queue in queues]
            wanted = [await self._checked(topic, filter) for topic in dict.fromkeys(queue.topic for queue in wire)]
            member = self._member = self._membership(wire)
            for one in wanted:
                member.subscribe(one)
            await self._start(member)

    async def _checked(self, wire_topic: str, wanted: str | Sql | None) -> Subscription:
        """RequestFailed for a filter that its brokers do not understand: they would only refuse every pull."""
        made, instance = subscription(wire_topic, wanted), self._running()
        await questions.check_filter(instance.cluster, self.group, instance.client_id, made)
        return made

    async def _start(self, member: Membership) -> None:
        """One that cannot start reads nothing, ever: the next attempt needs another."""
        try:
            await member.start()
            try:
                await member.balanced_once()
            except BaseException:
                await member.stop_pulling()
                await member.leave()
                raise
        except BaseException:
            self._member = None
            raise

    async def poll(self, *, max: int = 32, timeout: float = 5.0) -> list[ReceivedMessage]:  # noqa: A002
        """The next messages, up to `max` of one queue; empty when none came within `timeout` seconds."""
        self._reading()
        check_count(max)
        if self._auto_commit:
            self._ack_polled()
        messages = self._inbox.take_now(max)
        if not messages:
            try:
                async with asyncio.timeout(timeout):
                    messages = await self._inbox.take(max)
            except TimeoutError:
                return []
        self._polled += messages
        if self._watchers is not None and messages:  # a poll that `close` ends has none
            self._watchers.begin(messages).end(None)
        return messages

    async def commit(self) -> None:
        """Everything polled so far is done with; returns when the brokers know.

        Raises what a broker answered that did not take it; it stays noted, and is tried again every few seconds.
        """
        self._reading()
        self._ack_polled()
        assert self._offsets is not None
        await self._offsets.save_or_fail()

    async def seek(self, queue: QueueRef, offset: int) -> None:
        """Go on at this offset of a queue that is ours. Raises ConfigError for one that is not `assigned` to this reader."""
        await self._reading().seek(queue, offset)
        self._polled = [message for message in self._polled if message.queue != queue]

    def pause(self, queues: Sequence[QueueRef]) -> None:
        """Pull no more from these queues until `resume`, wherever they are sought, and whoever has them meanwhile; what is here
        already can still be polled.
        """
        self._reading().pause(queues)

    def resume(self, queues: Sequence[QueueRef]) -> None:
        """Pull again."""
        self._reading().resume(queues)

    @property
    def assigned(self) -> list[QueueRef]:
        """The queues that are ours now."""
        return sorted(held.public_queue for held in self._reading().queues.values())

    # ---- inside

    def _running(self) -> Instance:
        if self._instance is None or self.closed:
            what = "closed" if self.closed else "not started"
            raise AlreadyClosed(
                f"pull consumer {self.group!r} is {what}", hint="use it inside `async with client.pull_consumer(...)`"
            )
        return self._instance

    def _reading(self) -> Membership:
        self._running()
        if self._member is None:
            raise ConfigError("there is nothing to poll yet", hint="subscribe() to a topic or assign() queues first")
        return self._member

    def _wire_name(self, topic: str) -> str:
        if topic.startswith(LIGHT_PREFIX):
            return topic  # as messages name it that are to be in it
        return wrapped(self._config.namespace, topic)

    def _wire(self, queue: QueueRef) -> QueueRef:
        return QueueRef(self._wire_name(queue.topic), queue.broker_name, queue.queue_id)

    async def _known(self, queue: QueueRef) -> QueueRef:
        """The queue under its name on the wire, its broker's address known."""
        if not isinstance(queue, QueueRef):
            raise ConfigError(f"{queue!r} is no queue", hint="`queues(topic)` lists them")
        wire = self._wire(queue)
        cluster = self._running().cluster
        if wire.broker_name not in cluster.brokers:
            await cluster.fetch_route(wire.topic)
        if wire.broker_name not in cluster.brokers and wire.topic.startswith(LIGHT_PREFIX):
            await cluster.fetch_route(wire.broker_name)  # each broker has a topic of its own name
        return wire

    def _membership(self, fixed: list[QueueRef] | None) -> Membership:
        assert self._offsets is not None
        return Membership(
            self._running(),
            self.group,
            self._options,
            self._offsets,
            self.stats,
            consume_type=_ACTIVELY,
            deliver=self._inbox.put,
            fixed=fixed,
        )

    def _ack_polled(self) -> None:
        assert self._offsets is not None
        for message in self._polled:
            held = message.holder
            assert held is not None
            held.remove([message])
            if not held.dropped:
                self._offsets.advance(held.queue, held.commit_offset)
        self.stats.acked += len(self._polled)
        self._polled.clear()
