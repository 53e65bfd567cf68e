"""Java consumer groups on our broker: broadcasting, sharing, dying, retries and dead letters; and what messages can be besides.

Every test runs with each release and each header codec.
"""

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop import orbit, wire
from tests.interop.apache import Broker
from tests.interop.crossed import CrossedClient, OrbitCluster, send, texts_of
from tests.interop.drivers import JavaClient
from tests.interop.java import build
from tests.interop.marks import INTEROP
from tests.interop.processes import eventually, free_port

pytestmark = INTEROP

PULL, QUERY_OFFSET, CONSUMER_LIST = 11, 14, 38


@pytest.fixture
def java(crossed: CrossedClient) -> JavaClient:
    return crossed.java


def test_every_member_of_a_broadcasting_group_receives_everything(
    java: JavaClient, cluster: OrbitCluster, name: str
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
    crossed: CrossedClient, cluster: OrbitCluster, name: str, tmp_path: Path
) -> None:
    java = crossed.java
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

    dies = JavaClient(build(crossed.release), tmp_path / "dies", binary_headers=crossed.is_binary)
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


def receives_all(java: JavaClient, cluster: OrbitCluster, topic: str, consumer: str, what: str) -> None:
    texts = send(java, cluster, topic, 8, what)
    seen: set[str] = set()
    while seen != set(texts):
        seen |= set(received_of(java, consumer, texts, seconds=40.0))


def received_of(java: JavaClient, consumer: str, texts: list[str], seconds: float = 0.2) -> list[str]:
    """Those of `texts` that came. Who takes a queue over may be given again what its last owner had not committed yet."""
    messages = [message.body.decode() for message in java.received(consumer, 1, seconds)]
    assert messages or seconds < 1, "nothing received"
    return [text for text in messages if text in texts]


def test_a_message_that_fails_too_often_becomes_a_dead_letter(
    java: JavaClient, cluster: OrbitCluster, name: str
) -> None:
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


def test_a_namespace_keeps_topics_and_groups_apart(java: JavaClient, cluster: OrbitCluster, name: str) -> None:
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


def orbit_topic_exists(cluster: OrbitCluster, topic: str) -> bool:
    return bool(wire.brokers_of(cluster.name_server.address, topic))


def test_messages_are_found_by_key_by_unique_id_and_by_offset_id(
    java: JavaClient, cluster: OrbitCluster, name: str
) -> None:
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
    java: JavaClient, cluster: OrbitCluster, name: str
) -> None:
    name_server = cluster.name_server.address
    producer = f"{name}-p"
    java.open_producer(producer, name_server, trace=True)
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


@pytest.mark.parametrize(("kind", "flag"), [("ZLIB", 0x300), ("LZ4", 0x100), ("ZSTD", 0x200)])
def test_bodies_compressed_in_every_way_come_back_whole(
    crossed: CrossedClient, cluster: OrbitCluster, name: str, kind: str, flag: int
) -> None:
    if kind != "ZLIB" and crossed.release == "4.9.7":
        pytest.skip("4.9 clients know zlib alone")
    java, name_server = crossed.java, cluster.name_server.address
    java.open_producer(f"{name}-p", name_server, compression=kind)
    text = "the same again and " * 1000
    java.send(f"{name}-p", name, [{"text": text}])
    java.close_one(f"{name}-p")
    assert stored_flags(cluster.broker.address, name) == [flag | 1]
    java.open_push_consumer(name, name_server, name, group=name)
    assert texts_of(java.received(name, 1)) == [text]
    java.close_one(name)


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
    settings = {"flushConsumerOffsetInterval": 1000}
    broker = orbit.start_broker(tmp_path / "broker", name_server.address, settings=settings, port=port)
    try:
        cluster = OrbitCluster(name_server, broker)
        texts = send(java, cluster, name, 10, "before")
        java.open_push_consumer(f"{name}-1", name_server.address, name, group=name)
        assert texts_of(java.received(f"{name}-1", 10)) == sorted(texts)
        assert java.received(f"{name}-1", 1, seconds=1) == []  # and time for the listener to return
        java.close_one(f"{name}-1")
        eventually(lambda: committed(broker.address, name), lambda total: total == 10, 20, "ten messages committed")
        stopping(broker)
        broker = orbit.start_broker(tmp_path / "broker", name_server.address, settings=settings, port=port)
        texts = send(java, OrbitCluster(name_server, broker), name, 5, "after")
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


def saved(broker: Broker, name: str) -> int:
    """As `committed`, of what a killed broker will know: the file of offsets, whose numbers of queues stand without quotes."""
    try:
        text = (broker.folder / "store" / "config" / "consumerOffset.json").read_text()
    except FileNotFoundError:  # not yet, or while one version takes the other's place
        return 0
    found = re.search(rf'"{re.escape(name)}@{re.escape(name)}"\s*:\s*\{{([^}}]*)\}}', text)
    return sum(int(offset) for offset in re.findall(r":\s*(\d+)", found[1])) if found is not None else 0


@pytest.fixture(params=["stopped", "killed"])
def stopping(request: pytest.FixtureRequest, name: str) -> Callable[[Broker], None]:
    """A killed broker knows what was committed until it last saved offsets, here every second."""

    def stop(broker: Broker) -> None:
        if request.param == "stopped":
            assert broker.process.stop() == 0
            return
        eventually(lambda: saved(broker, name), lambda total: total == 10, 20, "ten offsets saved")
        broker.process.kill()

    return stop
