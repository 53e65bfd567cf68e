"""The Python client and Apache's Java client side by side on OrbitMQ's own servers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta

import pytest

from orbitmq import Client, ReceivedMessage, Tracer, connect
from orbitmq.admin.session import Session
from orbitmq.admin.traces import trace_events
from orbitmq.errors import RequestFailed
from tests.client.scripted import eventually
from tests.client.suite import collecting, until_routed
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
from tests.topic_names import fresh_name

pytestmark = INTEROP


@pytest.fixture(scope="module")
def release() -> str:
    """One release of Java's client is enough here: the servers under test are ours."""
    return "5.3.3"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
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
    name = fresh_name(request)
    await servers.create_topic(name)
    await until_routed(client, name)
    return name


async def test_both_clients_keep_to_the_queues_of_an_ordered_topic(
    name_server: str, client: Client, topic: str, java_client: Callable[[bool], JavaClient]
) -> None:
    """The topic has eight queues; its `orderTopicConf` says that three are for messages in order."""
    java = java_client(False)
    await asyncio.to_thread(java.open_admin_tool, "admin", name_server)
    await asyncio.to_thread(java.ask, "admin", "createAndUpdateKvConfig", "ORDER_TOPIC_CONFIG", topic, "orbit-a:3")
    await asyncio.to_thread(java.open_producer, "producer", name_server)
    received: list[ReceivedMessage] = []
    async with connect(name_server) as fresh, fresh.producer("PythonProducer") as producer:
        assert [queue.queue_id for queue in await producer.queues(topic)] == [0, 1, 2]
        for number in range(24):
            key, text = f"user-{number % 6}", f"{number % 6} {number}"
            [theirs] = await asyncio.to_thread(java.send, "producer", topic, [{"text": text}], order_key=key)
            ours = await producer.send(topic, text, order_key=key)
            assert ours.queue.queue_id == theirs["queue"] < 3
        handler = collecting(received)
        async with fresh.consumer(topic, group=f"InOrder{topic}", orderly=True, start="earliest", handler=handler):
            await eventually(lambda: len(received) == 48, 60)
    for user in range(6):
        numbers = [int(body[1]) for body in (message.body.split() for message in received) if body[0] == b"%d" % user]
        assert numbers == [number for number in range(user, 24, 6) for _ in range(2)]


async def test_traces_of_either_client_are_found_by_the_id_of_a_message(
    name_server: str, client: Client, topic: str, java_client: Callable[[bool], JavaClient]
) -> None:
    """By `orbitmq msg trace`'s own question, and by the one of `mqadmin queryMsgTraceById`."""
    java = java_client(False)
    await asyncio.to_thread(java.open_producer, "traced", name_server, trace=True)
    [receipt] = await asyncio.to_thread(java.send, "traced", topic, [{"text": "by Java"}])
    async with Tracer(client, every_seconds=0.1) as tracer, client.producer("Traced", hooks=[tracer]) as producer:
        later = await producer.send(topic, "by Python", delay=timedelta(hours=1))
        assert await producer.recall(topic, later.recall_handle) == later.message_id
        with pytest.raises(RequestFailed):
            await producer.recall("Other", later.recall_handle)
    async with Session(client.config) as session, asyncio.timeout(60):
        while not (sent := await trace_events(session, receipt["id"])):
            await asyncio.sleep(0.2)  # Java sends them a little later
        while len(told := await trace_events(session, later.message_id)) < 3:
            await asyncio.sleep(0.2)
    assert [(event.kind, event.outcome, event.group) for event in sent] == [("sent", "success", "P_traced")]
    assert [(event.kind, event.outcome) for event in told] == [
        ("sent", "success"), ("recalled", "success"), ("recalled", "failed")
    ]  # fmt: skip
    await asyncio.to_thread(java.open_admin_tool, "admin", name_server)
    found = await asyncio.to_thread(
        java.ask, "admin", "queryMessage", "RMQ_SYS_TRACE_TOPIC", later.message_id, 64, 0, 2**62
    )
    text = "".join(bytes(byte & 0xFF for byte in message["body"]).decode() for message in found["messageList"])
    records = await asyncio.to_thread(java.call, "ReadTraces", text=text)
    assert {(record["kind"], record["id"], record["topic"]) for record in records} >= {
        ("Pub", later.message_id, topic), ("Recall", later.message_id, topic), ("Recall", later.message_id, "Other")
    }  # fmt: skip


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
