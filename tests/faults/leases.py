"""Leases: what was acknowledged in time never comes again, nobody else gets what is out, and everything comes until it is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from orbitmq.errors import OrbitError
from tests.broker.kit import Wire
from tests.broker.lease_kit import LeaseClient
from tests.faults.cluster import BROKER_NAME
from tests.faults.faults import CLOCK_ERROR_MS

if TYPE_CHECKING:
    from random import Random

    from tests.broker.lease_kit import Leased
    from tests.faults.cluster import Cluster
    from tests.faults.losses import Losses
    from tests.faults.timeline import Timeline

TOPIC: Final = "Leased"
GROUP: Final = "leasers"
LEASE_MS: Final = 8000
SURE_SECONDS: Final = (LEASE_MS - 2 * CLOCK_ERROR_MS) / 1000  # it is still out, whatever the broker's clock says
_CALL_SECONDS: Final = 3.0
_IGNORED: Final = 0.15  # of the messages are not acknowledged the first time
_PAUSE_SECONDS: Final = 0.1


@dataclass(slots=True)
class LeaseLedger:
    losses: Losses
    sent: dict[str, float] = field(default_factory=dict)  # when it was acknowledged
    given: dict[str, float] = field(default_factory=dict)  # when the pop was asked for that brought it last
    answered: dict[str, float] = field(default_factory=dict)  # when that pop was answered
    acked: dict[str, float] = field(default_factory=dict)  # in time
    settled: set[str] = field(default_factory=set)  # acknowledged somehow, or that was tried
    times_given: int = 0
    uncertain: set[str] = field(default_factory=set)  # leased or acknowledged when another broker took over
    broken: list[str] = field(default_factory=list)

    def note_given(self, name: str, asked_at: float, answered_at: float) -> None:
        self.times_given += 1
        if self.acked.get(name, asked_at) < asked_at and name not in self.uncertain:
            self.broken.append(f"lease: {name} was given out again at {answered_at:.2f} s after its ack")
        before = self.given.get(name)
        if before is not None and answered_at < before + SURE_SECONDS and name not in self.uncertain:
            self.broken.append(
                f"lease: {name} was given out at {answered_at:.2f} s while it was out since {before:.2f} s"
            )
        self.given[name], self.answered[name] = asked_at, answered_at

    def note_acked(self, name: str, asked_at: float, answered_at: float) -> None:
        if answered_at < asked_at + SURE_SECONDS:
            self.acked[name] = answered_at

    def forget_since(self, at: float) -> None:
        """Another broker has taken over, or this one lost what it had not synced: leases and acks since then may be forgotten."""
        self.uncertain |= {name for times in (self.acked, self.answered) for name, when in times.items() if when >= at}

    def open(self) -> list[str]:
        """What must be leased still. The position of a group is not ahead of its leases on the disk, so what was leased in vain, and
        forgotten, is no exception."""
        return [name for name in self._not_settled() if not self.losses.may_include(self.sent[name])]

    def excused(self) -> list[str]:
        return [name for name in self._not_settled() if self.losses.may_include(self.sent[name])]

    def _not_settled(self) -> list[str]:
        return [name for name in self.sent if name not in self.acked and name not in self.settled]


class Leasers:
    def __init__(self, cluster: Cluster, ledger: LeaseLedger, timeline: Timeline, chance: Random) -> None:
        self.over = False
        self._cluster = cluster
        self._ledger = ledger
        self._timeline = timeline
        self._chance = chance

    def senders(self) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._send())]

    def consumers(self) -> list[asyncio.Task[None]]:
        """They go on after `over`: cancel them."""
        return [asyncio.create_task(self._consume()) for _ in range(2)]

    async def _send(self) -> None:
        wire, number = Wire(self._cluster.master.address, _CALL_SECONDS), 0
        try:
            while not self.over:
                number += 1
                wire.address = self._cluster.master.address
                try:
                    answer = await wire.send(TOPIC, f"leased-{number}".encode(), number % 4)
                    if answer.code == 0:
                        self._ledger.sent[f"leased-{number}"] = self._timeline.now()
                except (OrbitError, OSError):
                    pass  # stored or not: another takes its place
                await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            await wire.close()

    async def _consume(self) -> None:
        wire = Wire(self._cluster.master.address, _CALL_SECONDS)
        consumer = LeaseClient(wire, GROUP, BROKER_NAME)
        try:
            while True:
                wire.address = self._cluster.master.address
                try:
                    if not await self._consume_once(consumer):
                        await asyncio.sleep(_PAUSE_SECONDS)
                except (OrbitError, OSError):
                    await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            await wire.close()

    async def _consume_once(self, consumer: LeaseClient) -> bool:
        asked_at = self._timeline.now()
        answer = await consumer.ask_pop(TOPIC, maxMsgNums=8, invisibleTime=LEASE_MS)
        if answer.code != 0:
            return False
        batch = consumer.leased(TOPIC, answer)
        for leased in batch:
            self._ledger.note_given(leased.body.decode(), asked_at, self._timeline.now())
        for leased in batch:
            await self._settle(consumer, leased, asked_at)
        return True

    async def _settle(self, consumer: LeaseClient, leased: Leased, asked_at: float) -> None:
        name = leased.body.decode()
        if leased.message.reconsume_times == 0 and self._chance.random() < _IGNORED:
            return
        self._ledger.settled.add(name)
        answer = await consumer.ack(leased)
        if answer.code == 0:
            self._ledger.note_acked(name, asked_at, self._timeline.now())
