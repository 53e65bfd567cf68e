"""What a consumer tells of itself when a tool asks. Java: ConsumerRunningInfo"""

from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING, Any, Final

import msgspec

from orbitmq import fastjson

if TYPE_CHECKING:
    from orbitmq.client.config import ClientConfig
    from orbitmq.client.figures import Speed
    from orbitmq.client.membership import Membership
    from orbitmq.client.process_queue import ProcessQueue

_CLIENT_VERSION: Final = "V5_3_3"  # tools compare it with what they know
_MIB: Final = 1 << 20


def running_info(member: Membership, config: ClientConfig, *, with_stacks: bool) -> bytes:
    options = member.options
    plain: dict[str, Any] = {
        "mqPopTable": {},
        "mqTable": {
            fastjson.ObjectKey(
                {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
            ): _queue_info(held, config)
            for queue, held in member.queues.items()
        },
        "properties": {
            "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in config.name_servers),
            "PROP_CONSUME_TYPE": member.consume_type,
            "PROP_CLIENT_VERSION": _CLIENT_VERSION,
            "PROP_CONSUMEORDERLY": str(options.orderly).lower(),
            "PROP_THREADPOOL_CORE_SIZE": str(options.concurrency),
            "PROP_CONSUMER_START_TIMESTAMP": str(member.started_at_ms),
            "consumerGroup": member.group,
            "messageModel": "BROADCASTING" if options.broadcasting else "CLUSTERING",
            "pullBatchSize": str(options.pull_batch_size),
            "consumeMessageBatchMaxSize": str(options.batch_size),
        },
        "statusTable": {
            topic: _status(member.figures.speed(topic, asyncio.get_running_loop().time()))
            for topic in member.subscriptions
        },
        "subscriptionSet": [msgspec.to_builtins(one.body()) for one in member.subscriptions.values()],
        "userConsumerInfo": {},
    }
    if with_stacks:
        plain["jstack"] = _stacks()
    return fastjson.dumps(plain)


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

    def wall_ms(at: float | None) -> int:
        return config.clock.now_ms() - round((now - at) * 1000) if at else 0

    waiting = [message.queue_offset for message in held]
    return {
        "cachedMsgCount": len(held),
        "cachedMsgMaxOffset": max(waiting, default=0),
        "cachedMsgMinOffset": min(waiting, default=0),
        "cachedMsgSizeInMiB": held.bytes // _MIB,
        "commitOffset": held.commit_offset,
        "droped": held.dropped,
        "lastConsumeTimestamp": wall_ms(held.consumed_at),
        "lastLockTimestamp": wall_ms(held.locked_at),
        "lastPullTimestamp": wall_ms(held.pulled_at),
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
