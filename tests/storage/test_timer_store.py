"""The timer wheel and its log: the bytes Apache writes, and what a kill or a power cut leaves of them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.errors import StoreCorrupt, StoreFull
from orbitmq.storage.files import LocalDisk
from orbitmq.storage.lock import LastExit
from orbitmq.storage.timer_log import ROLL, UNIT_BYTES, TimerLog
from orbitmq.storage.timer_store import Timer, TimerStore
from orbitmq.storage.timer_wheel import WHEEL_BYTES, Slot, TimerWheel
from tests import golden_stores
from tests.storage.store_kit import small_config

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("loops")

NOW_MS = 1_700_000_000_000
RECORD_BYTES = 100
FILE_BYTES = 10 * UNIT_BYTES + 16  # ten units and the end mark


def opened(
    directory: Path,
    now_ms: int = NOW_MS,
    last_exit: LastExit = LastExit.KILLED,
    is_timer_record: Callable[[int, int], bool] = lambda _offset, size: size == RECORD_BYTES,
    **changes: Any,
) -> TimerStore:
    config = small_config(directory, **{"timer_log_file_bytes": FILE_BYTES, **changes})
    directory.mkdir(exist_ok=True)
    return TimerStore(LocalDisk(), config, now_ms, last_exit, is_timer_record)


def put(timers: TimerStore, offset: int, seconds: int = 5, now_ms: int = NOW_MS) -> None:
    timers.put_many([Timer(now_ms + seconds * 1000, offset, RECORD_BYTES, 0)], now_ms)
    timers.queue_offset += 1


def fire(timers: TimerStore, now_ms: int) -> list[int]:
    """Log offsets in the order of their delivery."""
    fired: list[int] = []
    while (due := timers.due(now_ms)) is not None:
        for position in due.positions:
            unit = timers.log.unit(position)
            assert unit is not None
            fired.append(unit.commit_log_offset)
        timers.fired(due)
    return fired


# ---- Apache's bytes


def test_what_apache_wrote_is_what_we_write(tmp_path: Path) -> None:
    store = golden_stores.unpack("5.3.3", tmp_path)
    disk, file_bytes = LocalDisk(), 624
    theirs = TimerLog(disk, store / "timerlog", file_bytes)
    units = [unit for _, unit in theirs.units_from(0)]
    assert len(units) > 2 * (file_bytes // UNIT_BYTES - 1)  # three files
    assert any(unit.kind & ROLL for unit in units)

    ours, wheel = TimerLog(disk, tmp_path / "log", file_bytes), TimerWheel(disk, tmp_path / "wheel")
    for unit in units:
        slot = wheel.slot(unit.fires_ms // 1000)
        assert slot.last == unit.previous
        position = ours.append(unit)
        wheel.put(Slot(slot.tick, max(slot.first, 0) if slot.messages else position, position, slot.messages + 1))

    for file in sorted((store / "timerlog").iterdir()):
        assert (tmp_path / "log" / file.name).read_bytes() == file.read_bytes(), file.name
    assert (tmp_path / "wheel").read_bytes() == (store / "timerwheel").read_bytes()


def test_a_store_of_apaches_goes_on(tmp_path: Path) -> None:
    store = golden_stores.unpack("5.3.3", tmp_path)
    read_until_ms, synced, queue_offset, *_ = struct.unpack_from(">7q", (store / "config" / "timercheck").read_bytes())

    timers = opened(
        store, now_ms=read_until_ms, last_exit=LastExit.CLEAN, is_timer_record=lambda *_: True, timer_log_file_bytes=624
    )

    assert (timers.queue_offset, timers.read_tick * 1000) == (queue_offset, read_until_ms)
    assert timers.log.end >= synced
    assert timers.is_waiting
    pending = fire(timers, read_until_ms + 8 * 86_400_000)
    known = {message["commitLogOffset"]: message for message in golden_stores.manifest("5.3.3")["messages"]}
    assert pending
    assert {known[offset]["topic"] for offset in pending} == {"rmq_sys_wheel_timer"}
    assert all(int(known[offset]["properties"]["TIMER_OUT_MS"]) >= read_until_ms for offset in pending)


def test_a_wheel_of_another_length_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wheel").write_bytes(bytes(WHEEL_BYTES - 32))

    with pytest.raises(StoreCorrupt, match="move it away"):
        TimerWheel(LocalDisk(), tmp_path / "wheel")


# ---- the wheel


def test_slots_fire_in_the_order_of_time_and_messages_in_the_order_they_came(tmp_path: Path) -> None:
    timers = opened(tmp_path)
    for offset, seconds in enumerate([5, 3, 5, 9, 3]):
        put(timers, offset, seconds)

    assert fire(timers, NOW_MS + 5999) == [1, 4]  # the sixth second is not over
    assert timers.is_waiting
    assert fire(timers, NOW_MS + 6000) == [0, 2]
    assert fire(timers, NOW_MS + 100_000) == [3]
    assert not timers.is_waiting


def test_a_wheel_that_was_idle_for_weeks_still_fires(tmp_path: Path) -> None:
    timers = opened(tmp_path)
    later_ms = NOW_MS + 40 * 86_400_000

    put(timers, 1, 5, now_ms=later_ms)

    assert fire(timers, later_ms + 5999) == []
    assert fire(timers, later_ms + 6000) == [1]


@pytest.mark.parametrize(("asked", "first_stop"), [(12, 5), (13, 10), (40, 10)])
def test_a_long_way_is_gone_in_turns_none_of_which_is_too_short(tmp_path: Path, asked: int, first_stop: int) -> None:
    timers = opened(tmp_path, timer_roll_window_slots=10)
    put(timers, 1, asked)

    due = timers.due(NOW_MS + 60_000)

    assert due is not None
    unit = timers.log.unit(due.positions[0])
    assert unit is not None
    assert (unit.kind & ROLL, unit.delay_ms) == (ROLL, first_stop * 1000)


@pytest.mark.parametrize("set_by_days", [-30, 30])
def test_a_clock_that_is_set_by_more_than_a_unit_can_tell_keeps_no_message_from_the_wheel(
    tmp_path: Path, set_by_days: int
) -> None:
    timers = opened(tmp_path)
    put(timers, 1, 5)
    timers.put_many([Timer(NOW_MS + 7000, 2, RECORD_BYTES, 0)], NOW_MS + set_by_days * 86_400_000)
    timers.close()
    (tmp_path / "timerwheel").unlink()  # built again from the log, where units tell when they fire

    timers = opened(tmp_path)

    assert sorted(fire(timers, NOW_MS + 30 * 86_400_000)) == [1, 2]


# ---- after a kill, and after a power cut


def test_what_a_killed_process_put_on_the_wheel_is_there_and_not_put_twice(tmp_path: Path) -> None:
    timers = opened(tmp_path)
    for offset in range(25):
        put(timers, offset)
        if offset == 9:
            assert timers.save(timers.mark_to_save(), NOW_MS)
            assert not timers.save(timers.mark_to_save(), NOW_MS)

    again = opened(tmp_path)

    assert again.queue_offset == 10
    assert [offset for offset in range(25) if again.was_put(offset)] == list(range(10, 25))
    assert fire(again, NOW_MS + 10_000) == list(range(25))


@pytest.mark.parametrize("units_left", [10, 11, 19, 20, 21, 25])
@pytest.mark.parametrize("wheel_lost", [False, True])
def test_after_a_power_cut_what_is_not_found_is_put_again(tmp_path: Path, units_left: int, *, wheel_lost: bool) -> None:
    timers = opened(tmp_path)
    for offset in range(25):
        put(timers, offset, seconds=5 + offset % 2)
        if offset == 9:
            timers.save(timers.mark_to_save(), NOW_MS)
            wheel = (tmp_path / "timerwheel").read_bytes() if wheel_lost else b""
    lose_units(tmp_path, units_left)
    if wheel_lost:  # what was written to it after the save did not reach the disk
        (tmp_path / "timerwheel").write_bytes(wheel)

    again = opened(tmp_path, last_exit=LastExit.CRASHED)
    for offset in range(again.queue_offset, 25):
        if not again.was_put(offset):
            put(again, offset, seconds=5 + offset % 2)

    assert sorted(fire(again, NOW_MS + 10_000)) == list(range(25))


@pytest.mark.parametrize("units_left", range(2, 9))
def test_what_a_full_disk_keeps_from_the_wheel_is_put_once_and_not_lost_in_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, units_left: int
) -> None:
    """Were it put again with every try, a cut through the last try would leave chains that lead past the one before."""
    timers = opened(tmp_path)
    put(timers, 0)
    put(timers, 1, seconds=6)
    timers.save(timers.mark_to_save(), NOW_MS)
    taken = TimerWheel.put

    def full_from_the_second_slot_on(wheel: TimerWheel, slot: Slot) -> None:
        if slot.tick == (NOW_MS + 6000) // timers.precision_ms:
            raise StoreFull("the disk is full", hint="make room")
        taken(wheel, slot)

    with monkeypatch.context() as patched:
        patched.setattr(TimerWheel, "put", full_from_the_second_slot_on)
        waiting = [Timer(NOW_MS + (5 + offset % 2) * 1000, offset, RECORD_BYTES, 0) for offset in range(2, 8)]
        assert timers.put_many(waiting, NOW_MS) == len(waiting)
        for again in (lambda: timers.put_many(waiting, NOW_MS), lambda: timers.due(NOW_MS), timers.mark_to_save):
            with pytest.raises(StoreFull):
                again()
    assert timers.log.end == 8 * UNIT_BYTES
    lose_units(tmp_path, units_left)

    after = opened(tmp_path, last_exit=LastExit.CRASHED)
    for offset in range(after.queue_offset, 8):
        if not after.was_put(offset):
            put(after, offset, seconds=5 + offset % 2)
    assert fire(after, NOW_MS + 10_000) == [0, 2, 4, 6, 1, 3, 5, 7]


def test_what_a_full_disk_kept_from_the_wheel_fires_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers = opened(tmp_path)

    def full(_wheel: TimerWheel, _slot: Slot) -> None:
        raise StoreFull("the disk is full", hint="make room")

    with monkeypatch.context() as patched:
        patched.setattr(TimerWheel, "put", full)
        put(timers, 0)
        with pytest.raises(StoreFull):
            put(timers, 1)
    put(timers, 1)
    assert fire(timers, NOW_MS + 10_000) == [0, 1]


def lose_units(directory: Path, left: int) -> None:
    """Of the unit that is the first to go, the first half stays, as if a page ended there."""
    for number, start in enumerate(range(0, 3 * FILE_BYTES, FILE_BYTES)):
        file = directory / "timerlog" / f"{start:020d}"
        kept = min(max(left - 10 * number, 0), 10) * UNIT_BYTES
        if file.exists() and kept < 10 * UNIT_BYTES:
            data = file.read_bytes()
            kept += 30 if kept else 0
            file.write_bytes(data[:kept].ljust(FILE_BYTES, b"\0"))


def test_a_torn_unit_counts_for_nothing(tmp_path: Path) -> None:
    timers = opened(tmp_path)
    put(timers, 7)
    put(timers, 8)

    again = opened(tmp_path, last_exit=LastExit.CRASHED, is_timer_record=lambda offset, _size: offset == 7)

    assert again.log.end == UNIT_BYTES
    assert fire(again, NOW_MS + 10_000) == [7]


def test_a_wheel_that_is_gone_is_built_from_the_log(tmp_path: Path) -> None:
    timers = opened(tmp_path)
    for offset in range(25):
        put(timers, offset)
    timers.save(timers.mark_to_save(), NOW_MS)
    timers.close()
    (tmp_path / "timerwheel").unlink()

    again = opened(tmp_path, last_exit=LastExit.CLEAN)

    assert fire(again, NOW_MS + 10_000) == list(range(25))
    assert again.count_at(NOW_MS + 5000) == 25


def test_files_of_the_log_go_with_the_messages_they_speak_of(tmp_path: Path) -> None:
    timers = opened(tmp_path)
    for offset in range(25):
        put(timers, offset * 100)

    assert timers.log.delete_below(1000) == 1
    assert timers.log.delete_below(1000) == 0
    assert timers.log.delete_below(10_000) == 1  # the last file stays

    assert fire(timers, NOW_MS + 10_000) == [offset * 100 for offset in range(20, 25)]


@pytest.mark.parametrize(
    ("last_exit", "pool_buffers", "again"),
    [
        (LastExit.KILLED, 0, [4, 5]),
        (LastExit.KILLED, 2, [0, 1, 2, 3, 4, 5]),  # what fired may have died in the pool
        (LastExit.CRASHED, 0, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_a_killed_process_goes_on_where_it_was_and_a_power_cut_where_it_was_safe(
    tmp_path: Path, last_exit: LastExit, pool_buffers: int, again: list[int]
) -> None:
    timers = opened(tmp_path, now_ms=NOW_MS, write_pool_buffers=pool_buffers)
    for offset in range(6):
        put(timers, offset, seconds=2 if offset < 2 else 5)
    timers.save(timers.mark_to_save(), NOW_MS)
    due = timers.due(NOW_MS + 20_000)
    assert due is not None
    timers.fired(due)  # the first two
    due = timers.due(NOW_MS + 20_000)
    assert due is not None
    timers.note(2)  # and two of the four that follow

    reopened = opened(tmp_path, now_ms=NOW_MS + 30_000, last_exit=last_exit)

    fired: list[int] = []
    while (due := reopened.due(NOW_MS + 30_000)) is not None:
        units = [reopened.log.unit(position) for position in due.positions[due.fired :]]
        fired += [unit.commit_log_offset for unit in units if unit is not None]
        reopened.fired(due)
    assert fired == again


@pytest.mark.parametrize("last_exit", [LastExit.KILLED, LastExit.CRASHED])
def test_a_former_master_goes_on_from_where_its_log_was_cut(tmp_path: Path, last_exit: LastExit) -> None:
    """What it delivered since then is lost with the log, and the numbers of the timer topic are given to others."""
    timers = opened(tmp_path)
    for offset in range(6):
        put(timers, offset, seconds=40)
    assert fire(timers, NOW_MS + 60_000) == [0, 1, 2, 3, 4, 5]
    timers.note(0)
    timers.save(timers.mark_to_save(), NOW_MS + 60_000)

    timers.log_was_cut(log_end=4, queue_end=4, since_ms=NOW_MS + 50_000)
    timers.save(timers.mark_to_save(), NOW_MS + 60_000)

    reopened = opened(tmp_path, NOW_MS + 70_000, last_exit)
    assert reopened.queue_offset == 4
    assert fire(reopened, NOW_MS + 70_000)[:4] == [0, 1, 2, 3]


def test_a_slave_says_when_its_master_has_fired_less_than_it_has_itself(tmp_path: Path) -> None:
    timers = opened(tmp_path)
    put(timers, 0)
    assert fire(timers, NOW_MS + 60_000) == [0]
    assert timers.follow_to(NOW_MS + 2000)
    assert not timers.follow_to(NOW_MS + 3000)
