"""Every kind of message while the broker is killed at random: what was promised, and what came of it.

Delays, timers and transactions stand in `promised_kinds.py`; retries and dead letters in `retries.py`, leases in
`tests/broker/lease_ledger.py`. All of them are in flight whenever the broker is killed.

    async with LedgerOfKinds(folder, seed) as ledger:
        await ledger.run(kills=5)
        assert ledger.broken() == []

The broker is a process of its own, killed with -9 and started again on its store and port.

    python -m tests.crash.kinds --kills 100        more of it, by hand
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from orbitmq.transport.address import Address
from tests.broker.lease_ledger import CONSUMERS, LEASE_MS, NAME, Ledger, consume, create_group, dead_letters, produce
from tests.crash.promised_kinds import Down, PromisedKinds, now_ms
from tests.crash.retries import RetryLedger
from tests.interop.processes import Process, free_port


@dataclass(slots=True)
class LedgerOfKinds:
    folder: Path
    seed: int
    broken_on_purpose: str = ""  # variants of tests/crash/broken_broker.py
    leases: Ledger = field(default_factory=Ledger)
    dead_leases: list[str] = field(default_factory=list)
    kinds: PromisedKinds = field(init=False)
    retries: RetryLedger = field(init=False)
    _process: Process | None = None
    _port: int = 0

    async def __aenter__(self) -> LedgerOfKinds:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._port = free_port(-2, 1)
        await asyncio.to_thread(self._start)
        self.kinds = PromisedKinds(self.seed, lambda: self.address)
        self.retries = RetryLedger(self.address)
        await self.retries.create_group()
        await create_group(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self._port)

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
        senders = self.kinds.senders()
        senders += [asyncio.create_task(self.retries.produce()), asyncio.create_task(produce(self, self.leases))]
        chance = random.Random(self.seed)
        for _ in range(kills):
            await asyncio.sleep(chance.uniform(0.3, 2.0))
            await self.kinds.in_flight()
            await self._kill_and_start()
        await asyncio.sleep(0.5)
        self.kinds.over = self.leases.over = self.retries.over = True
        await asyncio.gather(*senders)
        # For what must not come: the revival of a lease takes longest.
        await self.kinds.settle(self._look_at_others, LEASE_MS / 1000 + 4)

    def broken(self) -> list[str]:
        """Every promise that was not kept."""
        leases = self.leases.broken(self.dead_leases, len(self.kinds.down))
        return [*self.kinds.broken(), *self.retries.broken(len(self.kinds.down)), *leases]

    def figures(self) -> dict[str, object]:
        return {
            "kills": len(self.kinds.down),
            **self.kinds.figures(),
            **self.retries.figures(),
            "leased": len(self.leases.sent),
            "dead letters of leases": len(self.dead_leases),
        }

    async def _look_at_others(self) -> bool:
        """Whether all retries and leases have come to their ends."""
        await self.retries.look()
        self.dead_leases = await dead_letters(self)
        return not self.retries.missing() and self.leases.is_settled(set(self.dead_leases))

    # ---- the broker

    def _start(self) -> None:
        module = ["tests.crash.broken_broker", self.broken_on_purpose] if self.broken_on_purpose else ["orbitmq"]
        settings = {
            "mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeTimerLog": 52 * 200, "maxHashSlotNum": 1000,
            "maxIndexNum": 4000, "transactionCheckInterval": 600_000, "osPageCacheBusyTimeOutMills": 60_000, "waitTimeMillsInSendQueue": 60_000,
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
        self.kinds.down.append(down)
        self._process.kill()
        await asyncio.to_thread(self._start)
        down.to_ms = now_ms()


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
