"""Delayed messages, on a clock that stands still until it is told to move."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.clock import ManualClock
from orbitmq.errors import StoreFull
from orbitmq.storage.files import LocalDisk
from orbitmq.storage.lock import LastExit, mark_running
from orbitmq.storage.tables import DelayTable
from tests.broker.kit import Wire, running, wire
from tests.raw_client import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from orbitmq.protocol.command import Command

pytestmark = pytest.mark.usefixtures("loops")

UPDATE_CONFIG, INVALID_PARAMETER = 25, 29
PARKED = "SCHEDULE_TOPIC_XXXX"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def broker(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Broker]:
    async with running(tmp_path / "store", clock=clock) as running_broker:
        yield running_broker


async def delivered(broker: Broker, client: Wire, count: int, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    await until(lambda: broker.state.store.queue_range(topic, queue_id).max_offset >= count, what=f"{count} delivered")
    return await client.bodies(topic, queue_id)


async def test_a_delayed_message_is_seen_when_it_is_due_and_not_before(
    client: Wire, broker: Broker, clock: ManualClock
) -> None:
    answer = await client.send("T", b"later", 2, DELAY="3", TAGS="tag")  # ten seconds
    assert (answer.code, answer.fields["queueId"]) == (0, "2")

    clock.advance(seconds=9.999)
    assert broker.state.delayed.deliver_due() == pytest.approx(0.001)
    assert await client.bodies("T", 2) == []
    clock.advance(ms=1)

    assert await delivered(broker, client, 1, "T", 2) == [b"later"]
    (message,) = await client.messages("T", 2)
    assert (message.properties["TAGS"], message.properties["REAL_TOPIC"], message.born_at_ms) == (
        "tag",
        "T",
        1_700_000_000_000,
    )
    assert (await client.pull("T", 2, subscription="tag")).code == 0  # found by its tag again, not by its time


async def test_a_level_keeps_the_order_in_which_its_messages_came(
    client: Wire, broker: Broker, clock: ManualClock
) -> None:
    wanted = []
    for i in range(100):
        body = b"%d" % i
        assert (await client.send("T", body, DELAY="1")).code == 0
        wanted.append(body)
        clock.advance(ms=1)

    clock.advance(seconds=1)

    assert await delivered(broker, client, 100) == wanted


async def test_levels_do_not_wait_for_each_other(client: Wire, broker: Broker, clock: ManualClock) -> None:
    await client.send("T", b"an hour", DELAY="17")
    await client.send("T", b"a second", DELAY="1")

    clock.advance(seconds=2)

    assert await delivered(broker, client, 1) == [b"a second"]


async def test_the_highest_level_stands_for_all_above_it(client: Wire, broker: Broker, clock: ManualClock) -> None:
    await client.send("T", b"x", DELAY="99")

    assert broker.state.store.queue_range(PARKED, 17).max_offset == 1
    clock.advance(minutes=121)
    assert await delivered(broker, client, 1) == [b"x"]


@pytest.mark.parametrize("level", ["+1", "01", "0" * 30 + "1"])
async def test_a_level_is_read_as_java_reads_numbers(
    client: Wire, broker: Broker, clock: ManualClock, level: str
) -> None:
    assert (await client.send("T", b"x", DELAY=level)).code == 0
    assert await client.bodies("T") == []

    clock.advance(seconds=1)

    assert await delivered(broker, client, 1) == [b"x"]


@pytest.mark.parametrize("level", ["0", "-1", "+0", str(-(2**31))])
async def test_no_level_is_no_delay(client: Wire, level: str) -> None:
    await client.send("T", b"now", DELAY=level)

    assert await client.bodies("T") == [b"now"]


@pytest.mark.parametrize("level", ["x", "1.5", "--3", "+", "²", "9" * 5000, "٣", str(2**31), str(-(2**31) - 1)])
async def test_a_level_that_is_no_number_is_refused(client: Wire, level: str) -> None:
    answer = await client.send("T", b"x", DELAY=level)

    assert answer.code == 1
    assert "delay level" in str(answer.remark)


async def test_a_clock_set_back_holds_nothing_longer_than_its_delay(
    client: Wire, broker: Broker, clock: ManualClock
) -> None:
    await client.send("T", b"x", DELAY="3")
    clock.advance(seconds=-3600)
    assert broker.state.delayed.deliver_due() is not None

    clock.advance(seconds=3600 + 10)

    assert await delivered(broker, client, 1) == [b"x"]


async def test_a_restart_in_the_middle_delivers_the_rest_once(tmp_path: Path, clock: ManualClock) -> None:
    async with running(tmp_path, clock=clock) as broker, wire(broker) as client:
        await client.send("T", b"first", DELAY="1")
        clock.advance(seconds=1)
        await delivered(broker, client, 1)
        await client.send("T", b"second", DELAY="1")
        await client.send("T", b"third", DELAY="2")
    saved = json.loads((tmp_path / "config" / "delayOffset.json").read_text())
    assert saved["offsetTable"]["1"] == 1
    assert saved["offsetTable"]["2"] == 0

    clock.advance(seconds=6)
    async with running(tmp_path, clock=clock) as broker, wire(broker) as client:
        assert sorted(await delivered(broker, client, 3)) == [b"first", b"second", b"third"]
        assert broker.state.delayed.deliver_due() is None


async def test_a_record_that_cannot_be_read_holds_up_nobody_behind_it(
    client: Wire, broker: Broker, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    await client.send("T", b"spoilt", DELAY="1")
    await client.send("T", b"sound", DELAY="1")
    spoilt = broker.state.store.log.files.segment_of(0)
    assert spoilt is not None
    spoilt.memory[84:88] = b"\x7f\xff\xff\xff"  # the length of its body

    clock.advance(seconds=1)

    assert await delivered(broker, client, 1) == [b"sound"]
    assert "cannot be read" in caplog.text


async def test_messages_wait_for_a_store_that_takes_them_again(
    client: Wire, broker: Broker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.send("T", b"a", DELAY="1")
    append = broker.state.store.append

    def full(*arguments: object) -> object:
        raise StoreFull("no room")

    monkeypatch.setattr(broker.state.store, "append", full)
    clock.advance(seconds=1)
    assert broker.state.delayed.deliver_due() == pytest.approx(0.1)
    monkeypatch.setattr(broker.state.store, "append", append)

    assert await delivered(broker, client, 1) == [b"a"]


# ---- levels that change while the broker runs


async def change(client: Wire, levels: str) -> Command:
    return await client.ask(UPDATE_CONFIG, None, f"messageDelayLevel={levels}\n".encode())


async def test_a_level_may_get_another_meaning_while_the_broker_runs(
    client: Wire, broker: Broker, clock: ManualClock
) -> None:
    await client.send("T", b"ten seconds", DELAY="3")
    await client.send("T", b"a second", DELAY="1")
    assert (await change(client, "2s 1m 5s 1d")).code == 0

    await client.send("T", b"two seconds", DELAY="1")
    await client.send("T", b"five seconds", DELAY="3")
    await client.send("T", b"a day", DELAY="99")
    assert broker.state.store.queue_range(PARKED, 3).max_offset == 1  # the fourth is the highest now

    clock.advance(seconds=1)  # what was promised before stays so
    assert await delivered(broker, client, 1) == [b"a second"]
    clock.advance(seconds=1)
    assert await delivered(broker, client, 2) == [b"a second", b"two seconds"]
    clock.advance(seconds=3)  # unless the level is shorter now: who comes later must not overtake
    assert (await delivered(broker, client, 4))[2:] == [b"ten seconds", b"five seconds"]
    clock.advance(minutes=24 * 60)
    assert (await delivered(broker, client, 5))[4:] == [b"a day"]


async def test_levels_that_are_longer_than_files_are_kept_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, messageDelayLevel="1s 3d 2h", fileReservedTime=72) as broker, wire(broker) as client:
        assert "delay level 2 waits longer than files are kept" in caplog.text
        assert "delay level 3" not in caplog.text
        caplog.clear()
        await client.ask(UPDATE_CONFIG, None, b"messageDelayLevel=1s 2d 73h")
        assert "delay level 3 waits longer than files are kept" in caplog.text
        assert "delay level 2" not in caplog.text


async def test_what_waits_in_a_level_that_is_no_more_comes_also_after_a_restart(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with running(tmp_path, clock=clock) as broker, wire(broker) as client:
        await client.send("T", b"two hours", DELAY="18")
        assert (await change(client, "1s 5s")).code == 0
        await client.send("T", b"five seconds", DELAY="18")
    async with running(tmp_path, clock=clock, messageDelayLevel="1s 5s") as broker, wire(broker) as client:
        clock.advance(seconds=5)
        assert sorted(await delivered(broker, client, 2)) == [b"five seconds", b"two hours"]


@pytest.mark.parametrize("levels", ["", "1s 5x", "1", "s", "-1s", "1s  ,2s", "1.5s"])
async def test_levels_that_mean_nothing_are_refused_and_change_nothing(
    client: Wire, broker: Broker, levels: str
) -> None:
    before = broker.state.store.delay_levels_ms

    answer = await change(client, levels)

    assert (answer.code, broker.state.store.delay_levels_ms) == (INVALID_PARAMETER, before)
    assert "messageDelayLevel" in str(answer.remark)


# ---- kills


async def test_a_killed_broker_goes_on_where_it_was_whatever_was_saved(tmp_path: Path, clock: ManualClock) -> None:
    saved = tmp_path / "config" / "delayOffset.json"
    async with running(tmp_path, clock=clock) as broker, wire(broker) as client:
        await client.send("T", b"first", DELAY="1")
        clock.advance(seconds=1)
        await delivered(broker, client, 1)
        await broker.state.delayed.save()
        old = saved.read_bytes()
        for body in (b"second", b"third"):
            await client.send("T", body, DELAY="1")
        clock.advance(seconds=1)
        await delivered(broker, client, 3)
        await client.send("T", b"fourth", DELAY="1")
        running_mark = (tmp_path / "abort").read_bytes()
    saved.write_bytes(old)  # as a kill before the next save leaves it
    (tmp_path / "abort").write_bytes(running_mark)

    async with running(tmp_path, clock=clock) as broker, wire(broker) as client:
        assert broker.state.store.last_exit is LastExit.KILLED
        clock.advance(seconds=1)
        assert await delivered(broker, client, 4) == [b"first", b"second", b"third", b"fourth"]
        assert broker.state.delayed.deliver_due() is None


async def test_after_a_power_cut_only_what_was_saved_counts(tmp_path: Path, clock: ManualClock) -> None:
    saved = tmp_path / "config" / "delayOffset.json"
    async with running(tmp_path, clock=clock) as broker, wire(broker) as client:
        await broker.state.delayed.save()
        old = saved.read_bytes()
        await client.send("T", b"x", DELAY="1")
        clock.advance(seconds=1)
        await delivered(broker, client, 1)
    saved.write_bytes(old)
    (tmp_path / "abort").write_bytes(b"1\nanother boot\n")

    async with running(tmp_path, clock=clock) as broker, wire(broker) as client:
        assert await delivered(broker, client, 2) == [b"x", b"x"]


def killed(store: Path, image: Path) -> Path:
    """What a kill at this moment would leave: what is in files, synced or not, and nothing of the process."""
    shutil.copytree(store, image)
    mark_running(LocalDisk(), image)  # a start tells a killed store from a copy
    return image


async def test_a_kill_takes_nothing_that_was_delivered_into_the_write_pool(tmp_path: Path, clock: ManualClock) -> None:
    pool: dict[str, Any] = {
        "timerWheelEnable": "false",
        "transientStorePoolEnable": "true",
        "transientStorePoolSize": 2,
        "commitIntervalCommitLog": 3_600_000,
    }
    async with running(tmp_path / "store", clock=clock, **pool) as broker, wire(broker) as client:
        await client.send("T", b"x", DELAY="1")
        broker.state.store.flush()
        clock.advance(seconds=1)
        await until(lambda: broker.state.delayed.table().offset_table[1] == 1, what="delivery")
        image = killed(tmp_path / "store", tmp_path / "image")

    async with running(image, clock=clock, timerWheelEnable="false") as broker, wire(broker) as client:
        assert broker.state.store.last_exit is LastExit.KILLED
        assert set(await delivered(broker, client, 1)) == {b"x"}


async def test_a_kill_does_not_undo_what_the_master_said(tmp_path: Path, clock: ManualClock) -> None:
    async with running(tmp_path / "store", clock=clock, timerWheelEnable="false") as broker, wire(broker) as client:
        for body in (b"first", b"second"):
            await client.send("T", body, DELAY="1")
        clock.advance(seconds=1)
        await delivered(broker, client, 2)
        delayed = broker.state.delayed
        await until(lambda: delayed.deliver_due() is None, what="nothing waits")
        delayed.take_over(DelayTable(offset_table={1: 1, 30: 5}))
        assert delayed.table().offset_table[30] == 5, "a level that only the master has"
        await delayed.save()
        image = killed(tmp_path / "store", tmp_path / "image")

    async with running(image, clock=clock, timerWheelEnable="false") as broker, wire(broker) as client:
        assert broker.state.store.last_exit is LastExit.KILLED
        assert await delivered(broker, client, 3) == [b"first", b"second", b"second"]
