"""Pulling one queue: a request that the broker holds until there is something, answered, and asked again.

Java: PullMessageService, DefaultMQPushConsumerImpl.pullMessage
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.client.cluster import refusal
from orbitmq.client.routes import MASTER
from orbitmq.errors import MessageError, OrbitError, RequestFailed, TransportError
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import request
from orbitmq.protocol.headers.pull import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND, PullMessage, PullResult
from orbitmq.tasks import is_cancelled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from orbitmq.client.cluster import Cluster
    from orbitmq.client.filters import Subscription
    from orbitmq.client.incoming import Incoming
    from orbitmq.client.offsets import Offsets
    from orbitmq.client.process_queue import ProcessQueue
    from orbitmq.client.received import ReceivedMessage
    from orbitmq.client.stats import ConsumerStats
    from orbitmq.message import QueueRef
    from orbitmq.protocol.command import Command
    from orbitmq.transport.address import Address

logger = logging.getLogger(__name__)

SUSPEND_MS: Final = 15_000  # how long the broker may hold a pull that finds nothing
_TIMEOUT_SECONDS: Final = 30.0
_FLOW_CONTROL_SECONDS: Final = 0.020
_ERROR_SECONDS: Final = 1.0
_RESET: Final = "OFFSET_RESET"  # remark of a broker whose operator moved the group. Java: GetMessageStatus.OFFSET_RESET


class _Asked(NamedTuple):
    """A pull on its way."""

    subscription: Subscription
    began: float
    address: Address
    answer: asyncio.Future[Command]


class Puller:
    """Pulls the queues of one consumer. `deliver` takes what arrives. Where the broker wants a queue to be pulled from elsewhere,
    `moved` hears of it: because the offset no longer exists, or, with True, because an operator said so.
    """

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
        says_filters: bool,
        deliver: Callable[[ProcessQueue, list[ReceivedMessage]], None],
        moved: Callable[[ProcessQueue, int, bool], Awaitable[None]],
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._offsets = offsets
        self._incoming = incoming
        self._stats = stats
        self._batch_size = batch_size
        self._commits = commits
        self._says_filters = says_filters  # SQL ones, too: no heartbeat does
        self._deliver = deliver
        self._moved = moved
        self._brought: dict[QueueRef, int] = {}  # commits that pulls bring which are not answered yet

    def brings_another_commit(self, queue: QueueRef) -> bool:
        """Whether a pull may still be on its way that commits something else than what is known now."""
        return self._brought.get(queue, self._offsets.known(queue)) != self._offsets.known(queue)

    async def run(self, held: ProcessQueue, subscription: Callable[[], Subscription]) -> None:
        """Until the queue is dropped. Failures are reported when they begin and when they end."""
        failing = False
        asked: _Asked | None = None
        while not held.dropped:
            if asked is None:
                await held.active.wait()
                await held.wait_for_room()
            try:
                asked = await self._pull_once(held, subscription, asked)
            except OrbitError as error:
                asked = None
                flow_control = isinstance(error, RequestFailed) and error.code == ResponseCode.FLOW_CONTROL
                if not failing and not flow_control:
                    logger.warning("pulling %s fails: %s", held.queue, error)
                    failing = True
                await asyncio.sleep(_FLOW_CONTROL_SECONDS if flow_control else _ERROR_SECONDS)
                if isinstance(error, TransportError):
                    await self._look_again(held.queue.topic)
            except (Exception, asyncio.CancelledError) as error:  # a queue that is ours must not be left unread
                if is_cancelled():
                    raise
                asked = None
                if not failing:
                    logger.error("pulling %s fails: %r", held.queue, error, exc_info=error)
                    failing = True
                await asyncio.sleep(_ERROR_SECONDS)
            else:
                if failing:
                    logger.info("pulling %s works again", held.queue)
                    failing = False
        if asked is not None:
            asked.answer.cancel()

    async def _look_again(self, topic: str) -> None:
        """The broker may be somewhere else by now. If nobody says so, what we know has to do."""
        try:
            await self._cluster.fetch_route(topic)
        except OrbitError as error:
            logger.info("no fresh route of topic %s: %s", topic, error)

    async def _pull_once(
        self, held: ProcessQueue, subscription: Callable[[], Subscription], asked: _Asked | None
    ) -> _Asked | None:
        """One answer, of what was `asked` already or is asked now. The next request leaves before the answer is unpacked, if there
        is more and room for it: the broker works while we do. It is what comes back.
        """
        loop = asyncio.get_running_loop()
        if asked is None:
            wanted, began = subscription(), loop.time()
            address, command = self._request(held, wanted, held.next_offset)
            answer = await self._cluster.call(address, command, _TIMEOUT_SECONDS)
        else:
            wanted, began, address = asked.subscription, asked.began, asked.address
            answer = await asked.answer
            if answer.code == ResponseCode.GO_AWAY:
                return None
        self._stats.pulls += 1
        self._brought.pop(held.queue, None)
        now = held.pulled_at = loop.time()
        if held.dropped:
            return None
        if answer.code not in _PULL_CODES:
            if answer.code == ResponseCode.SYSTEM_BUSY:
                self._cluster.pass_over(held.queue.broker_name, address)
            raise refusal(answer)
        result = answer.read(PullResult)
        following = None
        if answer.code == ResponseCode.SUCCESS and held.has_room_for(2 * self._batch_size, len(answer.body)):
            following = self._ask_on(held, subscription(), result.next_begin_offset, now)
        try:
            await self._take(answer, result, held, wanted, now - began)
        except BaseException:
            if following is not None:
                following.answer.cancel()
            raise
        return following

    def _ask_on(self, held: ProcessQueue, wanted: Subscription, offset: int, now: float) -> _Asked | None:
        try:
            address, command = self._request(held, wanted, offset)
            answer = self._cluster.start_call(address, command, _TIMEOUT_SECONDS)
        except TransportError:
            return None  # asked for in the usual way it will say why
        return None if answer is None else _Asked(wanted, now, address, answer)

    def _request(self, held: ProcessQueue, subscription: Subscription, offset: int) -> tuple[Address, Command]:
        queue = held.queue
        replica = self._cluster.replica(queue.broker_name, held.pull_from)
        if replica is None:
            raise TransportError(f"broker {queue.broker_name!r} is in no route", hint="is it running and registered?")
        address, broker_id = replica
        commit_offset = self._offsets.known(queue) or 0
        flags = PULL_SUSPEND
        if self._commits and commit_offset > 0 and broker_id == MASTER and self._offsets.has_table(queue):
            flags |= PULL_COMMIT_OFFSET
            self._brought[queue] = commit_offset
        says_filter = self._says_filters or not subscription.is_sql
        if says_filter:
            # Said with each pull, a filter holds even while other members of the group still announce another one.
            flags |= PULL_SUBSCRIPTION
        header = PullMessage(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=self._batch_size,
            sys_flag=flags,
            commit_offset=commit_offset,
            suspend_timeout_millis=SUSPEND_MS,
            subscription=subscription.expression if says_filter else None,
            sub_version=subscription.version,
            expression_type=subscription.expression_type,
            bname=queue.broker_name,
        )
        return address, request(RequestCode.PULL_MESSAGE, header)

    async def _take(
        self, answer: Command, result: PullResult, held: ProcessQueue, subscription: Subscription, seconds: float
    ) -> None:
        held.pull_from = result.suggest_which_broker_id
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            is_reset = answer.remark == _RESET
            logger.warning(
                "offset %d of %s %s (kept: %d to %d); going on at %d",
                held.next_offset, held.queue, "was reset by an operator" if is_reset else "does not exist",
                result.min_offset, result.max_offset, result.next_begin_offset,
            )  # fmt: skip
            await self._moved(held, result.next_begin_offset, is_reset)
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
