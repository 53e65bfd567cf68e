"""How far groups are, and sending them elsewhere. Java: AdminBrokerProcessor, Broker2Client"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from orbitmq.access.needs import named_topics
from orbitmq.broker import names
from orbitmq.broker.own_queues import check_position_is_open
from orbitmq.errors import RequestFailed
from orbitmq.protocol import versions
from orbitmq.protocol.bodies.admin import CorrectionOffsets, TimeSpan, TimeSpans
from orbitmq.protocol.bodies.groups import QueueKey
from orbitmq.protocol.bodies.offsets import ConsumeStats, ConsumeStatsList, QueueOffsets
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command, ok
from orbitmq.protocol.command import request as new_request
from orbitmq.protocol.headers import admin as headers
from orbitmq.protocol.headers.groups import ResetOffset
from orbitmq.storage.java_object import to_json

if TYPE_CHECKING:
    from orbitmq.broker.clients import Clients
    from orbitmq.broker.consumer_offsets import ConsumerOffsets
    from orbitmq.broker.delayed import DelayedMessages
    from orbitmq.broker.groups import Groups
    from orbitmq.broker.progress import Progress
    from orbitmq.broker.pulling import Pulling
    from orbitmq.broker.registration import Registration
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.broker.topics import Topics
    from orbitmq.clock import Clock
    from orbitmq.storage.store import Store
    from orbitmq.transport.connection import Connection

logger = logging.getLogger(__name__)

_CPP: Final = "CPP"
_NO_OFFSET: Final = -1
_UNREACHABLE: Final = 2**63 - 1  # Java's Long.MAX_VALUE: "no correction"


# ---- tables, for slaves and tools


async def all_consumer_offsets(offsets: ConsumerOffsets, request: Command, connection: Connection) -> Command:
    return ok(body=await asyncio.to_thread(to_json, offsets.table()))


async def all_delay_offsets(delayed: DelayedMessages, request: Command, connection: Connection) -> Command:
    return ok(body=to_json(delayed.table()))


# ---- how far groups are


async def consume_stats(progress: Progress, request: Command, connection: Connection) -> Command:
    """Of one group: in the topics asked for, or in all it reads. An unknown group is nowhere, which is no error."""
    header = request.read(headers.ConsumeStats)
    group = header.consumer_group
    if header.topic_list:
        topics = named_topics(header.topic_list)
    elif header.topic:
        topics = [header.topic] if progress.is_read_by(group, header.topic) else []
    else:
        topics = progress.topics_of(group)
    found = []
    for topic in topics:
        if (stats := progress.of_topic(group, topic)) is not None:
            found.append(stats)
            await asyncio.sleep(0)  # there may be thousands of topics, and others wait
    lags = {queue: lag for stats in found for queue, lag in stats.offsets.items()}
    return ok(body=ConsumeStats(lags, sum(stats.tps for stats in found)).to_json())


async def broker_consume_stats(
    progress: Progress,
    topics: Topics,
    groups: Groups,
    registration: Registration,
    request: Command,
    connection: Connection,
) -> Command:
    """Of all groups; only in ordered topics, if so asked."""
    only_ordered = request.read(headers.BrokerConsumeStats).is_order
    table: dict[str, list[ConsumeStats]] = {}
    for group in list(groups.all()):
        wanted = [
            topic
            for topic in progress.topics_of(group)
            if (config := topics.get(topic)) is not None and (config.order or not only_ordered)
        ]
        table[group] = [stats for topic in wanted if (stats := progress.of_topic(group, topic)) is not None]
        await asyncio.sleep(0)  # there may be thousands of groups, and others wait
    return ok(body=ConsumeStatsList(str(registration.address), table).to_json())


async def consume_time_span(
    topics: Topics,
    offsets: ConsumerOffsets,
    store: Store,
    clock: Clock,
    configuration: BrokerConfiguration,
    request: Command,
    connection: Connection,
) -> Command:
    """When the messages of each queue were stored, and how old the next one of the group is."""
    header = request.read(headers.TopicAndGroup)
    topic = header.topic or ""
    config = topics.get(topic)
    if config is None:
        raise RequestFailed(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic[:300]}] not exist")
    spans = []
    for queue_id in range(config.write_queue_nums):
        low, high = store.queue_range(topic, queue_id)
        committed = offsets.get(header.group, topic, queue_id) or 0
        first_ms = _stored_at(store, topic, queue_id, low)
        last_ms = _stored_at(store, topic, queue_id, high - 1)
        consumed_ms = _stored_at(store, topic, queue_id, committed - 1) if committed > 0 else first_ms
        next_ms = _stored_at(store, topic, queue_id, committed) if committed < high else -1
        spans.append(
            TimeSpan(
                message_queue=QueueKey(broker_name=configuration.settings.broker_name, queue_id=queue_id, topic=topic),
                min_time_stamp=first_ms,
                max_time_stamp=last_ms,
                consume_time_stamp=consumed_ms,
                delay_time=clock.now_ms() - next_ms if next_ms >= 0 else 0,
                min_time_stamp_str=_text(first_ms),
                max_time_stamp_str=_text(last_ms),
                consume_time_stamp_str=_text(consumed_ms),
            )
        )
    return ok(body=TimeSpans(consume_time_span_set=spans).to_json())


def _stored_at(store: Store, topic: str, queue_id: int, offset: int) -> int:
    at_ms = store.stored_at_ms(topic, queue_id, offset) if offset >= 0 else None
    return -1 if at_ms is None else at_ms


def _text(at_ms: int) -> str:
    """2026-11-15#09:21:28:123. Java: UtilAll.yyyyMMddHHmmssSSS"""
    at = datetime.fromtimestamp(at_ms / 1000, UTC).astimezone()
    return f"{at:%Y-%m-%d#%H:%M:%S}:{at_ms % 1000:03d}"


async def correction_offsets(offsets: ConsumerOffsets, request: Command, connection: Connection) -> Command:
    """Per queue, the smallest offset over all groups but some; none where the compared group is behind it anyway."""
    header = request.read(headers.CorrectionOffset)
    ignored = {group.strip() for group in (header.filter_groups or "").split(",") if group.strip()}
    lowest = offsets.minimum(header.topic, ignored)
    for queue_id, compared in offsets.queues(header.compare_group, header.topic).items():
        lowest[queue_id] = _UNREACHABLE if lowest.get(queue_id, _UNREACHABLE) > compared else lowest[queue_id]
    return ok(body=CorrectionOffsets(correction_offsets=lowest).to_json())


# ---- sending groups elsewhere


async def clone_offsets(
    progress: Progress,
    topics: Topics,
    groups: Groups,
    offsets: ConsumerOffsets,
    request: Command,
    connection: Connection,
) -> Command:
    """Let one group go on where another is. It is made where groups may be, so that it can be seen, and deleted again."""
    header = request.read(headers.CloneGroupOffset)
    names.check_group_name(header.dest_group)
    groups.require(header.dest_group)
    wanted = [header.topic] if header.topic else offsets.topics_of(header.src_group)
    for topic in wanted:
        check_position_is_open(header.dest_group, topic)
    for topic in wanted:
        if topics.get(topic) is not None and (header.offline or progress.is_read_by(header.src_group, topic)):
            offsets.clone(header.src_group, header.dest_group, topic)
    return ok()


async def reset_offset(
    topics: Topics,
    groups: Groups,
    clients: Clients,
    offsets: ConsumerOffsets,
    store: Store,
    pulling: Pulling,
    configuration: BrokerConfiguration,
    request: Command,
    connection: Connection,
) -> Command:
    """Send a group to a time, the end, or an offset: by answering the pulls that wait and the next ones, or by telling its members."""
    header = request.read(ResetOffset)
    check_position_is_open(header.group, header.topic)
    if configuration.settings.use_server_side_reset_offset:
        by_queue = _reset_here(topics, groups, offsets, store, header)
        await offsets.save()  # after a crash, leases from before it must not move the group on again
        for queue_id in by_queue:
            pulling.held.arrived(header.topic, queue_id)
    else:
        by_queue = _goals_for_clients(topics, offsets, store, header)
    broker_name = configuration.settings.broker_name
    table = QueueOffsets(
        {
            QueueKey(broker_name=broker_name, queue_id=queue_id, topic=header.topic): offset
            for queue_id, offset in by_queue.items()
        }
    )
    if not configuration.settings.use_server_side_reset_offset:
        _tell_members(clients, header, table)
    return ok(body=table.to_json())


def _reset_here(
    topics: Topics, groups: Groups, offsets: ConsumerOffsets, store: Store, header: ResetOffset
) -> dict[int, int]:
    config = topics.get(header.topic)
    if config is None:
        raise RequestFailed(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic[:300]} does not exist")
    if groups.get(header.group) is None:
        raise RequestFailed(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group[:300]} does not exist")
    if header.queue_id >= 0 and not topics.has_queue(header.topic, header.queue_id):  # it would be kept for good
        raise RequestFailed(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] has no such queue",
        )
    if header.queue_id >= 0 and header.offset is not None and header.offset != _NO_OFFSET:
        low, high = store.queue_range(header.topic, header.queue_id)
        if not low <= header.offset <= high + 1:
            raise RequestFailed(
                ResponseCode.SYSTEM_ERROR, f"Target offset {header.offset} not in consume queue range [{low}-{high}]"
            )
        goals = {header.queue_id: header.offset}
    elif header.queue_id >= 0:
        goals = {header.queue_id: _offset_at(store, header, header.queue_id)}
    else:
        goals = {queue_id: _offset_at(store, header, queue_id) for queue_id in range(config.read_queue_nums)}
    if not goals:
        raise RequestFailed(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
    for queue_id, offset in goals.items():
        offsets.reset(header.group, header.topic, queue_id, offset)
    logger.info("group %s goes on in %s at %s", header.group, header.topic, goals)
    return goals


def _goals_for_clients(topics: Topics, offsets: ConsumerOffsets, store: Store, header: ResetOffset) -> dict[int, int]:
    """Unless forced, a group is only sent back, never forward."""
    config = topics.get(header.topic)
    if config is None:
        raise RequestFailed(
            ResponseCode.TOPIC_NOT_EXIST,
            f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic[:300]}",
        )
    goals = {}
    for queue_id in range(config.write_queue_nums):
        committed = offsets.get(header.group, header.topic, queue_id)
        if committed is None:
            raise RequestFailed(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group[:300]}> not exist")
        goal = _offset_at(store, header, queue_id)
        goals[queue_id] = goal if header.is_force else min(goal, committed)
    return goals


def _offset_at(store: Store, header: ResetOffset, queue_id: int) -> int:
    if header.timestamp < 0:
        return store.queue_range(header.topic, queue_id).max_offset
    return store.offset_by_time(header.topic, queue_id, header.timestamp)


def _tell_members(clients: Clients, header: ResetOffset, table: QueueOffsets) -> None:
    members = clients.consumers(header.group)
    if members is None:
        raise RequestFailed(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f"Consumer not online, so can not reset offset, Group: {header.group[:300]} Topic: {header.topic} "
            f"Timestamp: {header.timestamp}",
        )
    for client in members.clients.values():
        if client.version < versions.FIRST_WITH_RESET_OFFSET:
            raise RequestFailed(
                ResponseCode.SYSTEM_ERROR,
                f"the client does not support this feature. version={versions.name(client.version)}",
            )
    push = ResetOffset(topic=header.topic, group=header.group, timestamp=header.timestamp)
    for client in members.clients.values():
        body = table.to_list_json() if client.language == _CPP else table.to_json()
        client.connection.notify(new_request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, push, body))
