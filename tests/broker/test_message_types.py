"""Topics that take one kind of message, or messages with keys, ask that of everything that comes: alone, in batches, as replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from orbitmq.message.batch import BatchMember, encode_batch
from orbitmq.message.properties import encode_properties
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command
from tests.broker.kit import SEND_BATCH, Wire, long_send_header, send_header

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker

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


# What a message may be, and the types of topics that take it besides MIXED and UNSPECIFIED. An ordered topic takes plain ones, too.
KINDS: Final[dict[str, tuple[dict[str, str], set[str]]]] = {
    "plain": ({}, {"NORMAL", "FIFO"}),
    "of a group": ({"__SHARDINGKEY": "g"}, {"FIFO"}),
    "by level": ({"DELAY": "1"}, {"DELAY"}),
    "by seconds": ({"TIMER_DELAY_SEC": "60"}, {"DELAY"}),
    "by milliseconds": ({"TIMER_DELAY_MS": "60000"}, {"DELAY"}),
    "by moment": ({"TIMER_DELIVER_MS": "9"}, {"DELAY"}),
    "half": ({"TRAN_MSG": "true", "PGROUP": "P"}, {"TRANSACTION"}),
    "half that waits": ({"TRAN_MSG": "true", "PGROUP": "P", "DELAY": "1"}, {"TRANSACTION"}),
}


@pytest.mark.parametrize("wanted", ["NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "UNSPECIFIED"])
async def test_a_topic_takes_messages_of_its_kind_however_they_are_sent(
    client: Wire, broker: Broker, wanted: str
) -> None:
    await create(client, f"+message.type={wanted}")
    log = broker.state.store.log
    for what, (properties, takers) in KINDS.items():
        may = wanted in takers or wanted in ("MIXED", "UNSPECIFIED")
        changes = {"sys_flag": 4} if "TRAN_MSG" in properties else {}
        header = send_header("Typed", 0, properties, changes)
        for code, fields in (
            (RequestCode.SEND_MESSAGE, long_send_header("Typed", 0, properties)),
            (RequestCode.SEND_MESSAGE_V2, header),
            (RequestCode.SEND_REPLY_MESSAGE, long_send_header("Typed", 0, properties)),
            (RequestCode.SEND_REPLY_MESSAGE_V2, header),
        ):
            end = log.end
            answer = await client.ask(code, fields, b"x")
            assert (answer.code == ResponseCode.MESSAGE_ILLEGAL) == (not may), (what, code.name, answer)
            assert (log.end > end) == may, (what, code.name)
        end = log.end
        one_way = Command(RequestCode.SEND_MESSAGE_V2, fields=header.to_fields(), body=b"x")
        (await client.connection()).notify(one_way)
        await client.ask(RequestCode.GET_MAX_OFFSET, {"topic": "Typed", "queueId": 0})  # it was read before this
        assert (log.end > end) == may, (what, "one-way")


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
