"""What the tests of the broker share: a broker in this process on small files, and a client that speaks the bare protocol."""

from __future__ import annotations

import json
import threading
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.broker import settings
from orbitmq.broker.broker import Broker
from orbitmq.message.properties import encode_properties
from orbitmq.message.record import decode_records
from orbitmq.protocol.command import Command
from orbitmq.protocol.headers.base import Header
from orbitmq.protocol.headers.pull import PULL_SUBSCRIPTION, PULL_SUSPEND, PullMessage
from orbitmq.protocol.headers.send import SendMessage, SendMessageV2
from orbitmq.protocol.versions import OURS
from orbitmq.storage.json_file import JsonFile
from orbitmq.transport.pool import Pool

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Iterator, Mapping
    from pathlib import Path

    from orbitmq.clock import Clock
    from orbitmq.message.message import StoredMessage
    from orbitmq.storage.files import Disk
    from orbitmq.transport.address import Address
    from orbitmq.transport.connection import Connection

PATIENCE_SECONDS = 20.0  # far beyond what anything takes: only a test that would hang forever meets it
BORN_AT_MS = 1_700_000_000_000

SEND, PULL, QUERY_MESSAGE, QUERY_OFFSET, UPDATE_OFFSET = 10, 11, 12, 14, 15
SEARCH_OFFSET, MAX_OFFSET, MIN_OFFSET, EARLIEST_TIME, VIEW_MESSAGE = 29, 30, 31, 32, 33
HEART_BEAT, UNREGISTER, SEND_BACK, CONSUMER_LIST, IDS_CHANGED = 34, 35, 36, 38, 40
LOCK, UNLOCK, CHECK_CLIENT, SEND_V2, SEND_BATCH, LITE_PULL = 41, 42, 46, 310, 320, 361


def configuration(directory: Path, changes: Mapping[str, object] | None = None) -> settings.BrokerConfiguration:
    """A stand-alone broker whose files roll after a few hundred messages."""
    overrides: dict[str, object] = {
        "brokerName": "broker-a",
        "bindAddress": "127.0.0.1",
        "listenPort": 0,
        "namesrvAddr": "",
        "storePathRootDir": directory,
        "mappedFileSizeCommitLog": 1 << 20,
        "mappedFileSizeConsumeQueue": 20 * 100,
        "maxHashSlotNum": 100,
        "maxIndexNum": 400,
        "diskMaxUsedSpaceRatio": 95,
        "osPageCacheBusyTimeOutMills": 60_000,  # a busy machine is no reason to refuse a message here
        "waitTimeMillsInSendQueue": 60_000,
        **(changes or {}),
    }
    return settings.load(None, {key: str(value) for key, value in overrides.items()})


@contextmanager
def no_table_saved() -> Iterator[threading.Event]:
    """No topic, group or position reaches its file before the event is set, as on a slow disk."""
    may_save, save = threading.Event(), JsonFile.save

    def slow(file: JsonFile[Any], table: Any) -> bool:
        assert may_save.wait(PATIENCE_SECONDS)
        return save(file, table)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JsonFile, "save", slow)
        try:
            yield may_save
        finally:
            may_save.set()


@asynccontextmanager
async def running(
    directory: Path, *, clock: Clock | None = None, disk: Disk | None = None, **changes: object
) -> AsyncIterator[Broker]:
    async with Broker(configuration(directory, changes), clock=clock, disk=disk) as broker:
        yield broker


class Wire:
    """One client connection that says what it is told to."""

    def __init__(self, address: Address, patience_seconds: float = PATIENCE_SECONDS * 3) -> None:
        self.address = address
        self._patience_seconds = patience_seconds
        self.notices: list[Mapping[str, str]] = []  # fields of the group changes it was told of
        self._pool = Pool({IDS_CHANGED: self._note})

    async def _note(self, request: Command, connection: Connection) -> None:
        self.notices.append(request.fields)

    async def connection(self) -> Connection:
        return await self._pool.connection(self.address)

    async def ask(
        self, code: int, header: Header | Mapping[str, object] | None = None, body: bytes = b"", *, version: int = OURS
    ) -> Command:
        return await (await self.start(code, header, body, version=version))

    async def start(
        self, code: int, header: Header | Mapping[str, object] | None = None, body: bytes = b"", *, version: int = OURS
    ) -> asyncio.Future[Command]:
        """The answer to come: for requests that the broker holds."""
        connection = await self.connection()
        request = Command(code, fields=_fields(header), body=body, version=version)
        return connection.start_call(request, self._patience_seconds)

    async def send(
        self,
        topic: str,
        body: bytes = b"body",
        queue_id: int = 0,
        *,
        header: Mapping[str, Any] | None = None,
        **properties: str,
    ) -> Command:
        """A send with the short header; `properties` are the message's, `header` changes anything in the request."""
        return await self.ask(SEND_V2, send_header(topic, queue_id, properties, header), body)

    async def pull(self, topic: str, queue_id: int = 0, offset: int = 0, **changes: Any) -> Command:
        return await self.ask(PULL, pull_header(topic, queue_id, offset, changes))

    async def hold(self, topic: str, queue_id: int = 0, offset: int = 0, **changes: Any) -> asyncio.Future[Command]:
        """A pull that waits for a message to come."""
        held = {"sys_flag": PULL_SUBSCRIPTION | PULL_SUSPEND, "suspend_timeout_millis": 60_000, **changes}
        return await self.start(PULL, pull_header(topic, queue_id, offset, held))

    async def bodies(self, topic: str, queue_id: int = 0, offset: int = 0) -> list[bytes]:
        """Everything in a queue, pulled in as many rounds as it takes."""
        return [message.body for message in await self.messages(topic, queue_id, offset)]

    async def messages(self, topic: str, queue_id: int = 0, offset: int = 0) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        while (answer := await self.pull(topic, queue_id, offset)).code == 0:
            found += decode_records(answer.body)
            offset = int(answer.fields["nextBeginOffset"])
        assert answer.code == 19, answer
        return found

    async def heartbeat(
        self,
        client_id: str,
        group: str,
        subscriptions: Mapping[str, str] | None = None,
        *,
        model: str = "CLUSTERING",
        version: int = 0,
    ) -> Command:
        """Join `group`, subscribing topic -> tags."""
        wanted = [
            {"topic": topic, "subString": tags, "subVersion": version, "expressionType": "TAG"}
            for topic, tags in (subscriptions or {}).items()
        ]
        consumer = {"groupName": group, "messageModel": model, "subscriptionDataSet": wanted}
        beat = {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": []}
        return await self.ask(HEART_BEAT, None, json.dumps(beat).encode())

    async def close(self) -> None:
        await self._pool.close()


@asynccontextmanager
async def wire(broker: Broker) -> AsyncIterator[Wire]:
    assert broker.address is not None
    client = Wire(broker.address)
    try:
        yield client
    finally:
        await client.close()


def send_header(
    topic: str, queue_id: int = 0, properties: Mapping[str, str] | None = None, changes: Mapping[str, Any] | None = None
) -> SendMessageV2:
    return SendMessageV2(**_send_fields(topic, queue_id, properties, changes))


def long_send_header(topic: str, queue_id: int = 0, properties: Mapping[str, str] | None = None) -> SendMessage:
    return SendMessage(**_send_fields(topic, queue_id, properties, None))


def _send_fields(
    topic: str, queue_id: int, properties: Mapping[str, str] | None, changes: Mapping[str, Any] | None
) -> dict[str, Any]:
    return {
        "producer_group": "P",
        "topic": topic,
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": queue_id,
        "sys_flag": 0,
        "born_timestamp": BORN_AT_MS,
        "flag": 0,
        "properties": encode_properties(properties or {}).decode(),
        **(changes or {}),
    }


def pull_header(topic: str, queue_id: int, offset: int, changes: Mapping[str, Any] | None = None) -> PullMessage:
    """A pull that brings its own subscription, to all messages unless it says otherwise."""
    fields: dict[str, Any] = {
        "consumer_group": "G",
        "topic": topic,
        "queue_id": queue_id,
        "queue_offset": offset,
        "max_msg_nums": 32,
        "sys_flag": PULL_SUBSCRIPTION,
        "subscription": "*",
        **(changes or {}),
    }
    return PullMessage(**fields)


def messages_of(answer: Command) -> list[StoredMessage]:
    return list(decode_records(answer.body))


def _fields(header: Header | Mapping[str, object] | None) -> dict[str, str]:
    if header is None:
        return {}
    return header.to_fields() if isinstance(header, Header) else {key: str(value) for key, value in header.items()}
