"""Replies reach who asked, and are kept whether they do or not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from orbitmq.errors import StoreFull
from orbitmq.message.properties import decode_properties
from orbitmq.protocol.command import Command, ok
from orbitmq.storage.health import RunningFlags
from orbitmq.transport.pool import Pool
from tests.broker.kit import HEART_BEAT, PATIENCE_SECONDS, Wire, long_send_header, running, send_header, wire

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from orbitmq.protocol.headers.base import Header
    from orbitmq.transport.connection import Connection

REPLY, REPLY_V2, PUSH_REPLY = 324, 325, 326
TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = {"MSG_TYPE": "reply", "REPLY_TO_CLIENT": "asker-1", "CORRELATION_ID": "c-7", "TTL": "3000"}

BOTH_HEADERS = pytest.mark.parametrize(
    ("code", "header"),
    [(REPLY, long_send_header(TOPIC, 0, PROPERTIES)), (REPLY_V2, send_header(TOPIC, 0, PROPERTIES))],
    ids=["long names", "short names"],
)


class _Asker:
    """A producer that waits for replies."""

    def __init__(self, broker: Broker) -> None:
        assert broker.address is not None
        self.pushed: list[Command] = []
        self._address = broker.address
        self._pool = Pool({PUSH_REPLY: self._take})

    async def join(self) -> None:
        beat = {"clientID": "asker-1", "producerDataSet": [{"groupName": "askers"}], "consumerDataSet": []}
        await self._pool.call(self._address, Command(HEART_BEAT, body=json.dumps(beat).encode()), PATIENCE_SECONDS)

    async def close(self) -> None:
        await self._pool.close()

    async def _take(self, request: Command, connection: Connection) -> Command:
        self.pushed.append(request)
        return ok()


@BOTH_HEADERS
async def test_a_reply_is_pushed_to_who_asked(client: Wire, broker: Broker, code: int, header: Header) -> None:
    asker = _Asker(broker)
    await asker.join()

    answer = await client.ask(code, header, b"pong")

    assert answer.code == 0
    (pushed,) = asker.pushed
    assert pushed.body == b"pong"
    properties = decode_properties(pushed.fields["properties"])
    assert properties["CORRELATION_ID"] == "c-7"
    assert properties["PUSH_REPLY_TIME"].isdigit()
    assert pushed.fields["storeHost"] == str(broker.address)
    assert await client.bodies(TOPIC) == [b"pong"]
    await asker.close()


@BOTH_HEADERS
async def test_a_reply_to_nobody_says_so_and_is_kept(client: Wire, code: int, header: Header) -> None:
    answer = await client.ask(code, header, b"pong")
    assert (answer.code, answer.remark) == (1, "push reply message fail, channel of <asker-1> not found.")
    assert await client.bodies(TOPIC) == [b"pong"]


async def test_replies_need_not_be_kept(tmp_path: Path) -> None:
    async with running(tmp_path / "store", storeReplyMessageEnable="false") as broker, wire(broker) as client:
        asker = _Asker(broker)
        await asker.join()
        answer = await client.ask(REPLY_V2, send_header(TOPIC, 0, PROPERTIES), b"pong")
        assert (answer.code, answer.fields["queueOffset"]) == (0, "0")
        assert len(asker.pushed) == 1
        assert await client.bodies(TOPIC) == []
        await asker.close()


async def test_a_reply_reaches_who_asked_also_when_the_store_takes_nothing(client: Wire, broker: Broker) -> None:
    asker = _Asker(broker)
    await asker.join()
    broker.state.store.health.report(RunningFlags.NOT_WRITABLE, StoreFull("no room"))

    answer = await client.ask(REPLY_V2, send_header(TOPIC, 0, PROPERTIES), b"pong")

    assert answer.code == 0, answer
    assert [pushed.body for pushed in asker.pushed] == [b"pong"]
    assert (await client.send("T", b"x")).code == 14
    broker.state.store.health.clear(RunningFlags.NOT_WRITABLE)
    assert await client.bodies(TOPIC) == []
    await asker.close()
