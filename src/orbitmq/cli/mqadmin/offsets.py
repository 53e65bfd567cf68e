"""Verbs that move groups. Java: `tools.command.offset`"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from orbitmq.admin.brokers import find_brokers
from orbitmq.admin.offsets import consume_stats
from orbitmq.admin.resets import apply_reset, plan_reset
from orbitmq.admin.topics import topic_route
from orbitmq.cli.mqadmin.report import Report, cut
from orbitmq.cli.mqadmin.verb import flag, verb, whole_number
from orbitmq.cli.times import parse_moment
from orbitmq.clock import SystemClock
from orbitmq.errors import RequestFailed
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.headers.offsets import UpdateConsumerOffset

if TYPE_CHECKING:
    from orbitmq.admin.resets import Goal
    from orbitmq.admin.session import Session

_RESET_FORM: Final = "%-40s  %-40s  %-40s"


@verb(
    "resetOffsetByTime",
    flag("g", "group", "group", "set the consumer group", required=True),
    flag("t", "topic", "topic", "set the topic", required=True),
    flag("s", "timestamp", "when", "set the timestamp[now|currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]", required=True),
    flag("f", "force", "force", "set the force rollback by timestamp switch[true|false]. Deprecated."),
    flag("b", "broker", "broker", "broker addr"),
    flag("q", "queue", "queue_id", "queue id"),
    flag("o", "offset", "offset", "Expect queue offset, not support old version broker"),
    flag("c", "cluster", "cluster", "Cluster name or lmq parent topic, lmq is used to find the route."),
)
async def reset_offset(
    session: Session, report: Report, group: str, topic: str, when: str, **given: str | None
) -> None:
    """Reset consumer offset by timestamp(without client restart)."""
    at_ms = _timestamp(when)
    goal: Goal = "latest" if at_ms < 0 else datetime.fromtimestamp(at_ms / 1000, UTC)
    queue = None
    if given["broker"] is not None and given["queue_id"] is not None:
        place = (await find_brokers(session, broker=given["broker"]))[0]
        queue = (place.broker, whole_number("-q", given["queue_id"], 0))
        if given["offset"] is not None:
            goal = whole_number("-o", given["offset"], 0)
    steps = await plan_reset(session, group, goal, topic=topic, queue=queue)
    await apply_reset(session, steps, goal)
    if queue is not None:
        report.line(
            f"start reset consumer offset by specified, group[{group}], topic[{topic}], queueId[{queue[1]}], "
            f"broker[{given['broker']}], timestamp(string)[{when}], timestamp(long)[{at_ms}]"
        )
        report.fact(f"reset consumer offset to {steps[0].goal}", offset=steps[0].goal)
        return
    report.line(
        f"start reset consumer offset by specified, group[{group}], topic[{topic}], force[true], "
        f"timestamp(string)[{when}], timestamp(long)[{at_ms}]"
    )
    rows = [(cut(step.broker, 32), step.queue, step.goal) for step in steps]
    report.table(_RESET_FORM, ("#brokerName", "#queueId", "#offset"), _RESET_FORM, rows, "queues")


@verb(
    "cloneGroupOffset",
    flag("s", "srcGroup", "source", "set source consumer group", required=True),
    flag("d", "destGroup", "target", "set destination consumer group", required=True),
    flag("t", "topic", "topic", "set the topic", required=True),
    flag("o", "offline", "offline", "the group or the topic is offline"),
)
async def clone_group_offset(
    session: Session, report: Report, source: str, target: str, topic: str, offline: str | None
) -> None:
    """Clone offset from other group."""
    await topic_route(session, topic)
    cloned = 0
    for place in await find_brokers(session):
        stats = await consume_stats(session, place, source)
        for key, lag in stats.offsets.items():
            header = UpdateConsumerOffset(
                consumer_group=target,
                topic=key.topic,
                queue_id=key.queue_id,
                commit_offset=lag.consumer_offset,
                bname=key.broker_name,
            )
            await session.ask(place.address, RequestCode.UPDATE_CONSUMER_OFFSET, header)
            cloned += 1
    if not cloned:
        raise RequestFailed(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f"group {source!r} has read nothing yet, or does not exist",
            hint="`orbitmq group ls` lists the groups",
        )
    report.fact(
        f"clone group offset success. srcGroup[{source}], destGroup=[{target}], topic[{topic}]",
        srcGroup=source,
        destGroup=target,
        topic=topic,
        queues=cloned,
    )


@verb(
    "skipAccumulatedMessage",
    flag("g", "group", "group", "set the consumer group", required=True),
    flag("t", "topic", "topic", "set the topic", required=True),
    flag("f", "force", "force", "set the force rollback by timestamp switch[true|false]"),
    flag("c", "cluster", "cluster", "Cluster name or lmq parent topic, lmq is used to find the route."),
)
async def skip_accumulated(
    session: Session, report: Report, group: str, topic: str, force: str | None, cluster: str | None
) -> None:
    """Skip all messages that are accumulated (not consumed) currently."""
    steps = await plan_reset(session, group, "latest", topic=topic)
    await apply_reset(session, steps, "latest")
    rows = [(cut(step.broker, 32), step.queue, step.goal) for step in steps]
    report.table(_RESET_FORM, ("#brokerName", "#queueId", "#offset"), _RESET_FORM, rows, "queues")


def _timestamp(text: str) -> int:
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        return int(parse_moment(text, SystemClock()).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise click.UsageError(f"-s {error}") from None
