"""Leases under kill -9: what is acknowledged in time never comes again, the rest comes back, and the exhausted are dead letters.

The rule, exactly. A message is handed out again only when its lease is over and no ack of it was answered before. An ack that is
answered before the end of the lease is final, whatever happens to the process. Each unacknowledged lease comes back once.
(Between the copy to the retry topic and the note of it lie two appends and no wait: only a kill there could make one come
twice. Apache's broker also leases again whatever was leased since it last saved positions, five seconds by default.)

A few seconds in the suite. Longer by hand:

    ORBITMQ_LEDGER_MINUTES=5 .venv/bin/python -m pytest tests/broker/test_lease_ledger.py -s
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest

from orbitmq.clock import SystemClock
from orbitmq.errors import OrbitError
from orbitmq.transport.address import parse_address
from tests.broker.kit import Wire
from tests.broker.lease_kit import LeaseClient, Leased
from tests.interop import orbit

if TYPE_CHECKING:
    from pathlib import Path

    from tests.interop.apache import Broker

SECONDS: Final = float(os.environ.get("ORBITMQ_LEDGER_MINUTES", "0.1")) * 60
SETTLE_SECONDS: Final = 120.0  # for what comes back; only a lost message takes that long
TOPIC, GROUP, NAME = "LeaseLedger", "LedgerGroup", "ledger-broker"
LEASE_MS: Final = 2000
CREATE_GROUP: Final = 200
RETRIES: Final = 1  # a poisonous message is handed out twice
FATES: Final = ("ack", "ack", "fail once", "ack", "extend", "ack", "poison", "ack", "ack")
LEAST_SENT: Final = 90  # however slow the machine is


class Ledger:
    def __init__(self) -> None:
        self.sent: dict[str, str] = {}  # text -> its fate
        self.given: Counter[str] = Counter()
        self.acked: set[str] = set()  # in time
        self.acked_late: set[str] = set()
        self.asked: set[str] = set()  # of whose ack the answer may have died with the broker
        self.given_after_ack: list[str] = []
        self.over = False

    def note_given(self, text: str) -> None:
        self.given[text] += 1
        if text in self.acked:
            self.given_after_ack.append(text)

    def open(self) -> set[str]:
        return (
            {text for text, fate in self.sent.items() if fate != "poison"} - self.acked - self.acked_late - self.asked
        )


class World:
    """The broker, killed and started again on the same store and port."""

    def __init__(self, folder: Path, name_server: str) -> None:
        self._folder = folder
        self._name_server = name_server
        self._settings = {"reviveInterval": 50, "mappedFileSizeCommitLog": 4 << 20}
        self.broker: Broker = orbit.start_broker(folder, name_server, NAME, self._settings)
        self.address = parse_address(self.broker.address)

    def kill_and_restart(self) -> None:
        self.broker.process.kill()
        self.broker = orbit.start_broker(self._folder, self._name_server, NAME, self._settings, self.address.port)


@pytest.mark.timeout(SECONDS + 2 * SETTLE_SECONDS + 60)
async def test_leases_survive_a_broker_that_is_killed_at_random(tmp_path: Path) -> None:
    name_server = await asyncio.to_thread(orbit.start_name_server, tmp_path / "nameserver")
    world = None
    ledger, chance = Ledger(), random.Random(20)
    try:
        world = await asyncio.to_thread(World, tmp_path / "broker", name_server.address)
        await create_group(world)
        tasks = [asyncio.create_task(produce(world, ledger))]
        tasks += [asyncio.create_task(consume(world, ledger, random.Random(number))) for number in range(3)]
        kills = 0
        deadline = asyncio.get_running_loop().time() + SECONDS
        while asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(chance.uniform(0.5, 2.0))
            await asyncio.to_thread(world.kill_and_restart)
            kills += 1
        ledger.over = True
        await tasks[0]
        poison = {text for text, fate in ledger.sent.items() if fate == "poison"}
        async with asyncio.timeout(SETTLE_SECONDS):
            while not poison <= (dead := set(await dead_letters(world))) or ledger.open() - dead:
                await asyncio.sleep(0.2)
        await asyncio.sleep(LEASE_MS / 1000 + 4)  # what would come again would come by now
        letters = Counter(await dead_letters(world))
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks[1:], return_exceptions=True)
        printed = world.broker.process.printed()
    finally:
        if world is not None:
            world.broker.process.kill()
        name_server.process.kill()
    sys.stdout.write(
        f"\n{len(ledger.sent)} sent, {kills} kills, {ledger.given.total()} given, {len(ledger.acked_late)} acks too late\n"
    )
    assert ledger.given_after_ack == []
    assert poison <= letters.keys()
    assert set(letters.values()) == {1}  # each once
    assert not letters.keys() & ledger.acked  # and nothing that was acknowledged in time
    # Others can be exhausted only because kills took the answers to their pops or acks with them.
    assert len(letters.keys() - poison) <= kills * 3 * 8
    assert "Traceback" not in printed, printed[-3000:]


async def create_group(world: World) -> None:
    client = Wire(world.address)
    body = f'{{"groupName":"{GROUP}","retryMaxTimes":{RETRIES},"retryQueueNums":1,"consumeEnable":true}}'.encode()
    assert (await client.ask(CREATE_GROUP, None, body)).code == 0
    await client.close()


async def produce(world: World, ledger: Ledger) -> None:
    client = Wire(world.address)
    number = 0
    while not ledger.over or len(ledger.sent) < LEAST_SENT:
        text = f"{number}"
        fate = FATES[number % len(FATES)]
        try:
            answer = await client.send(TOPIC, text.encode(), number % 4)
        except OrbitError:  # it may be stored or not: another message takes its place
            await asyncio.sleep(0.1)
        else:
            if answer.code == 0:
                ledger.sent[text] = fate
        number += 1
        await asyncio.sleep(0.01)
    await client.close()


async def consume(world: World, ledger: Ledger, chance: random.Random) -> None:
    wire = Wire(world.address)
    consumer = LeaseClient(wire, GROUP, NAME)
    while True:
        try:
            answer = await consumer.ask_pop(TOPIC, maxMsgNums=8, invisibleTime=LEASE_MS, pollTime=500)
            if answer.code != 0:
                await asyncio.sleep(0.02)
                continue
            batch = consumer.leased(TOPIC, answer)
            for leased in batch:  # all of them now: until its turn comes, a lease may be over and another's
                ledger.note_given(leased.body.decode())
            for leased in batch:
                await handle(consumer, ledger, leased)
                await asyncio.sleep(chance.uniform(0, 0.01))
        except OrbitError:
            await asyncio.sleep(0.1)


async def handle(consumer: LeaseClient, ledger: Ledger, leased: Leased) -> None:
    """Do with a message what is its fate. One whose send was never answered is simply acknowledged."""
    text = leased.body.decode()
    fate = ledger.sent.get(text, "ack")
    if fate == "poison" or (fate == "fail once" and leased.message.reconsume_times == 0):
        return
    if fate == "extend":
        leased = await consumer.extended(leased, LEASE_MS)
    ledger.asked.add(text)
    answer = await consumer.ack(leased)
    ledger.asked.discard(text)
    if answer.code == 0:
        in_time = now_ms() < leased.handle.pop_time_ms + leased.handle.invisible_ms
        (ledger.acked if in_time else ledger.acked_late).add(text)


def now_ms() -> int:

    return SystemClock().now_ms()


async def dead_letters(world: World) -> list[str]:
    client = Wire(world.address)
    try:
        topic = f"%DLQ%{GROUP}"
        if (await client.pull(topic)).code == 17:
            return []
        return [body.decode() for body in await client.bodies(topic)]
    finally:
        await client.close()
