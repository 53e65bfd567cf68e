from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitmq.errors import StoreCorrupt, StoreFull
from orbitmq.storage.batch_queue_index import BatchQueueIndex
from orbitmq.storage.entry_log import EntryFiles, EntryLog, load_entry_files
from orbitmq.storage.files import LocalDisk
from orbitmq.storage.open_files import PAGE_BYTES, PlainFile
from orbitmq.storage.queue_index import ENTRY, NOWHERE, QueueIndex, valid_entries
from orbitmq.storage.queue_table import QueueTable
from orbitmq.storage.segmented_log import segment_name
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.store_kit import small_config

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.storage.files import Disk

PER_FILE = 10  # small_config: 200 bytes a file
RECORD = 100  # bytes of every record here


def new_table(directory: Path, disk: Disk | None = None) -> QueueTable:
    return QueueTable(disk or LocalDisk(), small_config(directory), lambda _topic: False)


def new_queue(table: QueueTable) -> QueueIndex:
    queue = table.open("T", 0)
    assert isinstance(queue, QueueIndex)
    return queue


def fill(queue: QueueIndex, count: int, first: int = 0, physical: int | None = None) -> None:
    for number in range(first, first + count):
        at = number * RECORD if physical is None else physical + (number - first) * RECORD
        assert queue.put(number, at, RECORD, number * 7)


def write(table: QueueTable) -> None:
    table.touched(table.queues.values())
    table.write_out()
    table.sync()


def reloaded(directory: Path, *, trust: bool = True, disk: Disk | None = None) -> QueueIndex:
    table = new_table(directory, disk)
    table.load(trust=trust)
    queue = table.queues[("T", 0)]
    assert isinstance(queue, QueueIndex)
    return queue


def offsets(queue: QueueIndex) -> list[int]:
    """Log offsets of all entries, NOWHERE as -1."""
    found: list[int] = []
    for number in range(queue.log.first, queue.next_offset):
        physical, size, _ = queue.entry(number)
        found.append(-1 if ENTRY.pack(physical, size, 0) == NOWHERE else physical)
    return found


def test_entry_q_stands_at_byte_20_q_of_files_of_the_configured_length(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    fill(new_queue(table), 25)
    write(table)
    directory = tmp_path / "consumequeue" / "T" / "0"
    names = ["00000000000000000000", "00000000000000000200", "00000000000000000400"]
    assert sorted(path.name for path in directory.iterdir()) == names
    data = b"".join((directory / name).read_bytes() for name in names)
    assert data == b"".join(ENTRY.pack(n * RECORD, RECORD, n * 7) for n in range(25)) + bytes(5 * 20)


@pytest.mark.parametrize("written", [0, 5, 10, 13, 25])
def test_entries_are_read_from_memory_and_from_files_alike(tmp_path: Path, written: int) -> None:
    table = new_table(tmp_path)
    queue = new_queue(table)
    fill(queue, written)
    write(table)
    fill(queue, 25 - written, written)
    assert offsets(queue) == [n * RECORD for n in range(25)]
    for number in range(25):
        data = queue.entries(number, 4)
        got = [entry[0] // RECORD for entry in ENTRY.iter_unpack(data)]
        assert got == list(range(number, number + len(got)))
        assert got
    assert queue.entries(25, 4) == b""


def test_writing_out_while_entries_arrive_loses_none(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    queue = new_queue(table)
    fill(queue, 7)
    first, data = queue.log.unwritten()
    fill(queue, 6, 7)
    queue.log.files.write(first * 20, data)
    queue.log.mark_written(first, len(data))
    assert (queue.log.written, queue.next_offset) == (7, 13)
    assert offsets(queue) == [n * RECORD for n in range(13)]


def test_the_same_record_again_changes_nothing(tmp_path: Path) -> None:
    queue = new_queue(new_table(tmp_path))
    fill(queue, 5)
    for number in range(5):
        assert not queue.put(number, number * RECORD, RECORD, 0)
    assert queue.next_offset == 5


@pytest.mark.parametrize("trust", [True, False])
@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 30, 35])
def test_the_end_is_found_again(tmp_path: Path, count: int, trust: bool) -> None:
    table = new_table(tmp_path)
    fill(new_queue(table), count)
    write(table)
    if count:
        queue = reloaded(tmp_path, trust=trust)
        assert (queue.next_offset, queue.max_physical) == (count, count * RECORD)
        assert offsets(queue) == [n * RECORD for n in range(count)]
    else:
        table = new_table(tmp_path)
        table.load(trust=trust)
        assert table.queues == {}


def test_after_a_crash_the_end_is_before_the_first_hole(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    fill(new_queue(table), 25)
    write(table)
    path = tmp_path / "consumequeue" / "T" / "0" / "00000000000000000200"
    data = bytearray(path.read_bytes())
    data[3 * 20 : 5 * 20] = bytes(40)
    path.write_bytes(data)
    queue = reloaded(tmp_path, trust=False)
    assert queue.next_offset == 13
    assert not path.with_name("00000000000000000400").exists()
    fill(queue, 3, 13)
    assert offsets(queue) == [n * RECORD for n in range(16)]


@given(st.lists(st.tuples(st.integers(-2, 5), st.integers(-2, 5)), max_size=30))
def test_counting_valid_entries_agrees_with_looking_at_each(entries: list[tuple[int, int]]) -> None:
    data = b"".join(ENTRY.pack(physical, size, -1) for physical, size in entries)
    good = 0
    for physical, size in entries:
        if physical < 0 or size <= 0:
            break
        good += 1
    assert valid_entries(data) == good


@pytest.mark.parametrize("first", [3, 10, 17, 25])
def test_a_queue_that_begins_late_has_entries_that_lead_nowhere_before_its_first(tmp_path: Path, first: int) -> None:
    table = new_table(tmp_path)
    queue = new_queue(table)
    fill(queue, 4, first)
    assert (queue.min_offset, queue.next_offset) == (first, first + 4)
    write(table)
    again = reloaded(tmp_path, trust=False)
    blank = first % PER_FILE
    assert again.log.first == first - blank
    assert offsets(again) == [-1] * blank + [n * RECORD for n in range(first, first + 4)]
    again.correct_min(0)
    assert again.min_offset == first


@pytest.mark.parametrize("gap", [1, 4, 5, 6, 20, 31])
def test_where_messages_are_missing_the_others_keep_their_numbers(tmp_path: Path, gap: int) -> None:
    table = new_table(tmp_path)
    queue = new_queue(table)
    fill(queue, 5)
    fill(queue, 3, 5 + gap)
    write(table)
    for found in (queue, reloaded(tmp_path)):
        assert found.next_offset == 8 + gap
        assert [found.entry(number)[0] for number in (0, 4, 5 + gap, 7 + gap)] == [
            number * RECORD for number in (0, 4, 5 + gap, 7 + gap)
        ]
        assert found.search(lambda physical, _size: physical < (5 + gap) * RECORD) <= 5 + gap
        found.correct_min(5 * RECORD)
        assert found.min_offset == 5 + gap


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("keep", [0, 1, 9, 10, 11, 20, 24, 25])
def test_cutting_the_log_takes_back_entries_and_clears_them(tmp_path: Path, keep: int, written: bool) -> None:
    table = new_table(tmp_path)
    queue = new_queue(table)
    fill(queue, 25)
    if written:
        write(table)
    queue.truncate(keep * RECORD)
    assert (queue.next_offset, queue.max_physical) == (keep, keep * RECORD if keep else -1)
    fill(queue, 2, keep)
    write(table)
    again = reloaded(tmp_path, trust=False)
    assert offsets(again) == [n * RECORD for n in range(keep + 2)]


def test_cutting_also_takes_back_entries_that_lead_nowhere_before_the_cut(tmp_path: Path) -> None:
    queue = new_queue(new_table(tmp_path))
    fill(queue, 3)
    fill(queue, 3, 6)
    queue.truncate(6 * RECORD)
    assert queue.next_offset == 3


@settings(max_examples=30)
@given(start=st.integers(0, 30), count=st.integers(1, 40), log_start=st.integers(0, 80 * RECORD))
def test_the_minimum_is_the_first_entry_whose_record_exists(
    tmp_path_factory: pytest.TempPathFactory, start: int, count: int, log_start: int
) -> None:
    table = new_table(tmp_path_factory.mktemp("queue"))
    queue = new_queue(table)
    fill(queue, count, start)
    queue.correct_min(log_start)
    alive = [n for n in range(start, start + count) if n * RECORD >= log_start]
    assert queue.min_offset == (alive[0] if alive else start + count)


def test_files_that_lead_to_nothing_are_removed_but_never_the_last(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    queue = new_queue(table)
    fill(queue, 25)
    write(table)
    assert table.delete_below(15 * RECORD) == 1
    assert (queue.min_offset, queue.log.first) == (15, 10)
    assert table.delete_below(100 * RECORD) == 1
    assert (queue.min_offset, queue.log.first, queue.next_offset) == (25, 20, 25)
    fill(queue, 1, 25)
    again = reloaded(tmp_path)
    assert (again.log.first, again.next_offset) == (20, 25)


def test_a_file_whose_last_entry_leads_nowhere_stays_while_others_of_it_lead_somewhere(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    queue = new_queue(table)
    fill(queue, 25)
    write(table)
    table.lead_nowhere(9 * RECORD, 10 * RECORD)
    assert table.delete_below(5 * RECORD) == 0
    assert (queue.min_offset, queue.log.first) == (5, 0)
    assert table.delete_below(9 * RECORD) == 1
    assert (queue.min_offset, queue.log.first) == (10, 10)


def test_a_batch_queue_finds_its_place_in_the_log_beside_entries_that_lead_nowhere(tmp_path: Path) -> None:
    table = QueueTable(LocalDisk(), small_config(tmp_path), lambda _topic: True)
    queue = table.open("T", 0)
    assert isinstance(queue, BatchQueueIndex)
    for number in range(25):
        assert queue.put(4 * number, (number + 1) * RECORD, RECORD, 0, 0, 4)
    write(table)
    for damaged in (9, 12):  # the last of a file, and where the search begins
        table.lead_nowhere((damaged + 1) * RECORD, (damaged + 2) * RECORD)
    table.correct_min(RECORD // 2)
    assert queue.min_offset == 0
    assert table.delete_below(6 * RECORD) == 0
    assert (queue.min_offset, queue.log.first) == (20, 0)
    assert list(queue.offsets_from(11 * RECORD)) == [[n * RECORD for n in range(11, 26) if n != 13]]
    assert table.delete_below(11 * RECORD) == 1
    assert queue.log.first == PER_FILE
    queue.truncate(20 * RECORD)
    assert (queue.next_offset, queue.max_physical) == (4 * 19, 20 * RECORD)


def test_entries_of_damaged_records_are_made_to_lead_nowhere(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    queue = new_queue(table)
    fill(queue, 12)
    write(table)
    fill(queue, 5, 12)
    table.lead_nowhere(9 * RECORD, 14 * RECORD)
    assert offsets(queue) == [n * RECORD for n in range(9)] + [-1] * 5 + [1400, 1500, 1600]


@pytest.mark.parametrize(("name", "size"), [("README", 3), ("00000000000000000200", 180), ("1", 200)])
def test_files_that_do_not_belong_are_refused(tmp_path: Path, name: str, size: int) -> None:
    directory = tmp_path / "consumequeue" / "T" / "0"
    directory.mkdir(parents=True)
    (directory / "00000000000000000000").write_bytes(bytes(200))
    (directory / name).write_bytes(bytes(size))
    with pytest.raises(StoreCorrupt):
        new_table(tmp_path).load(trust=True)


def test_an_empty_last_file_is_removed_and_stray_directories_are_passed_over(tmp_path: Path) -> None:
    directory = tmp_path / "consumequeue" / "T" / "0"
    directory.mkdir(parents=True)
    (directory / "00000000000000000000").write_bytes(ENTRY.pack(0, RECORD, 0) + bytes(180))
    (directory / "00000000000000000200").touch()
    (tmp_path / "consumequeue" / "stray").touch()
    (tmp_path / "consumequeue" / "T" / "not a queue").mkdir()
    table = new_table(tmp_path)
    table.load(trust=True)
    assert {key: queue.next_offset for key, queue in table.queues.items()} == {("T", 0): 1}
    assert not (directory / "00000000000000000200").exists()


def test_a_full_disk_leaves_the_entries_readable_and_the_next_try_writes_them(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    table = new_table(tmp_path, disk)
    queue = new_queue(table)
    fill(queue, 15)
    table.touched([queue])
    disk.faults.space_left = 0
    with pytest.raises(StoreFull):
        table.write_out()
    assert offsets(queue) == [n * RECORD for n in range(15)]
    disk.faults.space_left = None
    table.write_out()
    table.sync()
    assert reloaded(tmp_path, disk=disk).next_offset == 15


def test_synced_entries_survive_a_power_cut(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    table = new_table(tmp_path, disk)
    queue = new_queue(table)
    fill(queue, 12)
    write(table)
    fill(queue, 5, 12)
    table.touched([queue])
    table.write_out()
    disk.crash()
    assert reloaded(tmp_path, trust=False, disk=disk).next_offset == 12


def test_deleting_a_topic_removes_its_directories_and_nothing_else(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    for topic, queue_id in [("T", 0), ("T", 1), ("U", 0)]:
        queue = table.open(topic, queue_id)
        assert isinstance(queue, QueueIndex)
        fill(queue, 3)
    write(table)
    assert table.delete_topic("T") == 2
    assert table.delete_topic("T") == 0
    assert sorted(path.name for path in (tmp_path / "consumequeue").iterdir()) == ["U"]
    table.write_out()
    assert list(table.queues) == [("U", 0)]


def test_a_queue_deleted_while_it_was_to_be_written_does_not_come_back(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    queue = new_queue(table)
    fill(queue, 3)
    table.delete_topic("T")
    table.touched([queue])
    table.write_out()
    assert not (tmp_path / "consumequeue" / "T").exists()


@pytest.mark.parametrize("knows_holes", [True, False])
def test_entries_behind_however_long_a_lost_stretch_are_cleared_and_nothing_else_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows_holes: bool
) -> None:
    if not knows_holes:
        monkeypatch.setattr(PlainFile, "next_data", lambda self, offset: offset)
    disk, directory, file_bytes = LocalDisk(), tmp_path / "T" / "0", 6_000_000
    files = EntryFiles(disk, directory, file_bytes)
    kept = b"".join(ENTRY.pack(number * RECORD, RECORD, 7) for number in range(1000))
    islands = {first: b"".join(ENTRY.pack(first + n, RECORD, 7) for n in range(9)) for first in (2000, 40_000, 299_990)}
    files.write(0, kept)
    for first, entries in islands.items():
        files.write(first * ENTRY.size, entries)
    files.close()
    islands_at = {number * ENTRY.size // PAGE_BYTES for first in islands for number in (first, first + 8)}
    pages: set[int] = set()
    pwrite = PlainFile.pwrite

    def noted(self: PlainFile, data: bytes | bytearray | memoryview, offset: int) -> None:
        pages.update(range(offset // PAGE_BYTES, (offset + len(data) - 1) // PAGE_BYTES + 1))
        pwrite(self, data, offset)

    monkeypatch.setattr(PlainFile, "pwrite", noted)
    log = EntryLog(load_entry_files(disk, directory, file_bytes), ENTRY.size)
    log.load(valid_entries, trust=False)
    assert log.written == 1000
    assert (directory / segment_name(0)).read_bytes() == kept + bytes(file_bytes - len(kept))
    assert pages == islands_at  # a hole is left one: the disk may be full
    assert log.files.needs_sync
    log.files.close()


def test_ten_thousand_queues_need_few_descriptors_and_little_disk(tmp_path: Path) -> None:
    disk = LocalDisk(open_plain_files=50)
    files = [EntryFiles(disk, tmp_path / str(n), 6_000_000) for n in range(200)]
    for number, file in enumerate(files):
        file.write(20 * number, ENTRY.pack(number, RECORD, 0))
    for number, file in enumerate(files):
        assert ENTRY.unpack(file.read(20 * number, 20))[0] == number
    paths = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.stat().st_size for path in paths} == {6_000_000}
    assert sum(path.stat().st_blocks for path in paths) * 512 < 200 * 64 * 1024
    assert load_entry_files(disk, tmp_path / "7", 6_000_000).starts == (0,)
