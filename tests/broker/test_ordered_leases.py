"""Leases of whole queues: one batch of a queue at a time, its messages in order, nothing overtakes anything."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.broker.leases.checkpoints import LONGEST_LEASE_MS
from orbitmq.testing.clock import MovableClock
from tests.broker.kit import PATIENCE_SECONDS, QUERY_OFFSET, Wire, running, wire
from tests.broker.lease_kit import NOTIFICATION, LeaseClient, Leased
from tests.raw_client import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbitmq.broker.broker import Broker

T, ONE_QUEUE = "Ordered", {"default_topic_queue_nums": 1}


class OrderedClient(LeaseClient):
    async def pop(self, topic: str = T, **changes: Any) -> list[Leased]:
        return await super().pop(topic, order="true", maxMsgNums=2, **changes)


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
async def broker(tmp_path: Path, clock: MovableClock) -> AsyncIterator[Broker]:
    async with running(tmp_path / "store", clock=clock) as running_broker:
        yield running_broker


@pytest.fixture
async def consumer(client: Wire) -> OrderedClient:
    for text in (b"1", b"2", b"3", b"4"):
        assert (await client.send(T, text, 0, header=ONE_QUEUE)).code == 0
    return OrderedClient(client)


def bodies(leased: list[Leased]) -> list[bytes]:
    return [each.body for each in leased]


async def test_the_next_batch_is_given_when_all_of_the_last_is_acknowledged(consumer: OrderedClient) -> None:
    first, second = await consumer.pop()
    assert first.handle.revive_queue == 999
    assert await consumer.pop() == []
    assert bodies(await OrderedClient(consumer.wire, "other").pop()) == [b"1", b"2"]
    assert (await consumer.ack(second)).code == 0
    assert await consumer.pop() == []
    assert (await consumer.ack(first)).code == 0
    third, fourth = await consumer.pop()
    assert bodies([third, fourth]) == [b"3", b"4"]
    assert (await consumer.ack_batch([third, fourth])).code == 0
    committed = {"consumerGroup": "LG", "topic": T, "queueId": 0}
    assert (await consumer.wire.ask(QUERY_OFFSET, committed)).fields["offset"] == "4"


async def test_a_batch_that_is_not_settled_in_time_is_given_again_from_its_first_open_message(
    consumer: OrderedClient, clock: MovableClock
) -> None:
    first, second = await consumer.pop(invisibleTime=5000)
    await consumer.ack(first)
    clock.advance(seconds=6)
    answer = await consumer.ask_pop(T, order="true", maxMsgNums=2)
    assert bodies(consumer.leased(T, answer)) == [b"2", b"3"]
    counts = set(answer.fields["orderCountInfo"].split(";"))
    assert counts == {"0 qo0%1 1", "0 0 0"}  # the second message was out once, the third never
    assert (await consumer.ack(second)).code == 13  # its lease is over, and another has it


async def test_a_waiting_pop_gets_the_queue_when_it_is_free(consumer: OrderedClient, clock: MovableClock) -> None:
    first, second = await consumer.pop(invisibleTime=5000)
    held = await consumer.hold_pop(T, order="true", maxMsgNums=2, invisibleTime=5000)
    asked = {"consumerGroup": "LG", "topic": T, "queueId": -1, "pollTime": 0, "bornTime": 0, "order": "true"}
    assert (await consumer.wire.ask(NOTIFICATION, asked)).fields["hasMsg"] == "false"
    await consumer.ack_batch([first, second])
    answer = await asyncio.wait_for(held, PATIENCE_SECONDS)
    assert bodies(consumer.leased(T, answer)) == [b"3", b"4"]
    held = await consumer.hold_pop(T, order="true", maxMsgNums=2)
    clock.advance(seconds=6)  # nobody settles it, and its time is over
    answer = await asyncio.wait_for(held, PATIENCE_SECONDS)
    assert bodies(consumer.leased(T, answer)) == [b"3", b"4"]


async def test_an_extended_batch_keeps_the_queue_longer(consumer: OrderedClient, clock: MovableClock) -> None:
    first, second = await consumer.pop(invisibleTime=5000)
    await consumer.ack(first)
    again = await consumer.extended(second, 60_000)
    assert again.handle.pop_time_ms == second.handle.pop_time_ms
    clock.advance(seconds=6)
    assert await consumer.pop() == []
    assert (await consumer.ack(again)).code == 0
    assert bodies(await consumer.pop()) == [b"3", b"4"]


async def test_a_lease_that_was_kept_beyond_the_longest_is_settled_by_its_handle(
    consumer: OrderedClient, clock: MovableClock
) -> None:
    first, second = await consumer.pop(invisibleTime=60_000)
    clock.advance(seconds=5)
    kept = await consumer.extended(first, LONGEST_LEASE_MS)
    assert kept.handle.invisible_ms > LONGEST_LEASE_MS  # it counts from the pop on
    again = await consumer.extended(kept, 30_000)
    assert (await consumer.ack(kept)).code == 0
    assert (await consumer.ack_batch([again, second])).code == 0
    assert bodies(await consumer.pop()) == [b"3", b"4"]


async def test_a_batch_that_is_out_for_days_is_not_forgotten_and_one_that_is_not_is(
    broker: Broker, consumer: OrderedClient, clock: MovableClock
) -> None:
    first, second = await consumer.pop(invisibleTime=3_600_000)
    assert (await consumer.ack(second)).code == 0
    for _ in range(30):
        clock.advance(hours=0.9)
        first = await consumer.extended(first, 3_600_000)
    await broker.state.ordered_leases.save()
    assert await consumer.pop() == []

    clock.advance(hours=26)
    await broker.state.ordered_leases.save()
    assert broker.state.ordered_leases.offsets(T, "LG", 0) == []


async def test_a_repeated_attempt_gets_the_same_batch_at_once(consumer: OrderedClient) -> None:
    assert bodies(await consumer.pop(attemptId="a")) == [b"1", b"2"]
    assert await consumer.pop(attemptId="b") == []
    assert bodies(await consumer.pop(attemptId="a")) == [b"1", b"2"]


async def test_made_up_handles_move_nobody(consumer: OrderedClient) -> None:
    first, _ = await consumer.pop()
    for forged in (
        first.handle._replace(pop_time_ms=first.handle.pop_time_ms - 1),
        first.handle._replace(offset=3),
    ):
        assert (await consumer.ack(first._replace(handle=forged))).code == 13
        assert (await consumer.extend(first._replace(handle=forged), 1000)).code == 13
    thief = OrderedClient(consumer.wire, "thief")
    assert (await thief.ack(first)).code == 13  # Apache's broker would send that group behind the message
    assert bodies(await thief.pop()) == [b"1", b"2"]


async def test_what_is_out_survives_a_restart_in_javas_form(tmp_path: Path, clock: MovableClock) -> None:
    async with running(tmp_path, clock=clock) as broker, wire(broker) as client:
        for text in (b"1", b"2", b"3"):
            await client.send(T, text, 0, header=ONE_QUEUE)
        first, second = await OrderedClient(client).pop()
        await OrderedClient(client).ack(first)
    table = json.loads((tmp_path / "config" / "consumerOrderInfo.json").read_bytes())
    info = table["table"][f"{T}@LG"]["0"]
    assert (info["o"], info["cm"], info["i"], info["popTime"]) == ([0, 1], 1, 60_000, first.handle.pop_time_ms)
    async with running(tmp_path, clock=clock) as broker, wire(broker) as client:
        consumer = OrderedClient(client)
        assert await consumer.pop() == []
        assert (await consumer.ack(second)).code == 0
        assert bodies(await consumer.pop()) == [b"3"]


@pytest.mark.parametrize(("code", "gone"), [(215, {"topic": T}), (207, {"groupName": "LG", "cleanOffset": "true"})])
async def test_what_is_out_of_what_is_deleted_blocks_nothing_that_is_made_again(
    consumer: OrderedClient, code: int, gone: dict[str, str]
) -> None:
    assert bodies(await consumer.pop()) == [b"1", b"2"]
    assert (await consumer.wire.ask(code, gone)).code == 0
    for text in (b"1", b"2"):
        assert (await consumer.wire.send(T, text, 0, header=ONE_QUEUE)).code == 0
    assert bodies(await consumer.pop()) == [b"1", b"2"]


async def test_extensions_without_end_leave_nothing_behind_and_the_last_of_them_counts(
    broker: Broker, consumer: OrderedClient, clock: MovableClock
) -> None:
    first, second = await consumer.pop(invisibleTime=3_600_000)
    assert (await consumer.ack(second)).code == 0
    for shorter in range(200):
        first = await consumer.extended(first, 3_000_000 - 1000 * shorter)
    for longer in range(200):
        first = await consumer.extended(first, 4_000_000 + 1000 * longer)
    await consumer.extended(first, 10_000_000)
    ordered = broker.state.ordered_leases
    assert len(ordered._free_at) < 100
    held = await consumer.hold_pop(T, order="true", maxMsgNums=2)
    clock.advance(seconds=7000)
    await until(lambda: ordered._free_at[0][0] > clock.now_ms(), what="a look at when it is free")
    assert not held.done()
    clock.advance(seconds=3000)
    answer = await asyncio.wait_for(held, PATIENCE_SECONDS)
    assert bodies(consumer.leased(T, answer)) == [b"1", b"2"]
