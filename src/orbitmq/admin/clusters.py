"""Clusters in numbers. Java: ClusterListSubCommand"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from orbitmq.admin.brokers import MASTER, BrokerRow, list_brokers
from orbitmq.admin.session import gathered
from orbitmq.admin.topics import topics_of_cluster

if TYPE_CHECKING:
    from orbitmq.admin.session import Session


class ClusterRow(msgspec.Struct, frozen=True, kw_only=True):
    """One cluster in numbers."""

    cluster: str
    brokers: int  # names, each a master with its slaves
    masters: int
    slaves: int
    unreachable: int
    topics: int
    put_tps: float
    get_tps: float
    versions: list[str]


async def list_clusters(session: Session) -> list[ClusterRow]:
    clusters: dict[str, list[BrokerRow]] = {}
    for row in await list_brokers(session):
        clusters.setdefault(row.cluster, []).append(row)
    topics = await gathered(lambda name: topics_of_cluster(session, name), clusters)
    return [
        ClusterRow(
            cluster=name,
            brokers=len({row.broker for row in members}),
            masters=sum(row.id == MASTER for row in members),
            slaves=sum(row.id != MASTER for row in members),
            unreachable=sum(row.problem is not None for row in members),
            topics=len(names),
            put_tps=round(sum(row.put_tps or 0.0 for row in members), 2),
            get_tps=round(sum(row.get_tps or 0.0 for row in members), 2),
            versions=sorted({row.version for row in members if row.version}),
        )
        for (name, members), names in zip(clusters.items(), topics, strict=True)
    ]
