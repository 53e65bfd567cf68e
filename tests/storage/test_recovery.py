"""Every way a directory can be found at start: what was intact is served, and the rest is named."""

from __future__ import annotations

import shutil
import struct
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.clock import ManualClock
from orbitmq.errors import StorageError, StoreCorrupt, StoreFull, StoreLocked
from orbitmq.message.properties import encode_properties
from orbitmq.message.record import decode_record, encode_blank
from orbitmq.storage.config import FlushMode
from orbitmq.storage.lock import LastExit
from orbitmq.storage.segmented_log import segment_name
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.store_kit import BORN_AT_MS, BORN_HOST, bodies, open_store, put

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.storage.appended import Appended
    from orbitmq.storage.store import Store

SEGMENT = 4096


def write_store(directory: Path, count: int = 60, *, clean: bool = True, size: int = 100) -> list[Appended]:
    """Messages b"0", b"1", ... padded to `size`, over two queues, with keys; about 5 files of the log."""
    store = open_store(directory)
    appended = []
    for number in range(count):
        appended.append(put(store, queue_id=number % 2, body=body(number, size), KEYS=f"k{number}", TAGS="a"))
        store.clock.advance(ms=100)  # type: ignore[attr-defined]
    store.dispatch()
    if clean:
        store.close()
    else:
        store.flush()
        store.abandon()
    return appended


def body(number: int, size: int = 100) -> bytes:
    return b"%0*d" % (size, number)


def numbers(store: Store) -> list[int]:
    return sorted(int(found) for queue_id in (0, 1) for found in bodies(store, "T", queue_id))


def patch(directory: Path, offset: int, data: bytes) -> None:
    """Overwrite bytes of the log."""
    path = directory / "commitlog" / segment_name(offset - offset % SEGMENT)
    with path.open("r+b") as file:
        file.seek(offset % SEGMENT)
        file.write(data)


def assert_keys(store: Store, wanted: list[int]) -> None:
    for number in wanted:
        assert [int(decode_record(r).body) for r in store.find_by_key("T", f"k{number}").records] == [number]


@pytest.fixture(params=["clean", "killed", "crashed"])
def last_exit(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def leave(directory: Path, last_exit: str, count: int = 60) -> list[Appended]:
    appended = write_store(directory, count, clean=last_exit == "clean")
    if last_exit == "crashed":
        (directory / "abort").write_text("1\nanother boot\n")
    return appended


def test_a_store_is_found_as_it_was_left(tmp_path: Path, last_exit: str) -> None:
    leave(tmp_path, last_exit)
    store = open_store(tmp_path)
    assert store.last_exit.name.lower() == last_exit
    assert store.recovered.damages == []
    assert numbers(store) == list(range(60))
    assert_keys(store, list(range(60)))
    assert put(store).queue_offset == 30
    store.close()


def test_a_clean_stop_leaves_no_abort_file_and_a_running_store_has_one(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert (tmp_path / "abort").exists()
    put(store)
    store.close()
    store.close()
    assert not (tmp_path / "abort").exists()
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["checkpoint", "commitlog", "consumequeue", "lock", "unfinished-batch"]


def test_a_killed_process_loses_nothing_though_nothing_was_flushed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for number in range(60):
        put(store, queue_id=number % 2, body=body(number), KEYS=f"k{number}")
        if number == 40:
            store.dispatch()
    store.abandon()
    again = open_store(tmp_path)
    assert again.last_exit is LastExit.KILLED
    assert numbers(again) == list(range(60))
    assert_keys(again, list(range(60)))
    again.close()


@pytest.mark.parametrize("cut", [1, 4, 8, 9, 40, 88, 120, 180])
def test_a_torn_last_record_is_dropped_and_its_place_used_again(tmp_path: Path, last_exit: str, cut: int) -> None:
    last = leave(tmp_path, last_exit)[-1]
    patch(tmp_path, last.commit_log_offset + cut, bytes(last.end - last.commit_log_offset - cut))
    store = open_store(tmp_path)
    assert numbers(store) == list(range(59))
    assert_keys(store, list(range(59)))
    assert store.find_by_key("T", "k59").records == []
    again = put(store, queue_id=1, body=body(59), KEYS="k59")
    assert (again.commit_log_offset, again.queue_offset) == (last.commit_log_offset, last.queue_offset)
    assert numbers(store) == list(range(60))
    store.close()
    store = open_store(tmp_path)
    assert numbers(store) == list(range(60))
    store.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff" * 300,
        struct.pack(">iI", 5_000, 0xDAA320A7),  # 4.9 does not even start on this
        struct.pack(">iI", -5, 0xDAA320A7),
        struct.pack(">iI", 200, 0xDAA320AB) + bytes(192),
        b"\0\0\0\0\xda\xa3\x20\xa7" * 20,
    ],
)
def test_garbage_behind_the_last_record_is_cleared(tmp_path: Path, last_exit: str, garbage: bytes) -> None:
    end = leave(tmp_path, last_exit)[-1].end
    patch(tmp_path, end, garbage)
    store = open_store(tmp_path)
    assert numbers(store) == list(range(60))
    assert store.log.end == end
    segment = store.log.files.segment_of(end)
    assert segment is not None
    assert not any(segment.memory[end - segment.start :])
    store.close()


def test_records_behind_a_cut_cannot_come_back(tmp_path: Path) -> None:
    """A record replaced by one of the same length must not bring its old neighbours back to life."""
    appended = write_store(tmp_path, 70)
    last_file = appended[-1].end // SEGMENT * SEGMENT
    victims = [number for number, found in enumerate(appended) if found.commit_log_offset >= last_file]
    assert len(victims) > 3
    patch(
        tmp_path,
        appended[victims[0]].commit_log_offset,
        bytes(appended[-1].end - appended[victims[0]].commit_log_offset),
    )
    store = open_store(tmp_path)
    assert numbers(store) == list(range(victims[0]))
    put(store, queue_id=victims[0] % 2, body=body(victims[0]), KEYS=f"k{victims[0]}", TAGS="a")
    store.abandon()
    store = open_store(tmp_path)
    assert numbers(store) == list(range(victims[0] + 1))
    store.close()


@pytest.mark.parametrize("victim", [60, 65, 68, 69])
@pytest.mark.parametrize("at", [0, 4, 36, 84, 100])
def test_damage_before_the_end_costs_only_the_damaged_record(
    tmp_path: Path, last_exit: str, victim: int, at: int
) -> None:
    """Apache cuts the log here and loses everything behind."""
    appended = leave(tmp_path, last_exit, 72)
    patch(tmp_path, appended[victim].commit_log_offset + at, b"\x7f\x7f\x7f\x7f")
    store = open_store(tmp_path)
    (damage,) = store.recovered.damages
    assert (damage.start, damage.end) == (appended[victim].commit_log_offset, appended[victim].end)
    assert numbers(store) == [number for number in range(72) if number != victim]
    assert put(store, queue_id=0, body=body(72)).queue_offset == 36, "the number of a lost message is not used again"
    assert store.log.end > appended[-1].end
    (store.close if last_exit == "clean" else store.abandon)()
    store = open_store(tmp_path)
    assert len(store.recovered.damages) == 1
    assert numbers(store) == [number for number in range(73) if number != victim]
    store.close()


def test_damage_is_stepped_over_also_when_the_queues_are_rebuilt(tmp_path: Path) -> None:
    appended = write_store(tmp_path)
    for victim in (7, 8, 30):
        patch(tmp_path, appended[victim].commit_log_offset + 100, b"\x7f\x7f\x7f\x7f")
    shutil.rmtree(tmp_path / "consumequeue")
    shutil.rmtree(tmp_path / "index")
    store = open_store(tmp_path)
    assert [damage.start for damage in store.recovered.damages] == [
        appended[victim].commit_log_offset for victim in (7, 8, 30)
    ]
    intact = [number for number in range(60) if number not in (7, 8, 30)]
    assert numbers(store) == intact
    assert_keys(store, intact)
    for number in intact:
        found = store.read("T", number % 2, number // 2, max_count=1)
        assert int(decode_record(found.buffers[0]).body) == number, "everyone keeps their number"
    store.close()


@pytest.mark.parametrize("at", [0, 100])
def test_the_number_of_a_damaged_last_message_is_kept_however_often_the_store_starts(
    tmp_path: Path, last_exit: str, at: int
) -> None:
    def leave(store: Store) -> None:
        (store.close if last_exit == "clean" else store.abandon)()
        if last_exit == "crashed":
            (tmp_path / "abort").write_text("1\nanother boot\n")

    store = open_store(tmp_path)
    appended = [put(store, body=body(number)) for number in range(3)]
    for _ in range(2):
        store.clock.advance(ms=1000)  # type: ignore[attr-defined]
        put(store, "U")
    store.flush()
    leave(store)
    patch(tmp_path, appended[-1].commit_log_offset + at, b"\x7f\x7f\x7f\x7f")
    for _ in range(3):
        store = open_store(tmp_path)
        assert len(store.recovered.damages) == 1
        assert store.queue_range("T", 0).max_offset == 3
        leave(store)
    store = open_store(tmp_path)
    assert put(store).queue_offset == 3
    store.close()


def test_a_missing_middle_file_costs_only_its_own_messages(tmp_path: Path, last_exit: str) -> None:
    appended = leave(tmp_path, last_exit)
    (tmp_path / "commitlog" / segment_name(SEGMENT)).unlink()
    shutil.rmtree(tmp_path / "consumequeue")
    store = open_store(tmp_path)
    intact = [n for n, found in enumerate(appended) if not SEGMENT <= found.commit_log_offset < 2 * SEGMENT]
    assert numbers(store) == intact
    assert put(store, queue_id=0).queue_offset == 30
    store.close()


def test_missing_first_files_are_as_if_they_had_expired(tmp_path: Path, last_exit: str) -> None:
    appended = leave(tmp_path, last_exit)
    (tmp_path / "commitlog" / segment_name(0)).unlink()
    (tmp_path / "commitlog" / segment_name(SEGMENT)).unlink()
    intact = [n for n, found in enumerate(appended) if found.commit_log_offset >= 2 * SEGMENT]
    for rebuilt in (False, True):
        if rebuilt:
            shutil.rmtree(tmp_path / "consumequeue")
        store = open_store(tmp_path)
        assert numbers(store) == intact
        assert store.queue_range("T", intact[0] % 2).min_offset == intact[0] // 2
        store.close()


def test_a_missing_last_file_takes_its_messages_along(tmp_path: Path, last_exit: str) -> None:
    appended = leave(tmp_path, last_exit)
    last_file = appended[-1].end // SEGMENT * SEGMENT
    (tmp_path / "commitlog" / segment_name(last_file)).unlink()
    store = open_store(tmp_path)
    intact = [n for n, found in enumerate(appended) if found.commit_log_offset < last_file]
    assert numbers(store) == intact
    assert_keys(store, intact)
    again = put(store, queue_id=len(intact) % 2, body=body(len(intact)), KEYS=f"k{len(intact)}")
    assert again.commit_log_offset == last_file
    store.close()


def test_without_a_log_the_queues_are_removed_and_offsets_start_again(tmp_path: Path, last_exit: str) -> None:
    leave(tmp_path, last_exit)
    shutil.rmtree(tmp_path / "commitlog")
    store = open_store(tmp_path)
    assert store.topics() == set()
    assert not (tmp_path / "consumequeue" / "T").exists()
    assert store.find_by_key("T", "k1").records == []
    assert (put(store).commit_log_offset, put(store).queue_offset) == (0, 1)
    store.close()


@pytest.mark.parametrize("lost", ["0", "1"])
def test_last_entries_missing_from_one_queue_are_entered_again(tmp_path: Path, last_exit: str, lost: str) -> None:
    """Apache 5.3 loses the first of them after a clean stop."""
    appended = leave(tmp_path, last_exit)
    last_file = appended[-1].end // SEGMENT * SEGMENT
    inside = sum(found.commit_log_offset >= last_file for found in appended) // 2
    path = tmp_path / "consumequeue" / "T" / lost / segment_name(400)
    data = path.read_bytes()
    path.write_bytes(data[: 200 - 20 * min(inside, 9)] + bytes(20 * min(inside, 9)))
    store = open_store(tmp_path)
    assert numbers(store) == list(range(60))
    store.close()


@pytest.mark.parametrize("kept_bytes", [1, 7, 9, 11, 13, 19])
def test_a_half_written_queue_entry_is_entered_again(tmp_path: Path, kept_bytes: int) -> None:
    leave(tmp_path, "killed")
    path = tmp_path / "consumequeue" / "T" / "1" / segment_name(400)
    data = path.read_bytes()
    path.write_bytes(data[: 180 + kept_bytes] + bytes(20 - kept_bytes))
    store = open_store(tmp_path)
    assert numbers(store) == list(range(60))
    store.queues.write_out()
    assert path.read_bytes()[:192] == data[:192]
    store.close()


@pytest.mark.parametrize(
    "content", [b"", b"short", bytes(40), b"\xff" * 4096, struct.pack(">5q", 2**62, 2**62, 2**62, 0, 0), bytes(5000)]
)
def test_a_corrupt_or_old_checkpoint_only_costs_time(tmp_path: Path, last_exit: str, content: bytes) -> None:
    leave(tmp_path, last_exit)
    (tmp_path / "checkpoint").write_bytes(content)
    store = open_store(tmp_path)
    assert numbers(store) == list(range(60))
    assert_keys(store, list(range(60)))
    store.close()
    assert (tmp_path / "checkpoint").stat().st_size == 4096


@pytest.mark.parametrize("size", [0, 100, SEGMENT - 1, SEGMENT + 1])
def test_a_log_file_of_another_length_is_refused_unless_it_is_an_empty_last_one(tmp_path: Path, size: int) -> None:
    appended = write_store(tmp_path)
    extra = tmp_path / "commitlog" / segment_name(appended[-1].end // SEGMENT * SEGMENT + SEGMENT)
    extra.write_bytes(bytes(size))
    if size:
        with pytest.raises(StoreCorrupt, match=str(size)):
            open_store(tmp_path)
        extra.unlink()
    store = open_store(tmp_path)
    assert numbers(store) == list(range(60))
    store.close()


def test_a_truncated_log_file_in_the_middle_is_refused_with_its_name(tmp_path: Path) -> None:
    appended = write_store(tmp_path)
    path = tmp_path / "commitlog" / segment_name(SEGMENT)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(StoreCorrupt, match=segment_name(SEGMENT)):
        open_store(tmp_path)
    path.write_bytes(path.read_bytes() + bytes(SEGMENT - 1000))
    shutil.rmtree(tmp_path / "consumequeue")
    store = open_store(tmp_path)
    lost = [number for number, found in enumerate(appended) if SEGMENT + 1000 < found.end <= 2 * SEGMENT]
    assert numbers(store) == [number for number in range(60) if number not in lost]
    store.close()


def test_a_failed_start_gives_the_lock_back(tmp_path: Path) -> None:
    write_store(tmp_path)
    stray = tmp_path / "commitlog" / "README"
    stray.write_text("stray")
    with pytest.raises(StoreCorrupt, match="README"):
        open_store(tmp_path)
    stray.unlink()
    open_store(tmp_path).close()


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(StoreLocked, match="in use"):
        open_store(tmp_path)
    store.close()
    open_store(tmp_path).close()


def test_files_made_ahead_are_taken_after_a_kill_and_removed_by_a_clean_stop(tmp_path: Path) -> None:
    store = open_store(tmp_path, prepare_next_segment=True)
    put(store)
    store.log.files._preparer.discard() if store.log.files._preparer else None
    store.abandon()
    (tmp_path / "commitlog" / segment_name(SEGMENT)).write_bytes(bytes(SEGMENT))
    (tmp_path / "commitlog" / segment_name(2 * SEGMENT)).write_bytes(bytes(SEGMENT))
    store = open_store(tmp_path, prepare_next_segment=True)
    assert len(bodies(store)) == 1
    store.close()
    assert [path.name for path in (tmp_path / "commitlog").iterdir()] == [segment_name(0)]


def test_a_log_that_ends_with_a_blank_record_goes_on_in_the_next_file(tmp_path: Path) -> None:
    appended = write_store(tmp_path, 10)
    patch(tmp_path, appended[-1].end, encode_blank(SEGMENT - appended[-1].end))
    store = open_store(tmp_path)
    assert store.log.end == SEGMENT
    assert put(store, body=body(10)).commit_log_offset == SEGMENT
    store.close()
    store = open_store(tmp_path)
    assert numbers(store) == list(range(11))
    store.close()


def test_a_power_cut_keeps_what_was_flushed(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    store = open_store(tmp_path, disk=disk)
    for number in range(100):
        put(store, queue_id=number % 2, body=body(number), KEYS=f"k{number}")
        if number == 70:
            store.flush()
    store.dispatch()
    store.abandon()
    disk.crash()
    store = open_store(tmp_path, disk=disk)
    assert store.last_exit is LastExit.CRASHED
    assert numbers(store) == list(range(71))
    assert_keys(store, list(range(71)))
    store.close()


def test_entries_that_recovery_cut_off_do_not_come_back_in_the_next_power_cut(tmp_path: Path) -> None:
    """The queue was synced ahead of its log, and other records come to where those were that the log lost."""
    disk = FaultyDisk(tmp_path)
    store = open_store(tmp_path, disk=disk)
    put(store, body=b"kept")
    store.flush()
    for number in range(25):  # the queue has three files
        put(store, body=body(number))
    store.dispatch()
    store.queues.write_out()
    store.queues.sync()
    store.abandon()
    disk.crash()
    store = open_store(tmp_path, disk=disk)
    assert bodies(store) == [b"kept"]
    others = [body(number, 333) for number in range(12)]
    for other in others:
        put(store, body=other)
    store._log_flusher.flush()  # of the queue nothing is synced by now but what the start had to
    store.abandon()
    disk.crash()
    store = open_store(tmp_path, disk=disk)
    assert bodies(store) == [b"kept", *others]
    store.close()


def test_entries_behind_a_lost_page_do_not_count_again_once_it_is_filled(tmp_path: Path) -> None:
    config: dict[str, Any] = {"queue_file_bytes": 20 * 1000, "segment_bytes": 1 << 18}
    disk = FaultyDisk(tmp_path)
    store = open_store(tmp_path, disk=disk, **config)
    for number in range(500):
        put(store, body=body(number))
        if number == 150:
            store.flush()
    store.dispatch()
    store.queues.write_out()
    store.abandon()
    queue = tmp_path / "consumequeue" / "T" / "0" / segment_name(0)
    kept = queue.read_bytes()[8192:]  # of what was not synced, the later pages, and nothing of the log
    disk.crash()
    queue.write_bytes(queue.read_bytes()[:8192] + kept)
    disk = FaultyDisk(tmp_path)
    store = open_store(tmp_path, disk=disk, **config)
    wanted = [body(number) for number in range(151)]
    assert bodies(store) == wanted
    others = [body(number, 333) for number in range(300)]  # to where those pages begin, and further
    for other in others:
        put(store, body=other)
    store.flush()
    store.abandon()
    disk.crash()
    store = open_store(tmp_path, disk=disk, **config)
    assert bodies(store) == wanted + others
    store.close()


@pytest.mark.parametrize("synced", [True, False])
def test_a_record_whose_properties_a_power_cut_took_is_none(tmp_path: Path, synced: bool) -> None:
    """Its CRC covers the body alone. What the checkpoint says was synced is believed as it stands."""
    config: dict[str, Any] = {"segment_bytes": 1 << 16}
    store = open_store(tmp_path, **config)
    while True:
        if not synced:
            store.flush()
        store.clock.advance(ms=100)  # type: ignore[attr-defined]
        last = put(store, body=b"short", KEYS="k" * 700)
        boundary = last.end - last.end % 4096
        if last.commit_log_offset + 300 < boundary < last.end - 10:
            break
    if synced:
        store.flush()
        store.clock.advance(ms=100)  # type: ignore[attr-defined]
        put(store, body=b"behind")
        store.flush()
    store.abandon()
    log = tmp_path / "commitlog" / segment_name(0)
    data = log.read_bytes()
    log.write_bytes(data[:boundary] + bytes(last.end - boundary) + data[last.end :])
    (tmp_path / "abort").write_text("1\nanother boot\n")

    store = open_store(tmp_path, **config)

    assert store.last_exit is LastExit.CRASHED
    assert len(bodies(store)) == last.queue_offset + (2 if synced else 0)
    if not synced:
        again = put(store, body=b"in its place")
        assert (again.commit_log_offset, again.queue_offset) == (last.commit_log_offset, last.queue_offset)
    store.close()


@pytest.mark.parametrize("half", ["left", "right"])
@pytest.mark.parametrize("entry", [204, 409, 614, 819])  # each stands on two pages, and is divided elsewhere
@pytest.mark.parametrize("lost_of_the_log", [0, 300])
def test_an_entry_of_which_a_power_cut_took_one_page_is_made_whole(
    tmp_path: Path, entry: int, half: str, lost_of_the_log: int
) -> None:
    config: dict[str, Any] = {"queue_file_bytes": 20 * 1000, "segment_bytes": 1 << 18}
    store = open_store(tmp_path, **config)
    appended = [put(store, body=body(number), TAGS="a") for number in range(950)]
    store.dispatch()
    store.flush()
    store.abandon()
    path = tmp_path / "consumequeue" / "T" / "0" / segment_name(0)
    whole = path.read_bytes()
    begin, end = entry * 20, entry * 20 + 20
    boundary = end - end % 4096
    assert begin < boundary < end
    lost = (begin, boundary) if half == "left" else (boundary, end)
    path.write_bytes(whole[: lost[0]] + bytes(lost[1] - lost[0]) + whole[lost[1] :])
    kept = 950 - lost_of_the_log
    if lost_of_the_log:
        lost_from = appended[kept].commit_log_offset
        log = tmp_path / "commitlog" / segment_name(0)
        log.write_bytes(log.read_bytes()[:lost_from] + bytes((1 << 18) - lost_from))
    (tmp_path / "abort").write_text("1\nanother boot\n")

    store = open_store(tmp_path, **config)
    assert store.last_exit is LastExit.CRASHED
    assert bodies(store) == [body(number) for number in range(kept)]
    assert put(store, body=body(kept), TAGS="a").queue_offset == kept
    store.close()
    assert path.read_bytes()[: kept * 20] == whole[: kept * 20]


@pytest.mark.parametrize("seed", [0, 29])  # 29: the first file is torn, the second whole
def test_a_key_index_that_was_just_built_again_is_built_once_more_after_a_power_cut(tmp_path: Path, seed: int) -> None:
    disk, clock = FaultyDisk(tmp_path), ManualClock()
    two_pages: dict[str, Any] = {
        "index_slots": 1500
    }  # the header says that a file is full, and a page of entries may be lost
    store = open_store(tmp_path, disk=disk, clock=clock, **two_pages)
    for number in range(100):
        put(store, queue_id=number % 2, body=body(number), KEYS=f"k{number}")
        clock.advance(ms=100)
    store.close()
    files = sorted((tmp_path / "index").iterdir())
    assert len(files) > 2
    files[0].write_bytes(b"of another size")
    disk = FaultyDisk(tmp_path)
    store = open_store(tmp_path, disk=disk, clock=clock, **two_pages)  # builds the index again, and syncs none of it
    assert_keys(store, list(range(100)))
    store.abandon()
    disk.crash(Random(seed))
    store = open_store(tmp_path, disk=disk, clock=clock, **two_pages)
    assert store.last_exit is LastExit.CRASHED
    assert_keys(store, list(range(100)))
    store.close()


@pytest.mark.parametrize("seed", range(12))
def test_a_power_cut_that_keeps_pages_at_random_leaves_a_consistent_store(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    disk = FaultyDisk(tmp_path)
    clock = ManualClock()
    written = 0
    for _ in range(3):
        store = open_store(tmp_path, disk=disk, clock=clock, segment_bytes=16_384, queue_file_bytes=8000)
        written = len(numbers(store))
        flushed = written
        for number in range(written, written + 150):
            put(store, queue_id=random.randrange(2), body=body(number), KEYS=f"k{number}")
            clock.advance(ms=random.randrange(2000))
            if random.random() < 0.02:
                store.flush()
                flushed = number + 1
            elif random.random() < 0.05:
                store.dispatch()
                store.queues.write_out()
        store.abandon()
        disk.crash(random)
        store = open_store(tmp_path, disk=disk, clock=clock, segment_bytes=16_384, queue_file_bytes=8000)
        found = numbers(store)
        assert found[:flushed] == list(range(flushed)), "flushed and lost"
        assert len(set(found)) == len(found)
        for queue_id in (0, 1):
            offsets = [decode_record(r).queue_offset for r in _records(store, queue_id)]
            assert offsets == sorted(set(offsets))
        assert_keys(store, found)
        # What comes behind a hole is kept but leaves gaps in the numbering; start afresh from a dense store.
        shutil.rmtree(tmp_path) if found != list(range(len(found))) else None
        store.abandon()
        disk = FaultyDisk(tmp_path)


def _records(store: Store, queue_id: int) -> list[memoryview]:
    found: list[memoryview] = []
    at = store.queue_range("T", queue_id).min_offset
    while at < store.queue_range("T", queue_id).max_offset:
        result = store.read("T", queue_id, at, max_count=1)
        found += result.buffers
        at = result.next_offset
    return found


def test_the_record_crc_finds_damage_that_the_body_crc_does_not(tmp_path: Path) -> None:
    for verify in (False, True):
        shutil.rmtree(tmp_path, ignore_errors=True)
        store = open_store(tmp_path, record_crc=True)
        appended = [put(store, body=body(number)) for number in range(3)]
        store.close()
        patch(tmp_path, appended[1].commit_log_offset + 16, b"\1")  # the application's flag
        store = open_store(tmp_path, record_crc=True, verify_record_crc=verify)
        assert numbers(store) == ([0, 2] if verify else [0, 1, 2])
        store.close()


def test_synchronous_flush_starts_with_everything_it_finds_visible(tmp_path: Path, last_exit: str) -> None:
    leave(tmp_path, last_exit)
    store = open_store(tmp_path, flush_mode=FlushMode.SYNC)
    assert numbers(store) == list(range(60))
    store.close()


def test_a_sparse_log_file_is_reserved_before_anything_is_stored_in_it(tmp_path: Path) -> None:
    """Java leaves its files sparse; a store through the map into a hole of a full disk would kill the process."""
    write_store(tmp_path, 5)
    path = tmp_path / "commitlog" / segment_name(0)
    data = path.read_bytes()
    path.unlink()
    with path.open("wb") as file:
        file.truncate(SEGMENT)
        file.write(data[:2000])
    disk = FaultyDisk(tmp_path)
    store = open_store(tmp_path, disk=disk)
    disk.faults.space_left = 0
    with pytest.raises(StoreFull):
        put(store, queue_id=1, body=body(5))
    assert numbers(store) == list(range(5))
    disk.faults.space_left = None
    put(store, queue_id=1, body=body(5))
    assert numbers(store) == list(range(6))
    store.close()


def test_light_queues_come_back(tmp_path: Path) -> None:
    store = open_store(tmp_path, light_queues=True)
    for number in range(5):
        properties = encode_properties({"INNER_MULTI_DISPATCH": "%LMQ%a"})
        store.append("T", 0, body(number), properties, BORN_AT_MS, BORN_HOST)
    store.dispatch()
    store.abandon()
    store = open_store(tmp_path, light_queues=True)
    assert [int(found) for found in bodies(store, "%LMQ%a")] == list(range(5))
    put(store, properties=encode_properties({"INNER_MULTI_DISPATCH": "%LMQ%a"}))
    assert len(bodies(store, "%LMQ%a")) == 6
    assert store.delete_topic("%LMQ%a") == 1
    store.close()


def test_every_step_of_a_start_may_find_the_disk_full(tmp_path: Path) -> None:
    original = tmp_path / "original"
    write_store(original, clean=False)
    shutil.rmtree(original / "consumequeue")
    failures = 0
    for steps in range(100):
        directory = tmp_path / str(steps)
        shutil.copytree(original, directory)
        disk = FaultyDisk(directory)
        disk.faults.steps_until_full = steps
        full = _open_and_flush(directory, disk)
        disk.faults.steps_until_full = None
        store = open_store(directory, disk=disk)
        assert numbers(store) == list(range(60))
        store.close()
        if full is None:
            break
        assert "No space left" in full.message
        failures += 1
    assert failures > 5


def _open_and_flush(directory: Path, disk: FaultyDisk) -> StorageError | None:
    try:
        store = open_store(directory, disk=disk)
    except StorageError as error:
        return error
    try:
        store.flush()
    except StorageError as error:
        return error
    finally:
        store.abandon()
    return None


@pytest.mark.parametrize("end", ["close", "abandon"])
def test_a_queue_with_a_negative_number_is_loaded_as_apaches_broker_does(tmp_path: Path, end: str) -> None:
    for starts in range(
        3
    ):  # passed over, its directory would be in the way of its entries, and nothing be taken any more
        store = open_store(tmp_path)
        assert store.queue_range("T", -3) == (0, starts)
        put(store, queue_id=-3)
        store.flush()
        assert not store.health.refuses_writes
        getattr(store, end)()
