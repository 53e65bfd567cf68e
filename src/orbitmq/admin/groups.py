"""Consumer groups: which there are, who is in them, how they may consume. Java: `tools.command.consumer`, `.connection`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from orbitmq.admin.brokers import BrokerPlace, find_brokers, reachable_brokers
from orbitmq.admin.offsets import TopicLag, consume_stats, group_lag
from orbitmq.admin.session import gathered
from orbitmq.errors import OrbitError, RequestFailed
from orbitmq.protocol import versions
from orbitmq.protocol.bodies.groups import (
    ClientConnection,
    ConsumerConnection,
    GroupConfig,
    GroupTable,
    ProducerConnection,
    ProducerTable,
)
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.headers.admin import DeleteGroup, ProducerGroup
from orbitmq.protocol.headers.groups import ConsumerGroup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orbitmq.admin.session import Session

_SYSTEM_PREFIX: Final = "CID_RMQ_SYS_"
_SYSTEM_GROUPS: Final = frozenset({
    "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_SYS_RMQ_TRANS", "__MONITOR_CONSUMER", "CLIENT_INNER_PRODUCER",
    "DEFAULT_CONSUMER", "SELF_TEST_P_GROUP",
})  # fmt: skip


class GroupRow(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group, over all brokers."""

    group: str
    kind: str  # normal or system
    members: int | None  # connected now; null when nobody was asked, as with `--quick`
    model: str | None  # CLUSTERING or BROADCASTING; null while nobody is connected
    enabled: bool
    max_retries: int
    lag: int | None  # as members
    tps: float | None  # as members
    brokers: list[str]


class ConnectionRow(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A client that is connected under a group's name."""

    group: str
    client_id: str
    address: str
    language: str
    version: str
    brokers: list[str]  # that see it


class SubscriptionRow(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    filter: str
    filter_type: str  # TAG or SQL92


class GroupDetail(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one group."""

    group: str
    online: bool
    type: str | None  # CONSUME_PASSIVELY (push), CONSUME_ACTIVELY (pull) or CONSUME_POP
    model: str | None
    start: str | None  # where it begins in a queue that is new to it
    enabled: bool
    ordered: bool
    broadcast_allowed: bool
    max_retries: int
    retry_queues: int
    brokers: list[str]
    lag: int
    lag_seconds: float
    members: list[ConnectionRow]
    subscriptions: list[SubscriptionRow]
    differing_members: list[str]  # that do not subscribe to what the others do, and lose messages for it
    topics: list[TopicLag]


class Connected(msgspec.Struct, frozen=True):
    """Who is connected under a group's name, as all brokers together see it."""

    members: list[ConnectionRow]
    first: ConsumerConnection | None  # what one broker says of the group as a whole


# ---- looking


async def group_tables(session: Session, places: list[BrokerPlace]) -> dict[str, dict[str, GroupConfig]]:
    """Group -> broker name -> its settings there."""

    async def table(place: BrokerPlace) -> dict[str, GroupConfig]:
        answer = await session.ask(place.address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return GroupTable.from_json(answer.body).subscription_group_table

    found: dict[str, dict[str, GroupConfig]] = {}
    for place, groups in zip(places, await gathered(table, places), strict=True):
        for name, config in groups.items():
            found.setdefault(name, {})[place.broker] = config
    return found


async def list_groups(session: Session, *, cluster: str | None = None, quick: bool = False) -> list[GroupRow]:
    """All groups. `quick` leaves members and lag out, which cost two questions a group."""
    places = await reachable_brokers(session, cluster=cluster)
    tables = await group_tables(session, places)
    rows = [
        GroupRow(
            group=group,
            kind="system" if is_system_group(group) else "normal",
            members=None,
            model=None,
            enabled=all(config.consume_enable for config in on_brokers.values()),
            max_retries=max(config.retry_max_times for config in on_brokers.values()),
            lag=None,
            tps=None,
            brokers=sorted(on_brokers),
        )
        for group, on_brokers in sorted(tables.items())
    ]
    return rows if quick else await with_figures(session, rows, places)


async def with_figures(session: Session, rows: Sequence[GroupRow], places: list[BrokerPlace]) -> list[GroupRow]:
    """The same rows with members and lag, as these brokers see them."""

    async def look(row: GroupRow) -> GroupRow:
        connected = await _connected(session, row.group, places)
        lag, tps = await _total_lag(session, row.group, places)
        return msgspec.structs.replace(
            row,
            members=len(connected.members),
            model=connected.first.message_model if connected.first is not None else None,
            lag=lag,
            tps=tps,
        )

    return await gathered(look, rows)


async def describe_group(session: Session, group: str) -> GroupDetail:
    places = await reachable_brokers(session)
    configs = (await group_tables(session, places)).get(group)
    if configs is None:
        raise missing_group(group)
    connected = await _connected(session, group, places)
    topics = await group_lag(session, group)
    first = connected.first
    config = next(iter(configs.values()))
    subscriptions = first.subscription_table if first is not None else {}
    return GroupDetail(
        group=group,
        online=first is not None,
        type=first.consume_type if first is not None else None,
        model=first.message_model if first is not None else None,
        start=first.consume_from_where if first is not None else None,
        enabled=all(one.consume_enable for one in configs.values()),
        ordered=config.consume_message_orderly,
        broadcast_allowed=config.consume_broadcast_enable,
        max_retries=config.retry_max_times,
        retry_queues=config.retry_queue_nums,
        brokers=sorted(configs),
        lag=sum(topic.lag for topic in topics),
        lag_seconds=max((topic.lag_seconds for topic in topics), default=0.0),
        members=connected.members,
        subscriptions=[
            SubscriptionRow(topic=one.topic, filter=one.sub_string, filter_type=one.expression_type)
            for one in subscriptions.values()
        ],
        differing_members=(first.differing_clients or []) if first is not None else [],
        topics=topics,
    )


async def consumer_connections(session: Session, group: str) -> list[ConnectionRow]:
    """Members connected now. RequestFailed when nobody is, or the group does not exist."""
    places = await reachable_brokers(session)
    connected = await _connected(session, group, places)
    if connected.first is not None:
        return connected.members
    if group not in await group_tables(session, places):
        raise missing_group(group)
    raise RequestFailed(
        ResponseCode.CONSUMER_NOT_ONLINE,
        f"nobody of group {group!r} is connected",
        hint="start a consumer of it; `orbitmq group lag` works without",
    )


async def is_online(session: Session, group: str, place: BrokerPlace) -> bool:
    return await connection_on(session, group, place) is not None


async def connection_on(session: Session, group: str, place: BrokerPlace) -> ConsumerConnection | None:
    """What one broker says of a group's members; None when it sees none."""
    try:
        answer = await session.ask(
            place.address, RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroup(consumer_group=group)
        )
    except RequestFailed as error:
        if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return None
        raise
    return ConsumerConnection.from_json(answer.body)


async def producer_connections(session: Session, group: str) -> list[ConnectionRow]:
    """Producers of a group connected now. RequestFailed when there are none."""
    places = await reachable_brokers(session)

    async def on(place: BrokerPlace) -> list[ClientConnection]:
        try:
            answer = await session.ask(
                place.address, RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerGroup(producer_group=group)
            )
        except RequestFailed as error:
            if error.code == ResponseCode.SYSTEM_ERROR:  # "not exist"
                return []
            raise
        return ProducerConnection.from_json(answer.body).connection_set

    found = await gathered(on, places)
    rows = _rows(group, {place.broker: clients for place, clients in zip(places, found, strict=True)})
    if not rows:
        raise RequestFailed(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f"no producer of group {group!r} is connected",
            hint="producers appear with their first message",
        )
    return rows


async def all_producers(session: Session) -> list[ConnectionRow]:
    """Every producer connected now. Brokers before 5.0 cannot tell."""
    places = await reachable_brokers(session)

    async def on(place: BrokerPlace) -> ProducerTable:
        return ProducerTable.from_json((await session.ask(place.address, RequestCode.GET_ALL_PRODUCER_INFO)).body)

    by_group: dict[str, dict[str, list[ClientConnection]]] = {}
    for place, table in zip(places, await gathered(on, places), strict=True):
        for group, clients in table.data.items():
            by_group.setdefault(group, {})[place.broker] = [
                ClientConnection(
                    client_id=one.client_id,
                    client_addr=one.remote_ip.lstrip("/"),
                    language=one.language,
                    version=one.version,
                )
                for one in clients
            ]
    return sorted(row for group, clients in by_group.items() for row in _rows(group, clients))


async def _connected(session: Session, group: str, places: list[BrokerPlace]) -> Connected:
    found = await gathered(lambda place: connection_on(session, group, place), places)
    by_broker = {place.broker: one for place, one in zip(places, found, strict=True) if one is not None}
    members = _rows(group, {broker: one.connection_set for broker, one in by_broker.items()})
    return Connected(members, next(iter(by_broker.values()), None))


def _rows(group: str, by_broker: Mapping[str, list[ClientConnection]]) -> list[ConnectionRow]:
    """One row a client, however many brokers it is connected to."""
    seen: dict[str, tuple[ClientConnection, list[str]]] = {}
    for broker, clients in by_broker.items():
        for client in clients:
            seen.setdefault(client.client_id, (client, []))[1].append(broker)
    return [
        ConnectionRow(
            group=group,
            client_id=client.client_id,
            address=client.client_addr,
            language=client.language,
            version=versions.name(client.version),
            brokers=sorted(brokers),
        )
        for client, brokers in sorted(seen.values(), key=lambda pair: pair[0].client_id)
    ]


async def _total_lag(session: Session, group: str, places: list[BrokerPlace]) -> tuple[int, float]:
    found = await gathered(lambda place: consume_stats(session, place, group), places)
    lag = sum(one.broker_offset - max(one.consumer_offset, 0) for stats in found for one in stats.offsets.values())
    return lag, round(sum(stats.tps for stats in found), 2)


# ---- making, changing, deleting


async def create_group(
    session: Session,
    config: GroupConfig,
    *,
    cluster: str | None = None,
    broker: str | None = None,
    if_missing: bool = False,
) -> list[BrokerPlace]:
    """Make a group; where. OrbitError when it is there already, unless it is wanted only `if_missing`."""
    places = await find_brokers(session, cluster=cluster, broker=broker)
    existing = (await group_tables(session, places)).get(config.group_name, {})
    if existing and not if_missing:
        raise OrbitError(
            f"group {config.group_name!r} exists on {', '.join(sorted(existing))}",
            hint="`orbitmq group update` changes it, --if-missing makes it where it is not",
        )
    missing = [place for place in places if place.broker not in existing]
    for place in missing:
        await session.ask(place.address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config.to_json())
    return missing


async def update_group(
    session: Session, group: str, changes: Mapping[str, Any], *, cluster: str | None = None, broker: str | None = None
) -> list[BrokerPlace]:
    """Change some fields of `GroupConfig`, wherever the group is; where it was changed. The others stay as they are there."""
    places = await find_brokers(session, cluster=cluster, broker=broker)
    existing = (await group_tables(session, places)).get(group)
    if existing is None:
        raise missing_group(group)
    changed = [place for place in places if place.broker in existing]
    for place in changed:
        config = msgspec.structs.replace(existing[place.broker], **changes)
        await session.ask(place.address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config.to_json())
    return changed


async def delete_group(
    session: Session, group: str, *, cluster: str | None = None, keep_offsets: bool = False
) -> list[BrokerPlace]:
    """With its offsets, so that a group of the same name begins anew. RequestFailed when there is none."""
    places = await find_brokers(session, cluster=cluster)
    configs = (await group_tables(session, places)).get(group)
    if configs is None:
        raise missing_group(group)
    doomed = [place for place in places if place.broker in configs]
    header = DeleteGroup(group_name=group, clean_offset=not keep_offsets)
    for place in doomed:
        await session.ask(place.address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
    return doomed


def is_system_group(group: str) -> bool:
    return group in _SYSTEM_GROUPS or group.startswith(_SYSTEM_PREFIX)


def missing_group(group: str) -> RequestFailed:
    return RequestFailed(
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        f"group {group!r} does not exist",
        hint=f"`orbitmq group create {group}` makes it, `orbitmq group ls` lists those there are",
    )
