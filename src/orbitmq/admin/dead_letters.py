"""Dead letters: messages that a group failed to handle as often as it may. Read them, send them again.

Java: the dashboard's DlqMessageController; a group's dead-letter topic is `%DLQ%<group>`
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from orbitmq.admin.messages import (
    MessageRow,
    TopicReader,
    Window,
    body_bytes,
    message_at,
    missing_message,
    original_topic,
    storing_broker,
)
from orbitmq.admin.session import gathered
from orbitmq.admin.topics import list_topics, topic_queues
from orbitmq.client.names import DLQ_PREFIX, retry_topic
from orbitmq.errors import MessageError, RequestFailed
from orbitmq.message import Message
from orbitmq.message import properties as names
from orbitmq.message.properties import RESERVED
from orbitmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orbitmq.admin.session import Session
    from orbitmq.admin.topics import QueueRow

Destination = Literal["group", "topic"]
_NEWEST: Final = 100


class DeadLetterRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a group has given up."""

    group: str
    topic: str
    messages: int
    last_stored_at: datetime | None


async def list_dead_letters(session: Session) -> list[DeadLetterRow]:
    """Every group that has dead letters."""
    topics = [row.topic for row in await list_topics(session) if row.kind == "dlq"]
    found = await gathered(partial(_queues, session), topics)
    return [
        DeadLetterRow(
            group=topic.removeprefix(DLQ_PREFIX),
            topic=topic,
            messages=sum(queue.messages for queue in queues),
            last_stored_at=max((queue.last_stored_at for queue in queues if queue.last_stored_at), default=None),
        )
        for topic, queues in zip(topics, found, strict=True)
        if queues is not None
    ]


async def _queues(session: Session, topic: str) -> list[QueueRow] | None:
    """None if no name server knows the topic: its broker has just made it, or somebody is deleting it."""
    try:
        return await topic_queues(session, topic)
    except RequestFailed as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        return None


async def read_dead_letters(session: Session, group: str, window: Window) -> AsyncIterator[MessageRow]:
    """What a group has given up, oldest first in each queue. RequestFailed when it never gave up anything."""
    try:
        async for row in TopicReader(session).read(DLQ_PREFIX + group, window):
            yield row
    except RequestFailed as error:
        raise _none_of(group, error) from None


async def newest_dead_letters(session: Session, group: str, count: int) -> list[MessageRow]:
    """What a group has given up last, the newest first."""
    try:
        return await TopicReader(session).newest(DLQ_PREFIX + group, count)
    except RequestFailed as error:
        raise _none_of(group, error) from None


async def dead_letters_by_id(session: Session, group: str, offset_ids: list[str]) -> list[MessageRow]:
    """In the order asked for. RequestFailed when one of them is none of this group's.

    Looked for where the id says. A broker that has moved since is not there: so also among the newest.
    """
    topic = DLQ_PREFIX + group

    async def at(offset_id: str) -> tuple[str, MessageRow | None]:
        place = await storing_broker(session, offset_id)
        if place is None:
            return offset_id, None
        try:
            row = await message_at(session, place, offset_id)
        except MessageError:  # no message begins there
            return offset_id, None
        except RequestFailed as error:
            if error.code != ResponseCode.NO_MESSAGE:
                raise
            return offset_id, None
        return offset_id, row if (row.topic, row.offset_id) == (topic, offset_id) else None

    found = dict(await gathered(at, offset_ids))
    if None in found.values():
        newest = {row.offset_id: row for row in await newest_dead_letters(session, group, _NEWEST)}
        found = {offset_id: row or newest.get(offset_id) for offset_id, row in found.items()}
    for offset_id, row in found.items():
        if row is None:
            raise missing_message(f"group {group!r} has no dead letter {offset_id}")
    return [row for row in found.values() if row is not None]


def _none_of(group: str, error: RequestFailed) -> RequestFailed:
    if error.code != ResponseCode.TOPIC_NOT_EXIST:
        return error
    return RequestFailed(
        ResponseCode.TOPIC_NOT_EXIST,
        f"group {group!r} has no dead letters",
        hint="`orbitmq dlq ls` lists the groups that have",
    )


def letter_again(row: MessageRow, group: str, to: Destination) -> Message:
    """The message to send: to its group alone, through the group's retry topic, or to everybody who reads its topic."""
    origin = original_topic(row)
    properties = {name: value for name, value in row.properties.items() if name not in RESERVED}
    properties[names.ORIGIN_MESSAGE_ID] = row.properties.get(names.DLQ_ORIGIN_MESSAGE_ID, row.id)
    if to == "group":
        properties[names.RETRY_TOPIC] = origin
    topic = retry_topic(group) if to == "group" else origin
    return Message(topic, body_bytes(row), tag=row.tag, keys=row.keys, properties=properties)
