"""Producers and consumers: the real client, in processes that may be killed too, writing down what they are told."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from orbitmq.client.receipts import SendStatus
from orbitmq.errors import OrbitError
from tests.simulation.ledger import LONG, GivenBack, Ledger, Place, Received, Sent, body_of, name_in

if TYPE_CHECKING:
    from random import Random

    from orbitmq.client.producer import Producer
    from orbitmq.client.receipts import Receipt
    from orbitmq.client.received import ReceivedMessage
    from tests.simulation.cluster import Cluster
    from tests.simulation.machine import Machine

PLAIN: Final = "Plain"
DELAYED: Final = "Delayed"
TRANSACTED: Final = "Transacted"
TOPICS: Final = (PLAIN, DELAYED, TRANSACTED)
GROUP: Final = "readers"
_TRIES: Final = 4
QUEUES: Final = 2
_DELAYS: Final = ((1, 1.0), (2, 5.0))  # levels, and what they mean


class NotUnderstood(Exception):
    """By a reader, at once."""


class Workload:
    def __init__(
        self, cluster: Cluster, ledger: Ledger, random: Random, handling_seconds: float, *, long_bodies: bool = False
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._random = random
        self._handling_seconds = handling_seconds
        self._end_of_names = LONG if long_bodies else ""
        self._loop = cluster.loop
        self.done = 0  # messages whose sender has come to an end with them

    # ---- processes

    async def produce(self, machine: Machine, messages: int, retries: int) -> None:
        """Run as the process of `machine`: two senders of plain messages, one of delayed ones, one of transactions."""
        client = self._cluster.client(machine)
        life = f"{machine.name}.{machine.starts}"
        producer = await client.producer(group="writers", retries=retries, timeout=2.0, create_queues=QUEUES).start()
        deciding = await client.transaction_producer(
            group="deciders", check=self._decided, retries=retries, timeout=2.0, create_queues=QUEUES
        ).start()

        async def decide(name: str) -> None:
            await self._transact(deciding, machine, f"{life}.t", name, retries)

        async def plain(name: str) -> None:
            await self._send(producer, machine, "plain", f"{life}.{name[0]}", name, retries)

        async def delayed(name: str) -> None:
            kind = "timer" if self._cluster.mode.timers and self._random.random() < 0.5 else "delayed"
            await self._send(producer, machine, kind, f"{life}.d", name, retries)

        await asyncio.gather(
            self._one_by_one(plain, f"p-{life}", messages),
            self._one_by_one(plain, f"q-{life}", messages),
            self._one_by_one(delayed, f"d-{life}", messages // 3),
            self._one_by_one(decide, f"t-{life}", messages // 3),
        )

    async def consume(self, machine: Machine) -> None:
        client = self._cluster.client(machine)

        async def handle(message: ReceivedMessage) -> None:
            place = _place_of(message)
            at = f"{place.topic}/{place.queue_id}@{place.offset}"
            self._cluster.trace.note("handling", machine.name, at, name_in(message.body))
            await asyncio.sleep(self._random.random() * self._handling_seconds)
            if message.attempt == 1 and self._random.random() < 0.02:
                self._ledger.given_back[name_in(message.body) or ""] = GivenBack(place, self._loop.time())
                raise NotUnderstood
            self._take(message, machine)

        await client.consumer(
            list(TOPICS), group=GROUP, handler=handle, start="earliest", concurrency=4, commit_every=1.0
        ).start()

    # ---- messages

    async def _one_by_one(self, work, prefix: str, count: int) -> None:  # type: ignore[no-untyped-def]
        for number in range(count):
            await work(f"{prefix}-{number}{self._end_of_names}")
            self.done += 1
            await asyncio.sleep(self._random.expovariate(1 / 0.08))

    async def _send(self, producer: Producer, machine: Machine, kind: str, lane: str, name: str, retries: int) -> None:
        level, seconds = self._random.choice(_DELAYS)
        sent = self._begin(name, PLAIN if kind == "plain" else DELAYED, kind, lane)
        for _ in range(_TRIES):
            sent.attempts += 1 + retries
            try:
                if kind == "plain":
                    receipt = await producer.send(PLAIN, body_of(name), order_key=lane, keys=name)
                elif kind == "delayed":
                    sent.delay_seconds = seconds
                    receipt = await producer.send(DELAYED, body_of(name), delay_level=level)
                else:
                    sent.delay_seconds = seconds
                    receipt = await producer.send(DELAYED, body_of(name), delay=timedelta(seconds=seconds))
            except OrbitError as error:
                self._cluster.trace.note("not sent", name, type(error).__name__)
            else:
                if self._take_receipt(sent, receipt):
                    return
            await asyncio.sleep(self._random.random())

    async def _transact(self, producer, machine: Machine, lane: str, name: str, retries: int) -> None:  # type: ignore[no-untyped-def]
        sent = self._begin(name, TRANSACTED, "transaction", lane)
        sent.attempts = 1 + retries
        choice = self._random.random()
        try:
            async with producer.begin(TRANSACTED, body_of(name)) as transaction:
                await asyncio.sleep(self._random.random() * 0.1)
                sent.decision = choice < 0.7
                if choice < 0.5:
                    self._commit(sent)
                    transaction.commit()
                elif choice >= 0.7:
                    transaction.roll_back()
                else:
                    self._commit(sent)  # and nothing is said: the broker has to ask
        except OrbitError as error:
            self._cluster.trace.note("not begun", name, type(error).__name__)

    def _commit(self, sent: Sent) -> None:
        sent.acked_at = self._loop.time()
        self._cluster.trace.note("committed", sent.name)

    async def _decided(self, message: ReceivedMessage) -> bool | None:
        """What a broker is told that asks: what was decided stands outside of every process."""
        name = name_in(message.body)
        assert name is not None, "a broker asks about what nobody sent"
        return self._ledger.sent[name].decision

    def _begin(self, name: str, topic: str, kind: str, lane: str) -> Sent:
        clock = self._cluster.master.clock
        sent = self._ledger.sent[name] = Sent(name, topic, kind, lane, first_asked_ms=clock.now_ms())
        return sent

    def _take_receipt(self, sent: Sent, receipt: Receipt) -> bool:
        self._cluster.trace.note("answer", sent.name, receipt.status, receipt.queue.queue_id, receipt.queue_offset)
        if receipt.status is not SendStatus.STORED:
            return False
        sent.acked_at = self._loop.time()
        sent.place = Place(sent.topic, receipt.queue.queue_id, receipt.queue_offset)
        return True

    def _take(self, message: ReceivedMessage, machine: Machine) -> None:
        name, place = name_in(message.body), _place_of(message)
        self._cluster.trace.note("received", name, *place)
        if name is None or name not in self._ledger.sent:
            self._ledger.broken.append(f"phantom: {machine.name} received {message.body[:60]!r} at {place}")
            return
        sent = self._ledger.sent[name]
        if sent.kind == "transaction" and not sent.decision:
            self._ledger.broken.append(f"half message visible: {name} at {place}, decided {sent.decision}")
        early_ms = sent.first_asked_ms + sent.delay_seconds * 1000 - self._cluster.master.clock.now_ms()
        if early_ms > self._cluster.clock_tolerance_ms:
            self._ledger.broken.append(f"early: {name} came {early_ms:.0f} ms before its time")
        self._ledger.take(Received(name, place, self._loop.time(), machine.name))


def _place_of(message: ReceivedMessage) -> Place:
    return Place(message.queue.topic, message.queue.queue_id, message.queue_offset)
