"""Topics that take one kind of message, or messages with keys, ask that of everything that comes: alone, in batches, as replies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orbitmq.message.batch import BatchMember, encode_batch
from orbitmq.message.properties import encode_properties
from orbitmq.protocol.codes import RequestCode, ResponseCode
from tests.broker.kit import SEND_BATCH, Wire, send_header

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker
    from orbitmq.protocol.command import Command

pytestmark = pytest.mark.usefixtures("loops")


async def create(client: Wire, attributes: str) -> None:
    header = {
        "topic": "Typed", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false", "attributes": attributes,
    }  # fmt: skip
    assert (await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == 0


async def send_batch(client: Wire, *members: dict[str, str], outer: dict[str, str] | None = None) -> Command:
    body = encode_batch([
        BatchMember(b"%d" % number, encode_properties({"UNIQ_KEY": f"u{number}", **properties}))
        for number, properties in enumerate(members)
    ])  # fmt: skip
    return await client.ask(SEND_BATCH, send_header("Typed", 0, outer or {}, {"batch": True}), body)


@pytest.mark.parametrize(
    ("kind", "members"),
    [
        ("TRANSACTION", [{}]),
        ("TRANSACTION", [{"TRAN_MSG": "true"}]),  # a batch belongs to no transaction, whatever it says
        ("DELAY", [{}]),
        ("DELAY", [{"DELAY": "1"}]),
        ("NORMAL", [{}, {"__SHARDINGKEY": "g"}]),
    ],
)
async def test_a_topic_of_one_kind_takes_no_batch_of_another(
    client: Wire, kind: str, members: list[dict[str, str]]
) -> None:
    await create(client, f"+message.type={kind}")

    answer = await send_batch(client, *members)

    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert f"takes {kind} messages" in str(answer.remark)
    assert await client.bodies("Typed") == []


@pytest.mark.parametrize("kind", ["NORMAL", "FIFO", "MIXED"])
async def test_a_topic_takes_batches_of_its_kind(client: Wire, kind: str) -> None:
    await create(client, f"+message.type={kind}")
    group = {"__SHARDINGKEY": "g"} if kind != "NORMAL" else {}

    assert (await send_batch(client, {}, group)).code == 0

    assert await client.bodies("Typed") == [b"0", b"1"]


async def test_each_message_of_a_batch_needs_a_key_where_the_latest_of_each_is_kept(client: Wire) -> None:
    await create(client, "+cleanup.policy=COMPACTION")

    answer = await send_batch(client, {"KEYS": "a"}, {"KEYS": " "})

    assert (answer.code, "key" in str(answer.remark)) == (ResponseCode.MESSAGE_ILLEGAL, True)
    assert await client.bodies("Typed") == []
    assert (await send_batch(client, {"KEYS": "a"}, {"KEYS": "b"})).code == 0
    assert (await send_batch(client, {}, outer={"KEYS": "of all"})).code == 0
    assert await client.bodies("Typed") == [b"0", b"1", b"0"]


@pytest.mark.parametrize("attributes", ["+message.type=TRANSACTION", "+cleanup.policy=COMPACTION"])
async def test_a_reply_is_no_way_around_what_a_topic_takes(client: Wire, attributes: str) -> None:
    await create(client, attributes)

    answer = await client.ask(RequestCode.SEND_REPLY_MESSAGE_V2, send_header("Typed", 0, {}), b"plain")

    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert await client.bodies("Typed") == []


@pytest.mark.parametrize("attribute", ["queue.type=BatchCQ", "cleanup.policy=COMPACTION"])
async def test_what_is_fixed_at_creation_cannot_be_taken_away(client: Wire, broker: Broker, attribute: str) -> None:
    await create(client, f"+{attribute}")
    key, _, value = attribute.partition("=")
    header = {
        "topic": "Typed", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false", "attributes": f"-{key}",
    }  # fmt: skip
    answer = await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    assert answer.code != 0
    assert broker.state.topics.require("Typed").attributes == {key: value}
