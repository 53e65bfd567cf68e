"""Verbs about consumer groups and clients. Java: `tools.command.consumer`, `.connection`"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from orbitmq.admin.brokers import BrokerPlace, find_brokers
from orbitmq.admin.group_checks import running_info, subscriptions_of
from orbitmq.admin.groups import connection_on
from orbitmq.admin.offsets import consume_stats
from orbitmq.admin.topics import topic_names
from orbitmq.cli.mqadmin.report import Report, cut, java_map, java_text
from orbitmq.cli.mqadmin.running_info import running_info_text
from orbitmq.cli.mqadmin.verb import flag, is_true, one_of, switch, verb, whole_number
from orbitmq.client.names import DLQ_PREFIX, RETRY_PREFIX
from orbitmq.errors import RequestFailed
from orbitmq.protocol import versions
from orbitmq.protocol.bodies.groups import ClientConnection, ConsumerConnection, GroupConfig, ProducerConnection
from orbitmq.protocol.bodies.offsets import ConsumeStats
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.headers.admin import DeleteGroup, ProducerGroup, TopicName
from orbitmq.protocol.headers.nameserver import DeleteTopic
from orbitmq.transport.address import parse_address

if TYPE_CHECKING:
    from orbitmq.admin.session import Session

_PROGRESS_TITLES: Final = (
    "#Topic", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset", "#Diff", "#Inflight", "#LastTime",
)  # fmt: skip
_GROUP_TITLES: Final = ("#Group", "#Count", "#Version", "#Type", "#Model", "#TPS", "#Diff Total")
_GROUP_FORM: Final = "%-64s  %-6s  %-24s %-5s  %-14s  %-7s  %s"


@verb(
    "updateSubGroup",
    flag("b", "brokerAddr", "broker", "create subscription group to which broker"),
    flag("c", "clusterName", "cluster", "create subscription group to which cluster"),
    flag("g", "groupName", "group", "consumer group name", required=True),
    flag("s", "consumeEnable", "enabled", "consume enable"),
    flag("m", "consumeFromMinEnable", "from_min", "from min offset"),
    flag("d", "consumeBroadcastEnable", "broadcast", "broadcast"),
    flag("o", "consumeMessageOrderly", "orderly", "consume message orderly"),
    flag("q", "retryQueueNums", "retry_queues", "retry queue nums"),
    flag("r", "retryMaxTimes", "max_retries", "retry max times"),
    flag("p", "groupRetryPolicy", "policy", "the json string of retry policy"),
    flag("i", "brokerId", "broker_id", "consumer from which broker id"),
    flag("w", "whichBrokerWhenConsumeSlowly", "slow_broker_id", "which broker id when consume slowly"),
    flag("a", "notifyConsumerIdsChanged", "notify", "notify consumerId changed"),
    flag("", "attributes", "attributes", "attribute(+a=b,+c=d,-e)"),
)
async def update_group(session: Session, report: Report, **given: str | None) -> None:
    """Update or create subscription group."""
    one_of(("-b", given["broker"]), ("-c", given["cluster"]))
    config = _group_config(given)
    for place in await find_brokers(session, cluster=given["cluster"], broker=given["broker"]):
        await session.ask(place.address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config.to_json())
        report.line(f"create subscription group to {place.address} success.")
    report.line("SubscriptionGroupConfig" + java_map(group_fields(config)))
    report.data = msgspec.to_builtins(config)


def _group_config(given: dict[str, str | None]) -> GroupConfig:
    config = GroupConfig(
        group_name=given["group"] or "",
        consume_enable=given["enabled"] is None or is_true(given["enabled"]),
        consume_from_min_enable=is_true(given["from_min"]),
        consume_broadcast_enable=is_true(given["broadcast"]),
        consume_message_orderly=is_true(given["orderly"]),
        retry_queue_nums=whole_number("-q", given["retry_queues"], 1),
        retry_max_times=whole_number("-r", given["max_retries"], 16),
        broker_id=whole_number("-i", given["broker_id"], 0),
        which_broker_when_consume_slowly=whole_number("-w", given["slow_broker_id"], 1),
        notify_consumer_ids_changed_enable=given["notify"] is None or is_true(given["notify"]),
    )
    if given["policy"] is not None:
        try:
            config.group_retry_policy = msgspec.json.decode(given["policy"], type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise click.UsageError(f"-p is no JSON object: {error}") from None
    for part in (given["attributes"] or "").split(","):
        key, _, value = part.strip().partition("=")
        if key:
            config.attributes[key] = value
    return config


def group_fields(config: GroupConfig) -> dict[str, object]:
    """In the order and under the names of Java's SubscriptionGroupConfig."""
    policy = config.group_retry_policy
    return {
        "groupName": config.group_name,
        "consumeEnable": config.consume_enable,
        "consumeFromMinEnable": config.consume_from_min_enable,
        "consumeBroadcastEnable": config.consume_broadcast_enable,
        "consumeMessageOrderly": config.consume_message_orderly,
        "retryQueueNums": config.retry_queue_nums,
        "retryMaxTimes": config.retry_max_times,
        "groupRetryPolicy": f"GroupRetryPolicy{{type={policy.get('type')}, exponentialRetryPolicy="
        f"{java_text(policy.get('exponentialRetryPolicy'))}, customizedRetryPolicy="
        f"{java_text(policy.get('customizedRetryPolicy'))}}}",
        "brokerId": config.broker_id,
        "whichBrokerWhenConsumeSlowly": config.which_broker_when_consume_slowly,
        "notifyConsumerIdsChangedEnable": config.notify_consumer_ids_changed_enable,
        "groupSysFlag": config.group_sys_flag,
        "consumeTimeoutMinute": config.consume_timeout_minute,
        "subscriptionDataSet": config.subscription_data_set,
        "attributes": java_map(config.attributes),
    }


@verb(
    "deleteSubGroup",
    flag("b", "brokerAddr", "broker", "delete subscription group from which broker"),
    flag("c", "clusterName", "cluster", "delete subscription group from which cluster"),
    flag("g", "groupName", "group", "subscription group name", required=True),
    flag("r", "removeOffset", "remove_offset", "remove offset"),
)
async def delete_group(
    session: Session, report: Report, broker: str | None, cluster: str | None, group: str, remove_offset: str | None
) -> None:
    """Delete subscription group from broker."""
    one_of(("-b", broker), ("-c", cluster))
    header = DeleteGroup(group_name=group, clean_offset=is_true(remove_offset))
    places = await find_brokers(session, cluster=cluster, broker=broker)
    for place in places:
        await session.ask(place.address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
        where = f" in cluster [{cluster}]" if cluster is not None else ""
        report.line(f"delete subscription group [{group}] from broker [{place.address}]{where} success.")
    report.data = {"group": group, "brokers": [str(place.address) for place in places]}
    if cluster is None:
        return
    for topic in (RETRY_PREFIX + group, DLQ_PREFIX + group):
        for place in places:
            await session.ask(place.address, RequestCode.DELETE_TOPIC_IN_BROKER, TopicName(topic=topic))
        header_ = DeleteTopic(topic=topic, cluster_name=cluster)
        await session.tell_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, header_)
        report.line(f"delete topic [{topic}] from cluster [{cluster}] success.")
        report.line(f"delete topic [{topic}] from NameServer success.")


# ---- how far groups are


@verb(
    "consumerProgress",
    flag("g", "groupName", "group", "consumer group name"),
    flag("t", "topicName", "topic", "topic name"),
    flag("s", "showClientIP", "show_client", "Show Client IP per Queue"),
    flag("c", "cluster", "cluster", "Cluster name or lmq parent topic, lmq is used to find the route."),
)
async def consumer_progress(
    session: Session,
    report: Report,
    group: str | None,
    topic: str | None,
    show_client: str | None,
    cluster: str | None,
) -> None:
    """Query consumer's progress, speed."""
    places = await find_brokers(session, cluster=cluster)
    if group is None:
        rows = [await _group_row(session, name, places) for name in await _groups_with_retries(session)]
        report.table(_GROUP_FORM, _GROUP_TITLES, _GROUP_FORM, rows, "groups")
        return
    merged = await _merged_stats(session, group, places, topic)
    if not merged.offsets:
        raise RequestFailed(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f"group {group!r} has read nothing yet, or does not exist",
            hint="`orbitmq group ls` lists the groups",
        )
    clients = await _queue_owners(session, group, places) if is_true(show_client) else None
    _progress_table(report, merged, clients)
    lags = merged.offsets.values()
    diff = sum(lag.broker_offset - lag.consumer_offset for lag in lags)
    inflight = sum(lag.pull_offset - lag.consumer_offset for lag in lags)
    report.line()
    report.fact(f"Consume TPS: {merged.tps:.2f}", consumeTps=merged.tps)
    report.fact(f"Consume Diff Total: {diff}", diffTotal=diff)
    report.fact(f"Consume Inflight Total: {inflight}", inflightTotal=inflight)


def _progress_table(report: Report, stats: ConsumeStats, clients: dict[tuple[str, str, int], str] | None) -> None:
    rows: list[tuple[object, ...]] = []
    for key, lag in sorted(
        stats.offsets.items(), key=lambda pair: (pair[0].topic, pair[0].broker_name, pair[0].queue_id)
    ):
        at = datetime.fromtimestamp(lag.last_timestamp / 1000, UTC).astimezone()
        place = (cut(key.topic, 64), cut(key.broker_name, 32), key.queue_id, lag.broker_offset, lag.consumer_offset)
        client = () if clients is None else (clients.get((key.topic, key.broker_name, key.queue_id), "N/A"),)
        last = f"{at:%Y-%m-%d %H:%M:%S}" if lag.last_timestamp else "N/A"
        differences = (lag.broker_offset - lag.consumer_offset, lag.pull_offset - lag.consumer_offset)
        rows.append((*place, *client, *differences, last))
    if clients is None:
        form = "%-64s  %-32s  %-4s  %-20s  %-20s  %-20s %-20s"
        report.table(f"{form}%s", _PROGRESS_TITLES, f"{form} %s", rows, "queues")
    else:
        form = "%-64s  %-32s  %-4s  %-20s  %-20s  %-20s %-20s %-20s"
        titles = (*_PROGRESS_TITLES[:5], "#Client IP", *_PROGRESS_TITLES[5:])
        report.table(f"{form}%s", titles, f"{form} %s", rows, "queues")


async def _groups_with_retries(session: Session) -> list[str]:
    return [
        topic.removeprefix(RETRY_PREFIX).partition("+")[0]
        for topic in await topic_names(session)
        if topic.startswith(RETRY_PREFIX)
    ]


async def _merged_stats(
    session: Session, group: str, places: list[BrokerPlace], topic: str | None = None
) -> ConsumeStats:
    merged = ConsumeStats({})
    for place in places:
        found = await consume_stats(session, place, group, topic)
        merged.offsets.update(found.offsets)
        merged.tps += found.tps
    return merged


async def _group_row(session: Session, group: str, places: list[BrokerPlace]) -> tuple[object, ...]:
    stats = await _merged_stats(session, group, places)
    diff = sum(lag.broker_offset - lag.consumer_offset for lag in stats.offsets.values())
    connection = await _connection(session, group, places)
    if connection is None or not connection.connection_set:
        return (cut(group, 64), 0, "OFFLINE", "", "", int(stats.tps), diff)
    return (
        cut(group, 64),
        len(connection.connection_set),
        versions.name(min(client.version for client in connection.connection_set)),
        "PULL" if connection.consume_type == "CONSUME_ACTIVELY" else "PUSH",
        connection.message_model,
        int(stats.tps),
        diff,
    )


async def _connection(session: Session, group: str, places: list[BrokerPlace]) -> ConsumerConnection | None:
    for place in places:
        found = await connection_on(session, group, place)
        if found is not None:
            return found
    return None


async def _queue_owners(session: Session, group: str, places: list[BrokerPlace]) -> dict[tuple[str, str, int], str]:
    connection = await _connection(session, group, places)
    owners: dict[tuple[str, str, int], str] = {}
    for client in connection.connection_set if connection is not None else []:
        info = await running_info(session, group, client.client_id)
        for key in info.get("mqTable", {}):
            queue = dict(key) if not isinstance(key, str) else msgspec.json.decode(key)
            owners[queue["topic"], queue["brokerName"], int(queue["queueId"])] = client.client_id.split("@")[0]
    return owners


# ---- clients


@verb(
    "consumerConnection",
    flag("g", "consumerGroup", "group", "consumer group name", required=True),
    flag("b", "brokerAddr", "broker", "broker address"),
)
async def consumer_connection(session: Session, report: Report, group: str, broker: str | None) -> None:
    """Query consumer's socket connection, client version and subscription."""
    found = await _connection(session, group, await find_brokers(session, broker=broker))
    if found is None:
        raise RequestFailed(
            ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online", hint="start a consumer of it"
        )
    form = "%-36s %-22s %-10s %s"
    report.table(
        form, ("#ClientId", "#ClientAddr", "#Language", "#Version"), form, _clients(found.connection_set), "clients"
    )
    report.line()
    report.line("Below is subscription:")
    rows = [(one.topic, one.sub_string) for one in found.subscription_table.values()]
    report.table("%-20s %s", ("#Topic", "#SubExpression"), "%-20s %s", rows, "subscriptions")
    report.line()
    report.fact(f"ConsumeType: {found.consume_type}", consumeType=found.consume_type)
    report.fact(f"MessageModel: {found.message_model}", messageModel=found.message_model)
    report.fact(f"ConsumeFromWhere: {found.consume_from_where}", consumeFromWhere=found.consume_from_where)


@verb(
    "producerConnection",
    flag("g", "producerGroup", "group", "producer group name", required=True),
    flag("t", "topic", "topic", "topic name", required=True),
)
async def producer_connection(session: Session, report: Report, group: str, topic: str) -> None:
    """Query producer's socket connection and client version."""
    header = ProducerGroup(producer_group=group)
    place = (await find_brokers(session))[0]
    answer = await session.ask(place.address, RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
    rows = _clients(ProducerConnection.from_json(answer.body).connection_set)
    for number, row in enumerate(rows, 1):
        report.line("%04d  %-32s %-22s %-8s %s" % (number, *row))  # noqa: UP031 - the original's form
    report.data["clients"] = [
        dict(zip(("clientId", "clientAddr", "language", "version"), row, strict=True)) for row in rows
    ]


def _clients(connections: list[ClientConnection]) -> list[tuple[str, str, str, str]]:
    return [(one.client_id, one.client_addr, one.language, versions.name(one.version)) for one in connections]


@verb(
    "consumerStatus",
    flag("g", "consumerGroup", "group", "consumer group name", required=True),
    flag("i", "clientId", "client_id", "The consumer's client id"),
    flag("b", "brokerAddr", "broker", "broker address"),
    switch("s", "jstack", "stacks", "Run jstack command in the consumer progress"),
)
async def consumer_status(
    session: Session, report: Report, group: str, client_id: str | None, broker: str | None, stacks: bool
) -> None:
    """Query consumer's internal data structure."""
    if client_id is not None:
        info = await running_info(session, group, client_id, with_stacks=stacks)
        report.data = (
            msgspec.json.decode(msgspec.json.encode(info, enc_hook=str)) if not info else {"client": client_id}
        )
        report.line(running_info_text(info).rstrip("\n"))
        return
    place = [parse_address(broker)] if broker is not None else [one.address for one in await find_brokers(session)]
    found = await _connection(session, group, [one for one in await find_brokers(session) if one.address in place])
    if found is None:
        raise RequestFailed(
            ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online", hint="start a consumer of it"
        )
    said = {one.client_id: await running_info(session, group, one.client_id) for one in found.connection_set}
    rows = [
        (number, one.client_id, versions.name(one.version), "use -i to print it")
        for number, one in enumerate(found.connection_set, 1)
    ]
    form = "%-10s %-40s %-20s %s"
    report.table(form, ("#Index", "#ClientId", "#Version", "#ConsumerRunningInfoFile"), form, rows, "clients")
    same = len({subscriptions_of(info) for info in said.values()}) <= 1
    report.line("\n")
    if same:
        report.fact("Same subscription in the same group of consumer", sameSubscription=True)
        report.line("\n\nRebalance OK")
    else:
        report.fact("WARN: Different subscription in the same group of consumer!!!", sameSubscription=False)
