"""Every kind of message while the broker is killed at random: what was promised, and what came of it.

Delays, timers and transactions stand in the ledger below; retries and dead letters in `retries.py`, leases in
`tests/broker/lease_ledger.py`. All of them are in flight whenever the broker is killed.

    async with LedgerOfKinds(folder, seed) as ledger:
        await ledger.run(kills=5)
        assert ledger.broken() == []

The broker is a process of its own, killed with -9 and started again on its store and port. Clients speak the bare protocol: what was
answered counts as promised, what was not may have happened or not, and is tried again under the same name.

    python -m tests.crash.kinds --kills 100        more of it, by hand
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orbitmq.errors import OrbitError
from orbitmq.message.record import decode_records
from orbitmq.transport.address import Address
from tests.broker.kit import Wire, send_header
from tests.broker.lease_ledger import CONSUMERS, LEASE_MS, NAME, Ledger, consume, create_group, dead_letters, produce
from tests.crash.retries import RetryLedger
from tests.interop.processes import Process, free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orbitmq.message.message import StoredMessage
    from orbitmq.protocol.command import Command

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
    decisions: int = 0  # commits that were asked for, answered or not
    committed: bool = False  # a commit was answered
    first_commit_ms: int = 0


@dataclass(slots=True)
class Down:
    from_ms: int
    to_ms: int = 0


@dataclass(slots=True)
class LedgerOfKinds:
    folder: Path
    seed: int
    broken_on_purpose: str = ""  # variants of tests/crash/broken_broker.py
    promises: dict[str, Promise] = field(default_factory=dict)
    seen: dict[str, list[StoredMessage]] = field(default_factory=dict)
    down: list[Down] = field(default_factory=list)
    over: bool = False
    leases: Ledger = field(default_factory=Ledger)
    dead_leases: list[str] = field(default_factory=list)
    _retries: RetryLedger | None = None
    _process: Process | None = None
    _port: int = 0

    async def __aenter__(self) -> LedgerOfKinds:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._port = free_port(-2, 1)
        await asyncio.to_thread(self._start)
        self._retries = RetryLedger(self.address)
        await self._retries.create_group()
        await create_group(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self._port)

    @property
    def retries(self) -> RetryLedger:
        assert self._retries is not None
        return self._retries

    # ---- the story

    async def run(self, kills: int) -> None:
        """Senders send while the broker is killed; then everything that must come is waited for."""
        consumers = [asyncio.create_task(self.retries.consume())]
        consumers += [asyncio.create_task(consume(self, self.leases, random.Random(n))) for n in range(CONSUMERS)]
        try:
            await self._run(kills)
        finally:
            for task in consumers:
                task.cancel()
            ended = await asyncio.gather(*consumers, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended

    async def _run(self, kills: int) -> None:
        senders = [
            asyncio.create_task(self._send(kind)) for kind in ("delay", "timer", "transaction") for _ in range(2)
        ]
        senders += [asyncio.create_task(self.retries.produce()), asyncio.create_task(produce(self, self.leases))]
        chance = random.Random(self.seed)
        for _ in range(kills):
            await asyncio.sleep(chance.uniform(0.3, 2.0))
            await self._in_flight()
            await self._kill_and_start()
        await asyncio.sleep(0.5)
        self.over = self.leases.over = self.retries.over = True
        await asyncio.gather(*senders)
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                while await self._look() and self._is_anything_missing():
                    await asyncio.sleep(0.3)
        except TimeoutError:
            pass  # `broken` says what is missing
        await asyncio.sleep(LEASE_MS / 1000 + 4)  # for what must not come: the revival of a lease takes longest
        await self._look()

    def broken(self) -> list[str]:
        """Every promise that was not kept."""
        found = [f"{name} was acknowledged and is lost" for name in self._missing()]
        for name, messages in self.seen.items():
            promise = self.promises.get(name)
            if promise is None:
                found.append(f"{name} was never sent")
                continue
            for message in messages:
                if message.stored_at_ms < promise.not_before_ms:
                    found.append(f"{name} came {promise.not_before_ms - message.stored_at_ms} ms early")
                found += self._late(name, promise, message)
            if promise.topic == "Payments":
                found += self._badly_decided(name, promise, messages)
        return [*found, *self.retries.broken(), *self.leases.broken(self.dead_leases, len(self.down))]

    def figures(self) -> dict[str, object]:
        repeats = Counter({p.topic: 0 for p in self.promises.values()})
        for name, messages in self.seen.items():
            if name in self.promises:
                repeats[self.promises[name].topic] += len(messages) - 1
        return {
            "kills": len(self.down),
            "acknowledged": sum(promise.acked for promise in self.promises.values()),
            "seen": len(self.seen),
            "came again": dict(repeats),
            **self.retries.figures(),
            "leased": len(self.leases.sent),
            "dead letters of leases": len(self.dead_leases),
        }

    def _badly_decided(self, name: str, promise: Promise, messages: list[StoredMessage]) -> list[str]:
        if promise.decisions == 0:
            return [f"{name} is visible and was never committed"]
        found = []
        if min(message.stored_at_ms for message in messages) < promise.first_commit_ms:
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

    def _is_anything_missing(self) -> bool:
        return bool(self._missing() or self.retries.missing() or not self.leases.is_settled(set(self.dead_leases)))

    def _missing(self) -> list[str]:
        return [
            name
            for name, promise in self.promises.items()
            if name not in self.seen and (promise.committed if promise.topic == "Payments" else promise.acked)
        ]

    # ---- the broker

    async def _in_flight(self) -> None:
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

    def _start(self) -> None:
        module = ["tests.crash.broken_broker", self.broken_on_purpose] if self.broken_on_purpose else ["orbitmq"]
        settings = {
            "mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeTimerLog": 52 * 200, "maxHashSlotNum": 1000,
            "maxIndexNum": 4000, "transactionCheckInterval": 600_000, "osPageCacheBusyTimeOutMills": 60_000,
            "diskMaxUsedSpaceRatio": 95, "brokerName": NAME, "reviveInterval": 50,
        }  # fmt: skip
        command = [sys.executable, "-m", *module, "broker", "--host", "127.0.0.1", "--port", str(self._port), "-n", ""]
        command += ["--store", str(self.folder / "store")]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        self._process = Process(command, self.folder / "broker.out", {"HOME": str(self.folder)})
        self._process.wait_for_line(" ready on ")

    async def _kill_and_start(self) -> None:
        assert self._process is not None
        down = Down(now_ms())
        self.down.append(down)
        self._process.kill()
        await asyncio.to_thread(self._start)
        down.to_ms = now_ms()

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
            client = Wire(self.address)
            try:
                while not self.over:
                    yield client, number
                    number += 1
                    await asyncio.sleep(0.005)
            finally:
                await client.close()

    async def _take(self, client: Wire, name: str, number: int, **properties: str) -> Command | None:
        promise = self.promises[name]
        flags = {"sys_flag": PREPARED_FLAG} if "TRAN_MSG" in properties else {}
        header = send_header(promise.topic, number % QUEUES, {"UNIQ_KEY": name, **properties}, flags)
        answer = await self._ask(client, SEND, header.to_fields(), name.encode())
        promise.acked = promise.acked or (answer is not None and answer.code == 0)
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
            if answer is not None:
                promise.committed = decision == COMMIT and answer.code == 0
                return
            await asyncio.sleep(0.1)

    async def _ask(self, client: Wire, code: int, fields: dict[str, str], body: bytes = b"") -> Command | None:
        try:
            return await client.ask(code, fields, body)
        except (OrbitError, OSError):
            await asyncio.sleep(0.05)  # the broker is down
            return None

    async def _look(self) -> bool:
        """All that can be pulled; always true, so that it can stand in a condition."""
        client = Wire(self.address)
        self.seen = {}
        for topic in TOPICS:
            for queue_id in range(QUEUES):
                offset = 0
                while (answer := await client.pull(topic, queue_id, offset)).code == 0:
                    for message in decode_records(answer.body):
                        self.seen.setdefault(message.body.decode(), []).append(message)
                    offset = int(answer.fields["nextBeginOffset"])
        await client.close()
        await self.retries.look()
        self.dead_leases = await dead_letters(self)
        return True


async def _by_hand(kills: int, seed: int) -> int:
    with tempfile.TemporaryDirectory(prefix="orbitmq-kinds-") as folder:
        async with LedgerOfKinds(Path(folder), seed) as ledger:
            await ledger.run(kills)
            broken = ledger.broken()
            sys.stdout.write(json.dumps({**ledger.figures(), "broken": broken[:20]}, indent=1) + "\n")
            return 1 if broken else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    sys.exit(asyncio.run(_by_hand(options.kills, options.seed)))


if __name__ == "__main__":
    main()
