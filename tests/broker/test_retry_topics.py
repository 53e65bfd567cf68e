"""Retry topics whose name is that of several: who gets which message, and where messages that come back go."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.message.properties import encode_properties
from orbitmq.protocol.codes import ResponseCode
from orbitmq.testing.clock import MovableClock
from tests.broker.kit import PATIENCE_SECONDS, Wire, messages_of, running, wire
from tests.broker.lease_kit import PEEK, LeaseClient
from tests.raw_client import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from tests.broker.lease_kit import Leased

T, GROUP, OLDER, NEWER = "Leases", "LG", "%RETRY%LG_Leases", "%RETRY%LG+Leases"
NAMESAKE = "LG_Leases"  # the group whose retry topic is OLDER, too
ONE_QUEUE: dict[str, Any] = {"default_topic_queue_nums": 1}
LEASE_MS = 10_000
SURELY_BACK_SECONDS = 4  # after the end of a lease

pytestmark = pytest.mark.usefixtures("loops")


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
async def broker(tmp_path: Path, clock: MovableClock) -> AsyncIterator[Broker]:
    async with running(tmp_path / "store", clock=clock, reviveInterval=20) as running_broker:
        yield running_broker


@pytest.fixture
def consumer(client: Wire) -> LeaseClient:
    return LeaseClient(client)


async def send(client: Wire, body: bytes, topic: str = T, **properties: str) -> None:
    assert (await client.send(topic, body, 0, header=ONE_QUEUE, **properties)).code == 0


async def pop_some(consumer: LeaseClient, count: int = 1) -> list[Leased]:
    """So many, however long they take to come."""
    found: list[Leased] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found) < count:
            found += await consumer.pop(T, invisibleTime=LEASE_MS)
            await asyncio.sleep(0.02)
    return sorted(found, key=lambda leased: leased.body)


async def nothing_more(consumer: LeaseClient) -> None:
    """Wherever a pop begins to look."""
    for _ in range(8):
        assert await consumer.pop(T) == []


def came_back(broker: Broker, retry_topic: str, *bodies: bytes, **told: str) -> None:
    """As a broker writes what came back from leases."""
    broker.state.topics.create_internal(retry_topic, 1)
    for body in bodies:
        broker.state.store.append(retry_topic, 0, body, encode_properties(told), 1, bytes(8), 0, 0, 1)
    broker.state.store.dispatch()


def places(leased: list[Leased]) -> list[tuple[bytes, str]]:
    return [(each.body, each.real_topic) for each in leased]


async def test_leases_and_a_group_of_their_retry_topics_name_get_nothing_of_each_other(
    broker: Broker, client: Wire, consumer: LeaseClient, clock: MovableClock
) -> None:
    for body in (b"a", b"b"):
        await send(client, body)
    await pop_some(consumer, 2)
    clock.advance(ms=LEASE_MS, seconds=SURELY_BACK_SECONDS)
    assert places(await pop_some(consumer, 2)) == [(b"a", OLDER), (b"b", OLDER)], "which is nobody else's yet"
    clock.advance(ms=LEASE_MS, seconds=SURELY_BACK_SECONDS)
    await until(lambda: broker.state.store.queue_range(OLDER, 0).max_offset == 4, what="both coming back again")

    # They wait there when a group of that name comes, which fails as well.
    broker.state.groups.require(NAMESAKE)
    for origin in (T, "Others"):
        await send(client, b"theirs", OLDER, RETRY_TOPIC=origin)
    peeked = await client.ask(PEEK, {"consumerGroup": GROUP, "topic": T, "queueId": -1, "maxMsgNums": 32})
    assert sorted(message.body for message in messages_of(peeked)) == [b"a", b"b"]
    again = await pop_some(consumer, 2)
    assert places(again) == [(b"a", OLDER), (b"b", OLDER)], "what went there before is found there"
    await nothing_more(consumer)

    clock.advance(ms=LEASE_MS, seconds=SURELY_BACK_SECONDS)
    again = await pop_some(consumer, 2)
    assert places(again) == [(b"a", NEWER), (b"b", NEWER)]
    assert [(await consumer.ack(leased)).code for leased in again] == [0, 0]
    assert (await client.bodies(OLDER))[4:] == [b"theirs", b"theirs"], "what comes back goes there no longer"

    await send(client, b"theirs", OLDER, RETRY_TOPIC=T)
    await broker.state.groups.delete(NAMESAKE)
    await nothing_more(consumer)


async def test_leases_of_names_that_read_alike_get_back_what_is_their_own(
    broker: Broker, client: Wire, clock: MovableClock
) -> None:
    first, second = LeaseClient(client, "a"), LeaseClient(client, "a_b")
    pairs = ((first, "b_c"), (second, "c"))
    held = []
    for consumer, topic in pairs:
        await send(client, topic.encode(), topic)
        assert len(await consumer.pop(topic, invisibleTime=LEASE_MS)) == 1
        held.append(await consumer.hold_pop(topic))
    await until(lambda: len(broker.state.pops.pops) == 2, what="both wait")

    clock.advance(ms=LEASE_MS, seconds=SURELY_BACK_SECONDS)

    for (consumer, topic), answer in zip(pairs, held, strict=True):
        (leased,) = consumer.leased(topic, await asyncio.wait_for(answer, PATIENCE_SECONDS))
        assert (leased.body, leased.real_topic) == (topic.encode(), "%RETRY%a_b_c")
        assert (await consumer.ack(leased)).code == 0
    for consumer, topic in pairs:
        assert await consumer.pop(topic) == []


async def test_what_another_broker_wrote_there_is_not_lost(broker: Broker, client: Wire, consumer: LeaseClient) -> None:
    """Java's does not write from which topic a message came back; and a message that was sent on may name another."""
    await send(client, b"first")
    assert len(await consumer.pop(T)) == 1
    came_back(broker, OLDER, b"sent on", **{"1ST_POP_TIME": "1", "RETRY_TOPIC": "Others"})
    assert places(await pop_some(consumer)) == [(b"sent on", OLDER)]
    broker.state.groups.require(NAMESAKE)
    came_back(broker, OLDER, b"old", **{"1ST_POP_TIME": "1"})
    came_back(broker, OLDER, b"of another topic", **{"1ST_POP_TIME": "1", "RETRY_TOPIC": "Others"})
    assert places(await pop_some(consumer)) == [(b"old", OLDER)]
    await nothing_more(consumer)


async def test_what_another_master_sends_makes_no_group_and_counts_for_that_of_the_lease(
    broker: Broker, client: Wire
) -> None:
    for group, topic, most in (("a", "b_c", 1), ("a_b", "c", 20)):
        await send(client, b"first", topic)
        assert len(await LeaseClient(client, group).pop(topic)) == 1
        broker.state.groups.require(group).retry_max_times = most
    for attempts in (20, 21):
        marks = {"1ST_POP_TIME": "1", "RETRY_TOPIC": "c"}
        header = {**ONE_QUEUE, "reconsume_times": attempts}
        assert (await client.send("%RETRY%a_b_c", b"%d" % attempts, 0, header=header, **marks)).code == 0
    assert places(await LeaseClient(client, "a_b").pop("c")) == [(b"20", "%RETRY%a_b_c")]
    assert await client.bodies("%DLQ%a_b") == [b"21"]
    assert broker.state.groups.get("a_b_c") is None
    await send(client, b"of a group", "%RETRY%a_b_c")
    assert broker.state.groups.get("a_b_c") is not None


@pytest.mark.parametrize("automatic", ["true", "false"])
async def test_a_send_for_a_group_that_is_not_there_leaves_no_topic_behind(tmp_path: Path, automatic: str) -> None:
    settings: dict[str, Any] = {"autoCreateTopicEnable": automatic, "autoCreateSubscriptionGroup": "false"}
    async with running(tmp_path, **settings) as broker, wire(broker) as client:
        before = set(broker.state.topics.all())
        for number in range(5):
            answer = await client.send(f"%RETRY%nobody{number}", b"x")
            assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert set(broker.state.topics.all()) == before
