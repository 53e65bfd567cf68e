"""Verbs about messages. Java: `tools.command.message`"""

from __future__ import annotations

from collections import Counter
from time import perf_counter
from typing import TYPE_CHECKING, Final

import click

from orbitmq.admin.brokers import find_brokers
from orbitmq.admin.groups import connection_on
from orbitmq.admin.messages import TopicReader, message_row, missing_message, stored_at, stored_by_key, storing_broker
from orbitmq.admin.sending import PRODUCER_GROUP
from orbitmq.admin.traces import group_states
from orbitmq.cli.mqadmin.message_text import print_message, pulled_line
from orbitmq.cli.mqadmin.verb import flag, is_true, switch, verb, whole_number
from orbitmq.cli.times import parse_moment
from orbitmq.client import questions
from orbitmq.client.client import Client
from orbitmq.clock import SystemClock
from orbitmq.errors import OrbitError
from orbitmq.message import QueueRef

if TYPE_CHECKING:
    from orbitmq.admin.session import Session
    from orbitmq.cli.mqadmin.report import Report
    from orbitmq.message import StoredMessage

_SEND_FORM: Final = "%-32s  %-4s  %-20s    %s"
_AT_ONCE: Final = 32
_STATES: Final = {
    "read": "CONSUMED",
    "not read yet": "NOT_CONSUME_YET",
    "filtered out": "CONSUMED_BUT_FILTERED",
    "broadcasting": "CONSUME_BROADCASTING",
}


@verb(
    "queryMsgById",
    flag("t", "topic", "topic", "topic name", required=True),
    flag("i", "msgId", "ids", "Message Id", required=True),
    flag("f", "bodyFormat", "charset", "print message body by the specified format"),
    flag("c", "cluster", "cluster", "Cluster name or lmq parent topic, lmq is used to find the route."),
)
async def query_by_id(
    session: Session, report: Report, topic: str, ids: str, charset: str | None, cluster: str | None
) -> None:
    """Query Message by Id."""
    for message_id in filter(None, (part.strip() for part in ids.split(","))):
        place = await storing_broker(session, message_id)
        if place is not None:
            stored, broker = await stored_at(session, place, message_id), place.broker
        else:
            found = await stored_by_key(session, topic, message_id, unique=True, limit=32)
            if not found:
                raise missing_message(f"there is no message {message_id} in topic {topic!r}")
            broker, stored = found[0]
        print_message(report, stored, with_offset_id=True, charset=charset)
        await _tracks(session, report, stored, broker)


@verb(
    "queryMsgByKey",
    flag("t", "topic", "topic", "Topic name", required=True),
    flag("k", "msgKey", "key", "Message Key", required=True),
    flag("b", "beginTimestamp", "begin", "Begin timestamp(ms). default:0, eg:1676730526212"),
    flag("e", "endTimestamp", "end", "End timestamp(ms). default:Long.MAX_VALUE, eg:1676730526212"),
    flag("m", "maxNum", "most", "The maximum number of messages returned by the query, default:64"),
    flag("c", "cluster", "cluster", "Cluster name or lmq parent topic, lmq is used to find the route."),
)
async def query_by_key(
    session: Session,
    report: Report,
    topic: str,
    key: str,
    begin: str | None,
    end: str | None,
    most: str | None,
    cluster: str | None,
) -> None:
    """Query Message by Key."""
    found = await stored_by_key(
        session,
        topic,
        key,
        limit=whole_number("-m", most, 64),
        begin_ms=whole_number("-b", begin, 0),
        end_ms=whole_number("-e", end, 0) or None,
    )
    if not found:
        raise missing_message(f"topic {topic!r} has no message with key {key!r}")
    form = "%-50s %4s %40s"
    rows = [(stored.message_id, stored.queue_id, stored.queue_offset) for _, stored in found]
    report.table(form, ("#Message ID", "#QID", "#Offset"), form, rows, "messages")


@verb(
    "queryMsgByUniqueKey",
    flag("i", "msgId", "message_id", "Message Id", required=True),
    flag("t", "topic", "topic", "The topic of msg", required=True),
    switch("a", "showAll", "show_all", "Print all message, the limit is 32"),
    flag("c", "cluster", "cluster", "Cluster name or lmq parent topic, lmq is used to find the route."),
)
async def query_by_unique_key(
    session: Session, report: Report, message_id: str, topic: str, show_all: bool, cluster: str | None
) -> None:
    """Query Message by Unique key."""
    found = await stored_by_key(session, topic, message_id, unique=True, limit=32)
    found.sort(key=lambda pair: pair[1].stored_at_ms)
    for broker, stored in found if show_all else found[:1]:
        print_message(report, stored, with_offset_id=False, charset=None)
        await _tracks(session, report, stored, broker)


@verb(
    "queryMsgByOffset",
    flag("t", "topic", "topic", "topic name", required=True),
    flag("b", "brokerName", "broker", "Broker Name", required=True),
    flag("i", "queueId", "queue_id", "Queue Id", required=True),
    flag("o", "offset", "offset", "Queue Offset", required=True),
    flag("f", "bodyFormat", "charset", "print message body by the specified format"),
)
async def query_by_offset(
    session: Session, report: Report, topic: str, broker: str, queue_id: str, offset: str, charset: str | None
) -> None:
    """Query Message by offset."""
    reader = TopicReader(session)
    await reader.queues(topic)  # learns where the broker is
    queue = QueueRef(topic, broker, whole_number("-i", queue_id, 0))
    fetched = await reader.fetch(queue, whole_number("-o", offset, 0), 1)
    for message in fetched.messages[:1]:
        stored = with_bounds(message.stored, fetched.min_offset, fetched.max_offset)
        print_message(report, stored, with_offset_id=True, charset=charset)
        await _tracks(session, report, stored, broker)


async def _tracks(session: Session, report: Report, stored: StoredMessage, broker: str) -> None:
    """Whether the groups of its topic have read it. Java: MessageTrack"""
    states = await group_states(session, message_row(stored, broker))
    place = next((one for one in await find_brokers(session) if one.broker == broker), None)
    report.line("\n")
    tracks = []
    for state in states:
        kind, problem = _STATES[state.state], None
        if not state.online:
            kind, problem = "NOT_ONLINE", f"CODE:206 DESC:the consumer group[{state.group}] not online"
        elif place is not None and state.state in ("read", "not read yet"):
            connection = await connection_on(session, state.group, place)
            if connection is not None and connection.consume_type == "CONSUME_ACTIVELY":
                kind = "PULL"
        tracks.append({"consumerGroup": state.group, "trackType": kind})
        report.line(f"MessageTrack [consumerGroup={state.group}, trackType={kind}, exceptionDesc={problem or 'null'}]")
    if not states:
        report.line("WARN: No Consumer")
    report.data["messages"][-1]["tracks"] = tracks


@verb(
    "printMsg",
    flag("t", "topic", "topic", "topic name", required=True),
    flag("c", "charsetName", "charset", "CharsetName(eg: UTF-8,GBK)"),
    flag("s", "subExpression", "tags", "Subscribe Expression(eg: TagA || TagB)"),
    flag("b", "beginTimestamp", "begin", "Begin timestamp[currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]"),
    flag("e", "endTimestamp", "end", "End timestamp[currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]"),
    flag("d", "printBody", "with_body", "print body"),
)
async def print_messages(
    session: Session,
    report: Report,
    topic: str,
    charset: str | None,
    tags: str | None,
    begin: str | None,
    end: str | None,
    with_body: str | None,
) -> None:
    """Print Message Detail."""
    begin_ms, end_ms = _timestamp("-b", begin), _timestamp("-e", end)
    reader = TopicReader(session)
    messages = report.items("messages")
    for queue in await reader.queues(topic):
        low, high = await _bounds(session, queue, begin_ms, end_ms)
        report.line(f"minOffset={low}, maxOffset={high}, {queue_text(queue)}")
        offset = low
        while offset < high:
            fetched = await reader.fetch(queue, offset, _AT_ONCE, tags)
            if fetched.next_offset <= offset:
                break
            offset = fetched.next_offset
            for message in fetched.messages:
                stored = with_bounds(message.stored, fetched.min_offset, fetched.max_offset)
                report.line(
                    pulled_line(
                        stored, queue.broker_name, charset or "UTF-8", with_body=with_body is None or is_true(with_body)
                    )
                )
                messages.append(_summary(stored, queue))
            if not fetched.messages:
                report.line(f"{queue_text(queue)} no matched msg. status=NO_MATCHED_MSG, offset={offset}")
        report.line("--------------------------------------------------------")


@verb(
    "printMsgByQueue",
    flag("t", "topic", "topic", "topic name", required=True),
    flag("a", "brokerName", "broker", "broker name", required=True),
    flag("i", "queueId", "queue_id", "queue id", required=True),
    flag("c", "charsetName", "charset", "CharsetName(eg: UTF-8,GBK)"),
    flag("s", "subExpression", "tags", "Subscribe Expression(eg: TagA || TagB)"),
    flag("b", "beginTimestamp", "begin", "Begin timestamp[currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]"),
    flag("e", "endTimestamp", "end", "End timestamp[currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]"),
    flag("p", "print", "printed", "print msg. eg: true | false(default)"),
    flag("d", "printBody", "with_body", "print body. eg: true | false(default)"),
    flag("f", "calculate", "by_tag", "calculate by tag. eg: true | false(default)"),
)
async def print_queue(session: Session, report: Report, topic: str, broker: str, **given: str | None) -> None:
    """Print Message Detail by queueId."""
    begin_ms, end_ms = _timestamp("-b", given["begin"]), _timestamp("-e", given["end"])
    reader = TopicReader(session)
    messages = report.items("messages")
    await reader.queues(topic)  # learns where the broker is
    queue = QueueRef(topic, broker, whole_number("-i", given["queue_id"], 0))
    offset, end = await _bounds(session, queue, begin_ms, end_ms)
    counts: Counter[str] = Counter()
    while offset < end:
        fetched = await reader.fetch(queue, offset, _AT_ONCE, given["tags"])
        if fetched.next_offset <= offset:
            break
        offset = fetched.next_offset
        for message in fetched.messages:
            counts[message.tag or "null"] += 1
            stored = with_bounds(message.stored, fetched.min_offset, fetched.max_offset)
            messages.append(_summary(stored, queue))
            if is_true(given["printed"]):
                charset = given["charset"] or "UTF-8"
                report.line(pulled_line(stored, broker, charset, with_body=is_true(given["with_body"])))
    report.data["tags"] = dict(counts)
    if is_true(given["by_tag"]):
        for tag, count in counts.most_common():
            report.line(f"Tag: {tag:<30} Count: {count}")


@verb(
    "consumeMessage",
    flag("t", "topic", "topic", "Topic name", required=True),
    flag("b", "brokerName", "broker", "Broker name"),
    flag("i", "queueId", "queue_id", "Queue Id"),
    flag("o", "offset", "offset", "Queue offset"),
    flag("g", "consumerGroup", "group", "Consumer group name"),
    flag("s", "beginTimestamp", "begin", "Begin timestamp[currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]"),
    flag("e", "endTimestamp", "end", "End timestamp[currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]"),
    flag("c", "MessageNumber", "count", "Number of message to be consumed"),
)
async def consume_message(session: Session, report: Report, topic: str, **given: str | None) -> None:
    """Consume message."""
    left = whole_number("-c", given["count"], 128)
    if left <= 0:
        raise click.UsageError("Please input a positive messageNumber!")
    if given["queue_id"] is not None and given["broker"] is None:
        raise click.UsageError("Please set the brokerName before queueId!")
    if given["offset"] is not None and given["queue_id"] is None:
        raise click.UsageError("Please set queueId before offset!")
    begin_ms, end_ms = _timestamp("-s", given["begin"]), _timestamp("-e", given["end"])
    reader = TopicReader(session)
    messages = report.items("messages")
    for queue in await reader.queues(topic):
        if given["queue_id"] is not None and (queue.broker_name, str(queue.queue_id)) != (
            given["broker"],
            given["queue_id"],
        ):
            continue
        low, high = await _bounds(session, queue, begin_ms, end_ms)
        offset = max(low, whole_number("-o", given["offset"], 0))
        if high - offset > left:
            which = "" if given["queue_id"] is not None else f" of the {queue.queue_id} queue"
            older = "oldler" if given["queue_id"] is not None else "older"  # the original's spelling
            report.line(f"The {older} {left} message{which} will be provided")
        while offset < high and left > 0:
            fetched = await reader.fetch(queue, offset, min(left, high - offset))
            if not fetched.messages:
                break
            offset, left = fetched.next_offset, left - len(fetched.messages)
            report.line("Consume ok")
            for message in fetched.messages:
                stored = with_bounds(message.stored, fetched.min_offset, fetched.max_offset)
                report.line(pulled_line(stored, queue.broker_name, "UTF-8", with_body=True))
                messages.append(_summary(stored, queue))
        if left <= 0:
            return


@verb(
    "sendMessage",
    flag("t", "topic", "topic", "Topic name", required=True),
    flag("p", "body", "body", "UTF-8 string format of the message body", required=True),
    flag("k", "key", "keys", "Message keys"),
    flag("c", "tags", "tag", "Message tags"),
    flag("b", "broker", "broker", "Send message to target broker"),
    flag("i", "qid", "queue_id", "Send message to target queue"),
    flag("m", "msgTraceEnable", "trace", "Message Trace Enable, Default: false"),
)
async def send_message(session: Session, report: Report, topic: str, body: str, **given: str | None) -> None:
    """Send a message."""
    if given["queue_id"] is not None and given["broker"] is None:
        raise click.UsageError("Broker name must be set if the queue is chosen!")
    queue = None
    if given["broker"] is not None and given["queue_id"] is not None:
        queue = QueueRef(topic, given["broker"], whole_number("-i", given["queue_id"], 0))
    async with Client(session.config) as client, client.producer(PRODUCER_GROUP) as producer:
        keys = (given["keys"] or "").split()
        receipt = await producer.send(topic, body.encode(), tag=given["tag"] or "", keys=keys, queue=queue)
    row = (receipt.queue.broker_name, receipt.queue.queue_id, str(receipt.status), receipt.message_id)
    report.table(_SEND_FORM, ("#Broker Name", "#QID", "#Send Result", "#MsgId"), _SEND_FORM, [row], "results")


@verb(
    "checkMsgSendRT",
    flag("t", "topic", "topic", "topic name", required=True),
    flag("a", "amount", "amount", "message amount | default 100"),
    flag("s", "size", "size", "message size | default 128 Byte"),
)
async def check_send_time(session: Session, report: Report, topic: str, amount: str | None, size: str | None) -> None:
    """Check message send response time."""
    count, body = whole_number("-a", amount, 100), b"a" * whole_number("-s", size, 128)
    rows, times = [], []
    async with Client(session.config) as client, client.producer(PRODUCER_GROUP) as producer:
        queues = await producer.queues(topic)
        for number in range(count):
            queue = queues[number % len(queues)]
            began = perf_counter()
            try:
                await producer.send(topic, body, queue=queue)
                sent = True
            except OrbitError:
                sent = False
            times.append((perf_counter() - began) * 1000)
            rows.append((queue.broker_name, queue.queue_id, sent, round(times[-1])))
    report.table(_SEND_FORM, ("#Broker Name", "#QID", "#Send Result", "#RT"), _SEND_FORM, rows, "results")
    average = sum(times[1:]) / max(1, count - 1)
    report.fact(f"Avg RT: {average:.2f}", averageMs=round(average, 2))


def queue_text(queue: QueueRef) -> str:
    """Java: MessageQueue.toString"""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def with_bounds(stored: StoredMessage, low: int, high: int) -> StoredMessage:
    """Java's client notes the bounds of the queue in every message it pulls."""
    stored.properties.update({"MIN_OFFSET": str(low), "MAX_OFFSET": str(high)})
    return stored


async def _bounds(session: Session, queue: QueueRef, begin: int | None, end: int | None) -> tuple[int, int]:
    cluster = session.cluster
    low = (
        await questions.min_offset(cluster, queue)
        if begin is None
        else await questions.offset_at(cluster, queue, begin)
    )
    high = await questions.max_offset(cluster, queue) if end is None else await questions.offset_at(cluster, queue, end)
    return low, high


def _timestamp(flag_name: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(parse_moment(text, SystemClock()).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise click.UsageError(f"{flag_name} {error}") from None


def _summary(stored: StoredMessage, queue: QueueRef) -> dict[str, object]:
    return {
        "msgId": stored.message_id,
        "brokerName": queue.broker_name,
        "queueId": stored.queue_id,
        "queueOffset": stored.queue_offset,
        "properties": stored.properties,
        "body": stored.body.decode("utf-8", "backslashreplace"),
    }
