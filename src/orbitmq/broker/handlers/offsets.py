"""Offsets: how far a group is, and where a queue begins and ends. Java: ConsumerManageProcessor, AdminBrokerProcessor"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbitmq.broker.compaction import range_as_served
from orbitmq.broker.own_queues import check_position_is_open
from orbitmq.errors import RequestFailed
from orbitmq.protocol.codes import ResponseCode
from orbitmq.protocol.command import Command, answer, ok
from orbitmq.protocol.headers.offsets import (
    OffsetFound,
    QueryConsumerOffset,
    QueueName,
    SearchOffset,
    TimestampFound,
    UpdateConsumerOffset,
)
from orbitmq.storage.offset_search import Boundary
from orbitmq.storage.reading import ReadStatus

if TYPE_CHECKING:
    from orbitmq.broker.compaction import CompactedTopics
    from orbitmq.broker.consumer_offsets import ConsumerOffsets
    from orbitmq.broker.groups import Groups
    from orbitmq.broker.topics import Topics
    from orbitmq.storage.store import Store
    from orbitmq.transport.connection import Connection


async def query_consumer_offset(
    offsets: ConsumerOffsets, store: Store, request: Command, connection: Connection
) -> Command:
    """Where a group goes on. A new group on a queue that is still whole and recent starts at its beginning."""
    header = request.read(QueryConsumerOffset)
    group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
    offset = offsets.pending_reset(group, topic, queue_id)
    if offset is None:
        offset = offsets.get(group, topic, queue_id)
    if offset is None and header.set_zero_if_not_found is not False and _starts_at_zero(store, topic, queue_id):
        offset = 0
    if offset is None:
        missing = answer(
            ResponseCode.QUERY_NOT_FOUND, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
        )
        missing.add_fields()
        return missing
    return ok(OffsetFound(offset=offset))


def _starts_at_zero(store: Store, topic: str, queue_id: int) -> bool:
    if store.queue_range(topic, queue_id).min_offset > 0:
        return False
    first = store.read(topic, queue_id, 0, 1)
    return first.status is ReadStatus.FOUND and not first.far_behind


async def update_consumer_offset(
    offsets: ConsumerOffsets, groups: Groups, topics: Topics, request: Command, connection: Connection
) -> Command:
    header = request.read(UpdateConsumerOffset)
    group, topic = header.consumer_group, header.topic
    if groups.get(group) is None:
        raise RequestFailed(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
    topics.require(topic)
    check_position_is_open(group, topic)
    if header.queue_id is None or header.commit_offset is None:
        missing = "QueueId" if header.queue_id is None else "Offset"
        raise RequestFailed(ResponseCode.INVALID_PARAMETER, f"{missing} is null, topic is {topic}")
    if not topics.has_queue(topic, header.queue_id):  # it would be kept for good
        raise RequestFailed(
            ResponseCode.INVALID_PARAMETER, f"queueId[{header.queue_id}] is illegal, topic:[{topic}] has no such queue"
        )
    if offsets.pending_reset(group, topic, header.queue_id) is not None:
        return answer(ResponseCode.SUCCESS, "Offset has been previously reset")
    offsets.commit(group, topic, header.queue_id, header.commit_offset)
    return ok()


async def search_offset(store: Store, request: Command, connection: Connection) -> Command:
    header = request.read(SearchOffset)
    boundary = Boundary.UPPER if (header.boundary_type or "").lower() == "upper" else Boundary.LOWER
    return ok(OffsetFound(offset=store.offset_by_time(header.topic, header.queue_id, header.timestamp, boundary)))


async def max_offset(store: Store, request: Command, connection: Connection) -> Command:
    header = request.read(QueueName)
    return ok(OffsetFound(offset=store.queue_range(header.topic, header.queue_id).max_offset))


async def min_offset(
    store: Store, compacted: CompactedTopics | None, request: Command, connection: Connection
) -> Command:
    header = request.read(QueueName)
    return ok(OffsetFound(offset=range_as_served(store, compacted, header.topic, header.queue_id).min_offset))


async def earliest_store_time(store: Store, request: Command, connection: Connection) -> Command:
    header = request.read(QueueName)
    first = store.queue_range(header.topic, header.queue_id).min_offset
    stored_at_ms = store.stored_at_ms(header.topic, header.queue_id, first)
    return ok(TimestampFound(timestamp=-1 if stored_at_ms is None else stored_at_ms))
