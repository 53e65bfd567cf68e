"""Topics: which there are, what is in them, making, changing and deleting them. Java: `tools.command.topic`"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.admin.brokers import BrokerPlace, find_brokers, reachable_brokers
from orbitmq.admin.key_values import delete_key_value, put_key_value
from orbitmq.admin.session import gathered
from orbitmq.client.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from orbitmq.errors import ConfigError, RequestFailed
from orbitmq.protocol.bodies.groups import GroupList, GroupTable
from orbitmq.protocol.bodies.offsets import TopicStats
from orbitmq.protocol.bodies.route import TopicRoute
from orbitmq.protocol.bodies.topics import PERM_READ, PERM_WRITE, TopicConfig, TopicList, TopicTable
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.headers.admin import CreateTopic, TopicName
from orbitmq.protocol.headers.nameserver import ClusterName, DeleteTopic, GetRoute

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from orbitmq.admin.session import Session

ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
_MESSAGE_TYPE: Final = "message.type"
_REPLY_SUFFIX: Final = "_REPLY_TOPIC"  # of every cluster
_PERMISSIONS: Final = {"rw": 6, "r": PERM_READ, "w": PERM_WRITE, "none": 0, "6": 6, "4": 4, "2": 2, "0": 0}


class TopicRow(msgspec.Struct, frozen=True, kw_only=True):
    """A topic, over all brokers."""

    topic: str
    kind: str  # normal, retry, dlq or system
    message_type: str  # NORMAL, FIFO, DELAY, TRANSACTION, ... or UNSPECIFIED
    read_queues: int
    write_queues: int
    permission: str  # rw, r, w or none
    ordered: bool
    brokers: list[str]
    messages: int | None = None  # kept now; only when asked for


class TopicOnBroker(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str
    broker: str
    address: str
    read_queues: int
    write_queues: int
    permission: str
    ordered: bool


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """One queue: from the first message kept to one beyond the last."""

    topic: str
    broker: str
    queue: int
    min_offset: int
    max_offset: int
    messages: int
    last_stored_at: datetime | None


class TopicDetail(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one topic."""

    topic: str
    kind: str
    message_type: str
    attributes: dict[str, str]
    messages: int
    put_tps: float
    groups: list[str]  # that read it, or have read it
    brokers: list[TopicOnBroker]
    queues: list[QueueRow]


class TopicPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a topic is to look like. None: as it is, or by default."""

    topic: str
    read_queues: int | None = None
    write_queues: int | None = None
    permission: str | None = None
    ordered: bool | None = None
    attributes: dict[str, str | None] = {}  # None takes one away


# ---- looking


async def topics_of_cluster(session: Session, cluster: str) -> list[str]:
    answer = await session.ask_name_server(RequestCode.GET_TOPICS_BY_CLUSTER, ClusterName(cluster=cluster))
    return sorted(TopicList.from_json(answer.body).topic_list)


async def topic_names(session: Session) -> list[str]:
    """Every topic that a name server knows, the system's and the groups' own among them."""
    answer = await session.ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    return sorted(TopicList.from_json(answer.body).topic_list)


async def topic_route(session: Session, topic: str) -> TopicRoute:
    """Where its queues are. RequestFailed when no name server knows it."""
    header = GetRoute(topic=topic, accept_standard_json_only=True)
    try:
        answer = await session.ask_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
    except RequestFailed as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        raise missing_topic(topic) from None
    return TopicRoute.from_json(answer.body)


async def list_topics(session: Session, *, cluster: str | None = None, with_messages: bool = False) -> list[TopicRow]:
    """All topics. Counting their messages costs a question each."""
    places = await reachable_brokers(session, cluster=cluster)
    tables = await gathered(lambda place: topic_table(session, place), places)
    configs: dict[str, dict[str, TopicConfig]] = {}
    for place, table in zip(places, tables, strict=True):
        for name, config in table.items():
            configs.setdefault(name, {})[place.broker] = config
    own_names = {place.broker for place in places} | {place.cluster for place in places}
    rows = [_row(name, by_broker, own_names) for name, by_broker in sorted(configs.items())]
    return await counted(session, rows, places) if with_messages else rows


async def counted(session: Session, rows: Sequence[TopicRow], places: Sequence[BrokerPlace]) -> list[TopicRow]:
    """The same rows with the messages that these brokers keep now."""

    async def count(row: TopicRow) -> TopicRow:
        queues = await topic_queues(session, row.topic, [place for place in places if place.broker in row.brokers])
        return msgspec.structs.replace(row, messages=sum(queue.messages for queue in queues))

    return await gathered(count, rows)


async def topic_table(session: Session, place: BrokerPlace) -> dict[str, TopicConfig]:
    answer = await session.ask(place.address, RequestCode.GET_ALL_TOPIC_CONFIG)
    return TopicTable.from_json(answer.body).topic_config_table


async def describe_topic(session: Session, topic: str, *, cluster: str | None = None) -> TopicDetail:
    """On every broker of its route, or of one cluster alone."""
    route = await topic_route(session, topic)
    names = {data.broker_name for data in route.queue_datas}
    places = [place for place in await reachable_brokers(session, cluster=cluster) if place.broker in names]
    tables = await gathered(lambda place: topic_table(session, place), places)
    on_brokers = [(place, table[topic]) for place, table in zip(places, tables, strict=True) if topic in table]
    stats = await gathered(lambda pair: topic_stats(session, pair[0], topic), on_brokers)
    groups = await gathered(lambda pair: _reading_groups(session, pair[0], topic), on_brokers)
    queues = sorted(
        (queue for one in stats for queue in _queue_rows(one)), key=lambda queue: (queue.broker, queue.queue)
    )
    attributes = {key: value for _, config in on_brokers for key, value in config.attributes.items()}
    return TopicDetail(
        topic=topic,
        kind=kind_of(topic, names | {place.cluster for place in places}),
        message_type=attributes.get(_MESSAGE_TYPE, "UNSPECIFIED"),
        attributes=attributes,
        messages=sum(queue.messages for queue in queues),
        put_tps=round(sum(one.put_tps for one in stats), 2),
        groups=sorted({group for some in groups for group in some}),
        brokers=[
            TopicOnBroker(
                cluster=place.cluster,
                broker=place.broker,
                address=str(place.address),
                read_queues=config.read_queue_nums,
                write_queues=config.write_queue_nums,
                permission=permission_text(config.perm),
                ordered=config.order,
            )
            for place, config in on_brokers
        ],
        queues=queues,
    )


async def topic_stats(session: Session, place: BrokerPlace, topic: str) -> TopicStats:
    """Where each queue on one broker begins and ends."""
    answer = await session.ask(place.address, RequestCode.GET_TOPIC_STATS_INFO, TopicName(topic=topic))
    return TopicStats.from_json(answer.body)


async def topic_queues(session: Session, topic: str, places: Sequence[BrokerPlace] | None = None) -> list[QueueRow]:
    """The queues of a topic, on the brokers of its route unless others are named."""
    if places is None:
        names = {data.broker_name for data in (await topic_route(session, topic)).queue_datas}
        places = [place for place in await reachable_brokers(session) if place.broker in names]
    found = await gathered(lambda place: topic_stats(session, place, topic), places)
    rows = [row for stats in found for row in _queue_rows(stats)]
    return sorted(rows, key=lambda row: (row.broker, row.queue))


async def reading_groups(session: Session, topic: str) -> list[str]:
    """Who reads a topic, or has read it."""
    names = {data.broker_name for data in (await topic_route(session, topic)).queue_datas}
    places = [place for place in await reachable_brokers(session) if place.broker in names]
    found = await gathered(lambda place: _reading_groups(session, place, topic), places)
    return sorted({group for groups in found for group in groups})


async def _reading_groups(session: Session, place: BrokerPlace, topic: str) -> list[str]:
    answer = await session.ask(place.address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicName(topic=topic))
    groups = GroupList.from_json(answer.body).group_list
    if topic not in groups:
        return groups
    # Apache's broker names the topic itself among them, whether there is a group of that name or not.
    answer = await session.ask(place.address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    known = GroupTable.from_json(answer.body).subscription_group_table
    return [group for group in groups if group != topic or group in known]


def _queue_rows(stats: TopicStats) -> list[QueueRow]:
    return [
        QueueRow(
            topic=key.topic,
            broker=key.broker_name,
            queue=key.queue_id,
            min_offset=found.min_offset,
            max_offset=found.max_offset,
            messages=found.max_offset - found.min_offset,
            last_stored_at=moment(found.last_update_timestamp),
        )
        for key, found in stats.ranges.items()
    ]


def _row(topic: str, by_broker: Mapping[str, TopicConfig], own_names: set[str]) -> TopicRow:
    configs = list(by_broker.values())
    return TopicRow(
        topic=topic,
        kind=kind_of(topic, own_names),
        message_type=next(
            (config.attributes[_MESSAGE_TYPE] for config in configs if _MESSAGE_TYPE in config.attributes),
            "UNSPECIFIED",
        ),
        read_queues=sum(config.read_queue_nums for config in configs),
        write_queues=sum(config.write_queue_nums for config in configs),
        permission=permission_text(max(config.perm for config in configs)),
        ordered=any(config.order for config in configs),
        brokers=sorted(by_broker),
    )


# ---- making, changing, deleting


async def existing_configs(session: Session, topic: str, places: Iterable[BrokerPlace]) -> dict[str, TopicConfig]:
    """Broker name -> the topic's settings there, where it exists."""
    wanted = list(places)
    tables = await gathered(lambda place: topic_table(session, place), wanted)
    return {place.broker: table[topic] for place, table in zip(wanted, tables, strict=True) if topic in table}


async def create_topic(
    session: Session, plan: TopicPlan, *, cluster: str | None = None, broker: str | None = None
) -> list[BrokerPlace]:
    """Make a topic on a broker, on a cluster's, or on all; where it was made. RequestFailed when it is there already."""
    places = await find_brokers(session, cluster=cluster, broker=broker)
    existing = await existing_configs(session, plan.topic, places)
    if existing:
        raise RequestFailed(
            ResponseCode.TOPIC_EXIST_ALREADY,
            f"topic {plan.topic!r} exists on {', '.join(sorted(existing))}",
            hint="`orbitmq topic update` changes it",
        )
    fresh = TopicConfig(topic_name=plan.topic, read_queue_nums=8, write_queue_nums=8)
    for place in places:
        await write_topic(session, place, changed_config(fresh, plan), plan.attributes)
    if plan.ordered:
        await _note_order(session, plan.topic)
    return places


async def update_topic(
    session: Session, plan: TopicPlan, *, cluster: str | None = None, broker: str | None = None
) -> list[BrokerPlace]:
    """Change what the plan names, wherever the topic is; where it was changed."""
    places = await find_brokers(session, cluster=cluster, broker=broker)
    existing = await existing_configs(session, plan.topic, places)
    if not existing:
        raise missing_topic(plan.topic)
    changed = [place for place in places if place.broker in existing]
    if plan.ordered is False:  # first, as brokers take it from the name servers
        await delete_key_value(session, ORDER_NAMESPACE, plan.topic)
    for place in changed:
        await write_topic(session, place, changed_config(existing[place.broker], plan), plan.attributes)
    is_ordered = any(config.order for config in existing.values()) if plan.ordered is None else plan.ordered
    if is_ordered and (plan.ordered or plan.write_queues is not None):
        await _note_order(session, plan.topic)
    return changed


async def delete_topic(session: Session, topic: str, *, cluster: str | None = None) -> list[BrokerPlace]:
    """With its messages, on every broker of the cluster, and at the name servers. RequestFailed when there is none."""
    places = await find_brokers(session, cluster=cluster)
    existing = await existing_configs(session, topic, places)
    if not existing and topic not in await topic_names(session):
        raise missing_topic(topic)
    doomed = [place for place in places if place.broker in existing]
    for place in doomed:
        await session.ask(place.address, RequestCode.DELETE_TOPIC_IN_BROKER, TopicName(topic=topic))
    await session.tell_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopic(topic=topic, cluster_name=cluster))
    await delete_key_value(session, ORDER_NAMESPACE, topic)
    return doomed


async def write_topic(
    session: Session, place: BrokerPlace, config: TopicConfig, attributes: Mapping[str, str | None]
) -> None:
    """As it is given, over whatever is there. `attributes` are changes; None takes one away."""
    changes = [f"-{key}" if value is None else f"+{key}={value}" for key, value in attributes.items()]
    header = CreateTopic(
        topic=config.topic_name,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_filter_type=config.topic_filter_type,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
        attributes=",".join(changes),
    )
    await session.ask(place.address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)


def changed_config(config: TopicConfig, plan: TopicPlan) -> TopicConfig:
    return msgspec.structs.replace(
        config,
        read_queue_nums=config.read_queue_nums if plan.read_queues is None else plan.read_queues,
        write_queue_nums=config.write_queue_nums if plan.write_queues is None else plan.write_queues,
        perm=config.perm if plan.permission is None else permission_number(plan.permission),
        order=config.order if plan.ordered is None else plan.ordered,
    )


async def _note_order(session: Session, topic: str) -> None:
    """Tell the name servers how many queues an ordered topic has on each broker: it keeps them whether that is there or not."""
    configs = await existing_configs(session, topic, await find_brokers(session))
    ordered = [f"{broker}:{config.write_queue_nums}" for broker, config in sorted(configs.items()) if config.order]
    await put_key_value(session, ORDER_NAMESPACE, topic, ";".join(ordered))


# ---- words


def kind_of(topic: str, own_names: Collection[str] = ()) -> str:
    """`own_names` are those of brokers and clusters, each of which has a topic of its own."""
    if topic.startswith(RETRY_PREFIX):
        return "retry"
    if topic.startswith(DLQ_PREFIX):
        return "dlq"
    is_system = is_system_topic(topic) or topic in own_names or topic.endswith(_REPLY_SUFFIX)
    return "system" if is_system else "normal"


def permission_text(number: int) -> str:
    return (("r" if number & PERM_READ else "") + ("w" if number & PERM_WRITE else "")) or "none"


def permission_number(text: str) -> int:
    """`rw`, `r`, `w`, `none`, or Apache's 6, 4, 2, 0."""
    try:
        return _PERMISSIONS[text.lower()]
    except KeyError:
        raise ConfigError(f"{text!r} is no permission", hint="write rw, r, w or none") from None


def missing_topic(topic: str) -> RequestFailed:
    return RequestFailed(
        ResponseCode.TOPIC_NOT_EXIST,
        f"topic {topic!r} does not exist",
        hint=f"`orbitmq topic create {topic}` makes it, `orbitmq topic ls` lists those there are",
    )


def moment(at_ms: int) -> datetime | None:
    return datetime.fromtimestamp(at_ms / 1000, UTC) if at_ms > 0 else None
