"""Answering pops and notifications: the checks, the answer, and what happens when there is nothing yet.

Java: PopMessageProcessor, NotificationProcessor, PeekMessageProcessor, PollingInfoProcessor
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from orbitmq.broker import names
from orbitmq.broker.compaction import is_compacted
from orbitmq.broker.leases.checkpoints import MOST_MESSAGES, check_duration
from orbitmq.broker.leases.waiting import Waiting, WaitingRequests
from orbitmq.broker.own_queues import check_position_is_open
from orbitmq.broker.subscriptions import Wanted, wanted
from orbitmq.errors import RequestFailed, StorageError
from orbitmq.protocol import versions
from orbitmq.protocol.bodies.topics import PERM_READ
from orbitmq.protocol.codes import FLAG_RESPONSE, ResponseCode
from orbitmq.protocol.command import Command, answer, ok
from orbitmq.protocol.headers.leases import (
    ANY_QUEUE,
    Notification,
    NotificationResult,
    PeekMessage,
    PollingInfo,
    PollingInfoResult,
    PopMessage,
    PopResult,
)
from orbitmq.transport.failures import failure_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from orbitmq.broker.durability import Durability
    from orbitmq.broker.groups import Groups
    from orbitmq.broker.leases.ordered import OrderedLeases
    from orbitmq.broker.leases.popping import Popped, Popping
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.broker.topics import Topics
    from orbitmq.clock import Clock
    from orbitmq.storage.tables import TopicConfig
    from orbitmq.transport.connection import Connection

LATE_MS: Final = 500  # a pop that arrives so long after its client stopped waiting is not served
_EVERYTHING: Final = Wanted()
# Of a compacted topic. Compiled pops read the log, so they must not take it for a pop without wishes.
_EVERYTHING_KEPT: Final = Wanted(accept=lambda _record: True)
# What stands between the numbers and lists of an answer that has messages; compiled pops write it themselves.
FOUND_TEXTS: Final = (
    b'{"code":0,"extFields":{"popTime":"%%d","invisibleTime":"%%d","reviveQid":"%%d","restNum":"%%d","startOffsetInfo":"%%d",'
    b'"msgOffsetInfo":"%%d"},"flag":%d,"language":"PYTHON","opaque":%%d,"remark":"FOUND","serializeTypeCurrentRPC":"JSON",'
    b'"version":%d}' % (FLAG_RESPONSE, versions.OURS)
).split(b"%d")


class Serving:
    def __init__(
        self,
        popping: Popping,
        ordered: OrderedLeases,
        topics: Topics,
        groups: Groups,
        durability: Durability,
        configuration: BrokerConfiguration,
        clock: Clock,
        start_task: Callable[[Coroutine[Any, Any, None], str], object],
    ) -> None:
        """`start_task` runs an answer that must wait for the disk, of a pop that nobody awaits any more."""
        self.popping = popping
        self._ordered = ordered
        self._topics = topics
        self._groups = groups
        self._durability = durability
        self._configuration = configuration
        self._clock = clock
        self._start_task = start_task
        now = asyncio.get_running_loop().time
        self.pops = WaitingRequests(now, self._pop_again, self._answer_empty_pop)
        self.notifications = WaitingRequests(now, self._notify, self._answer_no_notification)

    # ---- pop

    async def pop(self, request: Command, connection: Connection) -> Command | None:
        """The answer; None while the pop is held."""
        header = request.read(PopMessage)
        try:
            wishes = self.check_pop(header)
        except RequestFailed as refusal:
            return answer(refusal.code, str(refusal), PopResult())
        popped = self.popping.pop(header, wishes)
        if popped.count:
            await self._groups.settle()  # after a kill leases of a group that nobody knows would be dropped
            if not self._durability.is_immediate:
                await self._durability.keep_promise(popped.end)
            if popped.rest:
                self.wake_others(header.topic, header.consumer_group, header.queue_id)
            return _found(header, popped)
        header.exp = header.exp_type = None  # it is in `wishes`, and can be long
        if not header.order:
            header.attempt_id = None
        code = self._hold(self.pops, Waiting(request.to_be_answered(), connection, header, wishes))
        return _nothing(header, popped, code) if code is not None else None

    def wake_others(self, topic: str, group: str, queue_id: int) -> None:
        """Who waits at the same place, for what one pop left."""
        if self.pops.at(topic, group, queue_id):
            self.pops.wake(topic, group, queue_id)

    def _pop_again(self, waiting: Waiting) -> bool:
        header = waiting.header
        assert isinstance(header, PopMessage)
        try:
            self._check_access(header.topic, header.consumer_group, header.queue_id)  # it may be forbidden meanwhile
            popped = self.popping.pop(header, waiting.wishes)
        except Exception as error:  # whatever it is: neither the others who wait nor the sender have to do with it
            _fail(waiting, error)
            return True
        if not popped.count:
            return False
        response = _found(header, popped)
        if self._durability.is_immediate:
            waiting.connection.answer(waiting.request, response)
        else:
            self._start_task(self._answer_when_safe(waiting, response, popped.end), "answering a held pop")
        return True

    async def _answer_when_safe(self, waiting: Waiting, response: Command, end: int) -> None:
        try:
            await self._durability.keep_promise(end)
        except StorageError as error:  # nobody would know of this lease after a power cut
            _fail(waiting, error)
        else:
            waiting.connection.answer(waiting.request, response)

    def _answer_empty_pop(self, waiting: Waiting) -> None:
        if not self._pop_again(waiting):
            header = waiting.header
            assert isinstance(header, PopMessage)
            result = PopResult(
                pop_time=self._clock.now_ms(),
                invisible_time=header.invisible_time,
                start_offset_info="",
                msg_offset_info="",
                order_count_info="" if header.order else None,
            )
            nothing = answer(ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE", result)
            waiting.connection.answer(waiting.request, nothing)

    # ---- notification

    def notification(self, request: Command, connection: Connection) -> Command | None:
        """Whether there is something to pop; None while nothing is and the asker waits."""
        header = request.read(Notification)
        header.queue_id = max(header.queue_id, ANY_QUEUE)
        self._check_access(header.topic, header.consumer_group, header.queue_id)
        header.born_time = header.born_time or self._clock.now_ms()
        if self._has_message(header):
            return ok(NotificationResult(has_msg=True))
        code = self._hold(self.notifications, Waiting(request.to_be_answered(), connection, header, _EVERYTHING))
        if code is None:
            return None
        return ok(NotificationResult(polling_full=code == ResponseCode.POLLING_FULL))

    def _notify(self, waiting: Waiting) -> bool:
        header = waiting.header
        assert isinstance(header, Notification)
        try:
            self._check_access(header.topic, header.consumer_group, header.queue_id)  # it may be forbidden meanwhile
        except RequestFailed as refusal:
            _fail(waiting, refusal)
            return True
        if not self._has_message(header):
            return False
        waiting.connection.answer(waiting.request, ok(NotificationResult(has_msg=True)))
        return True

    def _answer_no_notification(self, waiting: Waiting) -> None:
        if not self._notify(waiting):
            waiting.connection.answer(waiting.request, ok(NotificationResult()))

    def _has_message(self, header: Notification) -> bool:
        group, topic = header.consumer_group, header.topic
        config = self._topics.get(topic)
        count = config.read_queue_nums if config is not None else 0
        for queue_id in range(count) if header.queue_id == ANY_QUEUE else (header.queue_id,):
            if header.order and self._ordered.is_blocked(topic, group, queue_id, header.attempt_id):
                continue
            if self.popping.waiting_messages(group, topic, queue_id) > 0:
                return True
        if header.order:
            return False
        return any(
            self.popping.waiting_messages(group, name, 0) > 0 for name in self.popping.retry_topics(group, topic)
        )

    # ---- looking without leasing

    def peek(self, request: Command) -> Command:
        header = request.read(PeekMessage)
        header.queue_id = max(header.queue_id, ANY_QUEUE)
        self._check_access(header.topic, header.consumer_group, header.queue_id)
        parts, rest = self.popping.peek(header)
        found = bool(parts)
        response = answer(
            ResponseCode.SUCCESS if found else ResponseCode.PULL_NOT_FOUND,
            "FOUND" if found else "NO_MESSAGE_IN_QUEUE",
            PopResult(rest_num=rest),
        )
        response.parts = parts
        return response

    def polling_info(self, request: Command) -> Command:
        header = request.read(PollingInfo)
        self._check_access(header.topic, header.consumer_group, header.queue_id)
        number = self.pops.at(header.topic, header.consumer_group, max(header.queue_id, ANY_QUEUE))
        return ok(PollingInfoResult(polling_num=number))

    # ---- arrivals

    def arrived(self, topic: str, queue_id: int) -> None:
        self.pops.arrived(topic, queue_id)
        self.notifications.arrived(topic, queue_id)

    def queue_is_free(self, topic: str, group: str, queue_id: int) -> None:
        """An ordered lease of it is over."""
        self.pops.wake(topic, group, queue_id)
        self.notifications.wake(topic, group, queue_id)

    def expire(self) -> None:
        self.pops.expire()
        self.notifications.expire()

    def release_all(self) -> None:
        self.pops.release_all()
        self.notifications.release_all()

    # ---- checks, in Java's order

    def check_pop(self, header: PopMessage) -> Wanted:
        now_ms = self._clock.now_ms()
        header.queue_id = max(header.queue_id, ANY_QUEUE)
        header.born_time = header.born_time or now_ms
        if now_ms - header.born_time - header.poll_time > LATE_MS:
            raise RequestFailed(ResponseCode.POLLING_TIMEOUT, "the pop came too late: its client waits no longer")
        if not 0 < header.max_msg_nums <= MOST_MESSAGES:
            raise RequestFailed(
                ResponseCode.INVALID_PARAMETER, f"a pop takes 1 to {MOST_MESSAGES} messages, not {header.max_msg_nums}"
            )
        check_duration(header.invisible_time)
        if not self._configuration.settings.timer_wheel_enable:
            raise RequestFailed(
                ResponseCode.SYSTEM_ERROR,
                "leases need the timer, which this broker runs without",
                hint="start it with timerWheelEnable=true",
            )
        topic = self._check_access(header.topic, header.consumer_group, header.queue_id)
        if not header.order and not names.can_be_leased(header.consumer_group, header.topic):
            raise RequestFailed(
                ResponseCode.INVALID_PARAMETER,
                "what is not acknowledged could not come back: the name of the retry topic would be too long",
                hint="read it with a group of a shorter name",
            )
        try:
            wishes = wanted(header.exp, header.exp_type, filters_enabled=True) if header.exp else _EVERYTHING
        except RequestFailed as error:
            raise RequestFailed(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
        return _EVERYTHING_KEPT if wishes == _EVERYTHING and is_compacted(topic) else wishes

    def _check_access(self, topic_name: str, group_name: str, queue_id: int) -> TopicConfig:
        settings = self._configuration.settings
        if not settings.broker_permission & PERM_READ:
            raise RequestFailed(ResponseCode.NO_PERMISSION, f"the broker {settings.broker_name} gives no messages out")
        topic = self._topics.require(topic_name)
        if not topic.perm & PERM_READ:
            raise RequestFailed(ResponseCode.NO_PERMISSION, f"the topic[{topic_name}] peeking message is forbidden")
        if queue_id >= topic.read_queue_nums:
            raise RequestFailed(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{topic_name}] readQueueNums:[{topic.read_queue_nums}]",
            )
        if not self._groups.require(group_name).consume_enable:
            raise RequestFailed(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group_name}")
        if not self._groups.may_read(group_name, topic_name):
            raise RequestFailed(
                ResponseCode.NO_PERMISSION, f"the consumer group[{group_name}] is forbidden for topic[{topic_name}]"
            )
        check_position_is_open(group_name, topic_name)
        return topic

    def _hold(self, requests: WaitingRequests, waiting: Waiting) -> ResponseCode | None:
        """None: it waits; not longer than it said, where the asker's clock is ahead: what came then would be leased to nobody."""
        settings, header = self._configuration.settings, waiting.header
        wait_ms = min(header.poll_time, header.born_time + header.poll_time - self._clock.now_ms())
        if wait_ms <= 0:
            return ResponseCode.POLLING_TIMEOUT
        there = requests.at(header.topic, header.consumer_group, header.queue_id)
        if len(requests) >= settings.max_pop_polling_size or there > settings.pop_polling_size:
            return ResponseCode.POLLING_FULL
        requests.hold(waiting, wait_ms / 1000)
        return None


class QuickServing:
    """What compiled pops ask for. They cannot wait: while a group is new, its pops go the ordinary way, which does."""

    def __init__(self, serving: Serving, groups: Groups) -> None:
        self.wake_others = serving.wake_others
        self._check_pop = serving.check_pop
        self._groups = groups

    def check_pop(self, header: PopMessage) -> Wanted:
        """Asked once for many pops alike, not for each."""
        wishes = self._check_pop(header)
        if not self._groups.is_settled:
            raise RequestFailed(ResponseCode.SYSTEM_BUSY, "the groups are still being saved")
        return wishes


def _result(header: PopMessage, popped: Popped) -> PopResult:
    return PopResult(
        pop_time=popped.pop_time_ms,
        invisible_time=header.invisible_time,
        revive_qid=popped.revive_queue,
        rest_num=popped.rest,
        start_offset_info=";".join(popped.starts),
        msg_offset_info=";".join(popped.offsets),
        order_count_info=";".join(popped.counts) if header.order else None,
    )


def _found(header: PopMessage, popped: Popped) -> Command:
    response = answer(ResponseCode.SUCCESS, "FOUND", _result(header, popped))
    response.parts = popped.parts
    return response


def _nothing(header: PopMessage, popped: Popped, code: ResponseCode) -> Command:
    return answer(code, "NO_MESSAGE_IN_QUEUE", _result(header, popped))


def _fail(waiting: Waiting, error: Exception) -> None:
    waiting.connection.answer(waiting.request, failure_answer(waiting.request, error, waiting.connection.peer))
