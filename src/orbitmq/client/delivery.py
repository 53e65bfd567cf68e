"""Getting a send to a broker that takes it: the choice of a queue, the attempts, one time limit over all of them.

Java: DefaultMQProducerImpl.sendDefaultImpl, MQFaultStrategy
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from orbitmq.client.cluster import refusal
from orbitmq.client.faults import Faults
from orbitmq.client.in_flight import InFlight
from orbitmq.client.queue_choice import RoundRobin, queue_for_group, queue_for_key
from orbitmq.client.receipts import STATUS_BY_CODE, SendStatus
from orbitmq.errors import CallTimeout, MessageError, OrbitError, RequestFailed, TransportError
from orbitmq.message import QueueRef
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command, request_with_raw_fields

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from orbitmq.client.cluster import Cluster
    from orbitmq.client.producer_options import ProducerOptions
    from orbitmq.client.routes import Route
    from orbitmq.client.stats import ProducerStats
    from orbitmq.protocol.headers.send import SendMessageV2
    from orbitmq.transport.address import Address

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Answers after which another broker may still take the message. Java: DefaultMQProducer.retryResponseCodes
RETRIED_CODES: Final = frozenset({
    ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR,
    ResponseCode.SYSTEM_BUSY, ResponseCode.NO_PERMISSION, ResponseCode.NO_BUYER_ID, ResponseCode.NOT_IN_CURRENT_UNIT,
    ResponseCode.GO_AWAY,
})  # fmt: skip
_TIMEOUT_HINT: Final = "is the broker overloaded or unreachable? a longer timeout= also leaves room for more attempts"
_QUEUE_HINT: Final = "take one that `producer.queues(topic)` lists"
_LOOK_AGAIN_SHARE: Final = 3  # at most this part of a send's time goes into asking for a new route


class Destination(NamedTuple):
    """What the caller said about where a message goes; with neither, the next queue in turn takes it."""

    queue: QueueRef | None = None
    order_key: str | None = None
    message_group: str | None = None
    near: QueueRef | None = None  # the first to be tried

    @property
    def is_fixed(self) -> bool:
        return self.queue is not None or self.order_key is not None or self.message_group is not None


ANYWHERE: Final = Destination()


def destination(
    topic: str, queue: QueueRef | None, order_key: str | None = None, message_group: str | None = None
) -> Destination:
    """MessageError for a queue of another topic, as Java's clients say, and for a key that is no text."""
    if queue is not None and not isinstance(queue, QueueRef):
        raise MessageError(f"queue is {queue!r}, which is no QueueRef", hint=_QUEUE_HINT)
    if queue is not None and queue.topic != topic:
        raise MessageError(
            f"a message for topic {topic!r} cannot go to a queue of topic {queue.topic!r}", hint=_QUEUE_HINT
        )
    for name, key in (("order_key", order_key), ("message_group", message_group)):
        if key is not None and not isinstance(key, str):
            raise MessageError(f"{name} is {key!r}, which is no text", hint="str(...) makes one")
    return Destination(queue, order_key, message_group)


class Delivered(NamedTuple):
    """The answer of the broker that took the message."""

    answer: Command
    broker_name: str
    address: Address


class Delivery:
    """Delivers the sends of one producer."""

    def __init__(self, cluster: Cluster, options: ProducerOptions, stats: ProducerStats) -> None:
        self._cluster = cluster
        self._options = options
        self._stats = stats
        self._in_flight = InFlight(options.max_in_flight, options.max_in_flight_bytes)
        self._faults = Faults() if options.fault_tolerance else None
        self._rotations: dict[str, RoundRobin] = {}
        self._loop = asyncio.get_running_loop()

    async def deliver(
        self, code: int, header: SendMessageV2, body: bytes, to: Destination, timeout_seconds: float
    ) -> Delivered:
        """RequestFailed when the brokers refuse, a TransportError when none could be asked in time."""
        deadline = self._loop.time() + timeout_seconds
        size = len(body)
        waiting = self._in_flight.enter(size)
        if waiting is not None:
            await self.until(deadline, waiting, header.topic)
        try:
            # The first attempt nearly always does, so it takes the shortest way.
            route = self._cluster.known_route(header.topic)
            if route is None or not route.writable:
                route = await self.until(deadline, self.route(header.topic), header.topic)
            queue = self._choose(route, to, "")
            # What must go to one queue has nowhere else to go.
            attempts = 1 + self._options.retries if to is ANYWHERE or not to.is_fixed else 1
            outcome = await self._attempt(code, header, body, queue, deadline, attempts == 1)
            if isinstance(outcome, Delivered):
                delivered = outcome
            else:
                delivered = await self._attempts(code, header, body, to, deadline, attempts, queue, outcome)
        except OrbitError:
            self._stats.failed += 1
            raise
        finally:
            self._in_flight.leave(size)
        self._stats.sent += 1
        self._stats.sent_bytes += size
        return delivered

    async def deliver_oneway(
        self, header: SendMessageV2, body: bytes, to: Destination, timeout_seconds: float
    ) -> Address:
        """Where it was sent to."""
        deadline = self._loop.time() + timeout_seconds
        route = await self.until(deadline, self.route(header.topic), header.topic)
        command, address = self._addressed(
            RequestCode.SEND_MESSAGE_V2, header, body, self._choose(route, to, avoid_broker="")
        )
        await self.until(deadline, self._cluster.notify(address, command), header.topic)
        self._stats.sent_oneway += 1
        return address

    async def until_idle(self) -> None:
        """Until every send has its answer, or has failed: their time limits bound the wait."""
        await self._in_flight.until_empty()

    async def route(self, topic: str) -> Route:
        """A route on which the topic can be written; RequestFailed when there is none."""
        route = self._cluster.known_route(topic)
        if route is not None and not route.writable:
            route = await self._cluster.fetch_route(topic)  # the master that was away may be back
        if route is None:
            route = await self._cluster.publish_route(topic, self._options.create_queues)
        if route is None:
            raise RequestFailed(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {topic!r} does not exist",
                hint="create it with `orbitmq topic create`, or start the broker with autoCreateTopicEnable=true",
            )
        if not route.writable:
            raise RequestFailed(
                ResponseCode.NO_PERMISSION,
                f"topic {topic!r} has no queue that can be written now",
                hint="check its permission, and that the masters of its brokers are running",
            )
        return route

    # ---- attempts

    async def _attempts(
        self,
        code: int,
        header: SendMessageV2,
        body: bytes,
        to: Destination,
        deadline: float,
        attempts: int,
        queue: QueueRef,
        failure: OrbitError,
    ) -> Delivered:
        """All after the first, which `failure` ended at `queue`."""
        for attempt in range(2, attempts + 1):
            if self._loop.time() >= deadline:
                break
            self._stats.retried += 1
            await self._look_again(header.topic, deadline)
            route = await self.until(deadline, self.route(header.topic), header.topic)
            queue = self._choose(route, to, queue.broker_name)
            outcome = await self._attempt(code, header, body, queue, deadline, attempt == attempts)
            if isinstance(outcome, Delivered):
                return outcome
            failure = outcome
        raise failure

    async def _attempt(
        self, code: int, header: SendMessageV2, body: bytes, queue: QueueRef, deadline: float, is_last: bool
    ) -> Delivered | OrbitError:
        """The error is returned when another broker may do better, raised when not."""
        began = self._loop.time()
        if began >= deadline:
            raise _too_late(header.topic)
        try:
            command, address = self._addressed(code, header, body, queue)
            answer = await self._cluster.call(address, command, deadline - began)
        except TransportError as error:
            if self._faults is not None:
                self._faults.failed(queue.broker_name, self._loop.time())
            return _too_late(header.topic, error) if isinstance(error, CallTimeout) else error
        if self._faults is not None:
            self._faults.sent(queue.broker_name, self._loop.time() - began, self._loop.time())
        status = STATUS_BY_CODE.get(answer.code)
        if status is SendStatus.STORED or (status is not None and (is_last or not self._options.retry_unconfirmed)):
            return Delivered(answer, queue.broker_name, address)
        failure = refusal(answer)
        if status is None and answer.code not in RETRIED_CODES:
            raise failure
        return failure

    def _addressed(self, code: int, header: SendMessageV2, body: bytes, queue: QueueRef) -> tuple[Command, Address]:
        address = self._cluster.master(queue.broker_name)
        if address is None:
            raise TransportError(
                f"broker {queue.broker_name!r} has no master now",
                hint="is it running? other brokers of the topic can still take messages",
            )
        header.queue_id = queue.queue_id
        header.bname = queue.broker_name
        command = request_with_raw_fields(code, header.to_json(), body)
        return command, self._cluster.vip(address) if self._cluster.config.vip_channel else address

    def _choose(self, route: Route, to: Destination, avoid_broker: str) -> QueueRef:
        if to.queue is not None:
            return to.queue
        if to.near is not None and not avoid_broker:
            return to.near
        if to.order_key is not None:
            return queue_for_key(route.writable, to.order_key)
        if to.message_group is not None:
            return queue_for_group(route.writable, to.message_group)
        rotation = self._rotations.get(route.topic)
        if rotation is None:
            rotation = self._rotations[route.topic] = RoundRobin(self._cluster.config.randomness)
        if self._faults is not None:
            return rotation.choose_available(route.writable, self._faults, self._loop.time(), avoid_broker)
        return rotation.choose(route.writable, avoid_broker)

    async def _look_again(self, topic: str, deadline: float) -> None:
        """The route may have moved. If nobody says so in time, what we know has to do."""
        now = self._loop.time()
        share = min(deadline - now, self._options.timeout_seconds / _LOOK_AGAIN_SHARE)
        try:
            async with asyncio.timeout(share):
                await self._cluster.fetch_route(topic)
        except (OrbitError, TimeoutError) as error:
            logger.info("no fresh route of topic %s: %s", topic, error)

    async def until(self, deadline: float, awaitable: Awaitable[T], topic: str) -> T:
        """Its result; CallTimeout, on behalf of a message to `topic`, when there is none by then."""
        try:
            async with asyncio.timeout_at(deadline):
                return await awaitable
        except TimeoutError:
            raise _too_late(topic) from None


def _too_late(topic: str, cause: OrbitError | None = None) -> CallTimeout:
    why = f": {cause.message}" if cause is not None else ""
    return CallTimeout(f"a message to topic {topic!r} was not acknowledged in time{why}", hint=_TIMEOUT_HINT)
