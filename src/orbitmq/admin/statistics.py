"""Traffic of topics and groups: messages a second, and over a day. Java: StatsAllSubCommand"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.admin.brokers import BrokerPlace, reachable_brokers
from orbitmq.admin.offsets import consume_stats
from orbitmq.admin.session import gathered
from orbitmq.admin.topics import kind_of, list_topics, missing_topic, reading_groups
from orbitmq.errors import RequestFailed
from orbitmq.protocol.bodies.admin import StatsData
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.headers.admin import StatsName

if TYPE_CHECKING:
    from orbitmq.admin.session import Session

SENT: Final = "TOPIC_PUT_NUMS"
READ: Final = "GROUP_GET_NUMS"


class TrafficRow(msgspec.Struct, frozen=True, kw_only=True):
    """A topic, and a group that reads it; of a topic that nobody reads, only what was sent."""

    topic: str
    group: str | None
    lag: int | None
    sent_tps: float
    read_tps: float | None
    sent_24h: int
    read_24h: int | None


class Figures(msgspec.Struct, frozen=True):
    tps: float = 0.0
    day: int = 0


async def broker_figures(session: Session, place: BrokerPlace, name: str, key: str) -> StatsData | None:
    """One counter of a broker; None when it has counted nothing under this key."""
    try:
        header = StatsName(stats_name=name, stats_key=key)
        answer = await session.ask(place.address, RequestCode.VIEW_BROKER_STATS_DATA, header)
    except RequestFailed as error:
        if error.code == ResponseCode.SYSTEM_ERROR:
            return None
        raise
    return StatsData.from_json(answer.body)


async def traffic(session: Session, topic: str | None = None) -> list[TrafficRow]:
    """Of all topics but the retry and dead-letter ones, or of one."""
    places = await reachable_brokers(session)
    topics = await list_topics(session)
    chosen = [
        row for row in topics if row.topic == topic or (topic is None and kind_of(row.topic) not in ("retry", "dlq"))
    ]
    if topic is not None and not chosen:
        raise missing_topic(topic)

    async def rows(name: str) -> list[TrafficRow]:
        groups = await reading_groups(session, name)
        sent = await _figures(session, places, SENT, name)
        if not groups:
            return [_row(name, None, None, sent, None)]
        return [
            _row(
                name,
                group,
                await _lag(session, places, group, name),
                sent,
                await _figures(session, places, READ, f"{name}@{group}"),
            )
            for group in groups
        ]

    found = await gathered(rows, [row.topic for row in chosen])
    return [row for some in found for row in some]


def _row(topic: str, group: str | None, lag: int | None, sent: Figures, read: Figures | None) -> TrafficRow:
    return TrafficRow(
        topic=topic,
        group=group,
        lag=lag,
        sent_tps=sent.tps,
        read_tps=read.tps if read is not None else None,
        sent_24h=sent.day,
        read_24h=read.day if read is not None else None,
    )


async def _figures(session: Session, places: list[BrokerPlace], name: str, key: str) -> Figures:
    found = [data for place in places if (data := await broker_figures(session, place, name, key)) is not None]
    return Figures(
        tps=round(sum(data.stats_minute.tps for data in found), 2),
        day=sum(compute_24_hours(data) for data in found),
    )


def compute_24_hours(data: StatsData) -> int:
    """The widest window that has counted something: a broker that just started has no full day yet."""
    return data.stats_day.sum or data.stats_hour.sum or data.stats_minute.sum


async def _lag(session: Session, places: list[BrokerPlace], group: str, topic: str) -> int:
    stats = [await consume_stats(session, place, group, topic) for place in places]
    return sum(max(0, lag.broker_offset - lag.consumer_offset) for one in stats for lag in one.offsets.values())
