"""Topics that keep a batch whole: one record, one entry, many messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orbitmq.message.batch import BatchMember, decode_batch, encode_batch
from orbitmq.message.properties import encode_properties
from orbitmq.message.sysflags import INNER_BATCH, NEED_UNWRAP
from tests.broker.kit import MAX_OFFSET, MIN_OFFSET, SEND_BATCH, Wire, messages_of, running, send_header, wire

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from orbitmq.protocol.command import Command

CREATE_TOPIC = 17


@pytest.fixture
async def batches(client: Wire) -> Wire:
    await create(client)
    return client


async def create(client: Wire) -> None:
    header = {
        "topic": "B", "defaultTopic": "TBW102", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false", "attributes": "+queue.type=BatchCQ",
    }  # fmt: skip
    assert (await client.ask(CREATE_TOPIC, header)).code == 0


async def send_batch(client: Wire, *bodies: bytes, **properties: str) -> Command:
    members = [BatchMember(body, encode_properties({"TAGS": "t"})) for body in bodies]
    return await client.ask(SEND_BATCH, send_header("B", 0, properties, {"batch": True}), encode_batch(members))


async def test_a_batch_is_one_record_with_a_number_for_each_of_its_messages(batches: Wire) -> None:
    first = await send_batch(batches, b"a", b"b", b"c", UNIQ_KEY="U1")
    second = await send_batch(batches, b"d", b"e", UNIQ_KEY="U2")

    assert (first.code, first.fields["batchUniqId"], first.fields["queueOffset"]) == (0, "U1", "0")
    assert (second.fields["queueOffset"], second.fields["transactionId"]) == ("3", "U2")
    answer = await batches.pull("B")
    one, two = messages_of(answer)
    assert [member.body for message in (one, two) for member in decode_batch(message.body)] == [
        b"a", b"b", b"c", b"d", b"e",
    ]  # fmt: skip
    assert one.sys_flag & (INNER_BATCH | NEED_UNWRAP) == INNER_BATCH | NEED_UNWRAP
    assert (one.properties["INNER_NUM"], one.properties["INNER_BASE"], one.queue_offset) == ("3", "0", 0)
    assert (two.properties["INNER_NUM"], two.properties["INNER_BASE"], two.queue_offset) == ("2", "3", 3)
    assert (answer.fields["nextBeginOffset"], answer.fields["maxOffset"]) == ("5", "5")
    queue = {"topic": "B", "queueId": 0}
    assert (await batches.ask(MAX_OFFSET, queue)).fields["offset"] == "5"
    assert (await batches.ask(MIN_OFFSET, queue)).fields["offset"] == "0"


@pytest.mark.parametrize(("offset", "bases"), [(0, ["0", "3"]), (2, ["0", "3"]), (3, ["3"]), (4, ["3"])])
async def test_a_pull_that_begins_inside_a_batch_gets_it_whole(batches: Wire, offset: int, bases: list[str]) -> None:
    await send_batch(batches, b"a", b"b", b"c", UNIQ_KEY="U1")
    await send_batch(batches, b"d", b"e", UNIQ_KEY="U2")

    found = messages_of(await batches.pull("B", offset=offset))

    assert [message.properties["INNER_BASE"] for message in found] == bases


async def test_without_a_key_of_its_own_a_batch_is_taken_apart(batches: Wire) -> None:
    answer = await send_batch(batches, b"a", b"b")

    assert "batchUniqId" not in answer.fields
    assert await batches.bodies("B") == [b"a", b"b"]


async def test_single_messages_stand_between_batches(batches: Wire) -> None:
    await batches.send("B", b"one")
    await send_batch(batches, b"a", b"b", UNIQ_KEY="U")
    await batches.send("B", b"two")

    assert [message.queue_offset for message in await batches.messages("B")] == [0, 1, 3]


async def test_what_is_no_batch_is_refused_and_takes_no_numbers(batches: Wire, broker: Broker) -> None:
    for body, properties in (
        (b"", {"UNIQ_KEY": "U"}),
        (b"nonsense", {"UNIQ_KEY": "U"}),
        (encode_batch([BatchMember(b"x")]), {"UNIQ_KEY": "U", "TIMER_DELAY_SEC": "5"}),
        (encode_batch([BatchMember(b"x")]), {"UNIQ_KEY": "U", "DELAY": "5"}),
        (encode_batch([BatchMember(b"x")]), {"UNIQ_KEY": "U", "INNER_NUM": "30000"}),
        (encode_batch([BatchMember(b"x")]), {"UNIQ_KEY": "U", "INNER_BASE": "7"}),
        (encode_batch([BatchMember(b"x")]), {"INNER_NUM": "30000"}),
    ):
        answer = await batches.ask(SEND_BATCH, send_header("B", 0, properties, {"batch": True}), body)
        assert answer.code in (1, 13), answer

    assert broker.state.store.queue_range("B", 0).max_offset == 0


async def test_numbers_go_on_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, wire(broker) as client:
        await create(client)
        await send_batch(client, b"a", b"b", b"c", UNIQ_KEY="U1")
    async with running(tmp_path) as broker, wire(broker) as client:
        assert (await send_batch(client, b"d", UNIQ_KEY="U2")).fields["queueOffset"] == "3"
        assert len(await client.messages("B")) == 2
