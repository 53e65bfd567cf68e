"""What a consumer asks brokers, one function a request.

Java: MQClientAPIImpl, MQAdminImpl
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.client.cluster import refusal
from orbitmq.errors import TransportError
from orbitmq.message import QueueRef
from orbitmq.protocol.bodies.groups import (
    CheckClient,
    ConsumerConnection,
    ConsumerIds,
    LockQueues,
    QueueKey,
    QueuesLocked,
)
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command, request
from orbitmq.protocol.headers.groups import ConsumerGroup
from orbitmq.protocol.headers.offsets import (
    OffsetFound,
    QueryConsumerOffset,
    QueueName,
    SearchOffset,
    TimestampFound,
    UpdateConsumerOffset,
)
from orbitmq.protocol.headers.send import SendBack

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orbitmq.client.cluster import Cluster
    from orbitmq.client.filters import Subscription
    from orbitmq.client.received import ReceivedMessage
    from orbitmq.protocol.headers.base import Header
    from orbitmq.transport.address import Address

SECONDS: Final = 5.0
_LOCK_SECONDS: Final = 1.0
_NO_MEMBERS: Final = (
    "no consumer for this group"  # under the code of every other failure. Java: ConsumerManageProcessor
)


def any_address(cluster: Cluster, broker_name: str) -> Address:
    """The broker's master, or a replica when there is no master now."""
    found = cluster.replica(broker_name)
    if found is None:
        raise TransportError(f"broker {broker_name!r} is in no route", hint="is it running and registered?")
    return found[0]


async def ask_reader(
    cluster: Cluster, broker_name: str, code: RequestCode, header: Header, seconds: float = SECONDS, *, vip: bool = True
) -> Command:
    """The answer of the master, or of a slave when there is no master now: of the next one, if that refuses."""
    while True:
        address = any_address(cluster, broker_name)
        answer = await cluster.call(cluster.vip(address) if vip else address, request(code, header), seconds)
        if answer.code != ResponseCode.SYSTEM_BUSY or not cluster.pass_over(broker_name, address):
            return answer


async def max_offset(cluster: Cluster, queue: QueueRef) -> int:
    """One beyond the last message."""
    return await _offset(cluster, queue, RequestCode.GET_MAX_OFFSET, _name(queue))


async def min_offset(cluster: Cluster, queue: QueueRef) -> int:
    """The first message still kept."""
    return await _offset(cluster, queue, RequestCode.GET_MIN_OFFSET, _name(queue))


async def offset_at(cluster: Cluster, queue: QueueRef, timestamp_ms: int) -> int:
    """The first message stored at this time or later."""
    header = SearchOffset(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms, bname=queue.broker_name)
    return await _offset(cluster, queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)


async def earliest_store_time(cluster: Cluster, queue: QueueRef) -> int:
    """When the first message still kept was stored, in ms; -1 for an empty queue."""
    answer = await ask_reader(cluster, queue.broker_name, RequestCode.GET_EARLIEST_MSG_STORETIME, _name(queue))
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer)
    return answer.read(TimestampFound).timestamp


async def committed_offset(cluster: Cluster, group: str, queue: QueueRef) -> int | None:
    """What the group committed; None when it never did."""
    header = QueryConsumerOffset(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        set_zero_if_not_found=False,  # else a young queue answers 0, which is not what "never" means
        bname=queue.broker_name,
    )
    answer = await ask_reader(cluster, queue.broker_name, RequestCode.QUERY_CONSUMER_OFFSET, header)
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer)
    return answer.read(OffsetFound).offset


def commit(group: str, queue: QueueRef, offset: int) -> Command:
    return request(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        UpdateConsumerOffset(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
            bname=queue.broker_name,
        ),
    )


async def consumer_ids(cluster: Cluster, address: Address, group: str) -> list[str]:
    """Who is in the group, as this broker sees it."""
    command = request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroup(consumer_group=group))
    answer = await cluster.call(cluster.vip(address), command, SECONDS)
    if answer.code == ResponseCode.SYSTEM_ERROR and _NO_MEMBERS in (answer.remark or ""):
        return []
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer)
    return ConsumerIds.from_json(answer.body).consumer_id_list


async def group_connections(cluster: Cluster, address: Address, group: str) -> ConsumerConnection:
    command = request(RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroup(consumer_group=group))
    answer = await cluster.ask(cluster.vip(address), command, SECONDS)
    return ConsumerConnection.from_json(answer.body)


async def lock(
    cluster: Cluster, address: Address, group: str, client_id: str, queues: Iterable[QueueRef]
) -> set[QueueRef]:
    """Those of the queues that are ours alone now."""
    body = LockQueues(client_id=client_id, consumer_group=group, mq_set=[_key(queue) for queue in queues])
    command = request(RequestCode.LOCK_BATCH_MQ, body=body.to_json())
    answer = await cluster.ask(cluster.vip(address), command, _LOCK_SECONDS)
    locked = QueuesLocked.from_json(answer.body).lock_ok_mq_set
    return {QueueRef(key.topic, key.broker_name, key.queue_id) for key in locked}


async def unlock(cluster: Cluster, address: Address, group: str, client_id: str, queues: Iterable[QueueRef]) -> None:
    body = LockQueues(client_id=client_id, consumer_group=group, mq_set=[_key(queue) for queue in queues])
    command = request(RequestCode.UNLOCK_BATCH_MQ, body=body.to_json())
    await cluster.ask(cluster.vip(address), command, _LOCK_SECONDS)


async def check_filter(cluster: Cluster, group: str, client_id: str, subscription: Subscription) -> None:
    """RequestFailed when a broker of the topic cannot filter by this expression."""
    if not subscription.is_sql:
        return
    body = CheckClient(client_id=client_id, group=group, subscription_data=subscription.body()).to_json()
    route = await cluster.route(subscription.topic)
    for broker_name in route.brokers if route is not None else ():
        address = cluster.vip(any_address(cluster, broker_name))
        await cluster.ask(address, request(RequestCode.CHECK_CLIENT_CONFIG, body=body), SECONDS)


async def send_back(
    cluster: Cluster, group: str, message: ReceivedMessage, wire_queue: QueueRef, delay_level: int, max_retries: int
) -> None:
    """Ask the broker to deliver the message again later."""
    header = SendBack(
        offset=message.stored.commit_log_offset,
        group=group,
        delay_level=delay_level,
        origin_msg_id=message.message_id,
        origin_topic=wire_queue.topic,
        max_reconsume_times=max_retries,
    )
    address = cluster.master(wire_queue.broker_name)
    if address is None:
        raise TransportError(f"broker {wire_queue.broker_name!r} has no master now", hint="is it running?")
    await cluster.ask(cluster.vip(address), request(RequestCode.CONSUMER_SEND_MSG_BACK, header), SECONDS)


async def _offset(cluster: Cluster, queue: QueueRef, code: RequestCode, header: Header) -> int:
    answer = await ask_reader(cluster, queue.broker_name, code, header)
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer)
    return answer.read(OffsetFound).offset


def _name(queue: QueueRef) -> QueueName:
    return QueueName(topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name)


def _key(queue: QueueRef) -> QueueKey:
    return QueueKey(broker_name=queue.broker_name, queue_id=queue.queue_id, topic=queue.topic)
