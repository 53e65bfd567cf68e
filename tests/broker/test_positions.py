"""Saved positions of groups and the log they speak of: whatever a power cut takes, no position is ahead of what is left."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from orbitmq.storage.lock import LastExit
from orbitmq.testing.clock import MovableClock
from tests.broker.kit import PATIENCE_SECONDS, UPDATE_OFFSET, running, wire
from tests.broker.lease_kit import LeaseClient
from tests.storage.faulty_disk import FaultyDisk

if TYPE_CHECKING:
    from pathlib import Path

# Nothing is synced by itself.
LAZY: dict[str, Any] = {
    "flushDiskType": "ASYNC_FLUSH",
    "flushIntervalCommitLog": 3_600_000,
    "flushConsumerOffsetInterval": 3_600_000,
    "flushDelayOffsetInterval": 3_600_000,
}
LEASE_MS = 10_000
SURELY_BACK_SECONDS = 4


async def test_what_was_leased_and_not_acknowledged_comes_again(tmp_path: Path) -> None:
    """The position behind a lease was on the disk and the lease was not: its message was given to nobody any more."""
    disk, clock = FaultyDisk(tmp_path / "store"), MovableClock()
    async with running(tmp_path / "store", clock=clock, disk=disk, **LAZY) as broker, wire(broker) as client:
        assert (await client.send("T", b"m", 0)).code == 0
        broker.state.store.flush()
        assert [leased.body for leased in await LeaseClient(client).pop("T", invisibleTime=LEASE_MS)] == [b"m"]
        await broker.state.offsets.save()
        image = disk.power_cut_image(tmp_path / "image")

    async with running(image, clock=clock, reviveInterval=20, **LAZY) as broker, wire(broker) as client:
        assert broker.state.store.last_exit is LastExit.CRASHED
        clock.advance(ms=LEASE_MS, seconds=SURELY_BACK_SECONDS)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (again := await LeaseClient(client).pop("T")):
                await asyncio.sleep(0.02)
        assert [leased.body for leased in again] == [b"m"]


async def test_a_group_does_not_pass_over_new_messages_that_have_the_numbers_of_lost_ones(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path / "store")
    async with running(tmp_path / "store", disk=disk, timerWheelEnable=False, **LAZY) as broker, wire(broker) as client:
        assert (await client.send("T", b"m", 0)).code == 0
        broker.state.groups.require("G")
        committed = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 1}
        assert (await client.ask(UPDATE_OFFSET, committed)).code == 0
        await broker.state.offsets.save()
        image = disk.power_cut_image(tmp_path / "image")

    async with running(image, **LAZY) as broker:
        assert broker.state.store.last_exit is LastExit.CRASHED
        position = broker.state.offsets.get("G", "T", 0)
        assert position is not None
        assert position <= broker.state.store.queue_range("T", 0).max_offset
