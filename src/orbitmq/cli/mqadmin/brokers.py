"""Verbs about brokers and clusters. Java: `tools.command.cluster`, `.broker`, `.stats`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.admin.brokers import BrokerPlace, broker_settings, find_brokers, runtime_info, update_broker_settings
from orbitmq.admin.statistics import traffic
from orbitmq.cli.mqadmin.report import Report, cut
from orbitmq.cli.mqadmin.verb import flag, one_of, switch, verb
from orbitmq.errors import OrbitError
from orbitmq.transport.address import parse_address

if TYPE_CHECKING:
    from orbitmq.admin.session import Session

_CLUSTER_TITLES: Final = (
    "#Cluster Name", "#Broker Name", "#BID", "#Addr", "#Version", "#InTPS(LOAD)", "#OutTPS(LOAD)", "#Timer(Progress)",
    "#PCWait(ms)", "#Hour", "#SPACE", "#ACTIVATED",
)  # fmt: skip
_CLUSTER_TITLES_FORM: Final = "%-22s  %-22s  %-4s  %-22s %-16s  %16s  %30s  %-22s  %-11s  %-12s  %-8s  %-10s"
_CLUSTER_FORM: Final = "%-22s  %-22s  %-4s  %-22s %-16s  %16s  %30s  %-22s  %11s  %-12s  %-8s  %10s"
_MORE_TITLES: Final = (
    "#Cluster Name", "#Broker Name", "#InTotalYest", "#OutTotalYest", "#InTotalToday", "#OutTotalToday",
)  # fmt: skip
_STATS_TITLES: Final = (
    "#Topic", "#Consumer Group", "#Accumulation", "#InTPS", "#OutTPS", "#InMsg24Hour", "#OutMsg24Hour",
)  # fmt: skip
_STATS_FORM: Final = "%-64s  %-64s %12s %11s %11s %14s %14s"


@verb(
    "clusterList",
    switch("m", "moreStats", "more", "Print more stats"),
    flag("i", "interval", "interval", "not done here: use `watch`, or `orbitmq cluster --watch`"),
    flag("c", "clusterName", "cluster", "which cluster"),
)
async def cluster_list(session: Session, report: Report, more: bool, interval: str | None, cluster: str | None) -> None:
    """List cluster infos."""
    places = await find_brokers(session, cluster=cluster, masters_only=False)
    tables = [(place, await _runtime_or_nothing(session, place)) for place in places]
    if more:
        form = "%-16s  %-32s %14s %14s %14s %14s"
        report.table(form, _MORE_TITLES, form, [_totals(place, table) for place, table in tables], "brokers")
        return
    rows = [_cluster_row(place, table, session.now_ms()) for place, table in tables]
    report.table(_CLUSTER_TITLES_FORM, _CLUSTER_TITLES, _CLUSTER_FORM, rows, "brokers")


async def _runtime_or_nothing(session: Session, place: BrokerPlace) -> dict[str, str]:
    """A broker that does not answer is shown without figures, as the original does."""
    try:
        return await runtime_info(session, place.address)
    except OrbitError:
        return {}


def _totals(place: BrokerPlace, table: dict[str, str]) -> tuple[object, ...]:
    def between(what: str, later: str, earlier: str) -> int:
        return int(table.get(f"msg{what}Total{later}", 0)) - int(table.get(f"msg{what}Total{earlier}", 0))

    return (
        place.cluster,
        place.broker,
        between("Put", "TodayMorning", "YesterdayMorning"),
        between("Get", "TodayMorning", "YesterdayMorning"),
        between("Put", "TodayNow", "TodayMorning"),
        between("Get", "TodayNow", "TodayMorning"),
    )


def _cluster_row(place: BrokerPlace, table: dict[str, str], now_ms: int) -> tuple[object, ...]:
    def load(pool: str, missing: str = "") -> str:
        size = table.get(f"{pool}ThreadPoolQueueSize", missing)
        return f"{size},{table.get(f'{pool}ThreadPoolQueueHeadWaitTimeMills', missing)}ms"

    def first(key: str) -> float:
        return float(table.get(key, "").split(" ")[0] or 0)

    earliest = table.get("earliestMessageTimeStamp", "")
    hours = (now_ms - int(earliest)) / 3_600_000 if earliest else 0.0
    timer = (
        f"{table.get('timerReadBehind', 0)}-{table.get('timerOffsetBehind', 0)}"
        f"({int(table.get('timerCongestNum', 0)) / 10000:.1f}w, {first('timerEnqueueTps'):.1f}, "
        f"{first('timerDequeueTps'):.1f})"
    )
    return (
        place.cluster,
        place.broker,
        place.id,
        str(place.address),
        table.get("brokerVersionDesc", ""),
        f"{first('putTps'):9.2f}({load('send')})",
        f"{first('getTransferredTps'):9.2f}({load('pull')}|{load('ack', 'N')})",
        timer,
        table.get("pageCacheLockTimeMills", ""),
        f"{hours:2.2f}",
        f"{float(table.get('commitLogDiskRatio', 0) or 0):.4f}",
        table.get("brokerActive") == "true",
    )


@verb(
    "brokerStatus",
    flag("b", "brokerAddr", "broker", "Broker address"),
    flag("c", "clusterName", "cluster", "which cluster"),
)
async def broker_status(session: Session, report: Report, broker: str | None, cluster: str | None) -> None:
    """Fetch broker runtime status data."""
    one_of(("-b", broker), ("-c", cluster))
    if broker is not None:
        table = await runtime_info(session, parse_address(broker))
        report.data[broker] = table
        for key, value in sorted(table.items()):
            report.line(f"{key:<32}: {value}")
        return
    for place in await find_brokers(session, cluster=cluster, masters_only=False):
        table = await runtime_info(session, place.address)
        report.data[str(place.address)] = table
        for key, value in sorted(table.items()):
            report.line(f"{place.address!s:<24} {key:<32}: {value}")


@verb(
    "getBrokerConfig",
    flag("b", "brokerAddr", "broker", "get which broker"),
    flag("c", "clusterName", "cluster", "get which cluster"),
)
async def get_broker_config(session: Session, report: Report, broker: str | None, cluster: str | None) -> None:
    """Get broker config by cluster or special broker."""
    one_of(("-b", broker), ("-c", cluster))
    if broker is not None:
        headed = [(f"============{broker}============", parse_address(broker))]
    else:
        places = await find_brokers(session, cluster=cluster, masters_only=False)
        masters = {place.broker: place.address for place in places if place.is_master}
        headed = [
            (
                f"============Master: {place.address}============"
                if place.is_master
                else f"============My Master: {masters.get(place.broker)}=====Slave: {place.address}============",
                place.address,
            )
            for place in places
        ]
    for head, address in headed:
        settings = await broker_settings(session, address)
        report.data[str(address)] = settings
        report.line(head)
        for key, value in settings.items():
            report.line(f"{key:<50}=  {value}")
        report.line()


@verb(
    "updateBrokerConfig",
    flag("b", "brokerAddr", "broker", "update which broker"),
    flag("c", "clusterName", "cluster", "update which cluster"),
    flag("a", "updateAllBroker", "slaves_too", "update all brokers include slave"),
    flag("k", "key", "key", "config key", required=True),
    flag("v", "value", "value", "config value", required=True),
)
async def update_broker_config(
    session: Session,
    report: Report,
    broker: str | None,
    cluster: str | None,
    slaves_too: str | None,
    key: str,
    value: str,
) -> None:
    """Update broker's config."""
    one_of(("-b", broker), ("-c", cluster))
    if broker is not None:
        addresses = [parse_address(broker)]
    else:
        places = await find_brokers(session, cluster=cluster, masters_only=slaves_too is None)
        addresses = [place.address for place in places]
    for address in addresses:
        await update_broker_settings(session, address, {key: value})
        report.line(f"update broker config success, {address}")
    report.data = {"brokers": [str(address) for address in addresses], "key": key, "value": value}


@verb(
    "statsAll",
    switch("a", "activeTopic", "active", "print active topic only"),
    flag("t", "topic", "topic", "print select topic only"),
)
async def stats_all(session: Session, report: Report, active: bool, topic: str | None) -> None:
    """Topic and Consumer tps stats."""
    rows: list[tuple[object, ...]] = []
    for row in await traffic(session, topic):
        if active and not row.sent_24h and not row.read_24h:
            continue
        read = (f"{row.read_tps:.2f}", row.sent_24h, row.read_24h) if row.read_tps is not None else None
        rows.append(
            (
                cut(row.topic, 64),
                cut(row.group or "", 64),
                row.lag or 0,
                f"{row.sent_tps:.2f}",
                *(read or ("", row.sent_24h, "NO_CONSUMER")),
            )
        )
    report.table(_STATS_FORM, _STATS_TITLES, _STATS_FORM, rows, "topics")
