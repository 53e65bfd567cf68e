"""Handing messages out: the checks before a pull, the read, the answer, and what happens when there is nothing yet.

Java: PullMessageProcessor, DefaultPullMessageResultHandler
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from orbitmq.broker import statistics
from orbitmq.broker.long_poll import HeldPull, HeldPulls
from orbitmq.broker.names import SYSTEM_GROUP_PREFIX
from orbitmq.broker.own_queues import check_position_is_open
from orbitmq.broker.pull_answers import found_frame
from orbitmq.broker.subscriptions import ALL, TAG, Wanted, wanted
from orbitmq.errors import RequestFailed
from orbitmq.protocol.bodies.topics import PERM_READ
from orbitmq.protocol.codes import ResponseCode
from orbitmq.protocol.command import Command, answer, ok_with_raw_fields
from orbitmq.protocol.headers.pull import (
    PULL_COMMIT_OFFSET,
    PULL_LITE,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullForbidden,
    PullMessage,
)
from orbitmq.storage.reading import MAX_READ_BYTES, ReadResult, ReadStatus
from orbitmq.transport.failures import failure_answer

if TYPE_CHECKING:
    from orbitmq.broker.clients import Clients
    from orbitmq.broker.compaction import CompactedTopics
    from orbitmq.broker.consumer_filters import ConsumerFilters
    from orbitmq.broker.consumer_offsets import ConsumerOffsets
    from orbitmq.broker.groups import Groups
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.broker.statistics import Counter, Statistics
    from orbitmq.broker.topics import Topics
    from orbitmq.storage.store import Store
    from orbitmq.storage.tables import GroupConfig, TopicConfig
    from orbitmq.transport.connection import Connection

_CODES: Final = {
    ReadStatus.FOUND: 0,
    ReadStatus.NO_MATCHED_MESSAGE: 20,
    ReadStatus.MESSAGE_WAS_REMOVING: 20,
    ReadStatus.OFFSET_FOUND_NULL: 19,
    ReadStatus.OFFSET_OVERFLOW_ONE: 19,
    ReadStatus.OFFSET_OVERFLOW_BADLY: 21,
    ReadStatus.OFFSET_TOO_SMALL: 21,
    ReadStatus.NO_MATCHED_LOGIC_QUEUE: 21,  # 19 when asked for offset 0
    ReadStatus.NO_MESSAGE_IN_QUEUE: 21,
}
_EMPTY_QUEUE: Final = (ReadStatus.NO_MATCHED_LOGIC_QUEUE, ReadStatus.NO_MESSAGE_IN_QUEUE)
_NOT_FOUND: Final = 19
_MOVED: Final = 21
_EVERYTHING: Final = Wanted()

# Java: ForbiddenType
_SYSTEM_LENGTH: Final = len(SYSTEM_GROUP_PREFIX)
_BROKER_FORBIDDEN: Final = 1
_GROUP_FORBIDDEN: Final = 2
_TOPIC_FORBIDDEN: Final = 3
_BROADCAST_FORBIDDEN: Final = 4
_SUBSCRIPTION_FORBIDDEN: Final = 5


class PullRefused(RequestFailed):
    """Not allowed, with the number that says by whom."""

    def __init__(self, kind: int, message: str) -> None:
        super().__init__(ResponseCode.NO_PERMISSION, message)
        self.kind = kind


class Pulling:
    def __init__(
        self,
        store: Store,
        topics: Topics,
        groups: Groups,
        clients: Clients,
        offsets: ConsumerOffsets,
        configuration: BrokerConfiguration,
        stats: Statistics,
        compacted: CompactedTopics | None = None,
        filters: ConsumerFilters | None = None,
    ) -> None:
        self._filters = filters
        self._compacted = compacted
        self._store = store
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._offsets = offsets
        self._configuration = configuration
        # A slave that lags, or joined late, cannot say of an offset that it is wrong: its master may have it. Java's slaves answer
        # PULL_RETRY_IMMEDIATELY, again and again (offsetCheckInSlave=false); ours hold the pull.
        self._corrects = not configuration.settings.is_slave
        self._stats = stats
        self._gets: dict[tuple[str, str], tuple[Counter, Counter]] = {}
        cluster = configuration.settings.broker_cluster_name
        self._all_gets = stats.counter(statistics.BROKER_GET_NUMS, cluster)
        self._misses = stats.counter(statistics.BROKER_GET_MISSES, cluster)
        self.held = HeldPulls(asyncio.get_running_loop().time, self._answer_arrival, self._answer_timeout)

    def pull(self, request: Command, connection: Connection) -> Command | None:
        """The answer; None while the pull is held."""
        header = request.read(PullMessage)
        try:
            group, topic, wishes = self.check(header)
        except RequestFailed as failure:
            return _refused(failure)
        self.commit_if_asked(header)
        moved = self._moved(header, topic, group)
        if moved is not None:
            return moved
        result = self._read(header, header.queue_offset, wishes)
        if self.hold(result, header, wishes, request.to_be_answered(), connection):
            return None
        return self._answer(header, result, topic, group)

    def find(self, header: PullMessage) -> tuple[ReadResult, TopicConfig, GroupConfig, Wanted] | None:
        """What there is for a pull, which is not answered yet. None if there is anything to say about it: ask `pull`."""
        if self._offsets.has_resets:
            return None
        try:
            group, topic, wishes = self.check(header)
        except RequestFailed:
            return None
        result = self._read(header, header.queue_offset, wishes)
        return None if self._suggested(result, group) else (result, topic, group, wishes)

    def handed_out(self, group: str, topic: str, queue_id: int, next_offset: int, count: int, total_bytes: int) -> None:
        """So many messages are on their way: remember how far the group has come, and count them."""
        self._offsets.pulled_to[topic, group, queue_id] = next_offset
        self.count(group, topic, 1, count, total_bytes)

    def count(self, group: str, topic: str, pulls: int, messages: int, total_bytes: int) -> None:
        """Pulls that were answered with messages."""
        counters = self._gets.get((topic, group))
        if counters is None:
            name = f"{topic}@{group}"
            counters = self._gets[topic, group] = (
                self._stats.counter(statistics.GROUP_GET_NUMS, name),
                self._stats.counter(statistics.GROUP_GET_SIZE, name),
            )
        counters[0].add(messages, pulls)
        counters[1].add(total_bytes, pulls)
        self._all_gets.add(messages, pulls)

    def hold(
        self, result: ReadResult, header: PullMessage, wishes: Wanted, request: Command, connection: Connection
    ) -> bool:
        """Keep a pull that found nothing until something comes, if it may wait."""
        if not header.sys_flag & PULL_SUSPEND or _code_of(result, header, self._corrects) != _NOT_FOUND:
            return False
        return self.wait(header, wishes, request, connection)

    def wait(self, header: PullMessage, wishes: Wanted, request: Command, connection: Connection) -> bool:
        """Keep a pull that may wait, and for which there is nothing yet; False if its client has too many of them."""
        if not self.held.has_room(connection, wishes):
            return False
        # What it wants is in `wishes`; these texts can be long, and as many may wait.
        header.subscription = header.expression_type = header.proxy_froward_client_id = header.bname = None
        settings = self._configuration.settings
        wait_ms = header.suspend_timeout_millis if settings.long_polling_enable else settings.short_polling_time_mills
        held = HeldPull(request, connection, header, wishes)
        held.filter_hash = self._announced_filter_hash(header)
        self.held.hold(held, wait_ms / 1000)
        return True

    def commit_if_asked(self, header: PullMessage) -> None:
        """A pull may bring the group's offset along."""
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        if header.sys_flag & PULL_COMMIT_OFFSET and self._offsets.pending_reset(group, topic, queue_id) is None:
            self._offsets.commit(group, topic, queue_id, header.commit_offset)

    def forget(self, name: str) -> None:
        """A topic or group is gone: stop counting for it."""
        for key in [key for key in self._gets if name in key]:
            del self._gets[key]

    # ---- checks, in Java's order

    def check(self, header: PullMessage) -> tuple[GroupConfig, TopicConfig, Wanted]:
        """Who pulls, from what, and which messages. PullRefused, or another RequestFailed."""
        settings = self._configuration.settings
        if not settings.broker_permission & PERM_READ:
            raise PullRefused(_BROKER_FORBIDDEN, f"the broker {settings.broker_name} pulling message is forbidden")
        if header.sys_flag & PULL_LITE and not settings.lite_pull_message_enable:
            raise PullRefused(_BROKER_FORBIDDEN, "the broker for lite pull consumer is forbidden")
        group = self._groups.require(header.consumer_group)
        if not group.consume_enable:
            raise PullRefused(_GROUP_FORBIDDEN, f"subscription group no permission, {header.consumer_group}")
        topic = self._topics.require(header.topic)
        if not topic.perm & PERM_READ:
            raise PullRefused(_TOPIC_FORBIDDEN, f"the topic[{header.topic}] pulling message is forbidden")
        if header.consumer_group[:_SYSTEM_LENGTH] == SYSTEM_GROUP_PREFIX:  # a pull may commit
            check_position_is_open(header.consumer_group, header.topic)
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise RequestFailed(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] readQueueNums:[{topic.read_queue_nums}]",
            )
        if header.sys_flag & PULL_SUBSCRIPTION:
            if self._groups.forbidden or not group.consume_broadcast_enable:
                self._check_bans(group, header.consumer_group, header.topic)
            expression, expression_type = header.subscription, header.expression_type
        else:
            expression, expression_type = self.known_subscription(
                header.consumer_group, header.topic, header.sub_version, group
            )
        if expression == ALL and expression_type == TAG:
            return group, topic, _EVERYTHING
        wishes = wanted(expression, expression_type, filters_enabled=settings.enable_property_filter)
        if wishes.accept is not None and self._filters is not None:
            wishes = wishes._replace(may_want=self._filters.may_want(header.topic, header.consumer_group, expression))
        return group, topic, wishes

    def known_subscription(self, group_name: str, topic: str, sub_version: int, group: GroupConfig) -> tuple[str, str]:
        """What the group's heartbeat said it wants of the topic: expression and its kind."""
        members = self._clients.consumers(group_name)
        if members is None:
            raise RequestFailed(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's group info not exist: {group_name}",
                hint="a consumer must send a heartbeat before it pulls",
            )
        self._check_bans(group, group_name, topic)
        subscription = members.subscriptions.get(topic)
        if subscription is None:
            raise RequestFailed(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: group {group_name}, topic {topic}",
            )
        if subscription.sub_version < sub_version:
            raise RequestFailed(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, f"the consumer's subscription not latest: {group_name}"
            )
        if subscription.class_filter_mode:  # of 4.x: a filter server reads them all, and runs the class that is named
            return ALL, TAG
        return subscription.sub_string, subscription.expression_type

    def _check_bans(self, group: GroupConfig, group_name: str, topic: str) -> None:
        """What operators forbid a group holds for all who pull as it, also with a filter of their own (Apache's: only without)."""
        if not group.consume_broadcast_enable:
            members = self._clients.consumers(group_name)
            if members is not None and members.is_broadcasting:
                raise PullRefused(
                    _BROADCAST_FORBIDDEN, f"the consumer group[{group_name}] can not consume by broadcast way"
                )
        if not self._groups.may_read(group_name, topic):
            raise PullRefused(
                _SUBSCRIPTION_FORBIDDEN, f"the consumer group[{group_name}] is forbidden for topic[{topic}]"
            )

    # ---- reading and answering

    def _read(self, header: PullMessage, offset: int, wishes: Wanted) -> ReadResult:
        bulk = header.bulk_bytes is not None and header.bulk_bytes > 0
        wanted_bytes = header.bulk_bytes if bulk else header.max_msg_bytes
        max_bytes = wanted_bytes if wanted_bytes and wanted_bytes > 0 else MAX_READ_BYTES
        compacted = self._compacted
        if compacted is not None and compacted.holds(header.topic, header.queue_id):
            return compacted.read(header.topic, header.queue_id, offset, header.max_msg_nums, max_bytes, *wishes)
        count = header.max_msg_nums
        return self._store.read(header.topic, header.queue_id, offset, count, max_bytes, *wishes, bulk=bulk)

    def _answer(
        self, header: PullMessage, result: ReadResult, topic: TopicConfig | None, group: GroupConfig | None
    ) -> Command:
        code = _code_of(result, header, self._corrects)
        response = _with_offsets(
            code,
            result.status.value,
            result.next_offset if self._corrects or _CODES[result.status] != _MOVED else header.queue_offset,
            result.min_offset,
            result.max_offset,
            topic,
            group,
            self._suggested(result, group),
        )
        group_name, queue_id, next_offset = header.consumer_group, header.queue_id, result.next_offset
        if result.status is ReadStatus.FOUND:
            response.parts = result.buffers
            self.handed_out(group_name, header.topic, queue_id, next_offset, result.count, result.total_bytes)
        else:
            self._offsets.note_pull(group_name, header.topic, queue_id, next_offset)
            self._misses.add(1)
        return response

    def _moved(self, header: PullMessage, topic: TopicConfig | None, group: GroupConfig | None) -> Command | None:
        """Where an operator sends the group instead."""
        reset = self._offsets.take_reset(header.consumer_group, header.topic, header.queue_id)
        if reset is None:
            return None
        low, high = self._store.queue_range(header.topic, header.queue_id)
        return _with_offsets(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", reset, low, high, topic, group, 0)

    def _announced_filter_hash(self, header: PullMessage) -> int | None:
        """Of what heartbeats say that the group wants; None for a pull that says it itself."""
        members = None if header.sys_flag & PULL_SUBSCRIPTION else self._clients.consumers(header.consumer_group)
        subscription = None if members is None else members.subscriptions.get(header.topic)
        return None if subscription is None else hash((subscription.sub_string, subscription.expression_type))

    def _answer_arrival(self, pull: HeldPull) -> bool:
        header = pull.header
        if pull.filter_hash is not None and self._announced_filter_hash(header) not in (pull.filter_hash, None):
            # The group wants something else by now, and asks again from here. Java looks again itself.
            low, high = self._store.queue_range(header.topic, header.queue_id)
            self._answer_held(pull, ReadResult(ReadStatus.NO_MATCHED_MESSAGE, header.queue_offset, low, high))
            return True
        if self._offsets.has_resets:
            moved = self._moved(header, self._topics.get(header.topic), self._groups.get(header.consumer_group))
            if moved is not None:
                pull.connection.answer(pull.request, moved)
                return True
        try:
            result = self._read_held(pull)
        except Exception as error:  # whatever it is: neither the others who wait nor the sender have to do with it
            self._answer_failure(pull, error)
            return True
        if result.status is ReadStatus.NO_MATCHED_MESSAGE:
            pull.scan_from = result.next_offset
            return False
        if result.status is not ReadStatus.FOUND and _code_of(result, header, self._corrects) == _NOT_FOUND:
            return False
        self._answer_held(pull, result)
        return True

    def _answer_timeout(self, pull: HeldPull) -> None:
        try:
            result = self._read_held(pull)
        except Exception as error:  # as above
            self._answer_failure(pull, error)
        else:
            self._answer_held(pull, result)

    def _read_held(self, pull: HeldPull) -> ReadResult:
        """What there is by now, unless it was forbidden meanwhile."""
        header = pull.header
        group = self._groups.get(header.consumer_group)
        if group is not None:
            if not group.consume_enable:
                raise PullRefused(_GROUP_FORBIDDEN, f"subscription group no permission, {header.consumer_group}")
            if self._groups.forbidden or not group.consume_broadcast_enable:
                self._check_bans(group, header.consumer_group, header.topic)
        return self._read(header, pull.scan_from, pull.wishes)

    @staticmethod
    def _answer_failure(pull: HeldPull, error: Exception) -> None:
        if isinstance(error, RequestFailed):
            failed = _refused(error)
        else:
            failed = failure_answer(pull.request, error, pull.connection.peer)
        pull.connection.answer(pull.request, failed)

    def _answer_held(self, pull: HeldPull, result: ReadResult) -> None:
        header, request = pull.header, pull.request
        topic, group = self._topics.get(header.topic), self._groups.get(header.consumer_group)
        if result.status is ReadStatus.FOUND and topic is not None and group is not None and not request.flag:
            frame = None if self._suggested(result, group) else found_frame(result, topic, group, request.opaque)
            if frame is not None:
                self.handed_out(
                    header.consumer_group,
                    header.topic,
                    header.queue_id,
                    result.next_offset,
                    result.count,
                    result.total_bytes,
                )
                pull.connection.answer_with(request, frame)
                return
        pull.connection.answer(request, self._answer(header, result, topic, group))

    def _suggested(self, result: ReadResult, group: GroupConfig | None) -> int:
        """From which replica the group had better pull next: one so far behind that it needs the disk, from a slave."""
        if group is None or not self._configuration.settings.slave_read_enable:
            return 0
        return group.which_broker_when_consume_slowly if result.far_behind else group.broker_id


def _refused(failure: RequestFailed) -> Command:
    if isinstance(failure, PullRefused):
        return answer(failure.code, str(failure), PullForbidden(forbidden_type=failure.kind))
    refused = answer(failure.code, str(failure))
    refused.add_fields()  # Java's clients expect the field map even when it is empty
    return refused


def _code_of(result: ReadResult, header: PullMessage, corrects: bool) -> int:
    if result.status in _EMPTY_QUEUE and header.queue_offset == 0:
        return _NOT_FOUND
    code = _CODES[result.status]
    return code if corrects or code != _MOVED else _NOT_FOUND


def _with_offsets(
    code: int,
    remark: str,
    next_offset: int,
    low: int,
    high: int,
    topic: TopicConfig | None,
    group: GroupConfig | None,
    suggested: int,
) -> Command:
    topic_flag, group_flag = topic.topic_sys_flag if topic else 0, group.group_sys_flag if group else 0
    response = ok_with_raw_fields(
        b'{"suggestWhichBrokerId":"%d","nextBeginOffset":"%d","minOffset":"%d","maxOffset":"%d",'
        b'"topicSysFlag":"%d","groupSysFlag":"%d"}' % (suggested, next_offset, low, high, topic_flag, group_flag)
    )
    response.code = code
    response.remark = remark
    return response
