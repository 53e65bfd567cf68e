"""A ledger of leases, and the clients that fill it: what was leased, acknowledged, given up, whatever happens to the broker meanwhile.

The rule, exactly. A message is handed out again only when its lease is over and no ack of it was answered before. An ack that is
answered before the end of the lease is final, whatever happens to the process. Each unacknowledged lease comes back once.
(Between the copy to the retry topic and the note of it lie two appends and no wait: only a kill there could make one come
twice. Apache's broker also leases again whatever was leased since it last saved positions, five seconds by default.)
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

from orbitmq.clock import SystemClock
from orbitmq.errors import OrbitError
from tests.broker.kit import Wire
from tests.broker.lease_kit import LeaseClient, Leased

if TYPE_CHECKING:
    import random

    from orbitmq.transport.address import Address

TOPIC, GROUP, NAME = "LeaseLedger", "LedgerGroup", "ledger-broker"
LEASE_MS: Final = 2000
CREATE_GROUP: Final = 200
RETRIES: Final = 1  # a poisonous message is handed out twice
FATES: Final = ("ack", "ack", "fail once", "ack", "extend", "ack", "poison", "ack", "ack")
LEAST_SENT: Final = 90  # however slow the machine is
CONSUMERS: Final = 3
_MOST_LOST_TO_A_KILL: Final = CONSUMERS * 8  # answers to pops, of each consumer


class Reachable(Protocol):
    """A broker named NAME."""

    @property
    def address(self) -> Address: ...


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

    def poison(self) -> set[str]:
        return {text for text, fate in self.sent.items() if fate == "poison"}

    def is_settled(self, dead: set[str]) -> bool:
        """Whether nothing more is to come."""
        return self.poison() <= dead and not self.open() - dead

    def broken(self, letters: list[str], kills: int) -> list[str]:
        """Every promise that was not kept, given all dead letters."""
        dead, poison = set(letters), self.poison()
        found = [f"{text} was given after its ack" for text in self.given_after_ack]
        found += [f"{text} is exhausted and no dead letter" for text in poison - dead]
        found += [f"{text} died {count} times" for text, count in Counter(letters).items() if count > 1]
        found += [f"{text} was acknowledged in time and is a dead letter" for text in dead & self.acked]
        found += [f"{text} was never acknowledged and never came back" for text in self.open() - dead]
        # Others can be exhausted only because kills took the answers to their pops or acks with them.
        if len(dead - poison) > kills * _MOST_LOST_TO_A_KILL:
            found.append(f"{len(dead - poison)} dead letters were not exhausted")
        return found


async def create_group(world: Reachable) -> None:
    client = Wire(world.address)
    body = f'{{"groupName":"{GROUP}","retryMaxTimes":{RETRIES},"retryQueueNums":1,"consumeEnable":true}}'.encode()
    assert (await client.ask(CREATE_GROUP, None, body)).code == 0
    await client.close()


async def produce(world: Reachable, ledger: Ledger) -> None:
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


async def consume(world: Reachable, ledger: Ledger, chance: random.Random) -> None:
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


async def dead_letters(world: Reachable) -> list[str]:
    client = Wire(world.address)
    try:
        topic = f"%DLQ%{GROUP}"
        if (await client.pull(topic)).code == 17:
            return []
        return [body.decode() for body in await client.bodies(topic)]
    finally:
        await client.close()
