"""Pulling one queue: a request that the broker holds until there is something, answered, and asked again.

Java: PullMessageService, DefaultMQPushConsumerImpl.pullMessage
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from orbitmq.client.cluster import refusal
from orbitmq.client.routes import MASTER
from orbitmq.errors import MessageError, OrbitError, RequestFailed, TransportError
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import request
from orbitmq.protocol.headers.pull import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND, PullMessage, PullResult

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from orbitmq.client.cluster import Cluster
    from orbitmq.client.filters import Subscription
    from orbitmq.client.incoming import Incoming
    from orbitmq.client.offsets import Offsets
    from orbitmq.client.process_queue import ProcessQueue
    from orbitmq.client.received import ReceivedMessage
    from orbitmq.client.stats import ConsumerStats
    from orbitmq.protocol.command import Command

logger = logging.getLogger(__name__)

SUSPEND_MS: Final = 15_000  # how long the broker may hold a pull that finds nothing
_TIMEOUT_SECONDS: Final = 30.0
_FLOW_CONTROL_SECONDS: Final = 0.020
_ERROR_SECONDS: Final = 1.0


class Puller:
    """Pulls the queues of one consumer. `deliver` takes what arrives, `moved` hears of offsets that no longer exist."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        offsets: Offsets,
        incoming: Incoming,
        stats: ConsumerStats,
        *,
        batch_size: int,
        commits: bool,
        deliver: Callable[[ProcessQueue, list[ReceivedMessage]], None],
        moved: Callable[[ProcessQueue, int], Awaitable[None]],
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._offsets = offsets
        self._incoming = incoming
        self._stats = stats
        self._batch_size = batch_size
        self._commits = commits
        self._deliver = deliver
        self._moved = moved

    async def run(self, held: ProcessQueue, subscription: Callable[[], Subscription]) -> None:
        """Until the queue is dropped. Failures are reported when they begin and when they end."""
        failing = False
        while not held.dropped:
            await held.active.wait()
            await held.wait_for_room()
            try:
                await self._pull_once(held, subscription())
            except OrbitError as error:
                flow_control = isinstance(error, RequestFailed) and error.code == ResponseCode.FLOW_CONTROL
                if not failing and not flow_control:
                    logger.warning("pulling %s fails: %s", held.queue, error)
                    failing = True
                await asyncio.sleep(_FLOW_CONTROL_SECONDS if flow_control else _ERROR_SECONDS)
                if isinstance(error, TransportError):
                    await self._look_again(held.queue.topic)
            else:
                if failing:
                    logger.info("pulling %s works again", held.queue)
                    failing = False

    async def _look_again(self, topic: str) -> None:
        """The broker may be somewhere else by now. If nobody says so, what we know has to do."""
        try:
            await self._cluster.fetch_route(topic)
        except OrbitError as error:
            logger.info("no fresh route of topic %s: %s", topic, error)

    async def _pull_once(self, held: ProcessQueue, subscription: Subscription) -> None:
        queue = held.queue
        replica = self._cluster.replica(queue.broker_name, held.pull_from)
        if replica is None:
            raise TransportError(f"broker {queue.broker_name!r} is in no route", hint="is it running and registered?")
        address, broker_id = replica
        commit_offset = self._offsets.known(queue) or 0
        flags = PULL_SUSPEND
        if self._commits and commit_offset > 0 and broker_id == MASTER and self._offsets.has_table(queue):
            flags |= PULL_COMMIT_OFFSET
        if not subscription.is_sql:
            # Said with each pull, a filter holds even while other members of the group still announce another one.
            flags |= PULL_SUBSCRIPTION
        header = PullMessage(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=held.next_offset,
            max_msg_nums=self._batch_size,
            sys_flag=flags,
            commit_offset=commit_offset,
            suspend_timeout_millis=SUSPEND_MS,
            subscription=None if subscription.is_sql else subscription.expression,
            sub_version=subscription.version,
            expression_type=subscription.expression_type,
            bname=queue.broker_name,
        )
        loop = asyncio.get_running_loop()
        began = loop.time()
        answer = await self._cluster.call(address, request(RequestCode.PULL_MESSAGE, header), _TIMEOUT_SECONDS)
        self._stats.pulls += 1
        held.pulled_at = loop.time()
        if not held.dropped:
            await self._take(answer, held, subscription, held.pulled_at - began)

    async def _take(self, answer: Command, held: ProcessQueue, subscription: Subscription, seconds: float) -> None:
        if answer.code not in _PULL_CODES:
            raise refusal(answer)
        result = answer.read(PullResult)
        held.pull_from = result.suggest_which_broker_id
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            logger.warning(
                "offset %d of %s does not exist (kept: %d to %d); going on at %d",
                held.next_offset, held.queue, result.min_offset, result.max_offset, result.next_begin_offset,
            )  # fmt: skip
            await self._moved(held, result.next_begin_offset)
            return
        messages: list[ReceivedMessage] = []
        if answer.code == ResponseCode.SUCCESS:
            try:
                messages = self._incoming.messages(answer.body, held.public_queue, subscription, held)
            except MessageError as error:
                raise TransportError(
                    f"{held.queue} gave records that cannot be read: {error}", hint="is the broker's store in order?"
                ) from error
        held.add(messages)
        held.skip_to(result.next_begin_offset)
        if messages:
            self._stats.received += len(messages)
            held.figures.found(seconds, len(messages))
            self._stats.received_bytes += len(answer.body)
            self._deliver(held, messages)
        elif not held:
            self._offsets.advance(held.queue, held.commit_offset)


_PULL_CODES: Final = frozenset({
    ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
})  # fmt: skip
