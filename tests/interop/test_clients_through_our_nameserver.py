"""Java producers and consumers find Apache's brokers through our name server, with both header codecs."""

from collections.abc import Callable

import pytest

from tests.interop.drivers import JavaClient, Received
from tests.interop.marks import INTEROP
from tests.interop.processes import eventually
from tests.interop.wire import brokers_of
from tests.interop.world import World

pytestmark = INTEROP

BINARY = pytest.mark.parametrize("binary_headers", [False, True], ids=["json", "binary"])


@BINARY
def test_what_a_java_producer_sends_a_java_consumer_receives(
    world: World, release: str, binary_headers: bool, java_client: Callable[[bool], JavaClient]
) -> None:
    name_server, broker = world.orbit.address, world.brokers[release]
    topic = f"Orders-{release[0]}-{'binary' if binary_headers else 'json'}"
    world.admins[release].run("updateTopic", "-n", name_server, "-c", broker.cluster, "-t", topic)
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
        assert {receipt["broker"] for receipt in receipts} <= {broker.name}
        sent |= {str(message["text"]) for message in messages}

    client.open_push_consumer("pushed", name_server, topic)
    pushed = client.received("pushed", len(sent))
    assert _texts(pushed) == sorted(sent)
    for message in pushed:
        mode, number, _ = message.body.decode().split(" ")
        assert (message.tag, message.keys, message.properties["round"]) == (mode, f"{mode}-{number}", number)

    client.open_push_consumer("tagged", name_server, topic, tags="sync || batch")
    assert {message.tag for message in client.received("tagged", 10)} == {"sync", "batch"}

    client.open_pull_consumer("pulled", name_server, topic)
    assert _texts(client.poll("pulled", len(sent))) == sorted(sent)


def test_a_topic_made_by_its_first_message_gets_a_route(
    world: World, release: str, java_client: Callable[[bool], JavaClient]
) -> None:
    topic = f"MadeBySending-{release[0]}"
    client = java_client(False)
    client.open_producer("producer", world.orbit.address)
    assert brokers_of(world.orbit.address, topic) == {}

    receipts = client.send("producer", topic, [{"text": f"message {i}"} for i in range(4)])

    used = {receipt["broker"] for receipt in receipts}
    eventually(lambda: set(brokers_of(world.orbit.address, topic)), used.issubset, 10, "a route to every broker used")
    client.open_push_consumer("consumer", world.orbit.address, topic)
    assert len(client.received("consumer", 4)) == 4


def _texts(messages: list[Received]) -> list[str]:
    return sorted(message.body.decode() for message in messages)
