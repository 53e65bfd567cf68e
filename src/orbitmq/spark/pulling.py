"""Pulling for a worker: the answer's body as it came, raw records one behind the other, and nothing made of them yet.

Java: DefaultMQPullConsumerImpl.pullSyncImpl
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.client.cluster import refusal
from orbitmq.client.routes import MASTER
from orbitmq.errors import TransportError
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import request
from orbitmq.protocol.headers.pull import PULL_SUBSCRIPTION, PullMessage, PullResult

if TYPE_CHECKING:
    from orbitmq.client.cluster import Cluster
    from orbitmq.client.filters import Subscription
    from orbitmq.message import QueueRef
    from orbitmq.spark.source_options import SourceOptions

BULK_BYTES: Final = 3 << 20  # of one answer; Apache's brokers do not know it and give their 32 messages
_ANSWERS: Final = frozenset({
    ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
})  # fmt: skip


class Pulled(NamedTuple):
    code: int
    body: bytes
    next_offset: int
    min_offset: int
    suggested_broker: int
    is_of_master: bool  # a slave may not have got all yet

    @property
    def found(self) -> bool:
        return self.code == ResponseCode.SUCCESS


async def pull_once(
    cluster: Cluster,
    options: SourceOptions,
    wanted: Subscription,
    queue: QueueRef,
    offset: int,
    count: int,
    broker_id: int = MASTER,
) -> Pulled:
    """One question, answered at once: a worker reads what is there, it never waits for more."""
    replica = cluster.replica(queue.broker_name, broker_id if options.from_slaves else MASTER)
    if replica is None or (replica[1] != MASTER and not options.from_slaves):
        raise TransportError(
            f"broker {queue.broker_name!r} is in no route", hint="is it running and registered with the name server?"
        )
    header = PullMessage(
        consumer_group=options.group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=count,
        sys_flag=PULL_SUBSCRIPTION,
        subscription=wanted.expression,
        expression_type=wanted.expression_type,
        bname=queue.broker_name,
        bulk_bytes=BULK_BYTES,
    )
    command = request(RequestCode.PULL_MESSAGE, header)
    answer = await cluster.call(replica[0], command, options.access.timeout_seconds)
    if answer.code not in _ANSWERS:
        if answer.code == ResponseCode.SYSTEM_BUSY:
            cluster.pass_over(queue.broker_name, replica[0])
        raise refusal(answer)
    result = answer.read(PullResult)
    body = answer.body if answer.code == ResponseCode.SUCCESS else b""
    suggested = result.suggest_which_broker_id
    return Pulled(answer.code, body, result.next_begin_offset, result.min_offset, suggested, replica[1] == MASTER)
