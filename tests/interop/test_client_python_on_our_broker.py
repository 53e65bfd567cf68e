"""The Python client and Apache's Java client side by side on OrbitMQ's own servers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from orbitmq import Client, connect
from tests.client.suite import until_routed
from tests.client.test_on_our_broker import Servers
from tests.interop.both_clients import (  # noqa: F401 - what must hold wherever the two clients meet
    test_a_mixed_group_shares_the_queues,
    test_both_put_one_order_key_into_one_queue,
    test_java_asks_and_python_answers,
    test_java_reads_what_python_commits_and_delays,
    test_java_reads_what_python_sends,
    test_java_reads_what_python_traces,
    test_python_asks_and_java_answers,
    test_python_reads_what_java_commits,
    test_python_reads_what_java_sends,
)
from tests.interop.drivers import JavaClient
from tests.interop.kinds_of_both_clients import (  # noqa: F401 - the same
    test_java_reads_every_kind_that_python_sends,
    test_python_reads_every_kind_that_java_sends,
)
from tests.interop.marks import INTEROP

pytestmark = INTEROP


@pytest.fixture(scope="module")
def release() -> str:
    """One release of Java's client is enough here: the servers under test are ours."""
    return "5.3.3"


@pytest.fixture(scope="module")
def servers(java_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    servers = Servers(tmp_path_factory.mktemp("both-clients"))
    yield servers
    servers.kill()


@pytest.fixture
def name_server(servers: Servers) -> str:
    return servers.address


@pytest.fixture
async def client(name_server: str) -> AsyncIterator[Client]:
    async with connect(name_server) as client:
        yield client


@pytest.fixture
async def topic(servers: Servers, client: Client, request: pytest.FixtureRequest) -> str:
    name = "".join(part[0].upper() + part[1:] for part in request.node.originalname.split("_"))[:60]
    await servers.create_topic(name)
    await until_routed(client, name)
    return name


async def test_python_leases_what_java_sends_and_delays(
    name_server: str, client: Client, topic: str, java_client: Callable[[bool], JavaClient]
) -> None:
    java = java_client(False)
    await asyncio.to_thread(java.open_producer, f"Late{topic}", name_server)
    messages: list[dict[str, object]] = [
        {"text": "at once", "tag": "t"},
        {"text": "by level", "tag": "t", "delayLevel": 1},
        {"text": "by timer", "tag": "t", "delaySeconds": 1},
        {"text": "not wanted", "tag": "u"},
    ]
    await asyncio.to_thread(java.send, f"Late{topic}", topic, messages)
    found: list[str] = []
    async with client.lease_consumer(topic, group=f"Leases{topic}", filter="t", start="earliest") as consumer:
        async with asyncio.timeout(60):
            while len(found) < 3:
                for message in await consumer.fetch(wait=1):
                    found.append(message.body.decode())
                    await message.ack()
    assert found[0] == "at once"
    assert sorted(found) == ["at once", "by level", "by timer"]
