"""Leases against a model: whatever is popped, acknowledged, extended or left, in whatever order, with restarts in between."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.clock import ManualClock
from tests.broker.kit import PATIENCE_SECONDS, Wire, running
from tests.broker.lease_kit import LeaseClient, Leased

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.broker.broker import Broker

T, QUEUES = "Modelled", 3
SURELY_BACK_MS = 4000  # after the end of a lease
SETTINGS: dict[str, Any] = {"reviveInterval": 10, "popFromRetryProbability": 50}


class Model:
    """Each message is ready, leased until some moment, or acknowledged."""

    def __init__(self) -> None:
        self.ready: set[bytes] = set()
        self.leased: dict[bytes, tuple[Leased, int]] = {}  # with the end of its lease
        self.times: dict[bytes, int] = {}  # how often it came back
        self.acked: set[bytes] = set()

    def come_back(self, now_ms: int) -> None:
        for body, (_, end_ms) in list(self.leased.items()):
            if end_ms + SURELY_BACK_MS <= now_ms:
                del self.leased[body]
                self.ready.add(body)
                self.times[body] += 1


@pytest.mark.parametrize("seed", range(3))
async def test_leases_do_what_the_model_does(tmp_path: Path, seed: int) -> None:
    chance, clock, model = random.Random(seed), ManualClock(), Model()
    for life in range(3):
        async with running(tmp_path, clock=clock, **SETTINGS) as broker:
            assert broker.address is not None
            wire = Wire(broker.address)
            consumer = LeaseClient(wire)
            broker.state.groups.require("LG").retry_max_times = 1000
            for step in range(25):
                await one_step(broker, consumer, clock, model, chance, f"{life}-{step}")
            await wire.close()
    assert model.acked
    assert any(model.times.values())


async def one_step(
    broker: Broker, consumer: LeaseClient, clock: ManualClock, model: Model, chance: random.Random, name: str
) -> None:
    clock.advance(ms=1)
    what = chance.choice(["send", "send", "pop", "pop", "pop", "ack", "ack", "ack", "extend", "wait"])
    if what == "send":
        for number in range(chance.randint(1, 6)):
            body = f"{name}-{number}".encode()
            answer = await consumer.wire.send(
                T, body, chance.randrange(QUEUES), header={"default_topic_queue_nums": QUEUES}
            )
            assert answer.code == 0
            model.ready.add(body)
            model.times[body] = 0
    elif what == "pop":
        await pop(broker, consumer, model, chance)
    elif what == "ack" and model.leased:
        some = chance.sample(sorted(model.leased), min(len(model.leased), chance.randint(1, 5)))
        for body in some:
            leased, _ = model.leased.pop(body)
            assert (await consumer.ack(leased)).code == 0
            model.acked.add(body)
    elif what == "extend" and model.leased:
        body = chance.choice(sorted(model.leased))
        duration_ms = chance.choice([1000, 30_000])
        longer = await consumer.extended(model.leased[body][0], duration_ms)
        model.leased[body] = (longer, longer.handle.pop_time_ms + duration_ms)
    elif what == "wait":
        # To a moment when it is plain what is back: none of the leases ended less than four seconds before.
        ends = sorted(end_ms for _, end_ms in model.leased.values())
        goal_ms = clock.now_ms() + chance.choice([5_000, 20_000])
        while any(end_ms <= goal_ms < end_ms + SURELY_BACK_MS + 1000 for end_ms in ends):
            goal_ms += SURELY_BACK_MS
        clock.advance(ms=goal_ms - clock.now_ms())
        model.come_back(clock.now_ms())


async def pop(broker: Broker, consumer: LeaseClient, model: Model, chance: random.Random) -> None:
    """Pop everything that is ready, or some of it; nothing else may come."""
    if broker.state.topics.get(T) is None:
        return
    wanted = len(model.ready) if chance.random() < 0.5 else min(len(model.ready), chance.randint(0, 4))
    invisible_ms = chance.choice([3_000, 15_000])
    got = 0
    async with asyncio.timeout(PATIENCE_SECONDS):
        while got < wanted:
            batch = await consumer.pop(T, maxMsgNums=min(32, wanted - got), invisibleTime=invisible_ms)
            for leased in batch:
                assert leased.body in model.ready, "acknowledged, or leased to another, or not sent"
                model.ready.remove(leased.body)
                assert leased.message.reconsume_times == model.times[leased.body]
                model.leased[leased.body] = (leased, leased.handle.pop_time_ms + invisible_ms)
            got += len(batch)
            if not batch:
                await asyncio.sleep(0.01)
    if not model.ready:
        assert await consumer.pop(T) == []
