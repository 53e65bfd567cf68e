"""Sending a group elsewhere in its queues: first a plan, queue by queue, then doing it.

How it is done depends on the broker:

    broker    it resets on its own side (Apache 5.x, ours): members are moved with their next pull, offline groups too
    members   an older broker tells the group's members; only by time, to the start or to the end
    commit    an older broker and nobody connected: the new offset is committed in the group's name

Java: ResetOffsetByTimeCommand, DefaultMQAdminExtImpl.resetOffsetByTimestamp
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal

import msgspec

from orbitmq.admin.brokers import BrokerPlace, broker_settings, find_brokers
from orbitmq.admin.groups import group_tables, is_online, missing_group
from orbitmq.admin.offsets import RESET_TO_END, SERVER_SIDE_RESET, consume_stats
from orbitmq.admin.session import gathered
from orbitmq.admin.topics import QueueRow, kind_of, topic_queues
from orbitmq.client import questions
from orbitmq.errors import ConfigError, RequestFailed
from orbitmq.message import QueueRef
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.headers.groups import ResetOffset
from orbitmq.protocol.headers.offsets import OffsetFound, SearchOffset, UpdateConsumerOffset

if TYPE_CHECKING:
    from orbitmq.admin.session import Session

Way = Literal["broker", "members", "commit"]
Goal = Literal["earliest", "latest"] | datetime | int


class ResetStep(msgspec.Struct, frozen=True, kw_only=True):
    """One queue: where the group is, where it would go on."""

    group: str
    topic: str
    broker: str
    queue: int
    min_offset: int
    max_offset: int
    committed: int | None  # None: it was never here
    goal: int
    change: int  # messages it will read again (negative) or skip (positive)
    way: Way


async def plan_reset(
    session: Session, group: str, goal: Goal, *, topic: str | None = None, queue: tuple[str, int] | None = None
) -> list[ResetStep]:
    """What a reset would do. Without `topic`: in every topic the group has read, its retries excepted."""
    places = await find_brokers(session)
    masters = {place.broker: place for place in places}
    if group not in await group_tables(session, places):
        raise missing_group(group)
    topics = [topic] if topic is not None else await _topics_read(session, group, places)
    if not topics:
        raise RequestFailed(
            ResponseCode.QUERY_NOT_FOUND, f"group {group!r} has read nothing yet", hint="name the topic with --topic"
        )
    steps = [
        (_still_there(masters, row.broker), row)
        for name in topics
        for row in await topic_queues(session, name)
        if queue is None or queue == (row.broker, row.queue)
    ]
    if not steps:
        raise ConfigError(f"topic {topic!r} has no queue {queue}", hint="`orbitmq topic describe` lists its queues")
    ways = {place: await _way(session, group, goal, place) for place in {place for place, _ in steps}}
    if queue is not None and "members" in ways.values():
        raise _members_move_by("for all queues of a topic at once", steps[0][0].broker, "leave --queue out")
    return await gathered(lambda pair: _step(session, group, goal, ways[pair[0]], *pair), steps)


async def apply_reset(session: Session, steps: list[ResetStep], goal: Goal) -> None:
    """Do what was planned. Queues reset before a failure stay reset."""
    masters = {place.broker: place for place in await find_brokers(session)}
    told: set[tuple[str, str]] = set()
    # All of them before the first is moved: half a reset is worse than none.
    for place, step in [(_still_there(masters, step.broker), step) for step in steps]:
        if step.way == "broker":
            await _reset_on_broker(session, place, step)
        elif step.way == "commit":
            await _commit(session, place, step)
        elif (step.topic, step.broker) not in told:
            told.add((step.topic, step.broker))
            await _tell_members(session, place, step, goal)


def _still_there(masters: dict[str, BrokerPlace], broker: str) -> BrokerPlace:
    if broker not in masters:
        raise RequestFailed(
            ResponseCode.BROKER_NOT_EXIST,
            f"broker {broker!r} has left since the reset was begun",
            hint="nothing was moved; plan it again, or wait until the broker is back",
        )
    return masters[broker]


async def _topics_read(session: Session, group: str, places: list[BrokerPlace]) -> list[str]:
    found = await gathered(lambda place: consume_stats(session, place, group), places)
    topics = {key.topic for stats in found for key in stats.offsets}
    return sorted(topic for topic in topics if kind_of(topic) != "retry")


async def _way(session: Session, group: str, goal: Goal, place: BrokerPlace) -> Way:
    settings = await broker_settings(session, place.address)
    if settings.get(SERVER_SIDE_RESET) == "true":
        return "broker"
    if not await is_online(session, group, place):
        return "commit"
    if isinstance(goal, int):
        raise _members_move_by("by time only", place.broker, "give a time")
    return "members"


def _members_move_by(how: str, broker: str, cure: str) -> ConfigError:
    return ConfigError(
        f"broker {broker} can move running members {how}",
        hint=f"stop the group's members first, {cure}, or set {SERVER_SIDE_RESET}=true on the broker",
    )


async def _step(session: Session, group: str, goal: Goal, way: Way, place: BrokerPlace, row: QueueRow) -> ResetStep:
    session.cluster.brokers.setdefault(place.broker, {})[place.id] = place.address
    committed = await questions.committed_offset(session.cluster, group, QueueRef(row.topic, row.broker, row.queue))
    offset = await _goal_offset(session, goal, place, row)
    return ResetStep(
        group=group,
        topic=row.topic,
        broker=row.broker,
        queue=row.queue,
        min_offset=row.min_offset,
        max_offset=row.max_offset,
        committed=committed,
        goal=offset,
        change=offset - (committed or 0),
        way=way,
    )


async def _goal_offset(session: Session, goal: Goal, place: BrokerPlace, row: QueueRow) -> int:
    if goal == "earliest":
        return row.min_offset
    if goal == "latest":
        return row.max_offset
    if isinstance(goal, int):
        return min(max(goal, row.min_offset), row.max_offset)
    assert isinstance(goal, datetime)
    header = SearchOffset(topic=row.topic, queue_id=row.queue, timestamp=int(goal.timestamp() * 1000), bname=row.broker)
    answer = await session.ask(place.address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
    return answer.read(OffsetFound).offset


async def _reset_on_broker(session: Session, place: BrokerPlace, step: ResetStep) -> None:
    header = ResetOffset(
        topic=step.topic, group=step.group, timestamp=RESET_TO_END, is_force=True, queue_id=step.queue, offset=step.goal
    )
    await session.ask(place.address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)


async def _commit(session: Session, place: BrokerPlace, step: ResetStep) -> None:
    header = UpdateConsumerOffset(
        consumer_group=step.group,
        topic=step.topic,
        queue_id=step.queue,
        commit_offset=step.goal,
        bname=step.broker,
    )
    await session.ask(place.address, RequestCode.UPDATE_CONSUMER_OFFSET, header)


async def _tell_members(session: Session, place: BrokerPlace, step: ResetStep, goal: Goal) -> None:
    """All queues of the topic on this broker at once."""
    by_time = int(goal.timestamp() * 1000) if isinstance(goal, datetime) else 0
    timestamp = RESET_TO_END if goal == "latest" else by_time
    header = ResetOffset(topic=step.topic, group=step.group, timestamp=timestamp, is_force=True)
    await session.ask(place.address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
