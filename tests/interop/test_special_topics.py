"""Topics and queues of special kinds, on Apache's broker and on ours: the same story told to both must end the same.

Inner batches are also sent and consumed by Apache's own client. Light queues have no client library: they are spoken to on
the wire.
"""

import asyncio
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from orbitmq import Client, ReceivedMessage, RequestFailed, connect
from tests.client.scripted import eventually as until_seen
from tests.client.suite import collecting, until_routed
from tests.interop import apache, orbit, wire
from tests.interop.apache import Broker, BrokerPlan
from tests.interop.drivers import ClientError, JavaClient, Received
from tests.interop.java import build
from tests.interop.marks import INTEROP
from tests.interop.processes import eventually

pytestmark = INTEROP

SETTINGS: Final[dict[str, str | int]] = {
    "enableLmq": "true",
    "enableMultiDispatch": "true",
    "mappedFileSizeCommitLog": 4 << 20,
    "brokerClusterName": "special",
    "enablePropertyFilter": "true",
    "enableConsumeQueueExt": "true",
    "enableCalcFilterBitMap": "true",
    "mappedFileSizeConsumeQueueExt": 34 * 10 + 4,
    # Ten messages a file, and a round a second.
    "compactionCqMappedFileSize": 46 * 11,
    "compactionMappedFileSize": 46 * 11 * 20,
    "compactionScheduleInternal": 500,
}
CREATE_TOPIC, SEND, SEND_BATCH, PULL, QUERY_OFFSET, UPDATE_OFFSET, MAX_OFFSET = 17, 310, 320, 11, 14, 15, 30
HEART_BEAT, ILLEGAL = 34, 13
Ask = Callable[..., wire.Command]


@dataclass(frozen=True, slots=True)
class Side:
    broker: Broker
    name_server: str

    def ask(self, code: int, fields: Mapping[str, object], body: bytes = b"") -> wire.Command:
        return wire.ask(self.broker.address, code, {key: str(value) for key, value in fields.items()}, body)

    @contextmanager
    def connected(self) -> Iterator[Ask]:
        """Questions over one connection, which a consumer's heartbeat belongs to."""
        host, port = self.broker.address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), 10) as connection:

            def ask(code: int, fields: Mapping[str, object], body: bytes = b"") -> wire.Command:
                connection.sendall(wire.encode(code, {key: str(value) for key, value in fields.items()}, body))
                while True:
                    frame = wire.read_frame(connection)
                    assert frame is not None
                    if (answer := wire.decode(frame)).is_answer:  # not a notice that the group has changed
                        return answer

            yield ask

    def create(self, topic: str, attributes: str = "") -> None:
        fields = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false", "attributes": attributes,
        }  # fmt: skip
        answer = self.ask(CREATE_TOPIC, fields)
        assert answer.code == 0 or "unchangeable" in str(answer.remark), answer  # a test may be run again

    def send(self, topic: str, body: bytes, *, code: int = SEND, **properties: str) -> wire.Command:
        text = "".join(f"{key}\x01{value}\x02" for key, value in properties.items())
        fields = {
            "a": "P", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1_700_000_000_000, "h": 0, "i": text,
            "m": "true" if code == SEND_BATCH else "false",
        }  # fmt: skip
        return self.ask(code, fields, body)

    def pull(self, topic: str, offset: int, group: str = "raw") -> wire.Command:
        fields = {
            "consumerGroup": group, "topic": topic, "queueId": 0, "queueOffset": offset, "maxMsgNums": 32, "sysFlag": 4,
            "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
        }  # fmt: skip
        return self.ask(PULL, fields)


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Side]]:
    folder = tmp_path_factory.mktemp("special")
    with ExitStack() as stack:
        found: dict[str, Side] = {}
        for whose in ("Apache's", "ours"):
            server = orbit.start_name_server(folder / f"nameserver-{whose[0]}")
            stack.callback(server.process.kill)
            if whose == "ours":
                broker = orbit.start_broker(folder / "ours", server.address, "special", SETTINGS)
            else:
                plan = BrokerPlan(name="special", cluster="special", name_servers=[server.address], settings=SETTINGS)
                broker = apache.start_broker(build("5.3.3"), folder / "apache", plan)
            stack.callback(broker.process.kill)
            found[whose] = Side(broker, server.address)
        yield found


@pytest.fixture
def client(tmp_path: Path) -> Iterator[JavaClient]:
    client = JavaClient(build("5.3.3"), tmp_path / "java")
    try:
        yield client
    finally:
        client.close()


def told_to_both(sides: dict[str, Side], story: Any) -> Any:
    theirs, ours = story(sides["Apache's"]), story(sides["ours"])
    assert ours == theirs
    return ours


def settled(side: Side, topic: str, offset: int) -> None:
    """Apache's queues follow its log a moment later."""

    def end() -> int:
        return int(side.ask(MAX_OFFSET, {"topic": topic, "queueId": 0}).fields.get("offset", -1))

    eventually(end, lambda seen: seen == offset, 20, f"{offset} messages in {topic}", every=0.05)


def batch(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">5i", 22 + len(b), 0, 0, 0, len(b)) + b + struct.pack(">h", 0) for b in bodies)


def records(answer: wire.Command) -> list[tuple[int, int, bytes, dict[str, str]]]:
    """Queue offset, flags, body and properties of each record; not what tells when and where it was written."""
    found, data = [], answer.body
    while data:
        size, queue_offset, sys_flag = (*struct.unpack_from(">i", data), *struct.unpack_from(">q", data, 20), 0)
        (sys_flag,) = struct.unpack_from(">i", data, 36)
        (body_size,) = struct.unpack_from(">i", data, 84)
        body = data[88 : 88 + body_size]
        at = 88 + body_size
        at += 1 + data[at] + 2
        pairs = (pair.partition("\x01") for pair in data[at:size].decode().split("\x02") if pair)
        found.append((queue_offset, sys_flag, body, {key: value for key, _, value in pairs if key != "UNIQ_KEY"}))
        data = data[size:]
    return found


def shown(answer: wire.Command) -> tuple[int, dict[str, str], list[tuple[int, int, bytes, dict[str, str]]]]:
    wanted = (
        "queueId",
        "queueOffset",
        "batchUniqId",
        "transactionId",
        "nextBeginOffset",
        "minOffset",
        "maxOffset",
        "offset",
    )
    return answer.code, {key: answer.fields[key] for key in wanted if key in answer.fields}, records(answer)


# ---- inner batches


def test_inner_batches_are_kept_and_pulled_alike(sides: dict[str, Side]) -> None:
    def story(side: Side) -> list[object]:
        side.create("Batches", "+queue.type=BatchCQ")
        answers = [
            side.send("Batches", batch(b"a", b"bb", b"ccc"), code=SEND_BATCH, UNIQ_KEY="0A"),
            side.send("Batches", b"single", UNIQ_KEY="0B"),
            side.send("Batches", batch(b"d", b"e"), code=SEND_BATCH, UNIQ_KEY="0C"),
            side.send("Batches", batch(b"f", b"g"), code=SEND_BATCH),
        ]
        settled(side, "Batches", 8)
        answers += [side.pull("Batches", offset) for offset in range(9)]
        answers += [side.ask(MAX_OFFSET, {"topic": "Batches", "queueId": 0})]
        return [shown(answer) for answer in answers]

    told = told_to_both(sides, story)
    assert [code for code, _, _ in told] == [0] * 12 + [19, 0]


@pytest.mark.parametrize("whose", ["ours", "Apache's"])
def test_apaches_client_unwraps_inner_batches(sides: dict[str, Side], client: JavaClient, whose: str) -> None:
    side = sides[whose]
    side.create("Parcels", "+queue.type=BatchCQ")
    producer, consumer = f"producer-{whose[0]}", f"consumer-{whose[0]}"
    client.open_producer(producer, side.name_server, instanceName=whose[0])
    # Without tags: an entry for many messages has none, so neither broker hands it to who asks for some.
    client.open_push_consumer(consumer, side.name_server, "Parcels", group="parcels", instanceName=f"c{whose[0]}")

    (receipt,) = client.send(producer, "Parcels", [{"text": str(i), "tag": "t"} for i in range(5)], mode="batch")

    assert "," not in receipt["id"]
    received: list[Received] = []
    while len(received) < 5:
        found = client.received(consumer, 1)
        assert found, received
        received += found
    assert sorted(message.body.decode() for message in received) == ["0", "1", "2", "3", "4"]
    first = min(message.offset for message in received)
    assert sorted(message.offset - first for message in received) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("whose", ["ours", "Apache's"])
async def test_both_clients_exchange_inner_batches(sides: dict[str, Side], client: JavaClient, whose: str) -> None:
    side, topic = sides[whose], f"Exchanged{time.time_ns()}"
    side.create(topic, "+queue.type=BatchCQ")
    await asyncio.to_thread(client.open_producer, "producer", side.name_server)
    await asyncio.to_thread(client.open_push_consumer, "consumer", side.name_server, topic)
    seen: list[ReceivedMessage] = []
    async with connect(side.name_server) as ours, ours.producer("PythonProducer") as producer:
        await until_routed(ours, topic)
        async with ours.consumer(topic, group=f"Ours{topic}", start="earliest", handler=collecting(seen)):
            receipts = await producer.send_batch(topic, ["p0", "p1", "p2"], keys="k")
            await asyncio.to_thread(client.send, "producer", topic, [{"text": f"j{i}"} for i in range(2)], mode="batch")
            await producer.send(topic, "single")
            await until_seen(lambda: len(seen) == 6, 30)
    received = await asyncio.to_thread(client.received, "consumer", 6)
    expected = [(0, b"p0"), (1, b"p1"), (2, b"p2"), (3, b"j0"), (4, b"j1"), (5, b"single")]
    assert sorted((message.queue_offset, message.body) for message in seen) == expected
    assert sorted((message.offset, message.body) for message in received) == expected
    assert [receipt.queue_offset for receipt in receipts] == [0, 1, 2]


# ---- light queues


def test_light_queues_are_filled_and_pulled_alike(sides: dict[str, Side]) -> None:
    def story(side: Side) -> list[object]:
        side.create("Feeds")
        answers = [
            side.send("Feeds", b"1", INNER_MULTI_DISPATCH="%LMQ%a,%LMQ%b"),
            side.send("Feeds", b"2", INNER_MULTI_DISPATCH="%LMQ%b"),
            side.send("Feeds", b"3"),
        ]
        settled(side, "%LMQ%b", 2)
        settled(side, "Feeds", 3)
        answers += [side.pull("Feeds", 0), side.pull("%LMQ%a", 0, "%LMQ%a"), side.pull("%LMQ%b", 0, "%LMQ%b")]
        answers += [side.pull("%LMQ%b", 1, "%LMQ%b"), side.pull("%LMQ%b", 2, "%LMQ%b")]
        place = {"consumerGroup": "%LMQ%b", "topic": "%LMQ%b", "queueId": 0}
        answers += [side.ask(UPDATE_OFFSET, {**place, "commitOffset": 2}), side.ask(QUERY_OFFSET, place)]
        return [(code, without_id(fields), found) for code, fields, found in map(shown, answers)]

    told = told_to_both(sides, story)
    assert [body for _, _, body, _ in told[5][2]] == [b"1", b"2"]
    assert told[-1][1]["offset"] == "2"


def without_id(fields: dict[str, str]) -> dict[str, str]:
    """The broker made it."""
    return {key: value for key, value in fields.items() if key != "transactionId"}


# ---- compaction


def test_compacted_topics_keep_the_same_messages_in_the_same_files(sides: dict[str, Side]) -> None:
    attempt = time.time_ns()  # run again, a test finds its topic as it left it

    def story(side: Side) -> list[object]:
        topic = f"Latest{attempt}"
        side.create(topic, "+cleanup.policy=COMPACTION")
        assert side.send(topic, b"no key").code == 13
        for number in range(45):
            assert side.send(topic, b"%d" % number, KEYS=f"key-{number % 7}", UNIQ_KEY=f"{number:04d}").code == 0
        kept = [*range(33, 40), *range(40, 45)]  # the last of each key, and the file that is being written to

        def offsets() -> list[int]:
            found: list[int] = []
            while (answer := side.pull(topic, found[-1] + 1 if found else 0)).code == 0:
                found += [offset for offset, _, _, _ in records(answer)]
            return found

        eventually(offsets, lambda seen: seen == kept, 30, "compaction", every=0.2)
        answers = [side.pull(topic, offset) for offset in (0, 34, 39, 40, 44, 45, 46)]
        return [shown(answer) for answer in answers] + [entries(side, topic)]

    told_to_both(sides, story)


@pytest.mark.parametrize("whose", ["ours", "Apache's"])
async def test_both_clients_read_back_the_latest_of_each_key(
    sides: dict[str, Side], client: JavaClient, whose: str
) -> None:
    side, topic = sides[whose], f"Values{time.time_ns()}"
    side.create(topic, "+cleanup.policy=COMPACTION")
    await asyncio.to_thread(client.open_producer, "producer", side.name_server)
    async with connect(side.name_server) as ours, ours.producer("PythonProducer") as producer:
        await until_routed(ours, topic)
        for number in range(23):
            await producer.send(topic, f"p{number}", keys=f"key-{number % 4}")
        values = [{"text": f"j{number}", "keys": f"key-{number % 4}"} for number in range(22)]
        await asyncio.to_thread(client.send, "producer", topic, values)
        # The last of each key in the files that are full, and the file that is being written to.
        kept = [f"j{number}".encode() for number in range(13, 22)]
        async with ours.pull_consumer(f"Ours{topic}") as reader:
            [queue] = await reader.queues(topic)
            async with asyncio.timeout(60):
                while [message.body for message in await reader.fetch(queue, offset=0, max=64)] != kept:
                    await asyncio.sleep(0.2)
    await asyncio.to_thread(client.open_pull_consumer, "reader", side.name_server, topic)
    read = await asyncio.to_thread(client.poll, "reader", len(kept))
    assert [message.body for message in read] == kept


def entries(side: Side, topic: str) -> dict[str, list[tuple[int, ...]]]:
    """By file: where each record is, its size, tag hash and queue offset."""
    (queue,) = side.broker.folder.glob(f"**/compactionCq/{topic}/0")
    found = {}
    for file in sorted(queue.glob("0*")):
        fields = [entry for entry in struct.iter_unpack(">qiqqqhii", file.read_bytes()) if entry[1] > 0]
        found[file.name] = [(*entry[:3], *entry[4:]) for entry in fields]
    return found


# ---- topics of one kind


async def test_a_topic_of_one_kind_takes_it_from_either_client_and_nothing_else(
    sides: dict[str, Side], client: JavaClient
) -> None:
    """Apache checks it in its proxy; these clients do not come that way."""
    side, attempt = sides["ours"], time.time_ns()
    topics = {kind: f"Only{kind}{attempt}" for kind in ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")}
    for kind, topic in topics.items():
        side.create(topic, f"+message.type={kind}")
    all_kinds = ["plain", "grouped", "delayed", "half"]
    taken = {
        "NORMAL": ["plain"], "FIFO": ["plain", "grouped"], "DELAY": ["delayed"], "TRANSACTION": ["half"], "MIXED": all_kinds,
    }  # fmt: skip
    await asyncio.to_thread(client.open_producer, "producer", side.name_server)
    await asyncio.to_thread(
        client.call,
        "OpenTransactionProducer",
        name="payer",
        nameServer=side.name_server,
        group="JavaPayers",
        options={},
    )
    async with connect(side.name_server) as ours:
        for kind, topic in topics.items():
            await until_routed(ours, topic)
            assert await taken_from_python(ours, topic) == taken[kind], kind
            assert await asyncio.to_thread(taken_from_java, client, topic) == taken[kind], kind
        seen: list[ReceivedMessage] = []
        topic = topics["MIXED"]
        async with ours.consumer(topic, group=f"Mixed{attempt}", start="earliest", handler=collecting(seen)):
            await until_seen(lambda: len(seen) == 8, 30)
    await asyncio.to_thread(client.open_push_consumer, "consumer", side.name_server, topic, group=f"JavaMixed{attempt}")
    received = await asyncio.to_thread(client.received, "consumer", 8)
    assert sorted(message.body.decode() for message in received) == sorted(all_kinds * 2)
    assert sorted(message.body.decode() for message in seen) == sorted(all_kinds * 2)


async def taken_from_python(ours: Client, topic: str) -> list[str]:
    async def check(message: ReceivedMessage) -> bool | None:
        return None

    async def half() -> None:
        async with payer.begin(topic, "half") as transaction:
            transaction.commit()

    found = []
    async with (
        ours.producer("PythonProducer") as producer,
        ours.transaction_producer("PythonPayers", check=check) as payer,
    ):
        sends = {
            "plain": lambda: producer.send(topic, "plain"),
            "grouped": lambda: producer.send(topic, "grouped", message_group="user-7"),
            "delayed": lambda: producer.send(topic, "delayed", delay_level=1),
            "half": half,
        }
        for kind, send in sends.items():
            try:
                await send()
                found.append(kind)
            except RequestFailed as refused:
                if refused.code != ILLEGAL:
                    raise
    return found


def taken_from_java(client: JavaClient, topic: str) -> list[str]:
    messages: list[dict[str, object]] = [
        {"text": "plain"},
        {"text": "grouped", "properties": {"__SHARDINGKEY": "user-7"}},
        {"text": "delayed", "delayLevel": 1},
    ]
    answers = client.call("Send", name="producer", topic=topic, messages=messages, mode="sync", orderKey=None)
    half: dict[str, object] = {"text": "half", "properties": {"local": "COMMIT_MESSAGE", "check": "UNKNOW"}}
    try:
        answers += client.call("SendInTransaction", name="payer", topic=topic, messages=[half])
    except ClientError as refused:
        # That is all it says of what the broker said.
        answers.append({"error": {"code": ILLEGAL if "send message Exception" in str(refused) else refused.code}})
    found = []
    for message, answer in zip([*messages, half], answers, strict=True):
        if "error" in answer:
            assert answer["error"]["code"] == ILLEGAL, answer
        else:
            found.append(str(message["text"]))
    return found


# ---- SQL92 filters by bits beside the queue entries


def test_messages_are_marked_for_filters_alike(sides: dict[str, Side]) -> None:
    attempt = time.time_ns()

    def story(side: Side) -> list[object]:
        topic = f"Marked{attempt}"
        side.create(topic)
        with side.connected() as ask:
            for group, filter_text in (("cheap", "price < 10"), ("dear", "price > 90")):
                wanted = {"topic": topic, "subString": filter_text, "subVersion": 1, "expressionType": "SQL92"}
                consumer = {
                    "groupName": group, "messageModel": "CLUSTERING", "consumeType": "CONSUME_PASSIVELY",
                    "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [wanted],
                }  # fmt: skip
                beat = {"clientID": group, "consumerDataSet": [consumer], "producerDataSet": []}
                assert ask(HEART_BEAT, {}, json.dumps(beat).encode()).code == 0
            time.sleep(0.05)  # both brokers mark what is stored later than the filter came, in ms
            for price in range(0, 100, 4):
                assert side.send(topic, b"%d" % price, price=str(price), TAGS="t", UNIQ_KEY=f"{price:04d}").code == 0
            settled(side, topic, 25)
            found = []
            for group in ("cheap", "dear"):
                fields = {
                    "consumerGroup": group, "topic": topic, "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 0,
                    "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 1,
                }  # fmt: skip
                found.append([body for _, _, body, _ in records(ask(PULL, fields))])
        return [*found, units(side, topic)]

    cheap, dear, marked = told_to_both(sides, story)
    assert (cheap, dear) == ([b"0", b"4", b"8"], [b"92", b"96"])
    assert len({bitmap for _, _, bitmap in marked}) == 3  # for the one group, for the other, for none


def units(side: Side, topic: str) -> list[tuple[int, int, bytes]]:
    """File, tag hash and bitmap of each unit; not when its message was stored."""
    (queue,) = side.broker.folder.glob(f"**/consumequeue_ext/{topic}/0")
    found = []
    for file in sorted(queue.iterdir()):
        data, at = file.read_bytes(), 0
        while (size := struct.unpack_from(">h", data, at)[0]) > 0:
            (tags_code,) = struct.unpack_from(">q", data, at + 2)
            found.append((int(file.name), tags_code, data[at + 20 : at + size]))
            at += size
    return found
