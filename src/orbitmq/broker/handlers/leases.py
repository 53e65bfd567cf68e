"""Leasing messages, and settling leases. Java: PopMessageProcessor, AckMessageProcessor, ChangeInvisibleTimeProcessor, ..."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from orbitmq.broker.compaction import range_as_served
from orbitmq.broker.leases.checkpoints import check_duration
from orbitmq.errors import OrbitError, RequestFailed
from orbitmq.protocol.bodies.leases import BatchAcks
from orbitmq.protocol.codes import ResponseCode
from orbitmq.protocol.command import answer, ok
from orbitmq.protocol.headers.leases import AckMessage, ChangedInvisibleTime, ChangeInvisibleTime
from orbitmq.protocol.lease_texts import parse_handle

if TYPE_CHECKING:
    from orbitmq.broker.compaction import CompactedTopics
    from orbitmq.broker.durability import Durability
    from orbitmq.broker.leases.serving import Serving
    from orbitmq.broker.leases.settling import Settling
    from orbitmq.broker.topics import Topics
    from orbitmq.protocol.command import Command
    from orbitmq.storage.store import Store
    from orbitmq.transport.connection import Connection

_ACKS_PER_TURN: Final = 64  # each may be of a lease that is looked for among the keys of all messages


async def pop_message(serving: Serving, request: Command, connection: Connection) -> Command | None:
    return await serving.pop(request, connection)


async def peek_message(serving: Serving, request: Command, connection: Connection) -> Command:
    return serving.peek(request)


async def notification(serving: Serving, request: Command, connection: Connection) -> Command | None:
    return serving.notification(request, connection)


async def polling_info(serving: Serving, request: Command, connection: Connection) -> Command:
    return serving.polling_info(request)


async def ack_message(
    settling: Settling,
    topics: Topics,
    store: Store,
    compacted: CompactedTopics | None,
    durability: Durability,
    request: Command,
    connection: Connection,
) -> Command:
    """The message was handled and is not handed out again."""
    header = request.read(AckMessage)
    _check_place(topics, header.topic, header.queue_id)
    low, high = range_as_served(store, compacted, header.topic, header.queue_id)
    if not low <= header.offset <= high:
        raise RequestFailed(
            ResponseCode.NO_MESSAGE,
            f"offset is illegal, key:{header.topic}@{header.queue_id}, commit:{header.offset}, store:{low}~{high}",
        )
    handle = parse_handle(header.extra_info)
    written: asyncio.Future[int | OrbitError] = asyncio.get_running_loop().create_future()

    def told(outcome: int | OrbitError) -> None:
        if not written.done():  # cancelled, when its connection is gone: the ack counts all the same
            written.set_result(outcome)

    settling.ack(header.consumer_group, header.topic, header.queue_id, header.offset, handle, told)
    end = await written
    if isinstance(end, OrbitError):
        raise end
    await durability.keep_promise(end)
    return ok()


async def batch_ack_message(
    settling: Settling, durability: Durability, request: Command, connection: Connection
) -> Command:
    """All that can be acknowledged is, also when others of the batch cannot be. Others are served in between."""
    body = BatchAcks.from_json(request.body) if request.body else BatchAcks()
    if not body.acks:
        return answer(ResponseCode.NO_MESSAGE, "the batch holds no ack")
    end = 0
    refusals = []
    for number, ack in enumerate(body.acks, 1):
        if not number % _ACKS_PER_TURN:
            await asyncio.sleep(0)
        try:
            end = max(end, settling.ack_batch(ack, body.broker_name))
        except RequestFailed as refusal:
            refusals.append(refusal)
    await durability.keep_promise(end)
    if refusals:
        return answer(refusals[0].code, f"{len(refusals)} of {len(body.acks)} refused, the first: {refusals[0]}")
    return ok()


async def change_invisible_time(
    settling: Settling,
    topics: Topics,
    store: Store,
    compacted: CompactedTopics | None,
    durability: Durability,
    request: Command,
    connection: Connection,
) -> Command:
    """Keep a message longer, or give it back sooner; from now on its old handle is void."""
    header = request.read(ChangeInvisibleTime)
    try:
        _check_place(topics, header.topic, header.queue_id)
        low, high = range_as_served(store, compacted, header.topic, header.queue_id)
        if not low <= header.offset < high:
            raise RequestFailed(ResponseCode.NO_MESSAGE, f"there is no message {header.offset} in this queue")
        check_duration(header.invisible_time)
        handle = parse_handle(header.extra_info)
        changed, end = settling.extend(
            header.consumer_group, header.topic, header.queue_id, header.offset, handle, header.invisible_time
        )
    except RequestFailed as refusal:
        return answer(refusal.code, str(refusal), ChangedInvisibleTime())
    await durability.keep_promise(end)
    return ok(changed)


async def move_to_files(request: Command, connection: Connection) -> Command:
    """Apache's broker can keep leases in RocksDB, and moves them to the revive topic when asked. Here they are nowhere else."""
    return ok()


def _check_place(topics: Topics, topic_name: str, queue_id: int) -> None:
    topic = topics.require(topic_name)
    if not 0 <= queue_id < topic.read_queue_nums:
        raise RequestFailed(
            ResponseCode.MESSAGE_ILLEGAL,
            f"queueId[{queue_id}] is illegal, topic:[{topic_name}] readQueueNums:[{topic.read_queue_nums}]",
        )
