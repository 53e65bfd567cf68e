"""Leases under kill -9: what is acknowledged in time never comes again, the rest comes back, and the exhausted are dead letters.

A few seconds in the suite. Longer by hand:

    ORBITMQ_LEDGER_MINUTES=5 .venv/bin/python -m pytest tests/broker/test_lease_ledger.py -s
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from typing import TYPE_CHECKING, Final

import pytest

from orbitmq.transport.address import parse_address
from tests.broker.lease_ledger import CONSUMERS, LEASE_MS, NAME, Ledger, consume, create_group, dead_letters, produce
from tests.interop import orbit
from tests.marks import LEDGER

if TYPE_CHECKING:
    from pathlib import Path

    from tests.interop.apache import Broker

SECONDS: Final = float(os.environ.get("ORBITMQ_LEDGER_MINUTES", "0.1")) * 60
SETTLE_SECONDS: Final = 120.0  # for what comes back; only a lost message takes that long


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


@LEDGER
@pytest.mark.timeout(SECONDS + 2 * SETTLE_SECONDS + 60)
async def test_leases_survive_a_broker_that_is_killed_at_random(tmp_path: Path) -> None:
    name_server = await asyncio.to_thread(orbit.start_name_server, tmp_path / "nameserver")
    world = None
    ledger, chance = Ledger(), random.Random(20)
    try:
        world = await asyncio.to_thread(World, tmp_path / "broker", name_server.address)
        await create_group(world)
        tasks = [asyncio.create_task(produce(world, ledger))]
        tasks += [asyncio.create_task(consume(world, ledger, random.Random(number))) for number in range(CONSUMERS)]
        kills = 0
        deadline = asyncio.get_running_loop().time() + SECONDS
        while asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(chance.uniform(0.5, 2.0))
            await asyncio.to_thread(world.kill_and_restart)
            kills += 1
        ledger.over = True
        await tasks[0]
        async with asyncio.timeout(SETTLE_SECONDS):
            while not ledger.is_settled(set(await dead_letters(world))):
                await asyncio.sleep(0.2)
        await asyncio.sleep(LEASE_MS / 1000 + 4)  # what would come again would come by now
        letters = await dead_letters(world)
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
    assert ledger.broken(letters, kills) == []
    assert "Traceback" not in printed, printed[-3000:]
