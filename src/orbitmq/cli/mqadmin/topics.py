"""Verbs about topics. Java: `tools.command.topic`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
import msgspec

from orbitmq.admin.brokers import BrokerPlace, find_brokers
from orbitmq.admin.key_values import delete_key_value, key_value, put_key_value
from orbitmq.admin.topics import (
    ORDER_NAMESPACE,
    existing_configs,
    missing_topic,
    permission_number,
    reading_groups,
    topic_names,
    topic_route,
    topic_stats,
    write_topic,
)
from orbitmq.cli.mqadmin.report import Report, cut, human_time, java_double, java_map, java_text
from orbitmq.cli.mqadmin.verb import flag, is_true, one_of, switch, verb, whole_number
from orbitmq.client.assignment import strategy_from
from orbitmq.client.routes import route_of
from orbitmq.errors import RequestFailed
from orbitmq.protocol.bodies.topics import SYS_FLAG_UNIT, SYS_FLAG_UNIT_SUB, TopicConfig
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.headers.admin import TopicName
from orbitmq.protocol.headers.nameserver import DeleteTopic

if TYPE_CHECKING:
    from orbitmq.admin.session import Session

_LIST_FORM: Final = "%-20s  %-48s  %-48s"
_LIST_ROW: Final = "%-20s  %-64s  %-64s"
_ROUTE_FORM: Final = "%-45s %-32s %-50s %-10s %-11s %-5s"
_STATUS_FORM: Final = "%-32s  %-4s  %-20s  %-20s    %s"


@verb("topicList", switch("c", "clusterModel", "by_cluster", "clusterModel"))
async def topic_list(session: Session, report: Report, by_cluster: bool) -> None:
    """Fetch all topic list from name server."""
    topics = await topic_names(session)
    if not by_cluster:
        for topic in topics:
            report.line(topic)
        report.data["topics"] = topics
        return
    clusters = {place.broker: place.cluster for place in await find_brokers(session, masters_only=False)}
    rows = []
    for topic in topics:
        if topic.startswith(("%RETRY%", "%DLQ%")):
            continue
        route = await topic_route(session, topic)
        cluster = clusters.get(route.broker_datas[0].broker_name, "") if route.broker_datas else ""
        groups = await reading_groups(session, topic) or [""]
        rows += [(cut(cluster, 20), cut(topic, 64), cut(group, 64)) for group in groups]
    report.table(_LIST_FORM, ("#Cluster Name", "#Topic", "#Consumer Group"), _LIST_ROW, rows, "topics")


@verb(
    "topicRoute",
    flag("t", "topic", "topic", "topic name", required=True),
    switch("l", "list", "as_list", "Use list format to print data"),
)
async def topic_route_(session: Session, report: Report, topic: str, as_list: bool) -> None:
    """Examine topic route info."""
    route = await topic_route(session, topic)
    report.data = msgspec.json.decode(route.to_json())
    if not as_list:
        report.line(msgspec.json.format(route.to_json(), indent=2).decode())
        return
    queues = {data.broker_name: data for data in route.queue_datas}
    rows = [
        (
            data.cluster,
            data.broker_name,
            java_map({str(broker_id): address for broker_id, address in data.broker_addrs.items()}),
            queues[data.broker_name].read_queue_nums,
            queues[data.broker_name].write_queue_nums,
            queues[data.broker_name].perm,
        )
        for data in sorted(route.broker_datas, key=lambda data: data.broker_name)
        if data.broker_name in queues
    ]
    titles = ("#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm")
    report.table(_ROUTE_FORM, titles, _ROUTE_FORM, rows, "brokers")
    report.line("-" * 158)
    report.line(_ROUTE_FORM % ("Total:", len(queues), "", sum(row[3] for row in rows), sum(row[4] for row in rows), ""))


@verb(
    "topicStatus",
    flag("t", "topic", "topic", "topic name", required=True),
    flag("c", "cluster", "cluster", "cluster name or lmq parent topic, lmq is used to find the route."),
)
async def topic_status(session: Session, report: Report, topic: str, cluster: str | None) -> None:
    """Examine topic Status info."""
    holding = {data.broker_name for data in (await topic_route(session, cluster or topic)).broker_datas}
    places = [place for place in await find_brokers(session) if place.broker in holding]
    rows, tps = [], 0.0
    for place in places:
        stats = await topic_stats(session, place, topic)
        tps += stats.put_tps
        rows += [
            (
                cut(key.broker_name, 32),
                key.queue_id,
                found.min_offset,
                found.max_offset,
                human_time(found.last_update_timestamp) if found.last_update_timestamp > 0 else "",
            )
            for key, found in stats.ranges.items()
        ]
    titles = ("#Broker Name", "#QID", "#Min Offset", "#Max Offset", "#Last Updated")
    report.table(_STATUS_FORM, titles, _STATUS_FORM, sorted(rows), "queues")
    report.line()
    report.fact(f"Topic Put TPS: {java_double(tps)}", topicPutTps=tps)


@verb(
    "updateTopic",
    flag("b", "brokerAddr", "broker", "create topic to which broker"),
    flag("c", "clusterName", "cluster", "create topic to which cluster"),
    flag("a", "attributes", "attributes", "attribute(+a=b,+c=d,-e)"),
    flag("t", "topic", "topic", "topic name", required=True),
    flag("r", "readQueueNums", "read_queues", "set read queue nums"),
    flag("w", "writeQueueNums", "write_queues", "set write queue nums"),
    flag("p", "perm", "permission", "set topic's permission(2|4|6), intro[2:W 4:R; 6:RW]"),
    flag("o", "order", "order", "set topic's order(true|false)"),
    flag("u", "unit", "unit", "is unit topic (true|false)"),
    flag("s", "hasUnitSub", "unit_sub", "has unit sub (true|false)"),
)
async def update_topic(session: Session, report: Report, **given: str | None) -> None:
    """Update or create topic."""
    one_of(("-b", given["broker"]), ("-c", given["cluster"]))
    changes = _attributes(given["attributes"])
    config = TopicConfig(
        topic_name=given["topic"] or "",
        read_queue_nums=whole_number("-r", given["read_queues"], 8),
        write_queue_nums=whole_number("-w", given["write_queues"], 8),
        perm=permission_number(given["permission"] or "6"),
        topic_sys_flag=(SYS_FLAG_UNIT if is_true(given["unit"]) else 0)
        | (SYS_FLAG_UNIT_SUB if is_true(given["unit_sub"]) else 0),
        order=is_true(given["order"]),
    )
    places = await find_brokers(session, cluster=given["cluster"], broker=given["broker"])
    for place in places:
        await write_topic(session, place, config, {key[1:]: value for key, value in changes.items()})
    if given["broker"] is not None and config.order:
        await _note_order(session, report, config, places, "broker", whole_cluster=False)
    for place in places:
        report.line(f"create topic to {place.address} success.")
    if given["cluster"] is not None and config.order:
        await _note_order(session, report, config, places, "cluster", whole_cluster=True)
    report.line(_config_text(config, changes))
    report.data = {"brokers": [str(place.address) for place in places], "topic": msgspec.to_builtins(config)}


async def _note_order(
    session: Session,
    report: Report,
    config: TopicConfig,
    places: list[BrokerPlace],
    what: str,
    *,
    whole_cluster: bool,
) -> None:
    text = ";".join(f"{place.broker}:{config.write_queue_nums}" for place in places)
    noted = text
    if not whole_cluster:  # what is noted of other brokers stays
        before = await key_value(session, ORDER_NAMESPACE, config.topic_name) or ""
        others = [part for part in before.split(";") if part and part.rpartition(":")[0] != places[0].broker]
        noted = ";".join([*others, text])
    await put_key_value(session, ORDER_NAMESPACE, config.topic_name, noted)
    report.line(f"set {what} orderConf. isOrder=true, orderConf=[{text}]")


@verb(
    "deleteTopic",
    flag("t", "topic", "topic", "topic name", required=True),
    flag("c", "clusterName", "cluster", "delete topic from which cluster", required=True),
)
async def delete_topic(session: Session, report: Report, topic: str, cluster: str) -> None:
    """Delete topic from broker and NameServer."""
    for place in await find_brokers(session, cluster=cluster):
        await session.ask(place.address, RequestCode.DELETE_TOPIC_IN_BROKER, TopicName(topic=topic))
    report.fact(f"delete topic [{topic}] from cluster [{cluster}] success.", topic=topic, cluster=cluster)
    await session.tell_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopic(topic=topic, cluster_name=cluster))
    await delete_key_value(session, ORDER_NAMESPACE, topic)
    report.line(f"delete topic [{topic}] from NameServer success.")


@verb(
    "allocateMQ",
    flag("t", "topic", "topic", "topic name", required=True),
    flag("i", "ipList", "members", "ipList", required=True),
)
async def allocate_queues(session: Session, report: Report, topic: str, members: str) -> None:
    """Allocate MQ."""
    queues = list(route_of(topic, await topic_route(session, topic)).readable)
    everyone = members.split(",")
    share = strategy_from("averagely")
    result = {
        member: [
            {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
            for queue in share(queues, everyone, member)
        ]
        for member in everyone
    }
    report.data = {"result": result}
    report.line(msgspec.json.encode(report.data).decode())


@verb(
    "updateTopicPerm",
    flag("b", "brokerAddr", "broker", "create topic to which broker"),
    flag("c", "clusterName", "cluster", "create topic to which cluster"),
    flag("t", "topic", "topic", "topic name", required=True),
    flag("p", "perm", "permission", "set topic's permission(2|4|6), intro[2:W; 4:R; 6:RW]", required=True),
)
async def update_topic_permission(
    session: Session, report: Report, broker: str | None, cluster: str | None, topic: str, permission: str
) -> None:
    """Update topic perm."""
    one_of(("-b", broker), ("-c", cluster))
    new = permission_number(permission)
    places = await find_brokers(session, cluster=cluster, broker=broker)
    existing = await existing_configs(session, topic, places)
    if not existing:
        raise missing_topic(topic)
    for place in places:
        config = existing.get(place.broker)
        if config is None:
            continue
        if broker is not None and config.perm == new:
            report.fact("new perm equals to the old one!", perm=new)
            return
        changed = msgspec.structs.replace(config, perm=new)
        await write_topic(session, place, changed, {})
        report.fact(
            f"update topic perm from {config.perm} to {new} in {place.address} success.", **{str(place.address): new}
        )
        if broker is not None:
            report.line(f"{_config_text(msgspec.structs.replace(changed, order=False), {})}.")


@verb("topicClusterList", flag("t", "topic", "topic", "topic name", required=True))
async def topic_cluster_list(session: Session, report: Report, topic: str) -> None:
    """Get cluster info for topic."""
    route = await topic_route(session, topic)
    clusters = sorted({data.cluster for data in route.broker_datas})
    for cluster in clusters:
        report.line(cluster)
    report.data["clusters"] = clusters


@verb(
    "updateOrderConf",
    flag("t", "topic", "topic", "topic name", required=True),
    flag("v", "orderConf", "conf", "set order conf [eg. brokerName1:num;brokerName2:num]"),
    flag("m", "method", "method", "option type [eg. put|get|delete", required=True),
)
async def update_order_conf(session: Session, report: Report, topic: str, conf: str | None, method: str) -> None:
    """Create or update or delete order conf."""
    if method == "get":
        found = await key_value(session, ORDER_NAMESPACE, topic)
        if found is None:
            raise RequestFailed(
                ResponseCode.QUERY_NOT_FOUND,
                f"topic {topic!r} has no order conf",
                hint="-m put -v BROKER:QUEUES sets one",
            )
        report.fact(f"get orderConf success. topic=[{topic}], orderConf=[{found}] ", topic=topic, orderConf=found)
    elif method == "put" and conf:
        await put_key_value(session, ORDER_NAMESPACE, topic, conf)
        report.fact(f"update orderConf success. topic=[{topic}], orderConf=[{conf}]", topic=topic, orderConf=conf)
    elif method == "delete":
        await delete_key_value(session, ORDER_NAMESPACE, topic)
        report.fact(f"delete orderConf success. topic=[{topic}]", topic=topic)
    else:
        raise click.UsageError("-m is put (with -v), get or delete")


def _config_text(config: TopicConfig, changes: dict[str, str | None]) -> str:
    """Java: TopicConfig.toString"""
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums}, "
        f"writeQueueNums={config.write_queue_nums}, perm={permission_letters(config.perm)}, "
        f"topicFilterType={config.topic_filter_type}, topicSysFlag={config.topic_sys_flag}, "
        f"order={java_text(config.order)}, attributes={java_map({k: v or '' for k, v in changes.items()})}]"
    )


def permission_letters(number: int) -> str:
    """Java: PermName.perm2String"""
    return "".join(letter if number & bit else "-" for letter, bit in (("R", 4), ("W", 2), ("X", 1)))


def _attributes(text: str | None) -> dict[str, str | None]:
    """`+a=b,-c`: each with its sign; None takes one away. Java: AttributeParser.parseToMap"""
    changes: dict[str, str | None] = {}
    for part in (text or "").split(","):
        key, equals, value = part.strip().partition("=")
        if key:
            changes[key] = value if equals else None
    return changes
