"""Our Python client on Apache's brokers, beside Apache's Java client: what one sends the other reads, and they share groups."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from orbitmq import Client, Consumer, QueueRef, ReceivedMessage, Sql, connect
from orbitmq.errors import RequestFailed
from orbitmq.message.tags import java_hash
from tests.client.scripted import eventually
from tests.client.suite import (  # noqa: F401 - tests that every server must pass
    collecting,
    test_a_failed_message_comes_again_and_then_goes_to_the_dead_letters,
    test_broadcasting_members_each_get_everything,
    test_every_way_of_sending_arrives,
    test_members_share_a_topic_and_take_over_when_one_leaves,
    test_offsets_by_time_and_by_hand,
    test_only_what_a_transaction_commits_is_consumed,
    test_orderly_members_see_each_queue_in_order,
    test_the_first_message_comes_within_a_second,
    until_routed,
)
from tests.interop.drivers import JavaClient
from tests.interop.marks import INTEROP
from tests.interop.world import World

pytestmark = INTEROP


@pytest.fixture
def name_server(world: World, release: str) -> str:
    return world.apache[release].address


@pytest.fixture
async def client(name_server: str) -> AsyncIterator[Client]:
    async with connect(name_server) as client:
        yield client


@pytest.fixture
def topic(world: World, release: str, request: pytest.FixtureRequest) -> str:
    """A topic of its own for each test, with eight queues."""
    name = "".join(part[0].upper() + part[1:] for part in request.node.originalname.split("_"))[:60] + release[0]
    broker = world.brokers[release]
    made = world.admins[release].run(
        "updateTopic", "-n", world.apache[release].address, "-b", broker.address, "-t", name, "-r", "8", "-w", "8"
    )
    assert "success" in made.out, made
    return name


async def test_java_reads_what_python_sends(
    world: World, release: str, name_server: str, client: Client, topic: str, java_client: Callable[[bool], JavaClient]
) -> None:
    sent = {}
    async with client.producer("PythonProducer") as producer:
        await until_routed(client, topic)
        for number in range(10):
            text = f"message {number} é 标签 🚀"
            receipt = await producer.send(
                topic,
                text,
                tag=f"tag{number % 2}",
                keys=[f"key-{number}", "all"],
                properties={"colour": "blå", "n": str(number)},
            )
            sent[receipt.message_id] = text
        for receipt in await producer.send_batch(topic, ["batch a", "batch b"], tag="tag0"):
            sent[receipt.message_id] = f"batch {'ab'[receipt.queue_offset % 2]}"
        await producer.send(topic, "large " * 2000, tag="tag0")
        await producer.send_oneway(topic, "oneway", tag="tag0")
    java = java_client(False)
    await asyncio.to_thread(java.open_push_consumer, "all", name_server, topic)
    received = await asyncio.to_thread(java.received, "all", 14)
    assert len(received) == 14
    by_id = {message.id: message for message in received}
    for number, (message_id, text) in enumerate(list(sent.items())[:10]):
        message = by_id[message_id]
        assert message.body.decode() == text
        assert (message.tag, message.keys) == (f"tag{number % 2}", f"key-{number} all")
        assert message.properties["colour"] == "blå"
    assert {message.body for message in received} >= {b"batch a", b"batch b", b"oneway", b"large " * 2000}
    await asyncio.to_thread(java.open_push_consumer, "tagged", name_server, topic, tags="tag1")
    assert len(await asyncio.to_thread(java.received, "tagged", 5)) == 5


async def test_python_reads_what_java_sends(
    name_server: str, client: Client, topic: str, java_client: Callable[[bool], JavaClient]
) -> None:
    java = java_client(False)
    await asyncio.to_thread(java.open_producer, "producer", name_server)
    messages = [
        {
            "text": f"message {number} é 标签",
            "tag": f"tag{number % 2}",
            "keys": f"k{number}",
            "properties": {"n": str(number)},
        }
        for number in range(10)
    ]
    receipts = await asyncio.to_thread(java.send, "producer", topic, messages)
    await asyncio.to_thread(java.send, "producer", topic, [{"text": "x" * 10_000, "tag": "large"}])
    await asyncio.to_thread(java.send, "producer", topic, [{"text": "a"}, {"text": "b"}], mode="batch")
    seen: list[ReceivedMessage] = []
    async with client.consumer(topic, group=f"Reads{topic}", start="earliest", handler=collecting(seen)):
        await eventually(lambda: len(seen) == 13, 20)
    texts = {message.body.decode(): message for message in seen}
    assert set(texts) == {*(str(message["text"]) for message in messages), "x" * 10_000, "a", "b"}
    one = texts["message 3 é 标签"]
    assert (one.tag, one.keys, one.properties["n"], one.topic) == ("tag1", ["k3"], "3", topic)
    assert one.message_id in {receipt["id"] for receipt in receipts}
    tagged: list[ReceivedMessage] = []
    async with client.consumer(
        topic, group=f"Tagged{topic}", filter="tag0 || large", start="earliest", handler=collecting(tagged)
    ):
        await eventually(lambda: len(tagged) == 6, 20)


async def test_both_put_one_order_key_into_one_queue(
    name_server: str, client: Client, topic: str, java_client: Callable[[bool], JavaClient]
) -> None:
    java = java_client(False)
    await asyncio.to_thread(java.open_producer, "producer", name_server)
    async with client.producer("PythonProducer") as producer:
        await until_routed(client, topic)
        keys = ("a1", "标签", "k7", "abc", "polygenelubricants", "user-12345")
        assert any(java_hash(key) < 0 for key in keys)
        for key in keys:
            [theirs] = await asyncio.to_thread(java.send, "producer", topic, [{"text": "x"}], order_key=key)
            ours = await producer.send(topic, b"x", order_key=key)
            assert ours.queue.queue_id == theirs["queue"], key


async def test_a_mixed_group_shares_thequeues_of(
    name_server: str, client: Client, topic: str, java_client: Callable[[bool], JavaClient]
) -> None:
    group = f"Mixed{topic}"
    java = java_client(False)
    await asyncio.to_thread(java.open_push_consumer, "java", name_server, topic, group=group)
    seen: list[ReceivedMessage] = []
    async with (
        client.producer("PythonProducer") as producer,
        client.consumer(topic, group=group, start="earliest", handler=collecting(seen)) as consumer,
    ):
        await until_routed(client, topic)
        await eventually(lambda: len(consumer.assigned) == 4, 30)
        # Java's half is known from what it reads: it needs up to a rebalance to let go of the rest.
        await asyncio.sleep(2)
        ours = {queue.queue_id for queue in consumer.assigned}
        for queue_id in range(8):
            for number in range(5):
                await producer.send(
                    topic, f"{queue_id}-{number}", queue=QueueRef(topic, consumer.assigned[0].broker_name, queue_id)
                )
        theirs = await asyncio.to_thread(java.received, "java", 20)
        await eventually(lambda: len(seen) == 20, 20)
        assert {message.queue.queue_id for message in seen} == ours
        assert {message.queue for message in theirs} == set(range(8)) - ours
        assert len({message.body for message in seen} | {message.body for message in theirs}) == 40
        await asyncio.to_thread(java.close_one, "java")
        await eventually(lambda: len(consumer.assigned) == 8, 30)


async def test_mqadmin_finds_our_messages_and_our_consumers(
    world: World, release: str, name_server: str, client: Client, topic: str
) -> None:
    admin, group = world.admins[release], f"Admin{topic}"
    seen: list[ReceivedMessage] = []
    async with (
        client.producer("PythonProducer") as producer,
        client.consumer(topic, group=group, start="earliest", handler=collecting(seen), commit_every=0.1) as consumer,
    ):
        await until_routed(client, topic)
        receipt = await producer.send(topic, b"find me", keys=["needle"], tag="hay")
        await eventually(lambda: len(seen) == 1, 20)
        found = await asyncio.to_thread(
            admin.run, "queryMsgByUniqueKey", "-n", name_server, "-t", topic, "-i", receipt.message_id
        )
        assert "needle" in found.out, found
        by_key = await asyncio.to_thread(admin.run, "queryMsgByKey", "-n", name_server, "-t", topic, "-k", "needle")
        assert receipt.message_id in by_key.out
        client_id = _client_id(consumer)
        status = await asyncio.to_thread(admin.run, "consumerStatus", "-n", name_server, "-g", group, "-i", client_id)
        assert topic in status.out, status
        assert "CONSUME_PASSIVELY" in status.out
        await asyncio.sleep(0.5)  # an offset is committed
        progress = await asyncio.to_thread(admin.run, "consumerProgress", "-n", name_server, "-g", group)
        assert topic in progress.out, progress
        reset = await asyncio.to_thread(
            admin.run, "resetOffsetByTime", "-n", name_server, "-g", group, "-t", topic, "-s", "0", "-f", "true"
        )
        assert reset.exit_status in (None, 0), reset
        await eventually(lambda: len(seen) == 2, 30)
        assert seen[1].message_id == receipt.message_id


async def test_an_unusable_sql_filter_is_refused_at_the_start(client: Client, topic: str) -> None:
    # Apache's brokers have property filters off unless told otherwise.
    with pytest.raises(RequestFailed):
        await client.consumer(topic, group=f"Sql{topic}", filter=Sql("a > 1")).start()


def _client_id(consumer: Consumer) -> str:
    assert consumer._instance is not None
    return consumer._instance.client_id
