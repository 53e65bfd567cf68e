"""Sends: what is stored, what is answered, and in which order a bad send is found out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from orbitmq.message.batch import BatchMember, encode_batch
from orbitmq.message.hosts import pack_host
from orbitmq.message.ids import parse_offset_message_id
from orbitmq.message.properties import encode_properties
from tests.broker.kit import (
    BORN_AT_MS,
    HEART_BEAT,
    MAX_OFFSET,
    SEND,
    SEND_BACK,
    SEND_BATCH,
    VIEW_MESSAGE,
    Wire,
    long_send_header,
    messages_of,
    running,
    send_header,
    wire,
)

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from orbitmq.protocol.command import Command

pytestmark = pytest.mark.usefixtures("loops")

INNER_BATCH = 0x80


async def test_a_sent_message_is_stored_as_sent_and_answered_with_where_it_is(client: Wire, broker: Broker) -> None:
    answer = await client.send("T", b"hello", 2, header={"flag": 7}, KEYS="k", TAGS="tag", UNIQ_KEY="U1", colour="red")

    assert answer.code == 0
    assert answer.fields["queueId"] == "2"
    assert answer.fields["queueOffset"] == "0"
    assert answer.fields["transactionId"] == "U1"
    assert (answer.fields["MSG_REGION"], answer.fields["TRACE_ON"]) == ("DefaultRegion", "true")
    (message,) = await client.messages("T", 2)
    assert (message.body, message.flag, message.born_at_ms, message.queue_id) == (b"hello", 7, BORN_AT_MS, 2)
    assert message.properties["KEYS"] == "k"
    assert message.properties["colour"] == "red"
    assert message.properties["CLUSTER"] == "DefaultCluster"
    assert message.offset_id == answer.fields["msgId"]
    assert broker.address is not None
    assert message.store_host == pack_host(*broker.address)


async def test_the_old_long_header_says_the_same_as_the_short_one(client: Wire) -> None:
    assert (await client.ask(SEND, long_send_header("T", 1, {"TAGS": "x"}), b"long")).code == 0

    (message,) = await client.messages("T", 1)

    assert (message.body, message.properties["TAGS"]) == (b"long", "x")


async def test_a_message_without_a_unique_key_gets_one(client: Wire) -> None:
    answer = await client.send("T")

    (message,) = await client.messages("T")

    assert message.properties["UNIQ_KEY"] == answer.fields["transactionId"] != ""


async def test_a_property_whose_name_only_ends_like_the_unique_key_is_not_it(client: Wire) -> None:
    answer = await client.send("T", UNIQ_KEY="mine", MY_UNIQ_KEY="other")

    (message,) = await client.messages("T")

    assert answer.fields["transactionId"] == message.properties["UNIQ_KEY"] == "mine"


async def test_offsets_of_a_queue_are_dense_and_queues_do_not_mix(client: Wire) -> None:
    for i in range(12):
        answer = await client.send("T", b"%d" % i, i % 3)
        assert int(answer.fields["queueOffset"]) == i // 3

    assert await client.bodies("T", 1) == [b"1", b"4", b"7", b"10"]


async def test_a_negative_queue_lets_the_broker_choose_one(client: Wire) -> None:
    chosen = {int((await client.send("T", b"x", -1)).fields["queueId"]) for _ in range(60)}

    assert chosen == {0, 1, 2, 3}


@pytest.mark.parametrize("topic", ["", " ", "a b", "a/b", "../../etc", "a\0b", "tópico", "x" * 128, "a.b"])
async def test_a_name_that_no_topic_can_have_is_refused(client: Wire, topic: str) -> None:
    answer = await client.send(topic)

    assert answer.code == 29
    assert answer.fields["MSG_REGION"] == "DefaultRegion"  # also on refusals


@pytest.mark.parametrize(
    "topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "OFFSET_MOVED_EVENT",
              "SELF_TEST_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"],
)  # fmt: skip
async def test_the_brokers_own_topics_take_no_sends(client: Wire, topic: str) -> None:
    assert (await client.send(topic)).code == 16


async def test_a_send_to_the_timers_topic_cannot_stop_the_timer(client: Wire) -> None:
    assert (await client.send("rmq_sys_wheel_timer")).code == 16


async def test_the_first_send_makes_the_topic_after_its_template(client: Wire, broker: Broker) -> None:
    await client.send("Small", header={"default_topic_queue_nums": 3})
    await client.send("Large", header={"default_topic_queue_nums": 100})

    small, large = broker.state.topics.require("Small"), broker.state.topics.require("Large")
    assert (small.read_queue_nums, small.write_queue_nums, small.perm) == (3, 3, 6)
    assert large.write_queue_nums == 8  # the template has no more


async def test_what_makes_a_topic_in_a_unit_marks_it(client: Wire, broker: Broker) -> None:
    await client.send("Unit", header={"unit_mode": True})
    given_back = await client.send("T")
    await client.ask(
        SEND_BACK,
        {
            "offset": int(given_back.fields["msgId"][16:], 16),
            "group": "G",
            "delayLevel": 1,
            "originTopic": "T",
            "unitMode": "true",
        },
    )
    consumer = {"groupName": "H", "unitMode": True, "subscriptionDataSet": []}
    beat = {"clientID": "c", "consumerDataSet": [consumer], "producerDataSet": []}
    await client.ask(HEART_BEAT, None, json.dumps(beat).encode())

    flags = {name: broker.state.topics.require(name).topic_sys_flag for name in ("Unit", "T", "%RETRY%G", "%RETRY%H")}
    assert flags == {"Unit": 1, "T": 0, "%RETRY%G": 2, "%RETRY%H": 2}


async def test_an_unknown_template_makes_no_topic(client: Wire, broker: Broker) -> None:
    answer = await client.send("T", header={"default_topic": "NoSuch"})

    assert answer.code == 17
    assert broker.state.topics.get("T") is None


async def test_without_auto_create_an_unknown_topic_stays_unknown(tmp_path: Path) -> None:
    async with running(tmp_path, autoCreateTopicEnable="false") as broker, wire(broker) as client:
        assert (await client.send("T")).code == 17
        assert broker.state.topics.get("T") is None


async def test_a_template_that_does_not_bequeath_makes_no_topic(client: Wire) -> None:
    await client.send("Plain")

    assert (await client.send("T", header={"default_topic": "Plain"})).code == 17


async def test_a_queue_beyond_the_topics_is_refused(client: Wire) -> None:
    await client.send("T")

    assert (await client.send("T", b"x", 4)).code == 29
    assert (await client.send("T", b"x", 2**31 - 1)).code == 29


async def test_the_name_is_checked_before_the_queue_and_the_queue_before_the_body(client: Wire) -> None:
    await client.send("T")

    assert (await client.send("a/b", b"", 99)).code == 29
    assert "illegal characters" in str((await client.send("a/b", b"", 99)).remark)
    assert "queueId" in str((await client.send("T", b"", 99)).remark)


async def test_an_empty_body_is_refused(client: Wire) -> None:
    assert (await client.send("T", b"")).code == 13


async def test_a_body_of_the_largest_size_is_taken_and_one_byte_more_is_not(tmp_path: Path) -> None:
    async with running(tmp_path, maxMessageSize=100_000) as broker, wire(broker) as client:
        assert (await client.send("T", b"x" * 100_000)).code == 0
        refused = await client.send("T", b"x" * 100_001)

        assert refused.code == 13
        assert "100001" in str(refused.remark)
        assert await client.bodies("T") == [b"x" * 100_000]


async def test_properties_that_fit_no_record_are_refused(client: Wire) -> None:
    assert (await client.send("T", big="x" * 33_000)).code == 13


async def test_a_broker_that_opens_later_says_when(tmp_path: Path) -> None:
    async with running(tmp_path, startAcceptSendRequestTimeStamp=4_000_000_000_000) as broker, wire(broker) as client:
        answer = await client.send("T")

    assert answer.code == 1
    assert "4000000000000" in str(answer.remark)


async def test_what_a_client_says_of_address_lengths_is_not_believed(client: Wire, broker: Broker) -> None:
    """These bits of sysFlag describe the record's own layout; both addresses here are IPv4."""
    answer = await client.send("T", b"x", header={"sys_flag": 0x30})
    await client.send("T", b"y")

    first, second = await client.messages("T")
    assert (first.body, second.body) == (b"x", b"y")
    assert len(first.born_host) == len(first.store_host) == 8
    assert first.offset_id == answer.fields["msgId"]


async def test_an_inner_batch_is_refused_by_a_topic_that_is_not_made_for_it(client: Wire) -> None:
    """It would take several places in a queue that has an entry for one."""
    refused = await client.send("T", b"x", header={"sys_flag": INNER_BATCH}, INNER_NUM="5")
    assert refused.code == 13
    assert (await client.send("T", b"x", INNER_NUM="5")).code == 13
    await client.send("T", b"y")

    assert await client.bodies("T") == [b"y"]


# ---- batches


def batch(*bodies: bytes) -> bytes:
    return encode_batch([BatchMember(body, encode_properties({"TAGS": body.decode()})) for body in bodies])


async def send_batch(client: Wire, topic: str, body: bytes, **properties: str) -> Command:
    return await client.ask(SEND_BATCH, send_header(topic, 0, properties, {"batch": True}), body)


async def test_a_batch_becomes_messages_of_their_own(client: Wire) -> None:
    answer = await send_batch(client, "T", batch(b"a", b"b", b"c"), UNIQ_KEY="u1,u2,u3")

    messages = await client.messages("T")
    assert [message.body for message in messages] == [b"a", b"b", b"c"]
    assert [message.properties["TAGS"] for message in messages] == ["a", "b", "c"]
    assert answer.fields["msgId"] == ",".join(message.offset_id for message in messages)
    assert (answer.fields["queueOffset"], answer.fields["transactionId"]) == ("0", "u1,u2,u3")


async def test_the_flag_makes_the_batch_not_the_code(client: Wire) -> None:
    body = batch(b"a", b"b")

    assert (await client.ask(SEND_BATCH, send_header("T"), body)).code == 0

    assert await client.bodies("T") == [body]


async def test_a_batch_to_a_retry_topic_is_refused(client: Wire) -> None:
    assert (await send_batch(client, "%RETRY%G", batch(b"a"))).code == 13


async def test_a_batch_cannot_be_delayed(client: Wire) -> None:
    assert (await send_batch(client, "T", batch(b"a"), DELAY="3")).code == 13


async def test_of_a_batch_that_cannot_be_read_nothing_is_stored(client: Wire) -> None:
    good = batch(b"a", b"b")

    for bad in (b"x", good[:-1], good + b"\0", b"\x7f\xff\xff\xff" + good[4:], b""):
        assert (await send_batch(client, "T", bad)).code != 0

    await client.send("T", b"next")
    assert await client.bodies("T") == [b"next"]


async def test_a_batch_larger_than_a_message_may_be_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, maxMessageSize=1000) as broker, wire(broker) as client:
        assert (await send_batch(client, "T", batch(b"x" * 600, b"y" * 600))).code == 13


# ---- finding what was sent


async def test_a_message_is_found_by_its_id(client: Wire) -> None:
    message_id = (await client.send("T", b"find me")).fields["msgId"]

    found = await client.ask(VIEW_MESSAGE, {"offset": parse_offset_message_id(message_id)[1]})

    assert [message.body for message in messages_of(found)] == [b"find me"]


@pytest.mark.parametrize("offset", [-1, 1, 50, 10**6, 2**62])
async def test_where_no_message_begins_none_is_found(client: Wire, offset: int) -> None:
    await client.send("T", b"x" * 200)

    assert (await client.ask(VIEW_MESSAGE, {"offset": offset})).code == 1


async def test_messages_are_found_by_key_and_by_unique_key(client: Wire) -> None:
    await client.send("T", b"one", KEYS="red round", UNIQ_KEY="U1")
    await client.send("T", b"two", KEYS="red", UNIQ_KEY="U2")
    await client.send("Other", b"three", KEYS="red")

    async def find(key: str, **changes: object) -> Command:
        header = {"topic": "T", "key": key, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 2**62, **changes}
        return await client.ask(12, header)

    assert [message.body for message in messages_of(await find("red"))] == [b"one", b"two"]
    assert [message.body for message in messages_of(await find("round"))] == [b"one"]
    assert [message.body for message in messages_of(await find("U2", _UNIQUE_KEY_QUERY="true"))] == [b"two"]
    assert len(messages_of(await find("red", maxNum=1))) == 1
    assert (await find("blue")).code == 22
    assert (await find("red", endTimestamp=1)).code == 22


async def test_a_topic_that_may_not_be_written_refuses_messages(client: Wire, broker: Broker) -> None:
    """Java's broker takes them and leaves it to the clients to obey the route; that is plainly wrong."""
    broker.state.topics.create_internal("ReadOnly", 1, perm=4)

    refused = await client.send("ReadOnly")

    assert refused.code == 16
    assert "ReadOnly" in str(refused.remark)
    assert (await client.ask(MAX_OFFSET, {"topic": "ReadOnly", "queueId": 0})).fields["offset"] == "0"
