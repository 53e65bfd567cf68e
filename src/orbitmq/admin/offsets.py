"""How far groups are, in messages and in time. Java: ConsumerProgressSubCommand"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.admin.brokers import BrokerPlace, broker_settings, find_brokers, reachable_brokers
from orbitmq.admin.session import gathered
from orbitmq.admin.topics import moment
from orbitmq.errors import RequestFailed
from orbitmq.protocol.bodies.admin import TimeSpans
from orbitmq.protocol.bodies.offsets import ConsumeStats
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.headers.admin import CloneGroupOffset, TopicAndGroup
from orbitmq.protocol.headers.admin import ConsumeStats as ConsumeStatsHeader
from orbitmq.protocol.headers.groups import ResetOffset

if TYPE_CHECKING:
    from orbitmq.admin.session import Session

SERVER_SIDE_RESET: Final = "useServerSideResetOffset"  # the setting of a broker that moves groups by itself
RESET_TO_END: Final = -1  # as the time of a reset


class QueueLag(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group is in one queue."""

    group: str
    topic: str
    broker: str
    queue: int
    committed: int
    max_offset: int
    lag: int
    lag_seconds: float  # age of the next message it will read
    last_consumed_at: datetime | None  # when the last message it has read was stored


class TopicLag(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group is in one topic."""

    group: str
    topic: str
    queues: int
    lag: int
    lag_seconds: float  # of the queue that is furthest behind
    last_consumed_at: datetime | None


async def consume_stats(session: Session, place: BrokerPlace, group: str, topic: str | None = None) -> ConsumeStats:
    """How far a group is in the queues of one broker; nowhere, if the broker does not know it."""
    header = ConsumeStatsHeader(consumer_group=group, topic=topic)
    try:
        answer = await session.ask(place.address, RequestCode.GET_CONSUME_STATS, header)
    except RequestFailed as error:
        if error.code in (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.TOPIC_NOT_EXIST):
            return ConsumeStats({})
        raise
    return ConsumeStats.from_json(answer.body)


async def queue_lags(session: Session, group: str, topic: str | None = None) -> list[QueueLag]:
    """Queue by queue, over all brokers. A group that was nowhere yet has no rows."""
    places = await reachable_brokers(session)
    found = await gathered(lambda place: consume_stats(session, place, group, topic), places)
    wanted = [
        (place, name)
        for place, stats in zip(places, found, strict=True)
        for name in sorted({key.topic for key, lag in stats.offsets.items() if lag.broker_offset > lag.consumer_offset})
    ]
    ages: dict[tuple[str, str, int], float] = {}
    for delays in await gathered(lambda pair: _delays(session, pair[0], group, pair[1]), wanted):
        ages.update(delays)
    rows = [
        QueueLag(
            group=group,
            topic=key.topic,
            broker=key.broker_name,
            queue=key.queue_id,
            committed=lag.consumer_offset,
            max_offset=lag.broker_offset,
            lag=lag.broker_offset - max(lag.consumer_offset, 0),
            lag_seconds=ages.get((key.topic, key.broker_name, key.queue_id), 0.0),
            last_consumed_at=moment(lag.last_timestamp),
        )
        for stats in found
        for key, lag in stats.offsets.items()
    ]
    return sorted(rows, key=lambda row: (row.topic, row.broker, row.queue))


async def group_lag(session: Session, group: str, topic: str | None = None) -> list[TopicLag]:
    """Topic by topic."""
    by_topic: dict[str, list[QueueLag]] = {}
    for row in await queue_lags(session, group, topic):
        by_topic.setdefault(row.topic, []).append(row)
    return [
        TopicLag(
            group=group,
            topic=name,
            queues=len(rows),
            lag=sum(row.lag for row in rows),
            lag_seconds=max(row.lag_seconds for row in rows),
            last_consumed_at=max((row.last_consumed_at for row in rows if row.last_consumed_at), default=None),
        )
        for name, rows in by_topic.items()
    ]


async def clone_offsets(session: Session, source: str, target: str, topic: str) -> list[BrokerPlace]:
    """Let one group go on in a topic where another is; the target must not be running."""
    places = await find_brokers(session)
    header = CloneGroupOffset(src_group=source, dest_group=target, topic=topic, offline=True)
    for place in places:
        await session.ask(place.address, RequestCode.CLONE_GROUP_OFFSET, header)
        await _end_earlier_reset(session, place, source, target, topic)
    return places


async def _end_earlier_reset(session: Session, place: BrokerPlace, source: str, target: str, topic: str) -> None:
    """Where the target was reset and no member has been there since, Apache's broker goes on to answer with that offset."""
    there = (await consume_stats(session, place, source, topic)).offsets
    here = (await consume_stats(session, place, target, topic)).offsets
    elsewhere = [key for key, lag in here.items() if key in there and lag.consumer_offset != there[key].consumer_offset]
    if not elsewhere or (await broker_settings(session, place.address)).get(SERVER_SIDE_RESET) != "true":
        return
    for key in elsewhere:
        header = ResetOffset(
            topic=topic,
            group=target,
            timestamp=RESET_TO_END,
            is_force=True,
            queue_id=key.queue_id,
            offset=there[key].consumer_offset,
        )
        await session.ask(place.address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)


async def _delays(session: Session, place: BrokerPlace, group: str, topic: str) -> dict[tuple[str, str, int], float]:
    """Seconds that the next message of each queue has been waiting."""
    header = TopicAndGroup(topic=topic, group=group)
    answer = await session.ask(place.address, RequestCode.QUERY_CONSUME_TIME_SPAN, header)
    return {
        (span.message_queue.topic, span.message_queue.broker_name, span.message_queue.queue_id): span.delay_time / 1000
        for span in TimeSpans.from_json(answer.body).consume_time_span_set
    }
