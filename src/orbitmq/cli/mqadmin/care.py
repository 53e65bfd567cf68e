"""Verbs that look into brokers, and set them to work. Java: `tools.command.broker`, `.ha`, `.queue`, `.consumer`"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.admin.brokers import find_brokers
from orbitmq.admin.groups import group_tables, missing_group
from orbitmq.admin.topics import topic_route
from orbitmq.admin.traces import TraceEvent, trace_events
from orbitmq.cli.mqadmin.groups import group_fields
from orbitmq.cli.mqadmin.report import Report, cut, human_time, java_text
from orbitmq.cli.mqadmin.verb import flag, is_true, one_of, verb, whole_number
from orbitmq.client.names import TRACE_TOPIC
from orbitmq.protocol.bodies.admin import HaStatus, QueueEntries
from orbitmq.protocol.bodies.groups import ProducerTable
from orbitmq.protocol.bodies.offsets import ConsumeStatsList
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.headers.admin import BrokerConsumeStats, QueryConsumeQueue
from orbitmq.transport.address import Address, parse_address

if TYPE_CHECKING:
    import click

    from orbitmq.admin.session import Session

_RULE: Final = "======================================"
_STATS_TITLES: Final = (
    "#Topic", "#Group", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset", "#Diff", "#LastTime",
)  # fmt: skip
_STATS_FORM: Final = "%-64s  %-64s  %-32s  %-4s  %-20s  %-20s  %-20s  %s"
_TRACE_FORM: Final = "%-10s %-20s %-20s %-20s %-10s %-10s"
_SLAVE_FORM: Final = "%-32s  %-16s %16s %16s %16s %16s"


# ---- looking


@verb(
    "brokerConsumeStats",
    flag("b", "brokerAddr", "broker", "Broker address", required=True),
    flag("t", "timeoutMillis", "timeout", "request timeout Millis"),
    flag("l", "level", "level", "threshold of print diff"),
    flag("o", "order", "ordered", "order topic"),
)
async def broker_consume_stats(
    session: Session, report: Report, broker: str, timeout: str | None, level: str | None, ordered: str | None
) -> None:
    """Fetch broker consume stats data."""
    header = BrokerConsumeStats(is_order=is_true(ordered))
    answer = await session.ask(parse_address(broker), RequestCode.GET_BROKER_CONSUME_STATS, header)
    rows, total = [], 0
    for group, topics in ConsumeStatsList.from_json(answer.body).groups.items():
        for stats in topics:
            for key, lag in sorted(stats.offsets.items(), key=lambda pair: (pair[0].topic, pair[0].queue_id)):
                diff = lag.broker_offset - lag.consumer_offset
                total += diff
                if diff < whole_number("-l", level, 0) or lag.last_timestamp <= 0:
                    continue
                place = (cut(key.topic, 64), group, cut(key.broker_name, 32), key.queue_id)
                rows.append((*place, lag.broker_offset, lag.consumer_offset, diff, _seconds(lag.last_timestamp)))
    report.table(_STATS_FORM, _STATS_TITLES, _STATS_FORM, rows, "queues")
    report.line()
    report.fact(f"Diff Total: {total}", diffTotal=total)


@verb("getConsumerConfig", flag("g", "groupName", "group", "subscription group name", required=True))
async def get_consumer_config(session: Session, report: Report, group: str) -> None:
    """Get consumer config by subscription group name."""
    places = await find_brokers(session)
    configs = (await group_tables(session, places)).get(group)
    if configs is None:
        raise missing_group(group)
    for place in places:
        if place.broker not in configs:
            continue
        rule = "=" * 29
        report.line(f"{rule}{place.cluster}:{place.broker}{rule}")
        for name, value in group_fields(configs[place.broker]).items():
            report.line(f"{name:<40}=  {'' if value is None else java_text(value)}")
        report.data[place.broker] = msgspec.to_builtins(configs[place.broker])


@verb("producer", flag("b", "broker", "broker", "broker address", required=True))
async def all_producers(session: Session, report: Report, broker: str) -> None:
    """Query producer's instances, connection, status, etc."""
    answer = await session.ask(parse_address(broker), RequestCode.GET_ALL_PRODUCER_INFO)
    table = ProducerTable.from_json(answer.body).data
    report.data["groups"] = msgspec.to_builtins(table)
    for group, producers in table.items():
        for one in producers:
            report.line(
                f"producer group ({group}) instance : clientId={one.client_id},remoteIP={one.remote_ip}, "
                f"language={one.language}, version={one.version}, lastUpdateTimestamp={one.last_update_timestamp}"
            )


@verb(
    "haStatus",
    flag("c", "clusterName", "cluster", "which cluster"),
    flag("b", "brokerAddr", "broker", "which broker to fetch"),
    flag("i", "interval", "interval", "not done here: use `watch`"),
)
async def ha_status(
    session: Session, report: Report, cluster: str | None, broker: str | None, interval: str | None
) -> None:
    """Fetch ha runtime status data."""
    for address in await _addresses(session, cluster, broker):
        status = HaStatus.from_json((await session.ask(address, RequestCode.GET_BROKER_HA_STATUS)).body)
        report.data[str(address)] = msgspec.to_builtins(status)
        report.line()
        if not status.master:
            slave = status.ha_client_runtime_info
            report.line(f"#MasterAddr\t{java_text(slave.master_addr)}")
            report.line(f"#CommitLogMaxOffset\t{slave.max_offset}")
            report.line(f"#TransferSpeed(KB/s)\t{slave.transferred_byte_in_second / 1024:.2f}")
            report.line(f"#LastReadTime\t{human_time(slave.last_read_timestamp)}")
            report.line(f"#LastWriteTime\t{human_time(slave.last_write_timestamp)}")
            report.line(f"#MasterFlushOffset\t{slave.master_flush_offset}")
            continue
        report.line(f"#MasterAddr\t{address}")
        report.line(f"#MasterCommitLogMaxOffset\t{status.master_commit_log_max_offset}")
        report.line(f"#SlaveNum\t{len(status.ha_connection_info)}")
        report.line(f"#InSyncSlaveNum\t{status.in_sync_slave_nums}")
        titles = ("#SlaveAddr", "#SlaveAckOffset", "#Diff", "#TransferSpeed(KB/s)", "#Status", "#TransferFromWhere")
        report.line(_SLAVE_FORM % titles)
        for one in status.ha_connection_info:
            speed = f"{one.transferred_byte_in_second / 1024:.2f}"
            state = "OK" if one.in_sync else "Fall Behind"
            where = (one.addr, one.slave_ack_offset, one.diff, speed, state, one.transfer_from_where)
            report.line(_SLAVE_FORM % where)


@verb(
    "queryCq",
    flag("t", "topic", "topic", "topic name", required=True),
    flag("q", "queue", "queue_id", "queue num, ie. 1", required=True),
    flag("i", "index", "index", "start queue index.", required=True),
    flag("c", "count", "count", "how many."),
    flag("b", "broker", "broker", "broker addr."),
    flag("g", "consumer", "group", "consumer group."),
)
async def query_queue_index(session: Session, report: Report, topic: str, **given: str | None) -> None:
    """Query cq command."""
    address = given["broker"]
    if address is None:
        address = (await topic_route(session, topic)).broker_datas[0].broker_addrs[0]
    first = whole_number("-i", given["index"], 0)
    header = QueryConsumeQueue(
        topic=topic,
        queue_id=whole_number("-q", given["queue_id"], 0),
        index=first,
        count=whole_number("-c", given["count"], 10),
        consumer_group=given["group"],
    )
    answer = await session.ask(parse_address(address), RequestCode.QUERY_CONSUME_QUEUE, header)
    found = QueueEntries.from_json(answer.body)
    report.data = msgspec.to_builtins(found)
    if found.subscription_data is not None:
        report.line("Subscription data: ")
        report.line(msgspec.json.format(found.subscription_data.to_json(), indent=1).decode())
        report.line(_RULE)
    if found.filter_data is not None:
        report.line(f"Filter data: \n{found.filter_data}\n{_RULE}")
    report.line(f"Queue data: \nmax: {found.max_queue_index}, min: {found.min_queue_index}\n{_RULE}")
    for number, entry in enumerate(found.queue_data, first):
        report.line(f"idx: {number}")
        report.line(
            f"ConsumeQueueData{{physicOffset={entry.physic_offset}, physicSize={entry.physic_size}, "
            f"tagsCode={entry.tags_code}, extendDataJson='null', bitMap='null', eval={java_text(entry.eval)}, msg='null'}}"
        )
        report.line(_RULE)


@verb(
    "queryMsgTraceById",
    flag("i", "msgId", "message_id", "Message Id", required=True),
    flag("t", "traceTopic", "trace_topic", "The name value of message trace topic"),
    flag("b", "beginTimestamp", "begin", "not done here: all traces are read"),
    flag("e", "endTimestamp", "end", "not done here: all traces are read"),
    flag("c", "maxNum", "most", "not done here: all traces are read"),
)
async def query_trace(
    session: Session, report: Report, message_id: str, trace_topic: str | None, **_: str | None
) -> None:
    """Query a message trace."""
    events = await trace_events(session, message_id, trace_topic or TRACE_TOPIC)
    report.data["events"] = [msgspec.to_builtins(event) for event in events]
    for event in events:
        if event.kind == "sent":
            titles = ("#Type", "#ProducerGroup", "#ClientHost", "#SendTime", "#CostTimes", "#Status")
            report.line(_TRACE_FORM % titles)
            report.line(_TRACE_FORM % _trace_row("Pub", event))
            report.line()
    deliveries = [event for event in events if event.kind == "consumed" and event.outcome != "unknown"]
    for group in dict.fromkeys(event.group for event in deliveries):
        titles = ("#Type", "#ConsumerGroup", "#ClientHost", "#ConsumerTime", "#CostTimes", "#Status")
        report.line(_TRACE_FORM % titles)
        for event in deliveries:
            if event.group == group:
                report.line(_TRACE_FORM % _trace_row("Sub", event))
        report.line()


def _trace_row(kind: str, event: TraceEvent) -> tuple[object, ...]:
    when = f"{event.at.astimezone():%Y-%m-%d %H:%M:%S}" if event.at is not None else ""
    status = "success" if event.outcome == "success" else "failed"
    return (kind, event.group, event.client.rpartition(":")[0], when, f"{event.cost_ms or 0}ms", status)


# ---- setting to work


def _work(name: str, code: RequestCode, text: str) -> click.Command:
    async def work(session: Session, report: Report, broker: str | None, cluster: str | None) -> None:
        addresses = await _addresses(session, cluster, broker, everywhere=True)
        for address in addresses:
            await session.ask(address, code)
        report.fact("success", brokers=[str(address) for address in addresses])

    work.__doc__ = text
    decorated = verb(
        name, flag("b", "brokerAddr", "broker", "Broker address"), flag("c", "cluster", "cluster", "clustername")
    )
    return decorated(work)


clean_expired_queues = _work(
    "cleanExpiredCQ", RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, "Clean expired ConsumeQueue on broker."
)
clean_unused_topics = _work("cleanUnusedTopic", RequestCode.CLEAN_UNUSED_TOPIC, "Clean unused topic on broker.")
delete_expired_log = _work(
    "deleteExpiredCommitLog", RequestCode.DELETE_EXPIRED_COMMITLOG, "Delete expired CommitLog files."
)


async def _addresses(
    session: Session, cluster: str | None, broker: str | None, *, everywhere: bool = False
) -> list[Address]:
    if not everywhere or (cluster is not None and broker is not None):
        one_of(("-b", broker), ("-c", cluster))
    if broker is not None:
        return [parse_address(broker)]
    return [place.address for place in await find_brokers(session, cluster=cluster)]


def _seconds(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC).astimezone():%Y-%m-%d %H:%M:%S}"
