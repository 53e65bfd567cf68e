from __future__ import annotations

from functools import partial
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

import pytest

from orbitmq.clock import ManualClock
from orbitmq.errors import StorageError, StoreFenced, StoreFull
from orbitmq.storage.appended import AppendCode
from orbitmq.storage.checkpoint import read_checkpoint
from orbitmq.storage.config import FlushMode
from orbitmq.storage.health import RunningFlags
from orbitmq.storage.lock import LastExit
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.store_kit import bodies, open_store, put

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.storage.store import Store

WAIT_SECONDS = 30


def wait_durable(store: Store, end: int) -> StorageError | None:
    done = Event()
    outcome: list[StorageError | None] = []

    def finish(error: StorageError | None) -> None:
        outcome.append(error)
        done.set()

    store.when_durable(end, finish)
    assert done.wait(WAIT_SECONDS)
    return outcome[0]


def test_with_synchronous_flush_a_callback_comes_when_the_message_is_on_disk(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    store = open_store(tmp_path, disk=disk, flush_mode=FlushMode.SYNC, flush_every_ms=60_000)
    store.start()
    appended = put(store, body=b"precious")
    assert wait_durable(store, appended.end) is None
    assert store.flushed_offset >= appended.end
    store.abandon()
    disk.crash()
    again = open_store(tmp_path, disk=disk)
    assert again.last_exit is LastExit.CRASHED
    assert bodies(again) == [b"precious"]
    again.close()


def test_what_is_durable_already_is_answered_at_once(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    appended = put(store)
    store.flush()
    answers: list[StorageError | None] = []
    store.when_durable(appended.end, answers.append)
    assert answers == [None]
    store.close()


def test_one_sync_serves_all_who_came_meanwhile(tmp_path: Path) -> None:
    store = open_store(tmp_path, flush_mode=FlushMode.SYNC, flush_every_ms=60_000)
    appended = put(store)
    entered, go, syncs = Event(), Event(), []
    original = store.log.files.sync

    def slow(start: int, end: int) -> None:
        syncs.append((start, end))
        entered.set()
        assert go.wait(WAIT_SECONDS)
        original(start, end)

    store.log.files.sync = slow  # type: ignore[method-assign]
    store.start()
    answered: list[StorageError | None] = []
    all_answered, lock = Event(), Lock()

    def finish(error: StorageError | None) -> None:
        with lock:
            answered.append(error)
            if len(answered) == 11:
                all_answered.set()

    store.when_durable(appended.end, finish)
    assert entered.wait(WAIT_SECONDS)
    for _ in range(10):
        store.when_durable(put(store).end, finish)
    go.set()
    assert all_answered.wait(WAIT_SECONDS)
    assert answered == [None] * 11
    assert syncs == [(0, appended.end), (appended.end, store.log.end)]
    store.close()


def test_with_synchronous_flush_a_message_is_flushed_soon_though_nobody_waits_for_it(tmp_path: Path) -> None:
    store = open_store(tmp_path, flush_mode=FlushMode.SYNC, flush_every_ms=60_000, segment_bytes=1 << 20)
    flushed = Event()
    store.on_flushed = flushed.set
    store.start()
    for _ in range(20):
        flushed.clear()
        appended = put(store)
        while store.flushed_offset < appended.end:
            assert flushed.wait(WAIT_SECONDS)
    store.close()


def test_a_waiter_that_fails_harms_neither_the_others_nor_the_thread(tmp_path: Path) -> None:
    store = open_store(tmp_path, flush_mode=FlushMode.SYNC, flush_every_ms=60_000)

    def broken(_error: StorageError | None) -> None:
        raise RuntimeError("gone")

    store.when_durable(put(store).end, broken)
    store.start()
    assert wait_durable(store, put(store).end) is None
    assert wait_durable(store, put(store).end) is None
    store.close()


def test_after_a_failed_sync_of_a_queue_the_store_vouches_for_no_queue_any_more(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    clock = ManualClock(1_700_000_000_000)
    store = open_store(tmp_path, disk=disk, clock=clock)
    put(store, body=b"1")
    store.flush()
    clock.advance(seconds=10)
    put(store, body=b"2")
    store.dispatch()
    store._log_flusher.flush()
    disk.faults.sync_fails = True
    with pytest.raises(StorageError):
        store._index_flusher.flush(thorough=True)
    disk.faults.sync_fails = False
    store.flush()
    assert not store.health.refuses_writes
    assert store.checkpoint.queues_synced_ms == 1_700_000_000_000
    store.close()
    again = open_store(tmp_path, disk=disk, clock=clock)
    assert again.last_exit is LastExit.KILLED, "only a clean stop lets the next start skip what it should look at"
    assert bodies(again) == [b"1", b"2"]
    again.close()


def test_asynchronous_flush_happens_by_itself(tmp_path: Path) -> None:
    store = open_store(tmp_path, flush_every_ms=5, flush_thorough_every_ms=10, queue_flush_every_ms=5)
    flushed = Event()
    store.on_flushed = flushed.set
    store.start()
    put(store)
    assert flushed.wait(WAIT_SECONDS)
    assert store.flushed_offset == store.log.end
    store.close()


def test_queue_entries_are_written_behind_the_scenes(tmp_path: Path) -> None:
    store = open_store(tmp_path, queue_flush_every_ms=5)
    written = Event()
    original = store.queues.write_out

    def watched() -> None:
        original()
        if store.queues.queues and not store.queues.queues[("T", 0)].log.unwritten()[1]:
            written.set()

    store.queues.write_out = watched  # type: ignore[method-assign]
    put(store)
    store.dispatch()
    store.start()
    assert written.wait(WAIT_SECONDS)
    assert (tmp_path / "consumequeue" / "T" / "0" / "00000000000000000000").stat().st_size == 200
    store.close()


def test_who_waits_for_what_is_not_there_keeps_nobody_busy_and_hears_when_it_is_cut_off(tmp_path: Path) -> None:
    with open_store(tmp_path / "master") as master:
        put(master, body=b"one")
        kept = master.log.end
        put(master, body=b"two")
        records = bytes(master.log.files.segments[0].memory[: master.log.end])
    store = open_store(tmp_path / "slave", flush_every_ms=60_000)
    replica = store.follow()
    replica.append([(0, records)])
    answers: dict[int, StorageError | None] = {}
    for end in (kept, replica.end, replica.end + 1):
        store.when_durable(end, partial(answers.__setitem__, end))
    assert store._log_flusher._is_due()

    store.dispatch()
    replica.cut(kept)

    assert list(answers) == [len(records), len(records) + 1]
    assert all("cut back" in str(error) for error in answers.values())
    store._log_flusher.flush()
    assert answers[kept] is None
    store.when_durable(kept + 1, partial(answers.__setitem__, kept + 1))
    assert not store._log_flusher._is_due(), "there is nothing to flush"
    replica.append([(kept, records[kept:])])
    store._log_flusher.flush()
    assert answers[kept + 1] is None
    store.close()


@pytest.mark.parametrize("behind", [1, 30], ids=["in one file", "and files behind it"])
def test_what_a_slave_cut_off_stays_so_after_a_power_cut_and_its_copy_is_kept(tmp_path: Path, behind: int) -> None:
    disk = FaultyDisk(tmp_path)
    store = open_store(tmp_path, disk=disk, segment_bytes=4096)
    kept = put(store, body=b"both").end
    for _ in range(behind):
        put(store, body=b"here only" * 20)
    store.flush()
    end = store.log.end
    store.follow().cut(kept, tmp_path / "diverged" / "1")
    store.flush()
    store.abandon()
    disk.crash()
    with open_store(tmp_path, disk=disk, segment_bytes=4096) as again:
        assert again.log.end == kept
        assert again.queue_range("T", 0).max_offset == 1
    copies = sorted((tmp_path / "diverged" / "1").iterdir())
    assert sum(copy.stat().st_size for copy in copies) == end - kept
    assert sum(copy.read_bytes().count(b"here only" * 20) for copy in copies) == behind


def test_a_slave_that_has_no_room_to_keep_what_it_cuts_off_cuts_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    with open_store(tmp_path, disk=disk) as store:
        kept = put(store, body=b"both").end
        for _ in range(30):
            put(store, body=b"here only" * 20)
        store.dispatch()
        end, replica = store.log.end, store.follow()
        disk.faults.steps_until_full = disk.faults.steps_taken + 3  # in the second file
        with pytest.raises(StoreFull):
            replica.cut(kept, tmp_path / "diverged" / "1")
        assert store.log.end == end
        assert list((tmp_path / "diverged").iterdir()) == []
        disk.faults.steps_until_full = None
        replica.cut(kept, tmp_path / "diverged" / "2")
        assert len(list((tmp_path / "diverged" / "2").iterdir())) > 1


def test_a_slave_whose_sync_failed_copies_no_more(tmp_path: Path) -> None:
    with open_store(tmp_path / "master") as master:
        put(master, body=b"one")
        record = bytes(master.log.files.segments[0].memory[: master.log.end])
    disk = FaultyDisk(tmp_path)
    store = open_store(tmp_path / "slave", disk=disk, flush_mode=FlushMode.ASYNC, flush_every_ms=60_000)
    store.start()
    replica = store.follow()
    replica.append([(0, record)])
    disk.faults.sync_fails = True
    assert isinstance(wait_durable(store, replica.end), StoreFenced)
    with pytest.raises(StoreFenced, match="nothing more is written"):
        replica.append([(replica.end, record)])
    assert replica.end == len(record)
    store.abandon()


def test_a_failed_sync_fences_the_store_for_writing_and_reading_goes_on(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    store = open_store(tmp_path, disk=disk, flush_mode=FlushMode.SYNC, flush_every_ms=60_000)
    store.start()
    first = put(store, body=b"safe")
    assert wait_durable(store, first.end) is None
    store.dispatch()
    disk.faults.sync_fails = True
    second = put(store, body=b"unsafe")
    error = wait_durable(store, second.end)
    assert isinstance(error, StoreFenced)
    assert "Input/output error" in error.message
    disk.faults.sync_fails = False
    with pytest.raises(StoreFenced, match="sync of the commit log failed") as raised:
        put(store)
    assert raised.value.code == AppendCode.SERVICE_NOT_AVAILABLE
    assert store.health.flags == RunningFlags.FENCED
    assert "Input/output error" in store.health.causes[RunningFlags.FENCED].message
    assert isinstance(wait_durable(store, second.end), StoreFenced), "a retry that succeeds would prove nothing"
    assert wait_durable(store, first.end) is None
    assert bodies(store) == [b"safe"]
    with pytest.raises(StoreFenced):
        store.close()
    assert (tmp_path / "abort").exists()
    disk.crash()
    again = open_store(tmp_path, disk=disk)
    assert bodies(again)[:1] == [b"safe"]
    again.close()


def test_the_checkpoint_never_runs_ahead_of_the_syncs_it_speaks_of(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    clock = ManualClock(1_700_000_000_000)
    store = open_store(tmp_path, disk=disk, clock=clock)
    put(store)
    store.flush()
    clock.advance(ms=5000)
    put(store)
    saved = read_checkpoint(disk, tmp_path / "checkpoint", clock.now_ms())
    assert (saved.log_synced_ms, saved.queues_synced_ms) == (1_700_000_000_000, 1_700_000_000_000)
    store._log_flusher.flush()
    store._index_flusher.flush(thorough=True)  # not dispatched yet: the queues know nothing of the second message
    saved = read_checkpoint(disk, tmp_path / "checkpoint", clock.now_ms())
    assert (saved.log_synced_ms, saved.queues_synced_ms) == (1_700_000_005_000, 1_700_000_000_000)
    store.flush()
    saved = read_checkpoint(disk, tmp_path / "checkpoint", clock.now_ms())
    assert saved.queues_synced_ms == 1_700_000_005_000
    store.close()


def test_queues_that_cannot_be_written_stop_appends_until_they_can(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    store = open_store(tmp_path, disk=disk)
    put(store, body=b"1")
    disk.faults.space_left = 0
    with pytest.raises(StoreFull):
        store.flush()
    assert store.health.flags == RunningFlags.QUEUE_ERROR
    with pytest.raises(StoreFull) as raised:
        put(store)
    assert raised.value.code == AppendCode.SERVICE_NOT_AVAILABLE
    assert bodies(store) == [b"1"]
    disk.faults.space_left = None
    store.flush()
    assert not store.health.refuses_writes
    put(store, body=b"2")
    assert bodies(store) == [b"1", b"2"]
    store.close()


def test_keys_that_find_no_room_stop_appends_until_they_do_and_none_is_lost(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    store = open_store(tmp_path, disk=disk, segment_bytes=1 << 16)
    put(store, KEYS="first")
    disk.faults.space_left = 0
    store.dispatch()
    assert store.find_by_key("T", "first").records == []
    assert store.health.flags == RunningFlags.INDEX_ERROR
    assert store.queue_range("T", 0).max_offset == 1
    with pytest.raises(StoreFull):
        put(store, KEYS="refused")
    disk.faults.space_left = None
    put(store, KEYS="second")
    assert not store.health.refuses_writes
    store.dispatch()
    assert len(store.find_by_key("T", "first").records) == 1
    assert len(store.find_by_key("T", "second").records) == 1
    store.close()


def test_a_disk_full_for_the_log_is_a_clear_error_and_nothing_else_changes(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    store = open_store(tmp_path, disk=disk)
    while store.log.end < 3900:
        put(store)
    stored = store.log.next_queue_offsets[("T", 0)]
    disk.faults.space_left = 0
    with pytest.raises(StoreFull, match="No space left") as raised:
        put(store, body=b"x" * 300)
    assert raised.value.code == AppendCode.SERVICE_NOT_AVAILABLE
    assert not store.health.refuses_writes
    disk.faults.space_left = None
    assert put(store, body=b"x" * 300).queue_offset == stored
    assert len(bodies(store)) == stored + 1
    store.close()


def test_reading_from_other_threads_while_appending(tmp_path: Path) -> None:
    store = open_store(tmp_path, queue_flush_every_ms=1, flush_every_ms=1)
    store.start()
    stop, failures = Event(), []

    def read() -> None:
        try:
            at = 0
            while not stop.is_set():
                result = store.read("T", 0, at)
                at = result.next_offset if result.count else at
            while at < store.queue_range("T", 0).max_offset:
                at = store.read("T", 0, at).next_offset
            assert at == 2000
        except BaseException as error:
            failures.append(error)
            raise

    readers = [Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(2000):
        put(store)
    store.dispatch()
    stop.set()
    for reader in readers:
        reader.join()
    assert failures == []
    store.close()
