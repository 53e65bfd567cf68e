"""Clusters in numbers. Java: ClusterListSubCommand"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from orbitmq.admin.brokers import MASTER, BrokerRow, list_brokers
from orbitmq.admin.session import gathered
from orbitmq.admin.topics import topics_of_cluster
from orbitmq.errors import RequestFailed

if TYPE_CHECKING:
    from orbitmq.admin.session import Session


class ClusterRow(msgspec.Struct, frozen=True, kw_only=True):
    """One cluster in numbers."""

    cluster: str
    brokers: int  # names, each a master with its slaves
    masters: int
    slaves: int
    unreachable: int
    topics: int | None  # None: the name server does not tell their names
    put_tps: float
    get_tps: float
    versions: list[str]


async def list_clusters(session: Session) -> list[ClusterRow]:
    clusters: dict[str, list[BrokerRow]] = {}
    for row in await list_brokers(session):
        clusters.setdefault(row.cluster, []).append(row)
    topics = await gathered(lambda name: _topic_count(session, name), clusters)
    return [
        ClusterRow(
            cluster=name,
            brokers=len({row.broker for row in members}),
            masters=sum(row.id == MASTER for row in members),
            slaves=sum(row.id != MASTER for row in members),
            unreachable=sum(row.problem is not None for row in members),
            topics=count,
            put_tps=round(sum(row.put_tps or 0.0 for row in members), 2),
            get_tps=round(sum(row.get_tps or 0.0 for row in members), 2),
            versions=sorted({row.version for row in members if row.version}),
        )
        for (name, members), count in zip(clusters.items(), topics, strict=True)
    ]


async def _topic_count(session: Session, cluster: str) -> int | None:
    try:
        return len(await topics_of_cluster(session, cluster))
    except RequestFailed:
        return None  # enableTopicList=false shields the names: no reason to show nothing at all
