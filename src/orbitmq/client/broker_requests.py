"""What brokers ask their consumers: that the group changed, to begin elsewhere, how things are, to handle one message now.

Java: ClientRemotingProcessor
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from orbitmq import fastjson
from orbitmq.client.running_info import leaser_info, member_info
from orbitmq.errors import RequestFailed, RetryLater
from orbitmq.message import QueueRef
from orbitmq.message.record import decode_record
from orbitmq.protocol.bodies.groups import QueueKey
from orbitmq.protocol.bodies.offsets import ConsumerStatusBody, QueueOffsets
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import ok
from orbitmq.protocol.headers.groups import (
    ConsumeDirectly,
    ConsumerGroup,
    ConsumerRunningInfo,
    ConsumerStatus,
    ResetOffset,
)

if TYPE_CHECKING:
    from orbitmq.client.config import ClientConfig
    from orbitmq.client.leaser import Leaser
    from orbitmq.client.membership import Membership
    from orbitmq.protocol.command import Command
    from orbitmq.transport.connection import Connection, Handler

logger = logging.getLogger(__name__)

Members = dict[str, "Membership"]
Leasers = dict[str, "Leaser"]


def answers_of(members: Members, leasers: Leasers, config: ClientConfig) -> dict[int, Handler]:
    """By request code."""
    return {
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: partial(members_changed, members),
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET: partial(reset_offsets, members),
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: partial(consumer_status, members),
        RequestCode.GET_CONSUMER_RUNNING_INFO: partial(consumer_running_info, members, leasers, config),
        RequestCode.CONSUME_MESSAGE_DIRECTLY: partial(consume_directly, members),
    }


async def members_changed(members: Members, request: Command, connection: Connection) -> None:
    member = members.get(request.read(ConsumerGroup).consumer_group)
    if member is not None:
        member.rebalance_soon()


async def reset_offsets(members: Members, request: Command, connection: Connection) -> None:
    header = request.read(ResetOffset)
    member = members.get(header.group)
    if member is None:
        return
    await asyncio.sleep(0)  # what follows sets time limits, which need a task
    for key, offset in QueueOffsets.from_json(request.body).offsets.items():
        queue = QueueRef(key.topic, key.broker_name, key.queue_id)
        if queue in member.queues:
            logger.info("group %s goes to offset %d of %s, as a tool asked", header.group, offset, queue)
            await member.restart(queue, offset)


async def consumer_status(members: Members, request: Command, connection: Connection) -> Command:
    header = request.read(ConsumerStatus)
    member = _member(members, header.group)
    offsets = {
        QueueKey(broker_name=queue.broker_name, queue_id=queue.queue_id, topic=queue.topic): held.commit_offset
        for queue, held in member.queues.items()
        if queue.topic == header.topic
    }
    return ok(body=ConsumerStatusBody(own=offsets).to_json())


async def consumer_running_info(
    members: Members, leasers: Leasers, config: ClientConfig, request: Command, connection: Connection
) -> Command:
    header = request.read(ConsumerRunningInfo)
    leaser = leasers.get(header.consumer_group)
    if leaser is not None:
        return ok(body=leaser_info(leaser, config, with_stacks=header.jstack_enable))
    member = _member(members, header.consumer_group)
    return ok(body=member_info(member, config, with_stacks=header.jstack_enable))


async def consume_directly(members: Members, request: Command, connection: Connection) -> Command:
    header = request.read(ConsumeDirectly)
    member = _member(members, header.consumer_group)
    if member.handle_now is None:
        raise RequestFailed(ResponseCode.SYSTEM_ERROR, f"group {header.consumer_group} has no handler here")
    stored = decode_record(request.body)
    queue = QueueRef(stored.topic, header.broker_name or "", stored.queue_id)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.sleep(0)  # a handler expects to run in a task
    error = await member.handle_now(member.incoming.message(stored, queue, None))
    verdict = "CR_SUCCESS"
    if error is not None:
        verdict = "CR_LATER" if isinstance(error, RetryLater) else "CR_THROW_EXCEPTION"
    result = {
        "autoCommit": True,
        "consumeResult": verdict,
        "order": member.options.orderly,
        "spentTimeMills": round((loop.time() - began) * 1000),
        **({"remark": repr(error)} if error is not None else {}),
    }
    return ok(body=fastjson.dumps(result))


def _member(members: Members, group: str) -> Membership:
    member = members.get(group)
    if member is None:
        raise RequestFailed(ResponseCode.SYSTEM_ERROR, f"The Consumer Group <{group}> not exist in this consumer")
    return member
