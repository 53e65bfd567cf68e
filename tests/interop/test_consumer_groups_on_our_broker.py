"""Java consumer groups on our broker: broadcasting, sharing, dying, retries and dead letters; and what messages can be besides.

One JVM per release and header codec serves all tests here; the broker's delay levels are a second each.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interop import orbit, wire
from tests.interop.apache import Broker, NameServer
from tests.interop.drivers import JavaClient, Received
from tests.interop.java import build
from tests.interop.marks import INTEROP
from tests.interop.processes import eventually, free_port

pytestmark = INTEROP

PULL, QUERY_OFFSET, CONSUMER_LIST = 11, 14, 38
# Each release and each codec once, which saves two minutes; ORBITMQ_INTEROP_CROSS=1 crosses them.
CLIENTS = [("5.3.3", "binary"), ("4.9.7", "json")]
if os.environ.get("ORBITMQ_INTEROP_CROSS"):
    CLIENTS += [("5.3.3", "json"), ("4.9.7", "binary")]


@dataclass(frozen=True, slots=True)
class Cluster:
    name_server: NameServer
    broker: Broker


@pytest.fixture(scope="module")
def cluster(java_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    name_server = orbit.start_name_server(folder / "nameserver")
    try:
        settings = {"messageDelayLevel": " ".join(["1s"] * 18)}
        broker = orbit.start_broker(folder / "broker", name_server.address, settings=settings)
        try:
            yield Cluster(name_server, broker)
        finally:
            broker.process.kill()
    finally:
        name_server.process.kill()


@pytest.fixture(scope="module", params=CLIENTS, ids="-".join)
def java_of(
    request: pytest.FixtureRequest, java_tools: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, JavaClient]]:
    """Release, and a client of it."""
    release, codec = request.param
    folder = tmp_path_factory.mktemp("client") / "jvm"
    client = JavaClient(build(release), folder, binary_headers=codec == "binary")
    try:
        yield release, client
    finally:
        client.close()


@pytest.fixture
def java(java_of: tuple[str, JavaClient]) -> JavaClient:
    return java_of[1]


_attempts = itertools.count(1)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """For the topic, the group and the instances of one test, and of one attempt at it: they share a JVM."""
    plain = "".join(letter if letter.isalnum() else "_" for letter in request.node.name)[-80:]
    return f"{plain}_{next(_attempts)}"


def send(java: JavaClient, cluster: Cluster, topic: str, count: int, what: str = "message") -> list[str]:
    producer = f"{topic}-{what}"
    java.open_producer(producer, cluster.name_server.address, sendMsgTimeout=20_000)
    texts = [f"{what} {i}" for i in range(count)]
    java.send(producer, topic, [{"text": text} for text in texts])
    java.close_one(producer)
    return texts


def texts_of(messages: list[Received]) -> list[str]:
    return sorted(message.body.decode() for message in messages)


def test_every_member_of_a_broadcasting_group_receives_everything(
    java: JavaClient, cluster: Cluster, name: str
) -> None:
    members = [f"{name}-{i}" for i in range(2)]
    texts = send(java, cluster, name, 1)
    for member in members:
        java.open_push_consumer(member, cluster.name_server.address, name, group=name, broadcasting=True)
        assert texts_of(java.received(member, 1)) == texts
    texts = send(java, cluster, name, 12, "more")
    for member in members:
        assert texts_of(java.received(member, 12)) == sorted(texts)
        java.close_one(member)


def test_members_share_the_queues_anew_when_one_joins_leaves_or_dies(
    java_of: tuple[str, JavaClient], cluster: Cluster, name: str, tmp_path: Path
) -> None:
    release, java = java_of
    name_server = cluster.name_server.address
    texts = send(java, cluster, name, 1, "first")
    stays, leaves = f"{name}-stays", f"{name}-leaves"
    java.open_push_consumer(stays, name_server, name, group=name)
    assert texts_of(java.received(stays, 1)) == texts

    java.open_push_consumer(leaves, name_server, name, group=name)
    rounds = itertools.count()

    def shares() -> tuple[list[str], list[str]]:
        """Who receives what of sixteen messages, four in each queue."""
        texts = send(java, cluster, name, 16, f"round-{next(rounds)}")
        taken: tuple[list[str], list[str]] = ([], [])
        while len(taken[0]) + len(taken[1]) < len(texts):
            for member, share in zip((stays, leaves), taken, strict=True):
                share += received_of(java, member, texts)
        assert sorted(taken[0] + taken[1]) == sorted(texts)
        return taken

    eventually(shares, lambda taken: len(taken[0]) == len(taken[1]) == 8, 60, "an even share")

    java.close_one(leaves)
    receives_all(java, cluster, name, stays, "left")

    dies = JavaClient(build(release), tmp_path / "dies")
    try:
        dies.open_push_consumer("dies", name_server, name, group=name)
        members = {"consumerGroup": name}
        eventually(
            lambda: wire.ask(cluster.broker.address, CONSUMER_LIST, members).body.count(b"@"),
            lambda count: count == 2,
            30,
            "the second member",
        )
    finally:
        dies.kill()
    receives_all(java, cluster, name, stays, "died")
    java.close_one(stays)


def receives_all(java: JavaClient, cluster: Cluster, topic: str, consumer: str, what: str) -> None:
    texts = send(java, cluster, topic, 8, what)
    seen: set[str] = set()
    while seen != set(texts):
        seen |= set(received_of(java, consumer, texts, seconds=40.0))


def received_of(java: JavaClient, consumer: str, texts: list[str], seconds: float = 0.2) -> list[str]:
    """Those of `texts` that came. Who takes a queue over may be given again what its last owner had not committed yet."""
    messages = [message.body.decode() for message in java.received(consumer, 1, seconds)]
    assert messages or seconds < 1, "nothing received"
    return [text for text in messages if text in texts]


def test_a_message_that_fails_too_often_becomes_a_dead_letter(java: JavaClient, cluster: Cluster, name: str) -> None:
    name_server = cluster.name_server.address
    send(java, cluster, name, 1, "hopeless")
    java.open_push_consumer(name, name_server, name, group=name, fail_first=100, maxReconsumeTimes=2)
    attempts = java.received(name, 3, seconds=40)
    assert [message.attempt for message in attempts] == [0, 1, 2]
    assert {message.topic for message in attempts} == {name}

    reader = f"{name}-dead"
    java.open_push_consumer(reader, name_server, f"%DLQ%{name}", group=reader)
    (dead,) = java.received(reader, 1, seconds=40)
    assert dead.body == b"hopeless 0"
    assert dead.properties["RETRY_TOPIC"] == name
    java.close_one(name)
    java.close_one(reader)


def test_a_namespace_keeps_topics_and_groups_apart(java: JavaClient, cluster: Cluster, name: str) -> None:
    name_server = cluster.name_server.address
    producer = f"{name}-p"
    java.open_producer(producer, name_server, namespace="space")
    java.send(producer, name, [{"text": "inside"}])
    java.open_push_consumer(name, name_server, name, group=name, namespace="space")
    (message,) = java.received(name, 1)

    assert (message.body, message.topic) == (b"inside", name)
    assert orbit_topic_exists(cluster, f"space%{name}")
    assert not orbit_topic_exists(cluster, name)
    java.close_one(producer)
    java.close_one(name)


def orbit_topic_exists(cluster: Cluster, topic: str) -> bool:
    return bool(wire.brokers_of(cluster.name_server.address, topic))


def test_messages_are_found_by_key_by_unique_id_and_by_offset_id(java: JavaClient, cluster: Cluster, name: str) -> None:
    name_server = cluster.name_server.address
    producer, admin = f"{name}-p", f"{name}-a"
    java.open_producer(producer, name_server)
    (receipt,) = java.send(producer, name, [{"text": "find me", "keys": "needle other"}])
    java.send(producer, name, [{"text": "not me", "keys": "hay"}])
    java.open_admin_tool(admin, name_server)

    by_key = java.ask(admin, "queryMessage", name, "needle", 32, 0, 2**62)["messageList"]
    assert [message["msgId"] for message in by_key] == [receipt["id"]]
    assert java.ask(admin, "viewMessage", name, receipt["id"])["keys"] == "needle other"
    assert java.ask(admin, "viewMessage", name, receipt["offsetId"])["keys"] == "needle other"
    java.close_one(producer)
    java.close_one(admin)


def test_a_producer_that_traces_leaves_its_traces_in_the_trace_topic(
    java: JavaClient, cluster: Cluster, name: str
) -> None:
    name_server = cluster.name_server.address
    producer = f"{name}-p"
    java.call("OpenProducer", name=producer, nameServer=name_server, group=f"P_{name}", trace=True, options={})
    (receipt,) = java.send(producer, name, [{"text": "traced"}])
    java.open_push_consumer(name, name_server, "RMQ_SYS_TRACE_TOPIC", group=name)

    def traces() -> bytes:
        return b"".join(message.body for message in java.received(name, 1, seconds=5))

    eventually(traces, lambda seen: receipt["id"].encode() in seen, 40, "the trace")
    java.open_admin_tool(f"{name}-a", name_server)  # what mqadmin's queryMsgTraceById does
    found = java.ask(f"{name}-a", "queryMessage", "RMQ_SYS_TRACE_TOPIC", receipt["id"], 64, 0, 2**62)["messageList"]
    assert all(receipt["id"] in message["keys"] for message in found)
    assert found
    java.close_one(f"{name}-a")
    java.close_one(producer)
    java.close_one(name)


@pytest.mark.parametrize(("kind", "flag"), [("LZ4", 0x100), ("ZSTD", 0x200)])
def test_bodies_compressed_in_every_way_come_back_whole(
    java: JavaClient, java_of: tuple[str, JavaClient], cluster: Cluster, name: str, tmp_path: Path, kind: str, flag: int
) -> None:
    release, reader = java_of
    if release != "5.3.3":
        pytest.skip("4.9 clients know zlib alone, which the other tests send")
    writer = JavaClient(build(release), tmp_path / "writer", properties={"rocketmq.message.compressType": kind})
    try:
        writer.open_producer("producer", cluster.name_server.address, sendMsgTimeout=20_000)
        text = "the same again and " * 1000
        writer.send("producer", name, [{"text": text}])
    finally:
        writer.close()
    assert stored_flags(cluster.broker.address, name) == [flag | 1]
    reader.open_push_consumer(name, cluster.name_server.address, name, group=name)
    assert texts_of(reader.received(name, 1)) == [text]
    reader.close_one(name)


def stored_flags(address: str, topic: str) -> list[int]:
    flags = []
    for queue_id in range(4):
        fields = {
            "consumerGroup": "raw", "topic": topic, "queueId": str(queue_id), "queueOffset": "0", "maxMsgNums": "32",
            "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        }  # fmt: skip
        answer = wire.ask(address, PULL, fields)
        if answer.code == 0:
            flags.append(int.from_bytes(answer.body[36:40], "big"))
    return flags


def test_a_group_goes_on_where_it_was_after_the_broker_was_restarted(
    java: JavaClient, name: str, tmp_path: Path, stopping: Callable[[Broker], None]
) -> None:
    name_server = orbit.start_name_server(tmp_path / "nameserver")
    port = free_port(-2, 1)
    broker = orbit.start_broker(tmp_path / "broker", name_server.address, port=port)
    try:
        cluster = Cluster(name_server, broker)
        texts = send(java, cluster, name, 10, "before")
        java.open_push_consumer(f"{name}-1", name_server.address, name, group=name)
        assert texts_of(java.received(f"{name}-1", 10)) == sorted(texts)
        assert java.received(f"{name}-1", 1, seconds=1) == []  # and time for the listener to return
        java.close_one(f"{name}-1")
        eventually(lambda: committed(broker.address, name), lambda total: total == 10, 20, "ten messages committed")
        stopping(broker)
        broker = orbit.start_broker(tmp_path / "broker", name_server.address, port=port)
        texts = send(java, Cluster(name_server, broker), name, 5, "after")
        java.open_push_consumer(f"{name}-2", name_server.address, name, group=name)
        assert texts_of(java.received(f"{name}-2", 5)) == sorted(texts)
        assert java.received(f"{name}-2", 1, seconds=1) == []
        java.close_one(f"{name}-2")
    finally:
        broker.process.kill()
        name_server.process.kill()


def committed(address: str, name: str) -> int:
    """How many messages of the topic the group of the same name has told the broker to be done with."""
    total = 0
    for queue_id in range(4):
        fields = {"consumerGroup": name, "topic": name, "queueId": str(queue_id), "setZeroIfNotFound": "false"}
        answer = wire.ask(address, QUERY_OFFSET, fields)
        total += int(answer.fields["offset"]) if answer.code == 0 else 0
    return total


def saved_at(broker: Broker) -> int:
    try:
        return (broker.folder / "store" / "config" / "consumerOffset.json").stat().st_mtime_ns
    except FileNotFoundError:  # not yet, or while one version takes the other's place
        return 0


@pytest.fixture(params=["stopped", "killed"])
def stopping(request: pytest.FixtureRequest) -> Callable[[Broker], None]:
    """A killed broker knows what was committed until it last saved offsets, every five seconds."""

    def stop(broker: Broker) -> None:
        if request.param == "stopped":
            assert broker.process.stop() == 0
            return
        before = saved_at(broker)
        eventually(lambda: saved_at(broker), lambda at: at > before, 20, "offsets saved")
        broker.process.kill()

    return stop
