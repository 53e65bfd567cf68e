"""Delays, timers and transactions: what a broker promised of each, and what came of it. The broker is somebody else's, and may die.

Clients speak the bare protocol: what was answered counts as promised, what was not may have happened or not, and is tried again
under the same name.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from orbitmq.errors import OrbitError
from orbitmq.message.record import decode_records
from tests.broker.kit import Wire, send_header

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from orbitmq.message.message import StoredMessage
    from orbitmq.protocol.command import Command
    from orbitmq.transport.address import Address

SEND, END_TRANSACTION = 310, 37
COMMIT, ROLL_BACK = 8, 12
DELAY_LEVEL_1_MS: Final = 1000
TOPICS: Final = ("Delayed", "Timers", "Payments")
QUEUES: Final = 2
PREPARED_FLAG: Final = 4
LATE_MS: Final = 15_000  # on a busy machine; a lost wake-up would be later still
SETTLE_SECONDS: Final = 60.0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class Promise:
    """One message, by its body."""

    topic: str
    not_before_ms: int  # when it may be seen at the earliest
    acked: bool = False
    acked_ms: int = 0
    decisions: int = 0  # commits that were asked for, answered or not
    committed: bool = False  # a commit was answered
    first_commit_ms: int = 0
    committed_ms: int = 0


@dataclass(slots=True)
class Down:
    from_ms: int
    to_ms: int = 0


async def _is_settled(others_are_settled: Callable[[], Awaitable[bool]] | None) -> bool:
    return others_are_settled is None or await others_are_settled()


@dataclass(slots=True)
class PromisedKinds:
    seed: int
    address: Callable[[], Address]  # of the broker; it may move
    clock_error_ms: int = 0  # by which the broker's clock may be wrong at any time
    pause_seconds: float = 0.005  # of a sender between two messages
    patience_seconds: float = 60.0
    promises: dict[str, Promise] = field(default_factory=dict)
    seen: dict[str, list[StoredMessage]] = field(default_factory=dict)
    down: list[Down] = field(default_factory=list)
    decisions_lost: list[Down] = field(default_factory=list)  # decisions of these times may have been forgotten
    may_be_lost: Callable[[int], bool] = field(default=lambda _answered_ms: False)  # what was answered then
    over: bool = False

    def senders(self) -> list[asyncio.Task[None]]:
        """Two of each kind, until `over`."""
        return [asyncio.create_task(self._send(kind)) for kind in ("delay", "timer", "transaction") for _ in range(2)]

    async def settle(
        self, others_are_settled: Callable[[], Awaitable[bool]] | None = None, quiet_seconds: float = 1.5
    ) -> None:
        """Wait for everything that must come, and a little for what must not."""
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                while not await self._look() or self._missing() or not await _is_settled(others_are_settled):
                    await asyncio.sleep(0.3)
        except TimeoutError:
            pass  # `broken` says what is missing
        await asyncio.sleep(quiet_seconds)
        while not await self._look():
            await asyncio.sleep(0.3)
        await _is_settled(others_are_settled)

    def broken(self) -> list[str]:
        """Every promise that was not kept."""
        found = [f"{name} was acknowledged and is lost" for name in self._missing()]
        for name, messages in self.seen.items():
            promise = self.promises.get(name)
            if promise is None:
                found.append(f"{name} was never sent")
                continue
            for message in messages:
                early_ms = promise.not_before_ms - self.clock_error_ms - message.stored_at_ms
                if early_ms > 0:
                    found.append(f"{name} came {early_ms} ms early")
                found += self._late(name, promise, message)
            if promise.topic == "Payments":
                found += self._badly_decided(name, promise, messages)
        return found

    def figures(self) -> dict[str, object]:
        repeats = Counter({p.topic: 0 for p in self.promises.values()})
        for name, messages in self.seen.items():
            if name in self.promises:
                repeats[self.promises[name].topic] += len(messages) - 1
        return {
            "acknowledged": sum(promise.acked for promise in self.promises.values()),
            "seen": len(self.seen),
            "came again": dict(repeats),
        }

    def _badly_decided(self, name: str, promise: Promise, messages: list[StoredMessage]) -> list[str]:
        if promise.decisions == 0:
            return [f"{name} is visible and was never committed"]
        found = []
        if min(message.stored_at_ms for message in messages) < promise.first_commit_ms - self.clock_error_ms:
            found.append(f"{name} was visible before it was committed")
        if len(messages) > promise.decisions:
            found.append(f"{name} was committed {len(messages)} times by {promise.decisions} decisions")
        return found

    def _late(self, name: str, promise: Promise, message: StoredMessage) -> list[str]:
        """Only while the broker was down, or had just come back."""
        late_ms = message.stored_at_ms - promise.not_before_ms
        excused = any(
            d.from_ms <= message.stored_at_ms and d.to_ms + LATE_MS >= promise.not_before_ms for d in self.down
        )
        if promise.topic == "Payments" or late_ms <= LATE_MS or excused:
            return []
        return [f"{name} came {late_ms} ms late"]

    def _missing(self) -> list[str]:
        return [
            name
            for name, promise in self.promises.items()
            if name not in self.seen and self._is_promised(promise) and not self._may_be_lost(promise)
        ]

    def excused(self) -> list[str]:
        """What did not come and need not, in the mode of this broker."""
        return [
            name
            for name, promise in self.promises.items()
            if name not in self.seen and self._is_promised(promise) and self._may_be_lost(promise)
        ]

    @staticmethod
    def _is_promised(promise: Promise) -> bool:
        return promise.committed if promise.topic == "Payments" else promise.acked

    def _may_be_lost(self, promise: Promise) -> bool:
        """Once it is safe that a message waits, its delivery is repeated until it is safe as well: only the promise counts."""
        if promise.topic != "Payments":
            return self.may_be_lost(promise.acked_ms)
        decided_ms = promise.committed_ms
        return self.may_be_lost(decided_ms) or any(d.from_ms <= decided_ms <= d.to_ms for d in self.decisions_lost)

    async def in_flight(self) -> None:
        """Until some of every kind is promised and not due: a kill before that shows nothing."""
        while not all(
            sum(
                p.acked and p.topic == topic and (topic == "Payments" or p.not_before_ms > now_ms())
                for p in self.promises.values()
            )
            >= 3
            for topic in TOPICS
        ):
            await asyncio.sleep(0.02)

    # ---- the clients

    async def _send(self, kind: str) -> None:
        chance = random.Random(f"{self.seed} {kind} {len(self.promises)}")
        async for client, number in self._turns():
            name = f"{kind}-{id(client) % 997}-{number}-{chance.randrange(10**9)}"
            if kind == "delay":
                self.promises[name] = Promise("Delayed", now_ms() + DELAY_LEVEL_1_MS)
                await self._take(client, name, number, DELAY="1")
            elif kind == "timer":
                due_ms = now_ms() + chance.randrange(300, 3500)
                self.promises[name] = Promise("Timers", due_ms)
                await self._take(client, name, number, TIMER_DELIVER_MS=str(due_ms))
            else:
                await self._transaction(client, name, number, chance)

    async def _turns(self) -> AsyncIterator[tuple[Wire, int]]:
        """A client and a number, until it is over; a new client after each failure of the last."""
        number = 0
        while not self.over:
            client = Wire(self.address(), self.patience_seconds)
            try:
                while not self.over:
                    client.address = self.address()
                    yield client, number
                    number += 1
                    await asyncio.sleep(self.pause_seconds)
            finally:
                await client.close()

    async def _take(self, client: Wire, name: str, number: int, **properties: str) -> Command | None:
        promise = self.promises[name]
        flags = {"sys_flag": PREPARED_FLAG} if "TRAN_MSG" in properties else {}
        header = send_header(promise.topic, number % QUEUES, {"UNIQ_KEY": name, **properties}, flags)
        answer = await self._ask(client, SEND, header.to_fields(), name.encode())
        if answer is not None and answer.code == 0:
            promise.acked, promise.acked_ms = True, now_ms()
        return answer if promise.acked else None

    async def _transaction(self, client: Wire, name: str, number: int, chance: random.Random) -> None:
        promise = self.promises[name] = Promise("Payments", now_ms())
        half = await self._take(client, name, number, TRAN_MSG="true", PGROUP="P")
        decision = chance.choice((COMMIT, COMMIT, ROLL_BACK, 0))
        if half is None or not decision:
            return
        fields = {
            "producerGroup": "P", "tranStateTableOffset": half.fields["queueOffset"], "msgId": name,
            "commitLogOffset": str(int(half.fields["msgId"][16:], 16)), "commitOrRollback": str(decision),
        }  # fmt: skip
        for _ in range(200):  # until it is answered: a producer would be asked, and say the same again
            if decision == COMMIT:
                promise.decisions += 1
                promise.first_commit_ms = promise.first_commit_ms or now_ms()
            answer = await self._ask(client, END_TRANSACTION, fields)
            client.address = self.address()
            if answer is not None:
                promise.committed = decision == COMMIT and answer.code == 0
                promise.committed_ms = now_ms()
                return
            await asyncio.sleep(0.1)

    async def _ask(self, client: Wire, code: int, fields: dict[str, str], body: bytes = b"") -> Command | None:
        try:
            return await client.ask(code, fields, body)
        except (OrbitError, OSError):
            await asyncio.sleep(0.05)  # the broker is down
            return None

    async def _look(self) -> bool:
        """See all that can be pulled; False if the broker did not answer."""
        client = Wire(self.address(), self.patience_seconds)
        seen: dict[str, list[StoredMessage]] = {}
        try:
            for topic in TOPICS:
                for queue_id in range(QUEUES):
                    offset = 0
                    while (answer := await client.pull(topic, queue_id, offset)).code == 0:
                        for message in decode_records(answer.body):
                            seen.setdefault(message.body.decode(), []).append(message)
                        offset = int(answer.fields["nextBeginOffset"])
        except OrbitError:
            return False
        finally:
            await client.close()
        self.seen = seen
        return True
