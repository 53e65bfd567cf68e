"""Producers against a scripted cluster: what they send, whom they ask, how they fail."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq import Message, Producer, QueueRef, Receipt, ReceivedMessage, SendHook, Sending, SendStatus, connect
from orbitmq.client.cluster import Cluster
from orbitmq.client.queue_choice import queue_for_group
from orbitmq.errors import AlreadyClosed, CallTimeout, ConfigError, ConnectFailed, MessageError, RequestFailed
from orbitmq.message.compression import plain_body
from orbitmq.message.properties import decode_properties
from orbitmq.message.tags import java_hash
from orbitmq.protocol import versions
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command, answer, ok, request
from orbitmq.protocol.headers.send import SendMessageV2, SendReceipt
from orbitmq.testing.server import Server as OwnServer
from orbitmq.transport.address import Address
from orbitmq.transport.connection import Connection
from orbitmq.transport.server import Server
from tests.client.scripted import ScriptedCluster, eventually, hang_up, never_answer, refuse, scripted_cluster

SEND = RequestCode.SEND_MESSAGE_V2


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    async with scripted_cluster(topics={"T": 4}) as cluster:
        yield cluster


@pytest.fixture
async def producer(cluster: ScriptedCluster) -> AsyncIterator[Producer]:
    async with connect(cluster.address) as client, client.producer("P") as producer:
        yield producer


async def test_a_message_arrives_as_it_was_sent_and_the_receipt_says_where(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    receipt = await producer.send(
        "T",
        b"hi",
        tag="new",
        keys=["k1", "k2"],
        properties={"colour": "blå"},
        queue=QueueRef("T", "broker-a", 3),
        flag=7,
    )
    [stored] = cluster.broker.queues["T", 3]
    assert (stored.body, stored.flag) == (b"hi", 7)
    assert stored.properties == {
        "TAGS": "new", "KEYS": "k1 k2", "colour": "blå", "UNIQ_KEY": receipt.message_id,
    }  # fmt: skip
    assert receipt.queue == QueueRef("T", "broker-a", 3)
    assert (receipt.queue_offset, receipt.status, receipt.region) == (0, SendStatus.STORED, "DefaultRegion")
    assert receipt.offset_id == stored.offset_id


async def test_values_are_sent_by_the_codec(cluster: ScriptedCluster, producer: Producer) -> None:
    queue = QueueRef("T", "broker-a", 0)
    for value in ("text", {"a": 1}, bytearray(b"raw")):
        await producer.send("T", value, queue=queue)
    assert [message.body for message in cluster.broker.queues["T", 0]] == [b"text", b'{"a":1}', b"raw"]
    with pytest.raises(MessageError, match="a value of type object cannot be sent as JSON"):
        await producer.send("T", object())


async def test_messages_take_turns_over_the_queues(cluster: ScriptedCluster, producer: Producer) -> None:
    queues = [(await producer.send("T", b"x")).queue.queue_id for _ in range(8)]
    assert sorted(queues[:4]) == [0, 1, 2, 3]
    assert queues[4:] == queues[:4]


async def test_one_order_key_means_one_queue_and_it_is_javas(cluster: ScriptedCluster, producer: Producer) -> None:
    for key in ("user-7", "标签", "polygenelubricants"):  # the last hashes to Java's smallest number
        receipt = await producer.send("T", b"x", order_key=key)
        assert receipt.queue.queue_id == abs(java_hash(key)) % 4
        assert (await producer.send("T", b"y", order_key=key)).queue == receipt.queue


async def test_sends_that_start_together_all_get_their_own_receipt(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    receipts = await asyncio.gather(*(producer.send("T", str(number)) for number in range(500)))
    places = {(receipt.queue, receipt.queue_offset) for receipt in receipts}
    assert len(places) == 500
    for number, receipt in enumerate(receipts):
        assert cluster.broker.queues["T", receipt.queue.queue_id][receipt.queue_offset].body == str(number).encode()


async def test_large_bodies_are_compressed_and_small_ones_are_not(cluster: ScriptedCluster) -> None:
    async with connect(cluster.address) as client:
        for kind, flag in (("zlib", 0x301), ("lz4", 0x101), ("zstd", 0x201)):
            async with client.producer("P", compression=kind) as producer:  # type: ignore[arg-type]
                receipt = await producer.send("T", b"x" * 5000)
            stored = cluster.broker.queues["T", receipt.queue.queue_id][receipt.queue_offset]
            assert stored.sys_flag == flag
            assert len(stored.body) < 5000
            assert plain_body(stored.body, stored.sys_flag) == b"x" * 5000
        async with client.producer("P", compression=None) as producer:
            receipt = await producer.send("T", b"x" * 5000)
        assert cluster.broker.queues["T", receipt.queue.queue_id][receipt.queue_offset].body == b"x" * 5000


async def test_a_batch_is_one_request_and_gives_a_receipt_each(cluster: ScriptedCluster, producer: Producer) -> None:
    receipts = await producer.send_batch("T", [b"a", "b", Message("T", b"c", tag="own")], tag="shared")
    assert len(cluster.broker.received(RequestCode.SEND_BATCH_MESSAGE)) == 1
    stored = cluster.broker.queues["T", receipts[0].queue.queue_id]
    assert [message.body for message in stored] == [b"a", b"b", b"c"]
    assert [message.tags for message in stored] == ["shared", "shared", "own"]
    assert [receipt.message_id for receipt in receipts] == [message.message_id for message in stored]
    assert [receipt.offset_id for receipt in receipts] == [message.offset_id for message in stored]
    assert [receipt.queue_offset for receipt in receipts] == [0, 1, 2]


async def test_a_batch_is_split_by_size_and_by_count_and_around_delayed_messages(cluster: ScriptedCluster) -> None:
    async with (
        connect(cluster.address) as client,
        client.producer("P", max_batch_messages=3, max_message_bytes=1000) as producer,
    ):
        await producer.send_batch("T", [b"x"] * 7)
        sizes = [_members(one) for one in cluster.broker.received(RequestCode.SEND_BATCH_MESSAGE)]
        assert sizes == [3, 3, 1]
        cluster.broker.requests.clear()
        await producer.send_batch("T", [b"x" * 400] * 3)
        assert [_members(one) for one in cluster.broker.received(RequestCode.SEND_BATCH_MESSAGE)] == [2, 1]
        cluster.broker.requests.clear()
        delayed = Message("T", b"later", properties={"DELAY": "3"})
        receipts = await producer.send_batch("T", [b"a", delayed, b"b"])
        assert [one.code for one in cluster.broker.requests if one.code in (SEND, 320)] == [320, SEND, 320]
        assert len(receipts) == 3


async def test_a_batch_for_one_topic_refuses_messages_of_another(producer: Producer) -> None:
    with pytest.raises(MessageError, match="in a batch for 'T'"):
        await producer.send_batch("T", [Message("Other", b"x")])


async def test_oneway_messages_can_be_delayed_and_grouped_as_others(mq_session_server: OwnServer) -> None:
    async with connect(mq_session_server.address) as client, client.producer("P") as producer:
        mq_session_server.create_topic("OneWay")
        grouped = await producer.send("OneWay", b"first of its group", message_group="g")
        await producer.send_oneway("OneWay", b"by level", delay_level=1)
        await producer.send_oneway("OneWay", b"by timer", delay=timedelta(milliseconds=500))
        await producer.send_oneway("OneWay", b"by moment", deliver_at=datetime.now(UTC) + timedelta(milliseconds=500))
        await producer.send_oneway("OneWay", b"grouped", message_group="g")
        with pytest.raises(MessageError, match="one delay"):
            await producer.send_oneway("OneWay", b"x", delay_level=1, delay=timedelta(seconds=1))
        seen: dict[bytes, ReceivedMessage] = {}

        async def handler(message: ReceivedMessage) -> None:
            seen[message.body] = message

        async with client.consumer("OneWay", group="oneway", start="earliest", handler=handler):
            await eventually(lambda: len(seen) == 5, 20)
    assert seen[b"grouped"].queue == grouped.queue
    waited = [seen[body].properties for body in (b"by level", b"by timer", b"by moment")]
    assert [sorted({"DELAY", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"} & own.keys()) for own in waited] == [
        ["DELAY"], ["TIMER_DELAY_MS"], ["TIMER_DELIVER_MS"],
    ]  # fmt: skip


async def test_oneway_messages_arrive_without_an_answer(cluster: ScriptedCluster, producer: Producer) -> None:
    await producer.send_oneway("T", b"gone", tag="log")
    await eventually(lambda: cluster.broker.received(SEND))
    [command] = cluster.broker.received(SEND)
    assert command.is_oneway
    assert command.body == b"gone"


@given(
    texts=st.lists(st.text(), min_size=4, max_size=4),
    numbers=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=6, max_size=6),
    most=st.none() | st.integers(0, 100),
    flags=st.tuples(st.booleans(), st.booleans()),
)
def test_the_quick_header_says_the_same_as_the_usual_one(
    texts: list[str], numbers: list[int], most: int | None, flags: tuple[bool, bool]
) -> None:
    header = SendMessageV2(
        producer_group=texts[0], topic=texts[1], default_topic=texts[2], default_topic_queue_nums=numbers[0],
        queue_id=numbers[1], sys_flag=numbers[2], born_timestamp=numbers[3], flag=numbers[4], properties=texts[3],
        reconsume_times=numbers[5], max_reconsume_times=most, unit_mode=flags[0], batch=flags[1],
        bname=None if most is None else texts[0],
    )  # fmt: skip
    assert json.loads(header.to_json()) == header.to_fields()


@pytest.mark.parametrize(
    ("group", "places"),
    [
        ("a1", (0, 3, 5, 5, 86)),
        ("user-7", (0, 3, 3, 3, 36)),
        ("polygenelubricants", (0, 2, 2, 2, 58)),  # whose hash is the lowest int
        ("标签", (0, 2, 4, 4, 65)),
        ("order-12345", (0, 2, 4, 15, 46)),
        ("x", (0, 1, 4, 12, 36)),
    ],
)
def test_message_groups_go_where_guavas_consistent_hash_puts_them(group: str, places: tuple[int, ...]) -> None:
    for count, place in zip((1, 4, 8, 16, 100), places, strict=True):
        queues = tuple(QueueRef("T", "b", number) for number in range(count))
        assert queue_for_group(queues, group).queue_id == place


async def test_a_message_group_stays_in_one_queue_and_is_told_to_the_broker(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    receipts = [await producer.send("T", b"x", message_group="user-7") for _ in range(5)]
    assert len({receipt.queue for receipt in receipts}) == 1
    stored = cluster.broker.queues["T", receipts[0].queue.queue_id]
    assert {message.properties["__SHARDINGKEY"] for message in stored} == {"user-7"}


async def test_message_groups_keep_to_their_queues_and_their_order_in_batches_too(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    queues = {group: (await producer.send("T", b"x", message_group=group)).queue for group in ("a", "c")}
    assert queues["a"] != queues["c"]
    cluster.broker.queues.clear()
    mixed = [Message("T", b"%d" % n, properties={"__SHARDINGKEY": "aac"[n % 3]}) for n in range(9)]
    receipts = await producer.send_batch("T", [b"any", *mixed])
    assert [receipt.queue for receipt in receipts[1:]] == [queues["aac"[n % 3]] for n in range(9)]
    assert len(cluster.broker.received(RequestCode.SEND_BATCH_MESSAGE)) == 3
    for item, receipt in zip(mixed, receipts[1:], strict=True):
        assert cluster.broker.queues["T", receipt.queue.queue_id][receipt.queue_offset].body == item.body
    offsets = [receipt.queue_offset for receipt in receipts[1:] if receipt.queue == queues["a"]]
    assert offsets == sorted(offsets)

    alike = await producer.send_batch("T", [b"x", b"y"], properties={"__SHARDINGKEY": "c"})
    assert {receipt.queue for receipt in alike} == {queues["c"]}
    keyed = await producer.send_batch("T", mixed, queue=QueueRef("T", "broker-a", 3))
    assert {receipt.queue.queue_id for receipt in keyed} == {3}
    await producer.send_oneway("T", b"oneway", properties={"__SHARDINGKEY": "a"})
    await eventually(lambda: cluster.broker.queues["T", queues["a"].queue_id][-1].body == b"oneway")


async def test_a_delay_is_left_to_the_brokers_timer(cluster: ScriptedCluster, producer: Producer) -> None:
    moment = datetime(2030, 1, 2, tzinfo=UTC)
    receipts = [
        await producer.send("T", b"x", delay=timedelta(seconds=7, milliseconds=1)),
        await producer.send("T", b"x", deliver_at=moment),
        await producer.send("T", b"x", delay_level=3),
    ]
    stored = [cluster.broker.queues["T", one.queue.queue_id][one.queue_offset].properties for one in receipts]
    assert stored[0]["TIMER_DELAY_MS"] == "7001"
    assert stored[1]["TIMER_DELIVER_MS"] == str(int(moment.timestamp() * 1000))
    assert stored[2]["DELAY"] == "3"


async def test_a_4x_broker_has_levels_only(cluster: ScriptedCluster, producer: Producer) -> None:
    cluster.broker.version = versions.ordinal(4, 9, 7)
    receipt = await producer.send("T", b"x", delay=timedelta(minutes=3))
    assert cluster.broker.queues["T", receipt.queue.queue_id][-1].properties["DELAY"] == "7"
    with pytest.raises(MessageError, match="broker is 7 s long") as caught:
        await producer.send("T", b"x", delay=timedelta(seconds=7))
    assert "1s 5s 10s" in caught.value.hint
    with pytest.raises(MessageError, match="at no given moment"):
        await producer.send("T", b"x", deliver_at=datetime.now(UTC))


async def test_delays_that_cannot_be_meant_are_refused(producer: Producer) -> None:
    for mistaken in (
        {"delay": timedelta(seconds=1), "delay_level": 1},
        {"delay": timedelta(seconds=1), "deliver_at": datetime.now(UTC)},
        {"delay": timedelta(seconds=-1)},
        {"deliver_at": datetime(2030, 1, 1)},  # noqa: DTZ001 - that it has no zone is the point
        {"delay_level": -1},
    ):
        with pytest.raises(MessageError) as caught:
            await producer.send("T", b"x", **mistaken)
        assert caught.value.hint


@pytest.mark.parametrize(
    ("topic", "body", "complaint"),
    [
        ("", b"x", "not a valid name"),
        ("with blank", b"x", "not a valid name"),
        ("t" * 128, b"x", "up to 127"),
        ("SCHEDULE_TOPIC_XXXX", b"x", "belongs to the broker"),
        ("T", b"", "needs a body"),
        ("T", b"x" * (4 * 1024 * 1024 + 1), "more than the 4,194,304"),
    ],
)
async def test_what_no_broker_would_take_is_refused_here(
    producer: Producer, topic: str, body: bytes, complaint: str
) -> None:
    with pytest.raises(MessageError, match=complaint):
        await producer.send(topic, body)


@pytest.mark.parametrize(
    "properties", [{"KEYS": "x"}, {"UNIQ_KEY": "x"}, {"a": ""}, {"a\x01": "x"}, {"a": "\x02"}, {"long": "x" * 40_000}]
)
async def test_properties_that_cannot_travel_are_refused(producer: Producer, properties: dict[str, str]) -> None:
    with pytest.raises(MessageError):
        await producer.send("T", b"x", properties=properties)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"order_key": 7}, "order_key is 7, which is no text"),
        ({"message_group": 0}, "message_group is 0, which is no text"),
        ({"queue": QueueRef("U", "broker-a", 0)}, "topic 'T' cannot go to a queue of topic 'U'"),
        ({"tag": 0}, "tag is 0, which is no text"),
        ({"tag": b"new"}, "tag is b'new', which is no text"),
        ({"queue": 0}, "queue is 0, which is no QueueRef"),
        ({"properties": ["k=v"]}, r"properties are \['k=v'\], which is no mapping"),
        ({"keys": 42}, "key 42 cannot be used"),
        ({"keys": 0}, "key 0 cannot be used"),
        ({"keys": [42]}, "key 42 cannot be used"),
        ({"delay": 5}, "delay is 5, which is no timedelta"),
        ({"deliver_at": 1_700_000_000}, "deliver_at is 1700000000, which is no datetime"),
        ({"delay_level": "3"}, "delay levels count from 1, not '3'"),
        ({"delay_level": 2.5}, "delay levels count from 1, not 2.5"),
        ({"delay_level": 1 << 31}, "delay levels count from 1, not 2147483648"),
    ],
)
async def test_what_is_of_the_wrong_type_is_named(producer: Producer, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(MessageError, match=complaint) as caught:
        await producer.send("T", b"x", **options)
    assert caught.value.hint


async def test_a_delay_level_may_be_any_whole_number(cluster: ScriptedCluster, producer: Producer) -> None:
    class Level(int, Enum):
        TEN_SECONDS = 3

    levels: list[Any] = [Level.TEN_SECONDS, np.int64(3)]
    for level in levels:
        receipt = await producer.send("T", b"x", delay_level=level)
        [message] = cluster.broker.queues["T", receipt.queue.queue_id]
        assert message.properties["DELAY"] == "3"
        cluster.broker.queues.clear()


async def test_texts_may_be_members_of_enums_and_numpys(cluster: ScriptedCluster) -> None:
    class Name(str, Enum):  # noqa: UP042 - as many programs have it; formatting a StrEnum gives its value anyway
        TEXT = "T"

    texts: list[Any] = [Name.TEXT, np.str_("T")]
    async with connect(cluster.address) as client:
        for text in texts:
            async with client.producer(text) as producer:
                options = {"tag": text, "keys": text, "properties": {text: text}}
                one = await producer.send(text, b"x", **options, message_group=text)
                several = await producer.send_batch(text, [b"x", b"y"], **options)
            for receipt in (one, *several):
                for message in cluster.broker.queues["T", receipt.queue.queue_id]:
                    known = message.properties
                    assert [known[name] for name in ("TAGS", "KEYS", "T")] == ["T", "T", "T"]
                    assert known.get("__SHARDINGKEY", "T") == "T"
            cluster.broker.queues.clear()


async def test_a_namespace_may_be_a_member_of_an_enum(cluster: ScriptedCluster) -> None:
    class Name(str, Enum):  # noqa: UP042
        SPACE = "shop"

    cluster.topics["shop%T"] = 1
    async with (
        connect(cluster.address, namespace=Name.SPACE, instance_name=Name.SPACE) as client,
        client.producer("P") as producer,
    ):
        await producer.send("T", b"x")
        assert client.config.instance_name == "shop"
    assert len(cluster.broker.queues["shop%T", 0]) == 1


async def test_other_mistakes_in_what_is_given_are_named_before_anything_is_sent(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    class Model:
        """As pydantic's look from outside: made of their fields."""

        def model_dump_json(self) -> str:
            return '{"a":1}'

        def __iter__(self) -> Iterator[tuple[str, int]]:
            return iter([("a", 1)])

    elsewhere = QueueRef("U", "broker-a", 0)
    for sending, complaint in (
        (producer.send(7, b"x"), "topic 7 is not a valid name"),  # type: ignore[arg-type]
        (producer.send(["T"], b"x"), r"topic \['T'\] is not a valid name"),  # type: ignore[arg-type]
        (producer.request(7, b"x"), "topic 7 is not a valid name"),  # type: ignore[arg-type]
        (producer.request("two words", b"x"), "topic 'two words' is not a valid name"),
        (producer.recall("two words", "handle"), "topic 'two words' is not a valid name"),
        (producer.send_batch("T", "one"), "a list of bodies, not one body"),
        (producer.send_batch("T", b"one"), "a list of bodies, not one body"),
        (producer.send_batch("T", {"a": 1}), "a list of bodies, not one body"),
        (producer.send_batch("T", Message("T", b"x")), "a list of bodies, not one body"),  # type: ignore[arg-type]
        (producer.send_batch("T", Model()), "a list of bodies, not one body"),
        (producer.send_batch("T", [b"x"], queue=elsewhere), "cannot go to a queue of topic 'U'"),
        (producer.send_batch("T", [b"x"], order_key=7), "order_key is 7"),  # type: ignore[arg-type]
        (producer.send_oneway("T", b"x", queue=elsewhere), "cannot go to a queue of topic 'U'"),
        (producer.recall("T", None), "None is no recall handle"),  # type: ignore[arg-type]
    ):
        with pytest.raises(MessageError, match=complaint) as caught:
            await sending
        assert caught.value.hint
    assert not any(cluster.broker.queues.values())


async def test_a_key_with_a_blank_would_be_two_keys(producer: Producer) -> None:
    with pytest.raises(MessageError, match="cannot be used"):
        await producer.send("T", b"x", keys=["two words"])


@pytest.mark.parametrize("group", ["", "with blank", "g" * 121, "DEFAULT_PRODUCER"])
def test_groups_follow_javas_rules(group: str) -> None:
    with pytest.raises(ConfigError):
        connect("127.0.0.1:1").producer(group)


def test_a_compression_level_that_there_is_not_is_refused() -> None:
    for level in (-2, 10):
        with pytest.raises(ConfigError, match=f"compression_level is {level}"):
            connect("127.0.0.1:1").producer("P", compression_level=level)


# ---- failures


async def test_a_refusal_that_another_broker_may_not_share_is_tried_there() -> None:
    async with (
        scripted_cluster(brokers=2, topics={"T": 1}) as cluster,
        connect(cluster.address) as client,
        client.producer("P") as producer,
    ):
        for broker in cluster.brokers:
            broker.inject(SEND, refuse(ResponseCode.SYSTEM_BUSY))
        receipt = await producer.send("T", b"x")  # first, second, first again
        assert receipt.queue.broker_name in {"broker-a", "broker-b"}
        asked = [broker.name for broker in cluster.brokers for _ in broker.received(SEND)]
        assert sorted(asked) in (["broker-a", "broker-a", "broker-b"], ["broker-a", "broker-b", "broker-b"])
        assert producer.stats.retried == 2


async def test_who_is_told_what_to_do_by_the_server_gets_no_other_advice(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    remark = "recall failed, operation is forbidden (set recallMessageEnable=true)"
    cluster.broker.inject(SEND, refuse(ResponseCode.NO_PERMISSION, remark), times=10)
    with pytest.raises(RequestFailed) as caught:
        await producer.send("T", b"x")
    assert str(caught.value) == remark


async def test_a_refusal_for_good_is_raised_at_once_with_code_and_hint(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    cluster.broker.inject(SEND, refuse(ResponseCode.MESSAGE_ILLEGAL, "too long"))
    with pytest.raises(RequestFailed, match="too long") as caught:
        await producer.send("T", b"x")
    assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL
    assert "maxMessageSize" in caught.value.hint
    assert len(cluster.broker.received(SEND)) == 1
    assert producer.stats.failed == 1


async def test_a_message_bound_to_one_queue_is_not_tried_elsewhere(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    cluster.broker.inject(SEND, refuse(ResponseCode.SYSTEM_BUSY))
    with pytest.raises(RequestFailed):
        await producer.send("T", b"x", order_key="k")
    assert len(cluster.broker.received(SEND)) == 1


async def test_a_connection_that_breaks_is_opened_again_within_the_same_send(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    await producer.send("T", b"first")
    cluster.broker.inject(SEND, hang_up)
    receipt = await producer.send("T", b"second")
    assert receipt.status is SendStatus.STORED
    assert producer.stats.retried == 1


async def test_a_broker_that_is_gone_is_left_for_one_that_is_not() -> None:
    async with (
        scripted_cluster(brokers=2, topics={"T": 1}) as cluster,
        connect(cluster.address) as client,
        client.producer("P") as producer,
    ):
        await asyncio.gather(*(producer.send("T", b"x") for _ in range(4)))
        await cluster.stop("broker-a")
        receipts = [await producer.send("T", b"y") for _ in range(6)]
        assert {receipt.queue.broker_name for receipt in receipts} == {"broker-b"}


async def test_a_silent_broker_costs_the_time_limit_and_no_more(cluster: ScriptedCluster, producer: Producer) -> None:
    cluster.broker.inject(SEND, never_answer, times=3)
    async with asyncio.timeout(2):
        with pytest.raises(CallTimeout, match="not acknowledged in time") as caught:
            await producer.send("T", b"x", timeout=0.1)
    assert caught.value.hint


async def test_without_name_servers_known_routes_still_work(cluster: ScriptedCluster, producer: Producer) -> None:
    await producer.send("T", b"x")
    await cluster.stop("name server")
    assert (await producer.send("T", b"y")).status is SendStatus.STORED
    with pytest.raises(ConnectFailed, match="no name server answers") as caught:
        await producer.send("Unknown", b"z")
    assert "orbitmq dev" in caught.value.hint


async def test_the_second_name_server_takes_over(cluster: ScriptedCluster) -> None:
    async with connect(["127.0.0.1:1", cluster.address]) as client, client.producer("P") as producer:
        assert (await producer.send("T", b"x")).status is SendStatus.STORED


async def test_a_topic_that_does_not_exist_is_created_by_the_template(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    with pytest.raises(RequestFailed, match="'New' does not exist") as caught:
        await producer.send("New", b"x")
    assert caught.value.code == ResponseCode.TOPIC_NOT_EXIST
    assert "autoCreateTopicEnable" in caught.value.hint
    cluster.topics["TBW102"] = 8
    receipts = [await producer.send("New", b"x") for _ in range(8)]
    assert {receipt.queue.queue_id for receipt in receipts} == {0, 1, 2, 3}  # no more than create_queues
    header = cluster.broker.received(SEND)[-1].read(SendMessageV2)
    assert (header.default_topic, header.default_topic_queue_nums) == ("TBW102", 4)


async def test_stored_but_unconfirmed_is_success_unless_told_otherwise(cluster: ScriptedCluster) -> None:
    async def late(command: Command, connection: Connection) -> Command:
        return answer(ResponseCode.FLUSH_DISK_TIMEOUT, header=SendReceipt(msg_id="0" * 32, queue_id=0, queue_offset=5))

    async with connect(cluster.address) as client:
        async with client.producer("P") as producer:
            cluster.broker.inject(SEND, late)
            assert (await producer.send("T", b"x")).status is SendStatus.DISK_LATE
        async with client.producer("P", retry_unconfirmed=True) as producer:
            cluster.broker.inject(SEND, late)
            assert (await producer.send("T", b"x")).status is SendStatus.STORED


async def test_a_server_that_says_goodbye_is_asked_again_over_a_new_connection(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    await producer.send("T", b"x")
    before = set(cluster.servers["broker-a"].connections)
    cluster.broker.inject(SEND, refuse(ResponseCode.GO_AWAY, "please go away"))
    assert (await producer.send("T", b"y")).status is SendStatus.STORED
    assert set(cluster.servers["broker-a"].connections) - before
    assert producer.stats.retried == 0


async def test_slow_brokers_are_avoided_when_asked_to() -> None:
    async with (
        scripted_cluster(brokers=2, topics={"T": 2}) as cluster,
        connect(cluster.address) as client,
        client.producer("P", fault_tolerance=True) as producer,
    ):
        cluster.brokers[0].inject(SEND, refuse(ResponseCode.SYSTEM_BUSY), times=1)
        receipts = [await producer.send("T", b"x") for _ in range(12)]
        names = [receipt.queue.broker_name for receipt in receipts]
        assert set(names) <= {"broker-a", "broker-b"}


# ---- life


async def test_what_is_no_message_is_named(producer: Producer) -> None:
    with pytest.raises(MessageError, match="'x' is no message"):
        await producer.send_message("x")  # type: ignore[arg-type]
    with pytest.raises(MessageError, match="'x', which is no bytes"):
        await producer.send_message(Message("T", "x"))  # type: ignore[arg-type]
    await producer.send_message(Message("T", bytearray(b"x")))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"timeout": "3"}, "timeout is '3', which is no number of seconds"),
        ({"timeout": timedelta(seconds=3)}, "no number of seconds"),
        ({"retries": "2"}, "retries is '2', which is no whole number"),
        ({"max_in_flight": 1.5}, "max_in_flight is 1.5, which is no whole number"),
    ],
)
async def test_options_of_a_wrong_type_are_named_when_a_producer_is_made(
    cluster: ScriptedCluster, options: dict[str, Any], complaint: str
) -> None:
    async with connect(cluster.address) as client:
        with pytest.raises(ConfigError, match=complaint):
            client.producer("P", **options)


async def test_a_closed_producer_says_so(cluster: ScriptedCluster) -> None:
    async with connect(cluster.address) as client:
        producer = client.producer("P")
        with pytest.raises(AlreadyClosed, match="not started"):
            await producer.send("T", b"x")
        async with producer:
            await producer.send("T", b"x")
        with pytest.raises(AlreadyClosed, match="is closed"):
            await producer.send("T", b"x")
    with pytest.raises(AlreadyClosed):
        client.producer("P2")


async def test_leaving_tells_the_brokers(cluster: ScriptedCluster) -> None:
    async with connect(cluster.address) as client, client.producer("P") as producer:
        await producer.send("T", b"x")
        await eventually(lambda: cluster.broker.heartbeats)
        assert [one.group_name for one in cluster.broker.heartbeats[0].producer_data_set] == ["P"]
    [command] = cluster.broker.received(RequestCode.UNREGISTER_CLIENT)
    assert command.fields["producerGroup"] == "P"


async def test_everything_in_a_process_shares_its_connections(cluster: ScriptedCluster) -> None:
    async with (
        connect(cluster.address) as one,
        connect(cluster.address) as other,
        one.producer("P1") as first,
        other.producer("P2") as second,
    ):
        await first.send("T", b"x")
        await second.send("T", b"y")
        assert len(cluster.servers["broker-a"].connections) == 1


async def test_a_thousand_producers_closed_at_once(cluster: ScriptedCluster) -> None:
    async with connect(cluster.address) as client:
        producers = await asyncio.gather(*(client.producer(f"P{number}").start() for number in range(1000)))
        await asyncio.gather(*(producer.send("T", b"x") for producer in producers))
        await asyncio.gather(*(producer.close() for producer in producers))
    assert sum(len(queue) for queue in cluster.broker.queues.values()) == 1000


async def test_more_in_flight_than_allowed_waits_its_turn(cluster: ScriptedCluster) -> None:
    async with connect(cluster.address) as client, client.producer("P", max_in_flight=2) as producer:
        gate = asyncio.Event()
        waiting = 0

        async def slow(command: Command, connection: Connection) -> Command:
            nonlocal waiting
            waiting += 1
            await gate.wait()
            return ok(SendReceipt(msg_id="0" * 32, queue_id=0, queue_offset=0))

        cluster.broker.inject(SEND, slow, times=5)
        sends = [asyncio.create_task(producer.send("T", b"x")) for _ in range(5)]
        await eventually(lambda: waiting == 2)
        await asyncio.sleep(0.02)
        assert waiting == 2
        gate.set()
        assert len(await asyncio.gather(*sends)) == 5


async def test_the_accumulator_batches_and_each_caller_gets_its_own_receipt(cluster: ScriptedCluster) -> None:
    async with connect(cluster.address) as client, client.producer("P", accumulate=True) as producer:
        receipts = await asyncio.gather(*(producer.send("T", str(number)) for number in range(50)))
        assert len(cluster.broker.received(RequestCode.SEND_BATCH_MESSAGE)) == 1
        for number, receipt in enumerate(receipts):
            stored = cluster.broker.queues["T", receipt.queue.queue_id][receipt.queue_offset]
            assert (stored.body, stored.message_id) == (str(number).encode(), receipt.message_id)
        await producer.send("T", b"alone", order_key="k")  # bound to a queue: not gathered
        assert len(cluster.broker.received(SEND)) == 1


async def test_only_those_hear_of_a_failed_batch_that_were_in_it(cluster: ScriptedCluster) -> None:
    cluster.broker.inject(RequestCode.SEND_BATCH_MESSAGE, cluster.broker._send_batch)
    cluster.broker.inject(RequestCode.SEND_BATCH_MESSAGE, refuse(ResponseCode.MESSAGE_ILLEGAL))
    async with (
        connect(cluster.address) as client,
        client.producer("P", accumulate=True, max_batch_messages=2) as producer,
    ):
        sends = [producer.send("T", b"%d" % number) for number in range(4)]
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(one) for one in outcomes] == [Receipt, Receipt, RequestFailed, RequestFailed]


async def test_what_is_gathered_is_one_request_however_much_its_properties_take(cluster: ScriptedCluster) -> None:
    """Else those whose part was stored would hear of the failure of another, and send again."""
    large = {"k": "v" * 6000}
    cluster.topics["shop%T"] = 1
    cluster.broker.inject(RequestCode.SEND_BATCH_MESSAGE, cluster.broker._send_batch)
    cluster.broker.inject(RequestCode.SEND_BATCH_MESSAGE, refuse(ResponseCode.MESSAGE_ILLEGAL))
    async with (
        connect(cluster.address, namespace="shop") as client,
        client.producer("P", accumulate=True, max_message_bytes=20_000) as producer,
    ):
        sends = [producer.send("T", b"%d" % number, properties=large) for number in range(6)]
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(one) for one in outcomes] == [Receipt] * 3 + [RequestFailed] * 3
    assert len(cluster.broker.received(RequestCode.SEND_BATCH_MESSAGE)) == 2


async def test_as_many_bytes_of_bodies_are_gathered_as_asked_for(cluster: ScriptedCluster) -> None:
    """Java: MessageAccumulator.holdSize, which counts bodies."""
    async with (
        connect(cluster.address) as client,
        client.producer("P", accumulate=True, accumulate_bytes=1000, accumulate_seconds=30) as producer,
    ):
        await asyncio.gather(*(producer.send("T", b"x" * 100, properties={"k": "v" * 100}) for _ in range(20)))
    assert len(cluster.broker.received(RequestCode.SEND_BATCH_MESSAGE)) == 2


async def test_a_failed_accumulated_batch_fails_for_every_caller(cluster: ScriptedCluster) -> None:
    async with connect(cluster.address) as client, client.producer("P", accumulate=True) as producer:
        cluster.broker.inject(RequestCode.SEND_BATCH_MESSAGE, refuse(ResponseCode.MESSAGE_ILLEGAL))
        outcomes = await asyncio.gather(*(producer.send("T", b"x") for _ in range(3)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [RequestFailed] * 3


async def test_a_message_that_cannot_be_sent_fails_alone_among_those_it_was_gathered_with(
    cluster: ScriptedCluster,
) -> None:
    too_long = {"k": "v" * 40_000}
    async with connect(cluster.address) as client, client.producer("P", accumulate=True) as producer:
        sends = [producer.send("T", b"a"), producer.send("T", b"b", properties=too_long), producer.send("T", b"c")]
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Receipt, MessageError, Receipt]
    stored = [message.body for queue in cluster.broker.queues.values() for message in queue]
    assert sorted(stored) == [b"a", b"c"]


async def test_a_gathered_message_has_the_time_that_its_sender_gave_it(cluster: ScriptedCluster) -> None:
    cluster.broker.inject(RequestCode.SEND_BATCH_MESSAGE, never_answer, times=10)
    async with (
        connect(cluster.address) as client,
        client.producer("P", accumulate=True, timeout=30, retries=0) as producer,
        asyncio.timeout(15),
    ):
        with pytest.raises(CallTimeout):
            await producer.send("T", b"x", timeout=0.2)


async def test_a_second_try_after_a_goodbye_has_the_time_that_is_left() -> None:
    class LeavingServer:
        async def start_call(self, command: Command, seconds: float) -> Command:
            await asyncio.sleep(0.2)
            return answer(ResponseCode.GO_AWAY)

    class NextServer:
        given = 0.0

        async def call(self, command: Command, seconds: float) -> Command:
            self.given = seconds
            return answer(ResponseCode.SUCCESS)

    class Connections:
        following = NextServer()

        def open_connection(self, address: Address) -> LeavingServer:
            return LeavingServer()

        def retire(self, connection: LeavingServer) -> None: ...

        async def connection(self, address: Address) -> NextServer:
            return self.following

    cluster = Cluster(connect("127.0.0.1:1").config)
    connections = Connections()
    cluster._pool = connections  # type: ignore[assignment]
    await cluster.call(Address("127.0.0.1", 1), request(RequestCode.HEART_BEAT), 3.0)
    assert connections.following.given < 2.85


async def test_hooks_see_every_send_and_may_add_properties(cluster: ScriptedCluster) -> None:
    class Watching(SendHook):
        def __init__(self) -> None:
            self.seen: list[Sending] = []

        def before_send(self, sending: Sending) -> None:
            sending.properties["stamp"] = "1"

        def after_send(self, sending: Sending) -> None:
            self.seen.append(sending)

    hook = Watching()
    async with connect(cluster.address) as client, client.producer("P", hooks=[hook]) as producer:
        await producer.send("T", b"x")
        await producer.send_batch("T", [b"y", b"z"])
        cluster.broker.inject(SEND, refuse(ResponseCode.MESSAGE_ILLEGAL))
        with pytest.raises(RequestFailed):
            await producer.send("T", b"bad")
        cluster.broker.inject(RequestCode.SEND_BATCH_MESSAGE, refuse(ResponseCode.MESSAGE_ILLEGAL))
        with pytest.raises(RequestFailed):
            await producer.send_batch("T", [b"bad too"])
    assert [one.body for one in hook.seen] == [b"x", b"y", b"z", b"bad", b"bad too"]
    assert [one.receipt is not None for one in hook.seen] == [True, True, True, False, False]
    assert all(one.error is not None for one in hook.seen[3:])
    stored = [message for queue in cluster.broker.queues.values() for message in queue]
    assert all(message.properties["stamp"] == "1" for message in stored)


class Pairing(SendHook):
    """Each send that begins must end, once."""

    def __init__(self) -> None:
        self.begun: list[Sending] = []
        self.ended: list[Sending] = []

    def before_send(self, sending: Sending) -> None:
        self.begun.append(sending)

    def after_send(self, sending: Sending) -> None:
        self.ended.append(sending)


async def test_hooks_hear_of_one_way_sends_that_nobody_answers(cluster: ScriptedCluster) -> None:
    hook = Pairing()
    async with connect(cluster.address) as client, client.producer("P", hooks=[hook]) as producer:
        await producer.send_oneway("T", b"x")
        with pytest.raises(RequestFailed):
            await producer.send_oneway("Unknown", b"y")
    assert hook.ended == hook.begun
    went, failed = hook.ended
    assert (went.receipt, went.error, went.store_address) == (None, None, str(cluster.broker.address))
    assert isinstance(failed.error, RequestFailed)


async def test_hooks_hear_of_sends_that_end_before_a_broker_is_asked(cluster: ScriptedCluster) -> None:
    hook = Pairing()
    too_long = {"long": "x" * 40_000}
    async with connect(cluster.address) as client, client.producer("P", hooks=[hook]) as producer:
        for sending in (
            producer.send("T", b"a", properties=too_long),
            producer.send_oneway("T", b"b", properties=too_long),
            producer.send_batch("T", [b"c", Message("T", b"d", properties=too_long)]),
        ):
            with pytest.raises(MessageError):
                await sending
    assert [one.body for one in hook.begun] == [b"a", b"b", b"c", b"d"]
    assert hook.ended == hook.begun
    assert all(isinstance(one.error, MessageError) for one in hook.ended)


@pytest.mark.parametrize("breaks_at_once", [True, False])
async def test_hooks_hear_of_sends_that_another_hook_breaks(cluster: ScriptedCluster, breaks_at_once: bool) -> None:
    class Breaking(SendHook):
        def before_send(self, sending: Sending) -> None:
            if breaks_at_once:
                raise ValueError("a hook that fails")
            sending.body = None  # type: ignore[assignment]

    hook = Pairing()
    async with connect(cluster.address) as client, client.producer("P", hooks=[hook, Breaking()]) as producer:
        for sending in (producer.send("T", b"a"), producer.send_oneway("T", b"b"), producer.send_batch("T", [b"c"])):
            with pytest.raises((ValueError, TypeError)):
                await sending
    assert len(hook.begun) == 3
    assert hook.ended == hook.begun
    assert all(one.error is not None and one.error.__cause__ is not None for one in hook.ended)


async def test_hooks_hear_of_the_rest_of_a_batch_that_failed_in_the_middle(cluster: ScriptedCluster) -> None:
    hook = Pairing()
    async with (
        connect(cluster.address) as client,
        client.producer("P", hooks=[hook], max_batch_messages=1) as producer,
    ):
        cluster.broker.inject(RequestCode.SEND_BATCH_MESSAGE, cluster.broker._send_batch)
        cluster.broker.inject(RequestCode.SEND_BATCH_MESSAGE, refuse(ResponseCode.MESSAGE_ILLEGAL))
        with pytest.raises(RequestFailed):
            await producer.send_batch("T", [b"a", b"b", b"c"])
    assert hook.ended == hook.begun
    assert [one.receipt is not None for one in hook.ended] == [True, False, False]
    assert [isinstance(one.error, RequestFailed) for one in hook.ended] == [False, True, True]


async def test_hooks_hear_of_a_send_that_is_cancelled(cluster: ScriptedCluster) -> None:
    hook = Pairing()
    cluster.broker.inject(SEND, never_answer)
    async with connect(cluster.address) as client, client.producer("P", hooks=[hook]) as producer:
        sending = asyncio.create_task(producer.send("T", b"x"))
        await eventually(lambda: cluster.broker.received(SEND))
        sending.cancel()
        await asyncio.wait([sending])
    assert sending.cancelled()
    [ended] = hook.ended
    assert ended.error is not None


async def test_a_namespace_wraps_names_on_the_wire_and_nowhere_else(cluster: ScriptedCluster) -> None:
    cluster.topics["shop%T"] = 1
    async with connect(cluster.address, namespace="shop") as client, client.producer("P") as producer:
        receipt = await producer.send("T", b"x")
    assert receipt.queue.topic == "T"
    [stored] = cluster.broker.queues["shop%T", 0]
    assert stored.properties["INSTANCE_ID"] == "shop"
    assert cluster.broker.received(SEND)[0].read(SendMessageV2).producer_group == "shop%P"


async def test_credentials_sign_every_request(cluster: ScriptedCluster) -> None:
    async with connect(cluster.address, credentials=("ak", "sk")) as client, client.producer("P") as producer:
        await producer.send("T", b"x")
    for command in cluster.broker.requests:
        assert command.fields["AccessKey"] == "ak"
        assert command.fields["Signature"]


async def test_the_vip_channel_is_two_ports_below() -> None:
    async with scripted_cluster(topics={"T": 1}) as cluster:
        fast = cluster.servers["broker-a"]
        cluster.broker.address = cluster.broker.address._replace(port=cluster.broker.address.port + 2)
        async with connect(cluster.address, vip_channel=True) as client, client.producer("P") as producer:
            assert (await producer.send("T", b"x")).status is SendStatus.STORED
        assert fast is not None


def _members(command: Command) -> int:
    from orbitmq.message.batch import decode_batch

    return len(decode_batch(command.body))


async def test_headers_are_texts_as_java_sends_them(cluster: ScriptedCluster, producer: Producer) -> None:
    await producer.send("T", b"x", tag="a")
    fields = cluster.broker.received(SEND)[0].fields
    assert json.loads(json.dumps(dict(fields))) == dict(fields)
    assert {name: fields[name] for name in "abcdfhjkm"} == {
        "a": "P", "b": "T", "c": "TBW102", "d": "4", "f": "0", "h": "0", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    assert fields["n"] == "broker-a"
    assert decode_properties(fields["i"])["TAGS"] == "a"


async def test_closing_waits_for_all_requests_of_a_batch(cluster: ScriptedCluster) -> None:
    async def slowly(command: Command, connection: Connection) -> Command | None:
        await asyncio.sleep(0.02)
        return await cluster.broker._send_batch(command, connection)

    cluster.broker.inject(RequestCode.SEND_BATCH_MESSAGE, slowly, times=3)
    async with connect(cluster.address) as client, client.producer("P", max_batch_messages=1) as producer:
        sending = asyncio.create_task(producer.send_batch("T", [b"a", b"b", b"c"]))
        await eventually(lambda: cluster.broker.received(RequestCode.SEND_BATCH_MESSAGE))
        await producer.close()
        assert len(await sending) == 3


async def test_a_reply_does_not_outlive_its_timeout(cluster: ScriptedCluster, producer: Producer) -> None:
    cluster.broker.put("T", 0, b"?", CLUSTER="c", CORRELATION_ID="1", REPLY_TO_CLIENT="someone", TTL="3000")
    async with connect(cluster.address) as client, client.pull_consumer("R") as reader:
        [asked] = await reader.fetch(QueueRef("T", "broker-a", 0), offset=0)
    port = cluster.name_server.port
    await cluster.stop("name server")
    silent = Server({RequestCode.GET_ROUTEINFO_BY_TOPIC: never_answer})
    await silent.start("127.0.0.1", port)
    began = asyncio.get_running_loop().time()
    with pytest.raises(CallTimeout):
        await producer.reply(asked, b"!", timeout=0.1)
    assert asyncio.get_running_loop().time() - began < 2
    await silent.stop(grace_seconds=0.01)


async def test_closing_waits_for_what_is_on_its_way(cluster: ScriptedCluster) -> None:
    async with connect(cluster.address) as client:
        producer = await client.producer("P").start()
        gate, asked = asyncio.Event(), asyncio.Event()

        async def slow(command: Command, connection: Connection) -> Command:
            asked.set()
            await gate.wait()
            return ok(SendReceipt(msg_id="0" * 32, queue_id=0, queue_offset=0))

        cluster.broker.inject(SEND, slow)
        sending = asyncio.create_task(producer.send("T", b"x"))
        await asked.wait()
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(0.01)
        assert not closing.done()
        with pytest.raises(AlreadyClosed):
            await producer.send("T", b"too late")
        gate.set()
        await closing
        assert (await sending).status is SendStatus.STORED


async def test_a_time_limit_spans_asking_for_the_route_too(cluster: ScriptedCluster) -> None:
    silent = Server({RequestCode.GET_ROUTEINFO_BY_TOPIC: never_answer})
    address = await silent.start("127.0.0.1", 0)
    async with connect(str(address)) as client, client.producer("P") as producer, asyncio.timeout(2):
        with pytest.raises(CallTimeout):
            await producer.send("T", b"x", timeout=0.2)
    await silent.stop()


async def test_bodies_that_are_alike_are_sent_as_messages_are(cluster: ScriptedCluster) -> None:
    """Both ways to encode a batch: bodies that share everything, and messages that may differ."""
    cluster.topics["shop%T"] = 1
    async with connect(cluster.address, namespace="shop") as client, client.producer("P") as producer:
        shared: dict[str, str] = {"colour": "blå", "size": "4"}
        await producer.send_batch("T", ["a", b"b"], tag="new", keys=["k1", "k2"], properties=shared)
        message = producer.message("T", b"a", tag="new", keys=["k1", "k2"], properties=shared)
        await producer.send_batch("T", [message, b"b"], tag="new", keys=["k1", "k2"], properties=shared)
    alike, apart = cluster.broker.received(RequestCode.SEND_BATCH_MESSAGE)
    stored = cluster.broker.queues["shop%T", 0]
    assert [one.body for one in stored] == [b"a", b"b"] * 2
    assert len({one.message_id for one in stored}) == 4
    without_ids = [{**one.properties, "UNIQ_KEY": ""} for one in stored]
    assert without_ids[:2] == without_ids[2:]
    assert without_ids[0].items() >= {**shared, "TAGS": "new", "KEYS": "k1 k2", "INSTANCE_ID": "shop"}.items()
    assert len(alike.body) == len(apart.body)
    assert alike.read(SendMessageV2).topic == apart.read(SendMessageV2).topic == "shop%T"
