"""Timers go on, whatever the clock or one message does to them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from orbitmq.clock import ManualClock
from tests.broker.kit import running, wire
from tests.broker.test_timers import NOW_MS, delivered, on_the_wheel

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("loops")

MONTH_SECONDS = 30 * 86_400


async def test_a_clock_set_back_by_a_month_stops_no_timers_and_all_come_when_it_is_there_again(
    tmp_path: Path,
) -> None:
    clock = ManualClock(NOW_MS)
    async with running(tmp_path, clock=clock) as broker, wire(broker) as client:
        await client.send("T", b"first", TIMER_DELAY_SEC="1000")
        await on_the_wheel(broker)
        clock.advance(seconds=-MONTH_SECONDS)
        await client.send("T", b"second", TIMER_DELAY_SEC="5")
        await on_the_wheel(broker)
    async with running(tmp_path, clock=clock) as broker, wire(broker) as client:
        await client.send("T", b"third", TIMER_DELAY_SEC="5")
        await on_the_wheel(broker)
        assert await client.bodies("T") == []
        clock.advance(seconds=MONTH_SECONDS + 1001)
        assert sorted(await delivered(broker, client, 3)) == [b"first", b"second", b"third"]


async def test_a_message_that_cannot_be_handled_does_not_end_the_timers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(NOW_MS)
    async with running(tmp_path, clock=clock) as broker, wire(broker) as client:
        timers = broker.state.timers
        assert timers is not None

        def surprise(*arguments: object) -> object:
            raise ValueError("never thought of")

        with monkeypatch.context() as patched:
            patched.setattr(timers.wheel, "put_many", surprise)
            patched.setattr(timers.wheel, "put_together", surprise)
            await client.send("T", b"first", TIMER_DELAY_SEC="1")
            await asyncio.sleep(0.1)
        clock.advance(seconds=2)

        assert await delivered(broker, client, 1) == [b"first"]
