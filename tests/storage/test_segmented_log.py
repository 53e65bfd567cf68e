from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitmq.errors import StoreCorrupt, StoreFull
from orbitmq.storage.files import Disk, LocalDisk
from orbitmq.storage.segmented_log import Segment, SegmentedLog, segment_name
from tests.storage.faulty_disk import FaultyDisk

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.storage.open_files import MappedFile

SIZE = 4096


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def with_files(directory: Path, count: int, disk: Disk | None = None) -> SegmentedLog:
    log = SegmentedLog(disk or LocalDisk(), directory, SIZE)
    for number in range(count):
        log.roll().memory[:1] = b"%d" % number
    return log


def test_an_empty_log_has_no_offsets(tmp_path: Path) -> None:
    log = SegmentedLog(LocalDisk(), tmp_path / "none", SIZE)
    assert (log.start, log.end, log.last, log.segments) == (0, 0, None, ())
    assert log.segment_of(0) is None
    assert log.slice(0, 10) is None
    assert log.delete_oldest() is None


def test_files_are_named_by_their_first_offset_in_twenty_digits(tmp_path: Path) -> None:
    with_files(tmp_path, 3)
    assert names(tmp_path) == ["00000000000000000000", "00000000000000004096", "00000000000000008192"]
    assert segment_name(1 << 30) == "00000000001073741824"


def test_an_offset_finds_its_file_and_a_slice_stops_at_its_end(tmp_path: Path) -> None:
    log = with_files(tmp_path, 3)
    assert [log.segment_of(offset) for offset in (0, 4095, 4096, 12287)] == [log.segments[i] for i in (0, 0, 1, 2)]
    assert log.segment_of(-1) is None
    assert log.segment_of(12288) is None
    view = log.slice(8192, 10)
    assert view is not None
    assert bytes(view) == b"2" + bytes(9)
    tail = log.slice(4090, 100)
    assert tail is not None
    assert len(tail) == 6


def test_what_was_written_is_there_after_loading_again(tmp_path: Path) -> None:
    with_files(tmp_path, 3).close()
    log = SegmentedLog(LocalDisk(), tmp_path, SIZE, writable=False)
    assert (log.start, log.end) == (0, 3 * SIZE)
    assert [bytes(segment.memory[:1]) for segment in log.segments] == [b"0", b"1", b"2"]


def test_an_empty_last_file_is_removed_and_only_the_last(tmp_path: Path) -> None:
    with_files(tmp_path, 2).close()
    (tmp_path / segment_name(2 * SIZE)).touch()
    assert SegmentedLog(LocalDisk(), tmp_path, SIZE, writable=False).end == 2 * SIZE
    assert len(names(tmp_path)) == 3, "a reader removes nothing"
    assert SegmentedLog(LocalDisk(), tmp_path, SIZE).end == 2 * SIZE
    assert len(names(tmp_path)) == 2
    (tmp_path / segment_name(0)).write_bytes(b"")
    with pytest.raises(StoreCorrupt, match="has 0 bytes"):
        SegmentedLog(LocalDisk(), tmp_path, SIZE)


@pytest.mark.parametrize("stray", ["README", ".x", "123", "0000000000000000000x", "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠"])
def test_a_stray_file_is_refused_by_name(tmp_path: Path, stray: str) -> None:
    with_files(tmp_path, 1).close()
    (tmp_path / stray).write_bytes(bytes(SIZE))
    with pytest.raises(StoreCorrupt, match=stray):
        SegmentedLog(LocalDisk(), tmp_path, SIZE)


def test_an_empty_file_that_is_no_segment_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "README").touch()
    with pytest.raises(StoreCorrupt, match="README"):
        SegmentedLog(LocalDisk(), tmp_path, SIZE)
    assert (tmp_path / "README").exists()


def test_a_reader_passes_over_what_is_no_segment(tmp_path: Path) -> None:
    with_files(tmp_path, 2).close()
    (tmp_path / "README").write_bytes(b"hello")
    (tmp_path / segment_name(SIZE)).write_bytes(b"short")
    log = SegmentedLog(LocalDisk(), tmp_path, SIZE, writable=False)
    assert [segment.start for segment in log.segments] == [0]


def test_a_reader_sees_files_come_and_go(tmp_path: Path) -> None:
    log = with_files(tmp_path, 2)
    reader = SegmentedLog(LocalDisk(), tmp_path, SIZE, writable=False)
    first, second = reader.segments
    log.roll()
    log.delete_oldest()
    reader.reload()
    assert [segment.start for segment in reader.segments] == [SIZE, 2 * SIZE]
    assert reader.segments[0] is second
    assert bytes(first.memory[:1]) == b"0"


def test_sub_directories_are_ignored(tmp_path: Path) -> None:
    with_files(tmp_path, 1).close()
    (tmp_path / "sub").mkdir()
    assert SegmentedLog(LocalDisk(), tmp_path, SIZE).end == SIZE


def test_a_file_of_another_length_is_refused(tmp_path: Path) -> None:
    with_files(tmp_path, 2).close()
    with pytest.raises(StoreCorrupt, match="has 4096 bytes where 8192"):
        SegmentedLog(LocalDisk(), tmp_path, 8192)


def test_around_a_missing_middle_file_the_rest_is_served(tmp_path: Path) -> None:
    with_files(tmp_path, 4).close()
    (tmp_path / segment_name(SIZE)).unlink()
    log = SegmentedLog(LocalDisk(), tmp_path, SIZE)
    assert log.gaps() == [(SIZE, 2 * SIZE)]
    assert log.segment_of(SIZE) is None
    found = [log.segment_of(offset) for offset in (0, 2 * SIZE, 4 * SIZE - 1)]
    assert [segment.start if segment else None for segment in found] == [0, 2 * SIZE, 3 * SIZE]


def test_truncating_drops_later_files_only(tmp_path: Path) -> None:
    log = with_files(tmp_path, 4)
    log.truncate(SIZE + 1)
    assert names(tmp_path) == [segment_name(0), segment_name(SIZE)]
    log.truncate(SIZE)
    assert log.end == SIZE
    assert log.roll().start == SIZE


def test_the_oldest_file_can_go_while_a_reader_holds_it_but_never_the_last(tmp_path: Path) -> None:
    log = with_files(tmp_path, 2)
    view = log.slice(0, 1)
    assert view is not None
    gone = log.delete_oldest()
    assert gone is not None
    assert (gone.start, log.start) == (0, SIZE)
    assert bytes(view) == b"0"
    assert log.slice(0, 1) is None
    assert log.delete_oldest() is None
    assert names(tmp_path) == [segment_name(SIZE)]


def test_a_log_can_start_at_a_later_offset(tmp_path: Path) -> None:
    log = SegmentedLog(LocalDisk(), tmp_path, SIZE)
    assert log.start_at(3 * SIZE + 5).start == 3 * SIZE
    assert log.roll().start == 4 * SIZE


def test_the_next_file_is_made_ahead_and_a_clean_stop_removes_it(tmp_path: Path) -> None:
    log = SegmentedLog(LocalDisk(), tmp_path, SIZE, prepare_ahead=True, warm_up=True)
    for _ in range(5):
        log.roll()
    log.close(written_to=5 * SIZE)
    assert names(tmp_path) == [segment_name(SIZE * number) for number in range(5)]


def test_files_without_content_go_at_a_clean_stop_but_the_first_stays(tmp_path: Path) -> None:
    with_files(tmp_path, 4).close(written_to=SIZE + 7)
    assert len(names(tmp_path)) == 2
    SegmentedLog(LocalDisk(), tmp_path, SIZE).close(written_to=0)
    assert len(names(tmp_path)) == 1


class CountingDisk(LocalDisk):
    """Tells which thread made which file."""

    def __init__(self) -> None:
        super().__init__()
        self.made_by: list[str] = []
        self.made = threading.Semaphore(0)

    def allocate(self, path: Path, size: int, *, reserve: int | None = None) -> MappedFile:
        self.made_by.append(threading.current_thread().name)
        file = super().allocate(path, size, reserve=reserve)
        self.made.release()
        return file


def test_rolling_uses_the_file_the_thread_made(tmp_path: Path) -> None:
    disk = CountingDisk()
    log = SegmentedLog(disk, tmp_path, SIZE, prepare_ahead=True)
    log.roll()
    assert disk.made.acquire(timeout=30)
    assert disk.made.acquire(timeout=30)
    log.roll()
    log.roll()
    log.close(written_to=log.end)
    here = threading.current_thread().name
    assert disk.made_by[0] == here
    assert here not in disk.made_by[1:]


def test_cutting_back_discards_the_file_made_ahead(tmp_path: Path) -> None:
    log = SegmentedLog(LocalDisk(), tmp_path, SIZE, prepare_ahead=True)
    for _ in range(3):
        log.roll()
    log.truncate(1)
    assert names(tmp_path) == [segment_name(0)]
    assert log.roll().start == SIZE
    log.close(written_to=log.end)


def test_a_full_disk_leaves_the_log_as_it_was_and_rolling_works_once_there_is_room(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    log = SegmentedLog(disk, tmp_path, SIZE, prepare_ahead=True)
    disk.faults.space_left = SIZE
    log.roll()
    for _ in range(3):
        with pytest.raises(StoreFull):
            log.roll()
    assert log.end == SIZE
    disk.faults.space_left = None
    assert log.roll().start == SIZE
    log.close(written_to=log.end)


def test_syncing_a_range_makes_it_survive_a_power_cut(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    log = with_files(tmp_path, 3, disk)
    log.sync(0, SIZE + 1)
    disk.crash()
    log = SegmentedLog(disk, tmp_path, SIZE)
    assert [bytes(segment.memory[:1]) for segment in log.segments] == [b"0", b"1", b"\0"]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["roll", "delete", "truncate"]), max_size=12), st.data())
def test_any_history_gives_a_run_of_files_that_matches_the_directory(
    tmp_path_factory: pytest.TempPathFactory, history: list[str], data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("log")
    log = SegmentedLog(LocalDisk(), directory, 64, prepare_ahead=True)
    model: list[int] = []
    for step in history:
        if step == "roll":
            model.append(model[-1] + 64 if model else 0)
            assert log.roll().start == model[-1]
        elif step == "delete":
            log.delete_oldest()
            model = model[1:] if len(model) > 1 else model
        else:
            cut = data.draw(st.integers(0, 800))
            log.truncate(cut)
            model = [start for start in model if start < cut]
        assert [segment.start for segment in log.segments] == model
        for offset in range(0, 800, 32):
            found: Segment | None = log.segment_of(offset)
            assert (found is not None) == any(start <= offset < start + 64 for start in model)
    log.stop_preparing()
    assert names(directory) == [segment_name(start) for start in model]
    log.close()
