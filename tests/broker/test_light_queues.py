"""Light queues: a message is stored once and found in every queue it names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.clock import ManualClock
from orbitmq.message.batch import BatchMember, encode_batch
from orbitmq.message.ids import parse_offset_message_id
from orbitmq.message.properties import encode_properties
from orbitmq.protocol.codes import RequestCode, ResponseCode
from tests.broker.kit import MAX_OFFSET, QUERY_OFFSET, SEND_BATCH, UPDATE_OFFSET, Wire, running, send_header, wire
from tests.broker.test_transactions import COMMIT, ROLLBACK, _begin, _end
from tests.raw_client import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbitmq.broker.broker import Broker

NO_FOLDERS = [pytest.param("%LMQ%a\0b", id="null"), pytest.param("%LMQ%" + "l" * 251, id="long")]
LIGHT: dict[str, Any] = {"enableLmq": "true", "enableMultiDispatch": "true", "maxLmqConsumeQueueNum": 3}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(tmp_path / "store", **LIGHT) as running_broker:
        yield running_broker


async def test_a_message_is_in_every_queue_it_names(client: Wire) -> None:
    for body, queues in ((b"1", "%LMQ%a,%LMQ%b"), (b"2", "%LMQ%b"), (b"3", "%LMQ%a")):
        assert (await client.send("T", body, 1, INNER_MULTI_DISPATCH=queues)).code == 0
    await client.send("T", b"4", 1)

    assert await client.bodies("T", 1) == [b"1", b"2", b"3", b"4"]
    assert await client.bodies("%LMQ%a") == [b"1", b"3"]
    assert await client.bodies("%LMQ%b") == [b"1", b"2"]
    (first, _) = await client.messages("%LMQ%b")
    assert (first.topic, first.properties["INNER_MULTI_QUEUE_OFFSET"]) == ("T", "0,0")
    assert (await client.ask(MAX_OFFSET, {"topic": "%LMQ%a", "queueId": 0})).fields["offset"] == "2"


async def test_a_list_that_ends_early_is_read_as_java_splits_it(client: Wire) -> None:
    assert (await client.send("T", b"1", INNER_MULTI_DISPATCH="%LMQ%a,")).code == 0
    assert (await client.send("T", b"2", INNER_MULTI_DISPATCH="")).code == 0
    assert (await client.send("T", b"3", about="INNER_MULTI_DISPATCH")).code == 0

    assert await client.bodies("T") == [b"1", b"2", b"3"]
    assert await client.bodies("%LMQ%a") == [b"1"]


async def test_whoever_waits_for_a_light_queue_is_woken(client: Wire) -> None:
    await client.send("T", b"1", INNER_MULTI_DISPATCH="%LMQ%a")
    held = await client.hold("%LMQ%a", 0, 1, consumer_group="%LMQ%a")

    await client.send("T", b"2", INNER_MULTI_DISPATCH="%LMQ%a")

    assert (await held).code == 0


async def test_a_group_of_a_light_queue_goes_on_where_it_was(tmp_path: Path) -> None:
    place = {"consumerGroup": "%LMQ%a", "topic": "%LMQ%a", "queueId": 0}
    usual = {"consumerGroup": "G", "topic": "T", "queueId": 0}
    async with running(tmp_path) as broker, wire(broker) as client:
        await client.send("T", b"x")
        await client.pull("T")
        assert (await client.ask(UPDATE_OFFSET, {**usual, "commitOffset": 1})).code == 0
    async with running(tmp_path, **LIGHT) as broker, wire(broker) as client:
        await client.send("T", b"x", INNER_MULTI_DISPATCH="%LMQ%a")
        assert (await client.ask(UPDATE_OFFSET, {**place, "commitOffset": 1})).code == 0
        assert "%LMQ%a" not in broker.state.groups.all()
        assert "%LMQ%a" not in broker.state.topics.all()
    saved = json.loads((tmp_path / "config" / "lmqConsumerOffset.json").read_text())
    assert saved["lmqOffsetTable"] == {"%LMQ%a@%LMQ%a": 1}
    async with running(tmp_path, **LIGHT) as broker, wire(broker) as client:
        assert (await client.ask(QUERY_OFFSET, place)).fields["offset"] == "1"
        assert (await client.ask(QUERY_OFFSET, usual)).fields["offset"] == "1"  # known since before they were on


async def test_there_are_only_so_many(client: Wire) -> None:
    assert (await client.send("T", b"x", INNER_MULTI_DISPATCH="%LMQ%a,%LMQ%b,%LMQ%c")).code == 0

    refused = await client.send("T", b"x", INNER_MULTI_DISPATCH="%LMQ%a,%LMQ%d")

    assert refused.code == 1
    assert "LMQ_CONSUME_QUEUE_NUM_EXCEEDED" in str(refused.remark)
    assert (await client.send("T", b"x", INNER_MULTI_DISPATCH="%LMQ%a")).code == 0
    assert len(await client.bodies("%LMQ%a")) == 2


@pytest.mark.parametrize("queues", ["%LMQ%a,,%LMQ%b", "%LMQ%a,T", "T", "%LMQ%../../x", "%LMQ%a,%LMQ%a", *NO_FOLDERS])
async def test_what_cannot_be_a_light_queue_is_refused(client: Wire, queues: str) -> None:
    assert (await client.send("T", b"x", INNER_MULTI_DISPATCH=queues)).code == 13

    assert await client.bodies("T") == []


@pytest.mark.parametrize("name", NO_FOLDERS)
async def test_what_cannot_be_a_light_queue_is_neither_sent_to_nor_a_group(
    broker: Broker, client: Wire, name: str
) -> None:
    assert (await client.send(name, b"x")).code == ResponseCode.INVALID_PARAMETER
    assert (await client.pull("T", consumer_group=name)).code == ResponseCode.INVALID_PARAMETER
    assert broker.state.topics.get(name) is None
    assert (await client.send("%LMQ%home%+%a", b"x")).code == 0
    assert await client.bodies("%LMQ%home%+%a") == [b"x"]


@pytest.mark.parametrize("offset", ["\N{SUPERSCRIPT TWO}", "9" * 5000, "7"], ids=["no number", "too large", "forged"])
async def test_a_delayed_message_is_in_no_light_queue_whatever_its_producer_says(
    client: Wire, broker: Broker, caplog: pytest.LogCaptureFixture, offset: str
) -> None:
    """Only the broker gives out offsets, and not while a message waits."""
    waiting: dict[str, Any] = {"DELAY": "18", "INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": offset}
    assert (await client.send("T", b"later", **waiting)).code == 0
    assert (await client.send("T", b"now", INNER_MULTI_DISPATCH="%LMQ%a")).code == 0

    assert await client.bodies("%LMQ%a") == [b"now"]
    assert broker.state.store.queue_range("SCHEDULE_TOPIC_XXXX", 17).max_offset == 1
    assert [
        record.message for record in caplog.records if record.levelname == "ERROR"
    ] == []  # what is indexed with it is not lost


@pytest.mark.parametrize(
    "wait", [{"DELAY": "1"}, {"TIMER_DELAY_SEC": "1"}, {"TIMER_DELAY_SEC": "1", "TRAN_MSG": "true"}]
)
@pytest.mark.usefixtures("loops")
async def test_what_waits_is_in_its_light_queues_when_it_is_delivered(tmp_path: Path, wait: dict[str, str]) -> None:
    clock = ManualClock()
    lights: dict[str, Any] = {"enableLmq": "true", "enableMultiDispatch": "true"}
    properties: dict[str, Any] = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b", "PGROUP": "P", "UNIQ_KEY": "U", **wait}
    async with running(tmp_path, clock=clock, **lights) as broker, wire(broker) as client:
        receipt = await client.send("T", b"waited", **properties)
        assert receipt.code == 0
        if "TRAN_MSG" in wait:
            assert (await _end(client, receipt, COMMIT)).code == 0
        assert await client.bodies("%LMQ%a") == await client.bodies("%LMQ%b") == []

        clock.advance(seconds=3)

        store = broker.state.store
        await until(lambda: store.queue_range("T", 0).max_offset == 1, what="delivery")
        assert (await client.send("T", b"now", INNER_MULTI_DISPATCH="%LMQ%b")).code == 0
        assert await client.bodies("%LMQ%a") == [b"waited"]
        assert await client.bodies("%LMQ%b") == [b"waited", b"now"]
        assert await client.bodies("T") == [b"waited", b"now"]


async def test_a_half_message_is_in_no_light_queue_before_its_commit_and_once_after_it(client: Wire) -> None:
    for body, decision, found in ((b"secret", ROLLBACK, []), (b"meant", COMMIT, [b"meant"])):
        receipt = await _begin(client, body=body, INNER_MULTI_DISPATCH="%LMQ%a")
        assert await client.bodies("%LMQ%a") == []
        assert (await _end(client, receipt, decision)).code == 0
        assert await client.bodies("%LMQ%a") == found


@pytest.mark.parametrize("queues", ["T", "%LMQ%a,%LMQ%a", "%LMQ%a,%LMQ%b,%LMQ%c,%LMQ%d"])
async def test_a_half_message_for_light_queues_that_cannot_be_is_refused_before_its_commit(
    client: Wire, broker: Broker, queues: str
) -> None:
    half: dict[str, Any] = {"TRAN_MSG": "true", "PGROUP": "P", "INNER_MULTI_DISPATCH": queues}
    assert (await client.send("T", b"half", **half)).code != 0
    assert len(broker.state.half_messages) == 0


async def test_a_dead_letter_is_in_its_light_queue_only_once(broker: Broker, client: Wire) -> None:
    sent = await client.send("T", b"m", INNER_MULTI_DISPATCH="%LMQ%a")
    _, offset = parse_offset_message_id(sent.fields["msgId"])
    broker.state.groups.require("G")
    given_up = {"offset": offset, "group": "G", "delayLevel": -1, "originTopic": "T", "maxReconsumeTimes": 16}
    assert (await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, given_up)).code == 0
    assert await client.bodies("%DLQ%G") == [b"m"]
    assert await client.bodies("%LMQ%a") == [b"m"]


async def test_a_light_queue_that_is_deleted_takes_the_positions_in_it_with_it(client: Wire) -> None:
    place = {"consumerGroup": "%LMQ%g", "topic": "%LMQ%a", "queueId": 0}
    await client.send("T", b"old", INNER_MULTI_DISPATCH="%LMQ%a")
    assert (await client.ask(UPDATE_OFFSET, {**place, "commitOffset": 1})).code == 0
    assert (await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "%LMQ%a"})).code == 0
    await client.send("T", b"new", INNER_MULTI_DISPATCH="%LMQ%a")
    assert await client.bodies("%LMQ%a") == [b"new"]
    assert (await client.ask(QUERY_OFFSET, place)).fields.get("offset") in (None, "0")


@pytest.mark.parametrize("says", ["member", "batch"])
async def test_a_batch_that_makes_up_a_number_takes_a_light_queue_from_nobody(client: Wire, says: str) -> None:
    told = {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "1000"}
    member = BatchMember(b"x", encode_properties(told) if says == "member" else b"")
    header = send_header("U", 0, told if says == "batch" else {}, {"batch": True})
    await client.send("T", b"before", INNER_MULTI_DISPATCH="%LMQ%a")
    assert (await client.ask(SEND_BATCH, header, encode_batch([member]))).code == 0
    await client.send("T", b"after", INNER_MULTI_DISPATCH="%LMQ%a")
    assert await client.bodies("%LMQ%a") == [b"before", b"after"]
    (stored,) = await client.messages("U")
    assert stored.properties["INNER_MULTI_DISPATCH"] == "%LMQ%a"


async def test_without_them_the_names_mean_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, wire(broker) as client:
        assert (await client.send("T", b"x", INNER_MULTI_DISPATCH="%LMQ%a")).code == 0

        assert (await client.pull("%LMQ%a")).code == 17
        assert await client.bodies("T") == [b"x"]
