"""The life of a message: what producers and consumers have told about it, and how far the groups of its topic are.

Traces are records in a topic of their own, found by the message's id. Groups that tell nothing are judged by their offsets.

Java: TraceDataEncoder, QueryMsgTraceByIdSubCommand, DefaultMQAdminExtImpl.messageTrackDetail
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.admin.brokers import reachable_brokers
from orbitmq.admin.groups import connection_on
from orbitmq.admin.messages import MessageRow, message_by_id, messages_by_key
from orbitmq.admin.offsets import consume_stats
from orbitmq.admin.topics import reading_groups
from orbitmq.client.names import TRACE_TOPIC
from orbitmq.errors import RequestFailed
from orbitmq.message.moments import moment_at
from orbitmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from orbitmq.admin.session import Session

_FIELD_END: Final = "\x01"
_RECORD_END: Final = "\x02"
_OUTCOMES: Final = ("success", "time out", "exception", "returned null", "failed")  # Java: ConsumeReturnType


class TraceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was told of a message."""

    kind: str  # sent, consumed, transaction or recalled
    at: datetime | None
    group: str
    client: str  # that told it
    attempt: int | None = None  # of a delivery: 1 is the first
    cost_ms: int | None = None
    outcome: str  # success, failed, exception, ..., unknown while it has not been told


class GroupState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a group of the message's topic has passed it."""

    group: str
    online: bool
    state: str  # read, not read yet, filtered out, or broadcasting (each member for itself)
    committed: int | None


class MessageTrace(msgspec.Struct, frozen=True, kw_only=True):
    message: MessageRow
    events: list[TraceEvent]
    groups: list[GroupState]


async def trace_message(
    session: Session, message_id: str, *, topic: str | None = None, trace_topic: str = TRACE_TOPIC
) -> MessageTrace:
    """By either id. RequestFailed when the message is not there; without traces, `events` is empty."""
    message = await message_by_id(session, message_id, topic)
    return MessageTrace(
        message=message,
        events=await trace_events(session, message.id, trace_topic),
        groups=await group_states(session, message),
    )


async def trace_events(session: Session, message_id: str, trace_topic: str = TRACE_TOPIC) -> list[TraceEvent]:
    try:
        found = await messages_by_key(session, trace_topic, message_id)
    except RequestFailed as error:
        if error.code == ResponseCode.TOPIC_NOT_EXIST:
            return []
        raise
    rows = [(row, record) for row in reversed(found) for record in row.body.split(_RECORD_END) if record]
    return decode_events([(row.born_host, record) for row, record in rows], message_id)


def decode_events(records: list[tuple[str, str]], message_id: str) -> list[TraceEvent]:
    """`records` are who told, and what. A delivery is told twice, before and after; the two are one event.

    Whoever may send to the topic of traces can write anything there: a record with a number that is none is left out.
    """
    events: list[TraceEvent] = []
    began: dict[str, TraceEvent] = {}
    ended: dict[str, list[str]] = {}
    for client, record in records:
        kind, *fields = record.split(_FIELD_END)
        with suppress(ValueError):
            if kind == "Pub" and len(fields) >= 12 and fields[4] == message_id:
                success = fields[12] if len(fields) >= 13 else fields[11]
                events.append(_event("sent", fields, client, cost_ms=int(fields[9]), ok=success == "true"))
            elif kind == "EndTransaction" and len(fields) >= 12 and fields[4] == message_id:
                events.append(_event("transaction", fields, client, outcome=fields[10].lower()))
            elif kind == "Recall" and len(fields) >= 6 and fields[4] == message_id:
                events.append(_event("recalled", fields, client, ok=fields[5] == "true"))
            elif kind == "SubBefore" and len(fields) >= 6 and fields[4] == message_id:
                began[fields[3]] = _event("consumed", fields, client, attempt=int(fields[5]) + 1, outcome="unknown")
            elif kind == "SubAfter" and len(fields) >= 4 and fields[1] == message_id:
                ended[fields[0]] = fields
    for request_id, event in began.items():
        with suppress(ValueError):
            event = _finished(event, ended.get(request_id))
        events.append(event)
    return sorted(events, key=lambda event: (event.at is None, event.at))


def _event(
    kind: str,
    fields: list[str],
    client: str,
    *,
    cost_ms: int | None = None,
    attempt: int | None = None,
    ok: bool = True,
    outcome: str = "",
) -> TraceEvent:
    """Time, region and group lead every record but the end of a delivery."""
    return TraceEvent(
        kind=kind,
        at=moment_at(int(fields[0])),
        group=fields[2],
        client=client,
        attempt=attempt,
        cost_ms=cost_ms,
        outcome=outcome or ("success" if ok else "failed"),
    )


def _finished(event: TraceEvent, after: list[str] | None) -> TraceEvent:
    if after is None:
        return event
    outcome = "success" if after[3] == "true" else "failed"
    if after[3] != "true" and len(after) > 5 and after[5].isdigit() and int(after[5]) < len(_OUTCOMES):
        outcome = _OUTCOMES[int(after[5])]
    return msgspec.structs.replace(event, cost_ms=int(after[2]), outcome=outcome)


async def group_states(session: Session, message: MessageRow) -> list[GroupState]:
    """Of every group that reads the message's topic, or has read it."""
    place = next((one for one in await reachable_brokers(session) if one.broker == message.broker), None)
    if place is None:
        return []
    states = []
    for group in await reading_groups(session, message.topic):
        connection = await connection_on(session, group, place)
        stats = await consume_stats(session, place, group, message.topic)
        committed = next(
            (
                lag.consumer_offset
                for key, lag in stats.offsets.items()
                if (key.topic, key.queue_id) == (message.topic, message.queue)
            ),
            None,
        )
        state = "read" if committed is not None and committed > message.offset else "not read yet"
        if connection is not None:
            subscribed = connection.subscription_table.get(message.topic)
            if connection.message_model == "BROADCASTING":
                state = "broadcasting"
            elif subscribed is not None and subscribed.tags_set and message.tag not in subscribed.tags_set:
                state = "filtered out"
        states.append(GroupState(group=group, online=connection is not None, state=state, committed=committed))
    return states
