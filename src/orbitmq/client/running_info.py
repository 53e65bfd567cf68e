"""What a consumer tells of itself when a tool asks. Java: ConsumerRunningInfo"""

from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING, Any, Final

import msgspec

from orbitmq import fastjson
from orbitmq.message import QueueRef
from orbitmq.protocol.headers.leases import ANY_QUEUE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orbitmq.client.config import ClientConfig
    from orbitmq.client.figures import Figures, Speed
    from orbitmq.client.filters import Subscription
    from orbitmq.client.leaser import Leaser
    from orbitmq.client.membership import Membership
    from orbitmq.client.process_queue import ProcessQueue

_CLIENT_VERSION: Final = "V5_3_3"  # tools compare it with what they know
_MIB: Final = 1 << 20

_Table = dict[fastjson.ObjectKey, dict[str, Any]]


def member_info(member: Membership, config: ClientConfig, *, with_stacks: bool) -> bytes:
    """Of a consumer that owns queues."""
    options = member.options
    queues = {_key(queue): _queue_info(held, config) for queue, held in member.queues.items()}
    properties = {
        "PROP_CONSUME_TYPE": member.consume_type,
        "PROP_CONSUMEORDERLY": str(options.orderly).lower(),
        "PROP_THREADPOOL_CORE_SIZE": str(options.concurrency),
        "PROP_CONSUMER_START_TIMESTAMP": str(member.started_at_ms),
        "consumerGroup": member.group,
        "messageModel": "BROADCASTING" if options.broadcasting else "CLUSTERING",
        "pullBatchSize": str(options.pull_batch_size),
        "consumeMessageBatchMaxSize": str(options.batch_size),
    }
    return _info(
        config, properties, member.subscriptions, member.figures, queues=queues, leases={}, with_stacks=with_stacks
    )


def leaser_info(leaser: Leaser, config: ClientConfig, *, with_stacks: bool) -> bytes:
    """Of a consumer that leases: it owns no queue, so what it has of a broker stands under the queue -1, as Java's shared ones."""
    now = asyncio.get_running_loop().time()
    leases = {
        _key(QueueRef(topic, broker_name, ANY_QUEUE)): {
            "droped": False,
            "lastPopTimestamp": _wall_ms(leaser.polled_at.get(broker_name), now, config),
            "waitAckCount": count,
        }
        for topic in leaser.subscriptions
        for broker_name, count in leaser.on_lease(now).items()
    }
    properties = {
        "PROP_CONSUME_TYPE": "CONSUME_POP",
        "PROP_CONSUMEORDERLY": str(leaser.orderly).lower(),
        "PROP_THREADPOOL_CORE_SIZE": "1",
        "PROP_CONSUMER_START_TIMESTAMP": str(leaser.started_at_ms),
        "consumerGroup": leaser.group,
        "messageModel": "CLUSTERING",
        "popBatchNums": str(leaser.prefetch),
        "popInvisibleTime": str(leaser.lease_ms),
    }
    return _info(
        config, properties, leaser.subscriptions, leaser.figures, queues={}, leases=leases, with_stacks=with_stacks
    )


def _info(
    config: ClientConfig,
    properties: dict[str, str],
    subscriptions: Mapping[str, Subscription],
    figures: Figures,
    *,
    queues: _Table,
    leases: _Table,
    with_stacks: bool,
) -> bytes:
    now = asyncio.get_running_loop().time()
    plain: dict[str, Any] = {
        "mqPopTable": leases,
        "mqTable": queues,
        "properties": {
            "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in config.name_servers),
            "PROP_CLIENT_VERSION": _CLIENT_VERSION,
            **properties,
        },
        "statusTable": {topic: _status(figures.speed(topic, now)) for topic in subscriptions},
        "subscriptionSet": [msgspec.to_builtins(one.body()) for one in subscriptions.values()],
        "userConsumerInfo": {},
    }
    if with_stacks:
        plain["jstack"] = _stacks()
    return fastjson.dumps(plain)


def _key(queue: QueueRef) -> fastjson.ObjectKey:
    return fastjson.ObjectKey({"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic})


def _wall_ms(at: float | None, now: float, config: ClientConfig) -> int:
    """A moment of the event loop's clock as the wall clock has it; 0: never."""
    return config.clock.now_ms() - round((now - at) * 1000) if at else 0


def _status(speed: Speed) -> dict[str, Any]:
    return {
        "consumeFailedMsgs": speed.failed_in_hour,
        "consumeFailedTPS": speed.failed_per_second,
        "consumeOKTPS": speed.done_per_second,
        "consumeRT": speed.handling_ms,
        "pullRT": speed.pull_ms,
        "pullTPS": speed.pulled_per_second,
    }


def _queue_info(held: ProcessQueue, config: ClientConfig) -> dict[str, Any]:
    now = asyncio.get_running_loop().time()
    waiting = [message.queue_offset for message in held]
    return {
        "cachedMsgCount": len(held),
        "cachedMsgMaxOffset": max(waiting, default=0),
        "cachedMsgMinOffset": min(waiting, default=0),
        "cachedMsgSizeInMiB": held.bytes // _MIB,
        "commitOffset": held.commit_offset,
        "droped": held.dropped,
        "lastConsumeTimestamp": _wall_ms(held.consumed_at, now, config),
        "lastLockTimestamp": _wall_ms(held.locked_at, now, config),
        "lastPullTimestamp": _wall_ms(held.pulled_at, now, config),
        "locked": held.locked_at is not None,
        "transactionMsgCount": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0,
        "tryUnlockTimes": 0,
    }


def _stacks() -> str:
    """Where every task of this event loop stands: what a thread dump is to Java."""
    text = io.StringIO()
    for task in asyncio.all_tasks():
        text.write(f"{task.get_name()}\n")
        task.print_stack(limit=20, file=text)
        text.write("\n")
    return text.getvalue()
