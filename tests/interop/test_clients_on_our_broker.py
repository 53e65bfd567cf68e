"""Apache's Java clients on our name server and our broker: they must notice nothing."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.interop import orbit
from tests.interop.apache import Broker, NameServer
from tests.interop.drivers import JavaClient, Received
from tests.interop.marks import INTEROP

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = INTEROP

BINARY = pytest.mark.parametrize("binary_headers", [False, True], ids=["json", "binary"])


@dataclass(frozen=True, slots=True)
class OrbitCluster:
    name_server: NameServer
    broker: Broker


@pytest.fixture(scope="module")
def cluster(java_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OrbitCluster]:
    folder: Path = tmp_path_factory.mktemp("orbit-cluster")
    name_server = orbit.start_name_server(folder / "nameserver")
    try:
        broker = orbit.start_broker(folder / "broker", name_server.address)
        try:
            yield OrbitCluster(name_server, broker)
        finally:
            broker.process.kill()
    finally:
        name_server.process.kill()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, made by the first message sent to it."""
    return "".join(letter if letter.isalnum() else "_" for letter in request.node.name)[-100:]


@BINARY
def test_every_way_to_send_and_to_receive(
    cluster: OrbitCluster, topic: str, binary_headers: bool, java_client: Callable[[bool], JavaClient]
) -> None:
    name_server = cluster.name_server.address
    client = java_client(binary_headers)
    client.open_producer("producer", name_server)
    sent: set[str] = set()
    for mode in ("sync", "async", "oneway", "batch"):
        messages = [
            {"text": f"{mode} {i} é", "tag": mode, "keys": f"{mode}-{i}", "properties": {"round": str(i)}}
            for i in range(5)
        ]
        receipts = client.send("producer", topic, messages, mode=mode)
        assert {receipt["status"] for receipt in receipts} <= {"SEND_OK"}
        sent |= {str(message["text"]) for message in messages}

    client.open_push_consumer("pushed", name_server, topic, group=f"{topic}_pushed")
    pushed = client.received("pushed", len(sent))
    assert _texts(pushed) == sorted(sent)
    for message in pushed:
        mode, number, _ = message.body.decode().split(" ")
        assert (message.tag, message.keys, message.properties["round"]) == (mode, f"{mode}-{number}", number)

    client.open_push_consumer("tagged", name_server, topic, group=f"{topic}_tagged", tags="sync || batch")
    assert {message.tag for message in client.received("tagged", 10)} == {"sync", "batch"}

    client.open_pull_consumer("pulled", name_server, topic)
    assert _texts(client.poll("pulled", len(sent))) == sorted(sent)


@BINARY
def test_a_message_that_fails_comes_again(
    cluster: OrbitCluster, topic: str, binary_headers: bool, java_client: Callable[[bool], JavaClient]
) -> None:
    client = java_client(binary_headers)
    client.open_producer("producer", cluster.name_server.address)
    client.send("producer", topic, [{"text": "try me"}])
    client.open_push_consumer("consumer", cluster.name_server.address, topic, group=f"{topic}_g"[-100:], fail_first=1)

    first, second = client.received("consumer", 2, seconds=40)

    assert (first.body, first.attempt, second.body, second.attempt) == (b"try me", 0, b"try me", 1)
    assert second.topic == topic


def test_orderly_consumption_keeps_each_queue_in_order(
    cluster: OrbitCluster, topic: str, java_client: Callable[[bool], JavaClient], release: str
) -> None:
    client = java_client(False)
    client.open_producer("producer", cluster.name_server.address)
    for key in ("a", "b", "c"):
        client.send("producer", topic, [{"text": f"{key} {i}"} for i in range(10)], order_key=key)
    client.open_push_consumer("consumer", cluster.name_server.address, topic, group=f"{topic}_g"[-100:], orderly=True)

    received = client.received("consumer", 30)

    for key in ("a", "b", "c"):
        mine = [text for text in (message.body.decode() for message in received) if text.startswith(key)]
        assert mine == [f"{key} {i}" for i in range(10)]


def _texts(messages: list[Received]) -> list[str]:
    return sorted(message.body.decode() for message in messages)
