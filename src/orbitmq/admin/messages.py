"""Finding messages: by id, by key, by place, by time. Java: `tools.command.message`, MQAdminImpl.queryMessage"""

from __future__ import annotations

import base64
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.admin.brokers import BrokerPlace, answering_addresses, find_brokers, reachable_brokers
from orbitmq.admin.session import gathered
from orbitmq.admin.topics import kind_of, missing_topic, topic_names, topic_route
from orbitmq.client import questions
from orbitmq.client.fetching import Fetched, Fetcher
from orbitmq.client.filters import Sql, subscription
from orbitmq.client.incoming import Incoming
from orbitmq.errors import ConfigError, MessageError, RequestFailed
from orbitmq.message import QueueRef, StoredMessage
from orbitmq.message import properties as names
from orbitmq.message.compression import plain_body
from orbitmq.message.hosts import host_text
from orbitmq.message.ids import parse_offset_message_id
from orbitmq.message.moments import moment_at
from orbitmq.message.record import decode_record, decode_records
from orbitmq.message.sysflags import COMPRESSED
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.headers.admin import QueryMessage, ViewMessage
from orbitmq.transport.address import parse_address

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from orbitmq.admin.session import Session

TOOLS_GROUP: Final = "TOOLS_CONSUMER"  # every broker knows it, and counts nothing for it
_FOR_EVER_MS: Final = 2**63 - 1
_FETCH: Final = 32
_UTF8: Final = "utf-8"


class MessageRow(msgspec.Struct, frozen=True, kw_only=True):
    """A message with its place. A body that is no UTF-8 text is given in base64."""

    topic: str
    broker: str | None
    queue: int
    offset: int
    id: str  # the producer's
    offset_id: str  # the broker's: where it is stored
    tag: str
    keys: list[str]
    born_at: datetime
    stored_at: datetime
    born_host: str
    store_host: str
    attempt: int  # 1: never delivered again
    size: int  # of the whole record
    properties: dict[str, str]
    body: str
    body_encoding: str  # utf-8 or base64


def message_row(stored: StoredMessage, broker: str | None) -> MessageRow:
    body = message_body(stored)
    try:
        text, encoding = body.decode(), _UTF8
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(body).decode(), "base64"
    return MessageRow(
        topic=stored.topic,
        broker=broker,
        queue=stored.queue_id,
        offset=stored.queue_offset,
        id=stored.message_id,
        offset_id=stored.offset_id,
        tag=stored.tags,
        keys=stored.keys,
        born_at=moment_at(stored.born_at_ms),
        stored_at=moment_at(stored.stored_at_ms),
        born_host=stored.born_address,
        store_host=stored.store_address,
        attempt=stored.reconsume_times + 1,
        size=stored.size,
        properties=stored.properties,
        body=text,
        body_encoding=encoding,
    )


def message_body(stored: StoredMessage) -> bytes:
    """As it was sent: inflated, if it is stored compressed and can be."""
    if not stored.sys_flag & COMPRESSED:
        return stored.body
    try:
        return plain_body(stored.body, stored.sys_flag)
    except MessageError:
        return stored.body  # what is there is worth more than nothing


# ---- by id


async def message_by_id(session: Session, message_id: str, topic: str | None = None) -> MessageRow:
    """By the producer's id or the broker's. Without `topic`, a producer's id is looked for in every topic."""
    place = await storing_broker(session, message_id)
    if place is not None:
        return await message_at(session, place, message_id)
    topics = [topic] if topic is not None else await _searched_topics(session)
    for found in await gathered(lambda name: messages_by_key(session, name, message_id, unique=True, limit=1), topics):
        if found:
            return found[0]
    raise missing_message(f"there is no message {message_id}" + (f" in topic {topic!r}" if topic is not None else ""))


async def _searched_topics(session: Session) -> list[str]:
    """Where a message was sent before where it went later: retries and dead letters keep its id."""
    kinds = [(kind_of(topic), topic) for topic in await topic_names(session)]
    return [topic for wanted in ("normal", "retry", "dlq") for kind, topic in kinds if kind == wanted]


async def message_at(session: Session, place: BrokerPlace, offset_id: str) -> MessageRow:
    """Where the broker's id says it is."""
    return message_row(await stored_at(session, place, offset_id), place.broker)


async def stored_at(session: Session, place: BrokerPlace, offset_id: str) -> StoredMessage:
    _, offset = parse_offset_message_id(offset_id)
    try:
        answer = await session.ask(place.address, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(offset=offset))
    except RequestFailed as error:
        if error.code == ResponseCode.SYSTEM_ERROR:
            raise missing_message(f"broker {place.broker} keeps nothing at offset {offset} of its log") from None
        raise
    return decode_record(answer.body)


async def storing_broker(session: Session, message_id: str) -> BrokerPlace | None:
    """The registered broker that an offset id names; both kinds of id may look the same."""
    try:
        host, offset = parse_offset_message_id(message_id)
        address = parse_address(host_text(host))
    except (MessageError, ConfigError, ValueError):
        return None  # a producer's id read as a place: no such host or port
    if offset < 0:
        return None
    places = await find_brokers(session, masters_only=False)
    return next((place for place in places if place.address == address), None)


# ---- by key


async def messages_by_key(
    session: Session,
    topic: str,
    key: str,
    *,
    unique: bool = False,
    limit: int = 64,
    begin_ms: int | None = None,
    end_ms: int | None = None,
) -> list[MessageRow]:
    """As `stored_by_key`, as rows."""
    found = await stored_by_key(session, topic, key, unique=unique, limit=limit, begin_ms=begin_ms, end_ms=end_ms)
    return [message_row(stored, broker) for broker, stored in found]


async def stored_by_key(
    session: Session,
    topic: str,
    key: str,
    *,
    unique: bool = False,
    limit: int = 64,
    begin_ms: int | None = None,
    end_ms: int | None = None,
) -> list[tuple[str, StoredMessage]]:
    """Broker and message: those with this key, or with this as the producer's id; the newest first.

    Brokers keep hashes only: keys are compared here.
    """
    route = await topic_route(session, topic)
    holding = {data.broker_name for data in route.broker_datas}
    places = [place for place in await reachable_brokers(session) if place.broker in holding]
    header = QueryMessage(
        topic=topic,
        key=key,
        max_num=limit,
        begin_timestamp=begin_ms or 0,
        end_timestamp=_FOR_EVER_MS if end_ms is None else end_ms,
        unique_key=unique,
    )

    def matches(stored: StoredMessage) -> bool:
        return stored.message_id == key if unique else key in stored.keys

    async def on(place: BrokerPlace) -> list[tuple[str, StoredMessage]]:
        try:
            answer = await session.ask(place.address, RequestCode.QUERY_MESSAGE, header)
        except RequestFailed as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return []
            raise
        return [(place.broker, stored) for stored in decode_records(answer.body) if matches(stored)]

    found = [pair for pairs in await gathered(on, places) for pair in pairs]
    return sorted(found, key=lambda pair: pair[1].stored_at_ms, reverse=True)[:limit]


# ---- by place and time


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages of a topic: of all queues or one, of a stretch of time."""

    begin_ms: int | None = None
    end_ms: int | None = None
    queue: tuple[str, int] | None = None
    filter: str | Sql | None = None


class TopicReader:
    """Reads a topic's queues without being part of any group. Java: DefaultMQPullConsumer as the tools use it"""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._fetcher = Fetcher(session.cluster, TOOLS_GROUP, Incoming("", ""))

    async def queues(self, topic: str) -> list[QueueRef]:
        route = await self._session.cluster.fetch_route(topic)
        if route is None:
            raise missing_topic(topic)
        if not route.readable:
            raise RequestFailed(
                ResponseCode.NO_PERMISSION,
                f"topic {topic!r} cannot be read",
                hint=f"`orbitmq topic update '{topic}' --permission rw` allows it",
            )
        return list(route.readable)

    async def fetch(
        self, queue: QueueRef, offset: int, count: int, wanted: str | Sql | None = None, wait_seconds: float = 0.0
    ) -> Fetched:
        """Up to `count` messages from `offset` on, and where to go on."""
        return await self._fetcher.fetch(
            queue, queue, subscription(queue.topic, wanted, 0), offset, count, wait_seconds
        )

    async def range(self, queue: QueueRef, begin_ms: int | None, end_ms: int | None) -> tuple[int, int]:
        """Offsets from the first message stored at `begin_ms` or later to one beyond the last before `end_ms`."""
        cluster = self._session.cluster
        if begin_ms is None:
            low = await questions.min_offset(cluster, queue)
        else:
            low = await questions.offset_at(cluster, queue, begin_ms)
        high = await questions.max_offset(cluster, queue)
        if end_ms is not None and end_ms < self._session.now_ms():
            high = min(high, await questions.offset_at(cluster, queue, end_ms) + 1)
        return low, high

    async def read(self, topic: str, window: Window) -> AsyncIterator[MessageRow]:
        """The messages of a window, queue after queue."""
        for queue in await self._queues_of(topic, window):
            async for row in self._read_queue(queue, window):
                yield row

    async def oldest(
        self, topic: str, window: Window, count: int, wanted: Callable[[MessageRow], bool]
    ) -> list[MessageRow]:
        """The first `count` messages of a window that are wanted, in the order in which they were stored, over all queues."""

        async def first_of(queue: QueueRef) -> list[MessageRow]:
            found: list[MessageRow] = []
            async with aclosing(self._read_queue(queue, window)) as rows:
                async for row in rows:
                    if wanted(row):
                        found.append(row)
                        if len(found) == count:
                            break
            return found

        rows = [row for some in await gathered(first_of, await self._queues_of(topic, window)) for row in some]
        return sorted(rows, key=lambda row: (row.stored_at, row.broker or "", row.queue, row.offset))[:count]

    async def _queues_of(self, topic: str, window: Window) -> list[QueueRef]:
        queues = await self.queues(topic)
        if window.queue is None:
            return queues
        found = [queue for queue in queues if (queue.broker_name, queue.queue_id) == window.queue]
        if not found:
            raise _missing_queue(topic, *window.queue)
        return found

    async def _read_queue(self, queue: QueueRef, window: Window) -> AsyncGenerator[MessageRow, None]:
        offset, end = await self.range(queue, window.begin_ms, window.end_ms)
        while offset < end:
            fetched = await self.fetch(queue, offset, min(_FETCH, end - offset), window.filter)
            if fetched.next_offset <= offset:
                return  # the topic was made anew meanwhile: what was to be read is gone
            offset = fetched.next_offset
            for message in fetched.messages:
                stored_ms = message.stored.stored_at_ms
                if window.end_ms is not None and stored_ms > window.end_ms:
                    break
                if window.begin_ms is None or stored_ms >= window.begin_ms:
                    yield message_row(message.stored, queue.broker_name)

    async def newest(self, topic: str, count: int) -> list[MessageRow]:
        """The last messages that were stored, the newest first. What silent brokers have is missing, as `session.silent` says.

        Bodies may be megabytes: each queue gives its share, and more only where that may be among the newest, too.
        """
        queues = await self._answering_queues(topic)
        share = -(-count // len(queues))
        ranges = await gathered(lambda queue: self.range(queue, None, None), queues)
        parts = [(queue, low, high) for queue, (low, high) in zip(queues, ranges, strict=True)]
        rows: list[MessageRow] = []
        while parts:
            found = await gathered(lambda part: self._last_of(*part, share), parts)
            rows += [row for some in found for row in some]
            rows = sorted(rows, key=lambda row: row.stored_at, reverse=True)[:count]
            parts = [
                (queue, low, high - share)
                for (queue, low, high), some in zip(parts, found, strict=True)
                if high - share > low and (len(rows) < count or not some or some[0].stored_at > rows[-1].stored_at)
            ]
        return rows

    async def _last_of(self, queue: QueueRef, low: int, high: int, count: int) -> list[MessageRow]:
        """The last of those between two offsets."""
        start = max(low, high - count)
        if start >= high:
            return []
        fetched = await self.fetch(queue, start, high - start)
        return [message_row(one.stored, queue.broker_name) for one in fetched if one.queue_offset < high]

    async def _answering_queues(self, topic: str) -> list[QueueRef]:
        queues = await self.queues(topic)
        addresses = {
            queue.broker_name: questions.any_address(self._session.cluster, queue.broker_name) for queue in queues
        }
        answering = await answering_addresses(self._session, list(addresses.values()))
        return [queue for queue in queues if addresses[queue.broker_name] in answering]


async def message_at_offset(session: Session, topic: str, broker: str, queue: int, offset: int) -> MessageRow:
    reader = TopicReader(session)
    found = next((q for q in await reader.queues(topic) if (q.broker_name, q.queue_id) == (broker, queue)), None)
    if found is None:
        raise _missing_queue(topic, broker, queue)
    messages = (await reader.fetch(found, offset, 1)).messages
    if not messages or messages[0].queue_offset != offset:
        raise missing_message(f"queue {queue} of {topic!r} on {broker} has no message at offset {offset}")
    return message_row(messages[0].stored, broker)


def _missing_queue(topic: str, broker: str, queue: int) -> RequestFailed:
    return RequestFailed(
        ResponseCode.QUERY_NOT_FOUND,
        f"topic {topic!r} has no queue {queue} on broker {broker!r} that can be read",
        hint=f"`orbitmq topic describe '{topic}'` shows its queues",
    )


def missing_message(what: str) -> RequestFailed:
    return RequestFailed(
        ResponseCode.NO_MESSAGE, what, hint="it may be gone with its time, or the id or topic may be another"
    )


def body_bytes(row: MessageRow) -> bytes:
    return base64.b64decode(row.body) if row.body_encoding == "base64" else row.body.encode()


def original_topic(row: MessageRow) -> str:
    """Of a message that went to a retry or dead-letter topic: where it was first sent."""
    return row.properties.get(names.DLQ_ORIGIN_TOPIC) or row.properties.get(names.RETRY_TOPIC) or row.topic
