"""Consuming by leases: the broker hands out messages one by one and keeps the book, so no member owns a queue.

    fetch ─> a poll at each broker of the topic ─> what comes first; the rest waits here for the next fetch

No rebalance, no locks, no offsets on our side: any number of members share a topic evenly, however few queues it has, and a
slow message holds up no other. Needs brokers that lease (Apache's from 5.0 on, and ours).

Java: DefaultMQPushConsumer with clientRebalance=false, DefaultMQPushConsumerImpl.popMessage
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Self

from orbitmq.client import instance as instances
from orbitmq.client.consumer_options import check_count
from orbitmq.client.figures import EVERY_SECONDS
from orbitmq.client.filters import subscription
from orbitmq.client.incoming import Incoming, Unwrapping
from orbitmq.client.leased import Lease, LeasedMessage
from orbitmq.client.leaser import Leaser
from orbitmq.client.leasing import Leasing
from orbitmq.client.names import check_group, check_topic_name, retry_topic
from orbitmq.client.namespaces import wrapped
from orbitmq.client.option_checks import check_whole
from orbitmq.client.stats import ConsumerStats
from orbitmq.client.watching import Watchers
from orbitmq.errors import AlreadyClosed, ConfigError, OrbitError, RequestFailed, TransportError
from orbitmq.message import QueueRef
from orbitmq.protocol.codes import ResponseCode
from orbitmq.protocol.headers.leases import START_AT_MAX, START_AT_MIN
from orbitmq.tasks import Once, Tasks, every, set_within

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Literal

    from orbitmq.client.config import ClientConfig
    from orbitmq.client.filters import Sql
    from orbitmq.client.hooks import ConsumeHook
    from orbitmq.client.instance import Instance
    from orbitmq.client.routes import Route
    from orbitmq.message import StoredMessage
    from orbitmq.protocol.lease_texts import Handle

logger = logging.getLogger(__name__)

_SHORTEST_LEASE: Final = timedelta(seconds=1)
_LONGEST_LEASE: Final = timedelta(days=3)
_POLL_SECONDS: Final = 15.0
_REST_SECONDS: Final = 0.5  # after a poll that ended early without a message
_LONGEST_REST_SECONDS: Final = 20.0  # between two looks for a topic that does not exist
_ANSWER_SECONDS: Final = 3.0
_PASSING: Final = frozenset({
    ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLOW_CONTROL, ResponseCode.GO_AWAY,
    ResponseCode.POLLING_TIMEOUT,  # a clock that is behind may be set
})  # fmt: skip


class LeaseConsumer:
    """Leases messages of one topic. Made by `Client.lease_consumer`; safe to use from many tasks at once.

    `fetch` a few, or iterate: `async for message in consumer`, and settle each with `async with message.process()`, or with
    `ack()` and `extend()`.
    """

    def __init__(
        self,
        config: ClientConfig,
        topic: str,
        group: str,
        *,
        wanted: str | Sql | None,
        start: Literal["earliest", "latest"],
        lease: timedelta,
        prefetch: int,
        orderly: bool,
        hooks: Sequence[ConsumeHook],
    ) -> None:
        check_group(group)
        check_topic_name(topic)
        if start not in ("earliest", "latest"):
            raise ConfigError(f"start {start!r} is unknown", hint='"earliest" or "latest"')
        _check_lease(lease)
        check_whole("prefetch", prefetch)
        if prefetch < 1:
            raise ConfigError(f"prefetch is {prefetch}", hint="give 1 or more")
        self.group = wrapped(config.namespace, group)
        self.stats = ConsumerStats()
        self.closed = False
        self._config = config
        self._topic = topic
        self._lease = lease
        self._prefetch = prefetch
        self._orderly = orderly
        self._start: Literal["earliest", "latest"] = start
        self._subscription = subscription(wrapped(config.namespace, topic), wanted, config.clock.now_ms())
        self._watchers = Watchers(hooks, self.group) if hooks else None
        self._incoming = Incoming(config.namespace, retry_topic(self.group))
        self._instance: Instance | None = None
        self._leasing: Leasing | None = None
        self._leaser: Leaser | None = None
        self._here: deque[LeasedMessage] = deque()
        self._tasks = Tasks()
        self._leaving = asyncio.Event()
        self._ending = Once()
        self._missed = 0  # how often the topic was looked for and was not there
        self._failing: set[str] = set()  # brokers that were told of
        self._polls: dict[str, asyncio.Task[None]] = {}  # broker name -> the one poll that it holds

    # ---- life

    async def start(self) -> Self:
        """Tell the brokers of the topic that we are there. Nothing is leased before it is asked for."""
        if self.closed:
            raise AlreadyClosed(f"lease consumer {self.group!r} is closed", hint="make a new one")
        if self._instance is None:
            instance = self._instance = instances.acquire(self._config, consumer_group=self.group)
            init_mode = START_AT_MIN if self._start == "earliest" else START_AT_MAX
            self._leasing = Leasing(
                instance.cluster, self.group, self._subscription, init_mode=init_mode, orderly=self._orderly
            )
            leaser = self._leaser = self._described()
            instance.add_leaser(leaser)
            instance.introduce_to_brokers_of([self._subscription.topic])
            what = f"figures of {self.group}"
            self._tasks.start(every(EVERY_SECONDS, lambda: _sample(leaser), what), what)
        return self

    async def close(self) -> None:
        """Leave the group. What is leased and not acked comes again when its lease ends, what nobody fetched at once.

        Who is cancelled meanwhile leaves it going on; a second call waits for its end.
        """
        self.closed = True
        self._leaving.set()
        await self._ending.run(self._end, f"closing lease consumer {self.group}")

    async def _end(self) -> None:
        instance, self._instance = self._instance, None
        if instance is None:
            return
        try:
            await self._tasks.close()
            await self._give_back({message._lease: message for message in self._here}.values())
        finally:
            try:
                await instance.remove_leaser(self.group)
            finally:
                await instances.release(instance, consumer_group=self.group)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ---- messages

    async def fetch(self, *, max: int = 32, wait: float = _POLL_SECONDS) -> list[LeasedMessage]:  # noqa: A002
        """Up to `max` messages, leased from now; with none there, wait up to `wait` seconds for the first.

        A topic that does not exist yet has none.
        """
        check_count(max)
        return await self._fetch(max, max, wait)

    async def _fetch(self, count: int, poll_count: int, wait: float) -> list[LeasedMessage]:
        """Up to `count` of what is here, or of what polls for `poll_count` bring; each broker is polled at least once."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        route = await self._route(deadline)
        if route is None:
            return []
        failures: dict[str, OrbitError] = {}
        mine: set[asyncio.Task[None]] = set()
        asked: set[str] = set()
        while True:
            taken = self._take(count)
            if taken:
                self._tell_of(failures)
                return taken
            left = deadline - loop.time()
            for broker_name in route.brokers:
                if broker_name not in self._polls and (left > 0 or broker_name not in asked):
                    mine.add(self._poll_soon(broker_name, poll_count, max(left, 0.0), failures))
                    asked.add(broker_name)
            mine = {poll for poll in mine if not poll.done()}
            if len(failures) == len(route.brokers):
                raise next(iter(failures.values()))
            if (left <= 0 and not mine) or left < -_ANSWER_SECONDS:
                self._tell_of(failures)
                return []
            waiting = mine if left <= 0 else set(self._polls.values())
            limit = left if left > 0 else left + _ANSWER_SECONDS
            await asyncio.wait(waiting, timeout=limit, return_when=asyncio.FIRST_COMPLETED)

    async def ack(self, messages: Iterable[LeasedMessage]) -> None:
        """Ack many in one request a broker. Raises what the first broker answered that did not take its own, after telling all."""
        leasing = self._running()
        offsets: dict[Lease, set[int]] = {}
        for message in messages:
            message._handled(None)
            offsets.setdefault(message._lease, set()).add(message.queue_offset)
        ended = {lease: acked for lease, acked in offsets.items() if lease.open <= acked}
        for lease, acked in offsets.items():
            if lease not in ended:
                self._settled(lease, acked)
        failures = await leasing.ack_many(lease.handle for lease in ended)
        for lease, acked in ended.items():
            if lease.handle.broker_name not in failures:
                self._settled(lease, acked)
        for failure in failures.values():
            raise failure

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LeasedMessage:
        """The next message, however long it takes. Brokers that are away for a while do not end an iteration; that none can be
        reached at all shows at its start.
        """
        failing = False
        while True:
            try:
                messages = await self._fetch(1, self._prefetch, _POLL_SECONDS)
            except AlreadyClosed:
                if not self.closed:
                    raise
                raise StopAsyncIteration from None
            except OrbitError as error:
                if not _may_pass(error) or not self.stats.pulls:
                    raise
                if not failing:
                    logger.warning("leasing from %s fails: %s", self._topic, error)
                failing = True
                await self._look_again()
                continue
            if failing:
                logger.info("leasing from %s works again", self._topic)
                failing = False
            if messages:
                return messages[0]

    # ---- what a message asks of us

    async def end_lease(self, message: LeasedMessage) -> None:
        """See `LeasedMessage.ack`."""
        leasing, lease, acked = self._running(), message._lease, {message.queue_offset}
        message._handled(None)
        async with lease.changing:
            if lease.open <= acked:
                await leasing.ack(lease.handle)
            self._settled(lease, acked)

    async def change_lease(self, message: LeasedMessage, duration: timedelta) -> None:
        """See `LeasedMessage.extend`."""
        _check_lease(duration)
        lease = message._lease
        async with lease.changing:
            lease.handle = await self._running().change(lease.handle, _milliseconds(duration))
        lease.ends_at = asyncio.get_running_loop().time() + duration.total_seconds()
        assert self._leaser is not None
        self._leaser.leased(lease.handle, lease.ends_at)

    # ---- inside

    def _running(self) -> Leasing:
        if self._instance is None or self._leasing is None or self.closed:
            what = "closed" if self.closed else "not started"
            raise AlreadyClosed(
                f"lease consumer {self.group!r} is {what}", hint="use it inside `async with client.lease_consumer(...)`"
            )
        return self._leasing

    async def _route(self, deadline: float) -> Route | None:
        """The topic's; None if it has none by then."""
        loop, topic = asyncio.get_running_loop(), self._subscription.topic
        rest = _REST_SECONDS
        while True:
            self._running()
            assert self._instance is not None
            try:
                route = await self._instance.cluster.route(topic)
            except OrbitError as error:
                if not self._missed or not _may_pass(error):
                    raise
                logger.info("no word of topic %s: %s", self._topic, error)
            else:
                if route is not None and route.brokers:
                    return route
                self._tell_of_missing()
            left = deadline - loop.time()
            if left <= 0:
                return None
            await set_within(self._leaving, min(rest, left))
            rest = min(2 * rest, _LONGEST_REST_SECONDS)

    def _tell_of_missing(self) -> None:
        """Not at the first look: a topic that was just made needs a moment to reach the name servers."""
        self._missed += 1
        if self._missed == 2:
            logger.warning("topic %s does not exist yet: group %s waits for it", self._topic, self.group)

    async def _look_again(self) -> None:
        """After a rest: the brokers may be somewhere else by now. If nobody says so, what we know has to do."""
        await asyncio.sleep(_REST_SECONDS)
        instance = self._instance
        if instance is None:
            return
        try:
            await instance.cluster.fetch_route(self._subscription.topic)
        except OrbitError as error:
            logger.info("no fresh route of topic %s: %s", self._topic, error)

    def _take(self, count: int) -> list[LeasedMessage]:
        self._running()
        now = asyncio.get_running_loop().time()
        taken: list[LeasedMessage] = []
        while self._here and len(taken) < count:
            message = self._here.popleft()
            if message._lease.ends_at > now:  # else it is somebody else's by now
                taken.append(message)
        if self._watchers is not None:
            for message in taken:
                message._hand_out(self._watchers)
        return taken

    def _poll_soon(
        self, broker_name: str, count: int, seconds: float, failures: dict[str, OrbitError]
    ) -> asyncio.Task[None]:
        poll = self._tasks.start(self._poll(broker_name, count, seconds, failures), f"leasing from {broker_name}")
        assert poll is not None  # nobody polls for a consumer that is closed
        self._polls[broker_name] = poll
        poll.add_done_callback(lambda done: self._polls.pop(broker_name))
        return poll

    async def _poll(self, broker_name: str, count: int, seconds: float, failures: dict[str, OrbitError]) -> None:
        leasing, loop = self._running(), asyncio.get_running_loop()
        assert self._instance is not None
        attempt_id = next(self._instance.unique_ids)
        began = loop.time()
        try:
            lease_ms = _milliseconds(self._lease)
            leased = await leasing.pop(broker_name, count, lease_ms, min(seconds, _POLL_SECONDS), attempt_id)
            failures.pop(broker_name, None)
            if broker_name in self._failing:
                logger.info("leasing %s from %s works again", self._topic, broker_name)
                self._failing.discard(broker_name)
            self.stats.pulls += 1
            assert self._leaser is not None
            self._leaser.polled(broker_name, began, loop.time(), len(leased))
            await self._keep(leased)
        except OrbitError as error:
            failures[broker_name] = error
            leased = []
        if not leased and seconds and loop.time() - began < min(seconds, _REST_SECONDS):
            await asyncio.sleep(_REST_SECONDS)  # a broker that does not wait must not be asked without end

    def _tell_of(self, failures: Mapping[str, OrbitError]) -> None:
        """Brokers that fail while others work: nothing is raised, and nothing of theirs comes."""
        for broker_name, error in failures.items():
            if broker_name not in self._failing:
                logger.warning("leasing %s from %s fails: %s", self._topic, broker_name, error)
                self._failing.add(broker_name)

    async def _keep(self, leased: list[tuple[StoredMessage, Handle]]) -> None:
        assert self._leaser is not None
        unwanted: list[Handle] = []
        unwrapping = Unwrapping()
        ends_at = asyncio.get_running_loop().time() + self._lease.total_seconds()
        for stored, handle in leased:
            wanted = [one for one in unwrapping.messages(stored) if self._subscription.wants(one)]
            if not wanted:
                unwanted.append(handle)
                continue
            queue = QueueRef(self._topic, handle.broker_name, handle.queue_id)
            lease = Lease(handle, ends_at, [one.queue_offset for one in wanted])
            self._leaser.leased(handle, ends_at)
            for one in wanted:
                received = self._incoming.message(one, queue, None)
                self._here.append(LeasedMessage(received, self._topic, lease, self))
            self.stats.received += len(wanted)
            self.stats.received_bytes += len(stored.body)
        if unwanted:
            for broker_name, error in (await self._running().ack_many(unwanted)).items():
                logger.info("what we do not want of broker %s comes again: %s", broker_name, error)

    async def _give_back(self, messages: Iterable[LeasedMessage]) -> None:
        """All at once: one time limit spans them."""
        leasing = self._leasing
        assert leasing is not None

        async def give_back(message: LeasedMessage) -> None:
            try:
                await leasing.change(message.handle, 0)
            except OrbitError as error:
                logger.info("%r comes again when its lease ends: %s", message, error)

        await asyncio.gather(*map(give_back, messages))

    def _described(self) -> Leaser:
        return Leaser(
            self.group,
            self._subscription,
            from_first=self._start == "earliest",
            orderly=self._orderly,
            prefetch=self._prefetch,
            lease_ms=_milliseconds(self._lease),
            started_at_ms=self._config.clock.now_ms(),
            now=asyncio.get_running_loop().time(),
        )

    def _settled(self, lease: Lease, acked: set[int]) -> None:
        """These messages of it are done with."""
        assert self._leaser is not None
        self.stats.acked += len(lease.open & acked)
        lease.open -= acked
        if not lease.open:
            self._leaser.settled([lease.handle])


def _sample(leaser: Leaser) -> None:
    leaser.figures.sample(asyncio.get_running_loop().time())


def _may_pass(error: OrbitError) -> bool:
    """Whether the same poll can get an answer a little later."""
    return isinstance(error, TransportError) or (isinstance(error, RequestFailed) and error.code in _PASSING)


def _check_lease(lease: timedelta) -> None:
    if not isinstance(lease, timedelta) or not _SHORTEST_LEASE <= lease <= _LONGEST_LEASE:
        raise ConfigError(f"a lease of {lease} cannot be had", hint="give a second to three days")


def _milliseconds(duration: timedelta) -> int:
    return round(duration.total_seconds() * 1000)
