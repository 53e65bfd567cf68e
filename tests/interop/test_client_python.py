"""Our Python client on Apache's brokers, beside Apache's Java client: what one sends the other reads, and they share groups."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from orbitmq import Client, Consumer, LeaseConsumer, LeasedMessage, ReceivedMessage, Sql, connect
from orbitmq.errors import MessageError, RequestFailed
from tests.client import suite
from tests.client.scripted import eventually
from tests.client.suite import (  # noqa: F401 - tests that every server must pass
    collecting,
    test_a_failed_message_comes_again_and_then_goes_to_the_dead_letters,
    test_a_request_gets_its_reply,
    test_broadcasting_members_each_get_everything,
    test_every_way_of_sending_arrives,
    test_members_share_a_topic_and_take_over_when_one_leaves,
    test_offsets_by_time_and_by_hand,
    test_only_what_a_transaction_commits_is_consumed,
    test_orderly_members_see_each_queue_in_order,
    test_the_first_message_comes_within_a_second,
    until_routed,
)
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
from tests.interop.drivers import MqAdmin
from tests.interop.kinds_of_both_clients import (  # noqa: F401 - the same
    test_java_reads_every_kind_that_python_sends,
    test_python_reads_every_kind_that_java_sends,
)
from tests.interop.marks import INTEROP
from tests.interop.world import World
from tests.topic_names import fresh_name

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
    name = fresh_name(request)
    broker = world.brokers[release]
    made = world.admins[release].run(
        "updateTopic", "-n", world.apache[release].address, "-b", broker.address, "-t", name, "-r", "8", "-w", "8"
    )
    assert "success" in made.out, made
    return name


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


async def test_leases_where_brokers_have_them_and_a_clear_word_where_not(
    world: World, release: str, name_server: str, client: Client, topic: str
) -> None:
    if release.startswith("5"):
        await suite.test_leased_messages_end_with_their_ack_and_come_again_without(client, topic)
        await _mqadmin_sees_who_leases(world.admins[release], name_server, client, topic)
        await _orderly_leases_keep_a_queue_in_order(client, topic)
        return
    await until_routed(client, topic)
    async with client.lease_consumer(topic, group=f"Leases{topic}") as consumer:
        with pytest.raises(RequestFailed, match="does not lease messages") as refused:
            await consumer.fetch(wait=5)
    assert "5.0" in refused.value.hint


async def test_delays_by_timer_or_by_level(release: str, client: Client, topic: str) -> None:
    if release.startswith("5"):
        await suite.test_any_delay_is_kept_and_can_be_recalled(client, topic)
        return
    seen: list[ReceivedMessage] = []
    async with client.producer("PythonProducer") as producer:
        await until_routed(client, topic)
        with pytest.raises(MessageError, match="no delay level"):
            await producer.send(topic, b"x", delay=timedelta(seconds=3))
        await producer.send(topic, b"one level", delay=timedelta(seconds=1))
        async with client.consumer(topic, group=f"Levels{topic}", start="earliest", handler=collecting(seen)):
            await eventually(lambda: len(seen) == 1, 30)


async def test_an_unusable_sql_filter_is_refused_at_the_start(client: Client, topic: str) -> None:
    with pytest.raises(RequestFailed):
        await client.consumer(topic, group=f"Sql{topic}", filter=Sql("a > ")).start()


async def _mqadmin_sees_who_leases(admin: MqAdmin, name_server: str, client: Client, topic: str) -> None:
    group = f"Asked{topic}"
    async with client.lease_consumer(topic, group=group, start="earliest") as consumer:
        leased = await consumer.fetch(wait=30)
        assert leased
        command = ("consumerStatus", "-n", name_server, "-g", group, "-i", _client_id(consumer))
        status = await asyncio.to_thread(admin.run, *command)
        await consumer.ack(leased)
    assert "CONSUME_POP" in status.out, status
    assert f"waitAckCount:{len(leased)}," in status.out, status


async def _orderly_leases_keep_a_queue_in_order(client: Client, topic: str) -> None:
    async with client.producer("PythonProducer") as producer:
        for number in range(4):
            await producer.send(topic, f"ordered {number}", tag="ordered", order_key="one queue")
    lease = timedelta(seconds=3)
    async with (
        client.lease_consumer(
            topic, group=f"Ordered{topic}", filter="ordered", start="earliest", lease=lease, orderly=True
        ) as one,
        client.lease_consumer(
            topic, group=f"Ordered{topic}", filter="ordered", start="earliest", lease=lease, orderly=True
        ) as other,
    ):
        first: list[LeasedMessage] = []
        while not first:
            first = await one.fetch(max=2, wait=10)
        assert [(message.body, message.attempt) for message in first] == [(b"ordered 0", 1), (b"ordered 1", 1)]
        await first[0].ack()
        again: list[LeasedMessage] = []
        async with asyncio.timeout(60):
            while not again:
                again = await other.fetch(max=1, wait=5)
        assert (again[0].body, again[0].attempt) == (b"ordered 1", 2)
        await other.ack(again)
        rest: list[bytes] = []
        async with asyncio.timeout(60):
            while len(rest) < 2:
                found = await one.fetch(max=2, wait=5)
                rest += [message.body for message in found]
                await one.ack(found)
    assert rest == [b"ordered 2", b"ordered 3"]


def _client_id(consumer: Consumer | LeaseConsumer) -> str:
    assert consumer._instance is not None
    return consumer._instance.client_id
