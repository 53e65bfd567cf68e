"""Brokers: who they are, what they say about themselves, their settings. Java: ClusterListSubCommand, BrokerStatusSubCommand"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.admin.session import gathered
from orbitmq.errors import ConfigError, ConnectFailed, OrbitError, RequestFailed
from orbitmq.protocol.bodies.route import ClusterInfo, KvTable
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.properties_text import format_properties, parse_properties
from orbitmq.transport.address import Address, parse_address

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from orbitmq.admin.session import Session

MASTER: Final = 0
_FIRST_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")
_RUNTIME: Final = re.compile(r"(\d+) days?, (\d+) hours?, (\d+) minutes?, (\d+) seconds?")


class BrokerPlace(msgspec.Struct, frozen=True, order=True):
    """One broker process as the name server lists it."""

    cluster: str
    broker: str
    id: int
    address: Address

    @property
    def is_master(self) -> bool:
        return self.id == MASTER


class BrokerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One broker process and its figures of the moment; a broker that does not answer has a `problem` and no figures."""

    cluster: str
    broker: str
    id: int
    role: str  # master or slave
    address: str
    version: str | None = None
    up_seconds: int | None = None
    put_tps: float | None = None
    get_tps: float | None = None
    stored_today: int | None = None
    fetched_today: int | None = None
    disk_used_percent: float | None = None  # of the disk that holds the commit log
    oldest_message_at: datetime | None = None
    problem: str | None = None


class BrokerDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's row, and everything it tells about itself under Apache's names."""

    summary: BrokerRow
    runtime: dict[str, str]


class SettingRow(msgspec.Struct, frozen=True, kw_only=True):
    broker: str
    address: str
    key: str
    value: str


async def broker_places(session: Session) -> list[BrokerPlace]:
    """Every broker process that is registered."""
    answer = await session.ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
    info = ClusterInfo.from_json(answer.body)
    return sorted(
        BrokerPlace(cluster, name, broker_id, parse_address(address))
        for cluster, names in info.cluster_addr_table.items()
        for name in names
        if name in info.broker_addr_table
        for broker_id, address in info.broker_addr_table[name].broker_addrs.items()
    )


async def find_brokers(
    session: Session, *, cluster: str | None = None, broker: str | None = None, masters_only: bool = True
) -> list[BrokerPlace]:
    """Those of a cluster, of a name or at an address; all without. RequestFailed when there is none."""
    places = await broker_places(session)
    chosen = [
        place
        for place in places
        if (cluster is None or place.cluster == cluster)
        and (broker is None or broker in (place.broker, str(place.address)))
        and (place.is_master or not masters_only or broker == str(place.address))
    ]
    if chosen:
        return chosen
    if not places:
        raise RequestFailed(
            ResponseCode.BROKER_NOT_EXIST,
            "no broker is registered",
            hint="start one with this name server as its namesrvAddr; it appears within seconds",
        )
    if cluster is not None and broker is None:
        known = ", ".join(sorted({place.cluster for place in places}))
        raise RequestFailed(ResponseCode.BROKER_NOT_EXIST, f"there is no cluster {cluster!r}", hint=f"there is {known}")
    if broker is not None and any(broker == place.broker for place in places):
        raise RequestFailed(
            ResponseCode.BROKER_NOT_EXIST, f"broker {broker!r} has no master now", hint="is its process running?"
        )
    known = ", ".join(sorted({place.broker for place in places}))
    what = f"there is no broker {broker!r}" if broker is not None else "there is no master broker"
    raise RequestFailed(ResponseCode.BROKER_NOT_EXIST, what, hint=f"registered: {known}")


async def reachable_brokers(session: Session, *, cluster: str | None = None) -> list[BrokerPlace]:
    """The masters to read from: one that does not answer is noted in `session.silent` and left out, unless none does."""
    places = await find_brokers(session, cluster=cluster)
    answering = await answering_addresses(session, [place.address for place in places])
    return [place for place in places if place.address in answering]


async def answering_addresses(session: Session, addresses: Sequence[Address]) -> set[Address]:
    """Those of brokers that answer; the others are noted in `session.silent`. ConnectFailed when none does."""
    answers = await gathered(session.is_reachable, addresses)
    found = {address for address, is_there in zip(addresses, answers, strict=True) if is_there}
    if not found:
        raise ConnectFailed(
            "; ".join(session.silent[address] for address in addresses),
            hint="are the brokers running, and are their addresses right seen from here? `orbitmq doctor` looks closer",
        )
    return found


# ---- what a broker says about itself


async def runtime_info(session: Session, address: Address) -> dict[str, str]:
    """Some sixty texts under Apache's names."""
    answer = await session.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
    return KvTable.from_json(answer.body).table


async def list_brokers(session: Session, *, cluster: str | None = None, broker: str | None = None) -> list[BrokerRow]:
    """Every broker process with its figures. One that does not answer is listed with the reason."""
    places = await find_brokers(session, cluster=cluster, broker=broker, masters_only=False)

    async def row(place: BrokerPlace) -> BrokerRow:
        try:
            return broker_row(place, await runtime_info(session, place.address))
        except OrbitError as error:
            return _bare_row(place, str(error))

    return await gathered(row, places)


async def describe_broker(session: Session, broker: str) -> BrokerDetail:
    """The broker of a name, which is its master if there is one, or the one at an address."""
    place = (await find_brokers(session, broker=broker, masters_only=False))[0]
    table = await runtime_info(session, place.address)
    return BrokerDetail(summary=broker_row(place, table), runtime=table)


def broker_row(place: BrokerPlace, table: Mapping[str, str]) -> BrokerRow:
    disk = _number(table, "commitLogDiskRatio")
    oldest_ms = _number(table, "earliestMessageTimeStamp")
    return BrokerRow(
        cluster=place.cluster,
        broker=place.broker,
        id=place.id,
        role=_role(place),
        address=str(place.address),
        version=table.get("brokerVersionDesc"),
        up_seconds=up_seconds(table),
        put_tps=_number(table, "putTps"),
        get_tps=_number(table, "getTransferredTps", "getTransferedTps"),
        stored_today=_difference(table, "msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
        fetched_today=_difference(table, "msgGetTotalTodayNow", "msgGetTotalTodayMorning"),
        disk_used_percent=round(disk * 100, 1) if disk is not None and disk >= 0 else None,
        oldest_message_at=datetime.fromtimestamp(oldest_ms / 1000, UTC) if oldest_ms and oldest_ms > 0 else None,
    )


def up_seconds(table: Mapping[str, str]) -> int | None:
    """From `[ 0 days, 2 hours, 3 minutes, 4 seconds ]`."""
    found = _RUNTIME.search(table.get("runtime", ""))
    if found is None:
        return None
    days, hours, minutes, seconds = map(int, found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _bare_row(place: BrokerPlace, problem: str) -> BrokerRow:
    return BrokerRow(
        cluster=place.cluster,
        broker=place.broker,
        id=place.id,
        role=_role(place),
        address=str(place.address),
        problem=problem,
    )


def _role(place: BrokerPlace) -> str:
    return "master" if place.is_master else "slave"


def _number(table: Mapping[str, str], *keys: str) -> float | None:
    """The first figure of a text such as `12.5 11.0 9.8`: of the last ten seconds."""
    for key in keys:
        found = _FIRST_NUMBER.search(table.get(key, ""))
        if found is not None:
            return float(found[0])
    return None


def _difference(table: Mapping[str, str], later: str, earlier: str) -> int | None:
    end, start = _number(table, later), _number(table, earlier)
    return None if end is None or start is None else int(end - start)


# ---- settings


async def broker_settings(session: Session, address: Address) -> dict[str, str]:
    """All settings in force, under Apache's names."""
    answer = await session.ask(address, RequestCode.GET_BROKER_CONFIG)
    return parse_properties(answer.body.decode())


async def setting_rows(session: Session, broker: str) -> list[SettingRow]:
    """Of every process of a name, or of the one at an address."""
    places = await find_brokers(session, broker=broker, masters_only=False)
    tables = await gathered(lambda place: broker_settings(session, place.address), places)
    return [
        SettingRow(broker=place.broker, address=str(place.address), key=key, value=value)
        for place, table in zip(places, tables, strict=True)
        for key, value in sorted(table.items())
    ]


async def update_broker_settings(session: Session, address: Address, changes: Mapping[str, str]) -> None:
    """Change settings while the broker runs; some take force at its next start only."""
    body = format_properties(dict(changes)).encode()
    try:
        await session.ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)
    except RequestFailed as error:
        if error.code != ResponseCode.NO_PERMISSION:
            raise
        raise RequestFailed(
            error.code,
            f"the broker does not let {', '.join(changes)} be changed from afar: {error.message}",
            hint="change it in its configuration file and start it again; with ACLs, check the access key",
        ) from None


def check_setting_names(known: Collection[str], wanted: Sequence[str]) -> None:
    """ConfigError for a name that the broker does not have, with the nearest one it has."""
    import difflib

    for key in wanted:
        if key not in known:
            near = difflib.get_close_matches(key, list(known), n=1)
            raise ConfigError(
                f"{key} is no setting of this broker",
                hint=f"did you mean {near[0]}?" if near else "`orbitmq broker config NAME` lists them",
            )
