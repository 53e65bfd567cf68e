from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.clock import ManualClock
from orbitmq.storage.config import StorageConfig
from orbitmq.storage.key_index import KeyIndex
from orbitmq.storage.retention import Retention
from orbitmq.storage.segmented_log import SegmentedLog
from tests.storage.faulty_disk import FaultyDisk

if TYPE_CHECKING:
    from pathlib import Path

HOUR = 3_600_000
SIZE = 4096


class Place:
    """A log of ten files, the oldest ten hours old, the next nine, ..., and everything around it."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.clock = ManualClock()
        self.disk = FaultyDisk(directory)
        self.disk.faults.used_percent = 10
        plain = StorageConfig(
            directory=directory, segment_bytes=SIZE, keep_hours=5, delete_at_hours=(self.other_hour(),)
        )
        self.config = replace(plain, **settings)
        self.log = SegmentedLog(self.disk, self.config.commit_log_path, SIZE)
        for number in range(10):
            segment = self.log.roll()
            at = (self.clock.now_ms() - (10 - number) * HOUR) / 1000
            os.utime(segment.file.path, (at, at))
        self.keys = KeyIndex(self.disk, self.config.index_path, self.clock, slots=4, entries=5)
        for number in range(10):
            self.keys.put(number * SIZE, 1000 + number, "t", f"k{number}", None)
        self.followed: list[int] = []
        self.pauses: list[float] = []
        self.retention = self.new_retention()

    def new_retention(self) -> Retention:
        return Retention(self.disk, self.config, self.clock, self.log, [self, self.keys], self.pauses.append)

    def delete_below(self, log_start: int) -> int:
        self.followed.append(log_start)
        return 1

    def hour(self) -> int:
        return datetime.fromtimestamp(self.clock.now_ms() / 1000, UTC).astimezone().hour

    def other_hour(self) -> int:
        return (self.hour() + 12) % 24

    def numbers_left(self) -> list[int]:
        return [segment.start // SIZE for segment in self.log.segments]


def test_nothing_goes_outside_the_hours_while_there_is_room(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert place.retention.clean().deleted == []
    assert place.numbers_left() == list(range(10))
    assert place.followed == []


def test_expired_files_go_in_the_hours_of_deletion_and_the_indexes_follow(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.config = replace(place.config, delete_at_hours=(place.hour(),))
    place.retention = place.new_retention()
    done = place.retention.clean()
    assert done.deleted == [number * SIZE for number in range(6)], "ten to five hours old"
    assert place.numbers_left() == [6, 7, 8, 9]
    assert place.followed == [6 * SIZE]
    assert done.index_files == 2, "one of ours, and the key file that ended at record 3"
    assert place.keys.find("t", "k3", 9, 0, 2**62).offsets == []
    assert place.keys.find("t", "k9", 9, 0, 2**62).offsets == [9 * SIZE]
    assert not done.forced
    place.retention.clean()
    assert place.followed == [6 * SIZE], "indexes follow only when the log moved"


def test_expired_files_go_at_any_hour_when_the_disk_is_above_the_first_mark(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.disk.faults.used_percent = 75
    assert place.retention.clean().deleted == []
    place.disk.faults.used_percent = 76
    assert len(place.retention.clean().deleted) == 6
    assert place.retention.clean().deleted == [], "unexpired ones stay"
    assert not place.retention.disk_full


def test_above_the_second_mark_the_oldest_go_though_not_expired_but_never_the_last(tmp_path: Path) -> None:
    place = Place(tmp_path, keep_hours=1000, delete_at_most=4)
    place.disk.faults.used_percent = 86
    assert [len(place.retention.clean().deleted) for _ in range(4)] == [4, 4, 1, 0]
    assert place.numbers_left() == [9]
    assert not place.retention.disk_full


def test_forcing_can_be_switched_off(tmp_path: Path) -> None:
    place = Place(tmp_path, keep_hours=1000, clean_forcibly=False)
    place.disk.faults.used_percent = 99
    assert place.retention.clean().deleted == []
    assert place.retention.disk_full


def test_above_the_third_mark_writing_is_refused_until_use_is_back_below_the_second(tmp_path: Path) -> None:
    place = Place(tmp_path, keep_hours=1000)
    seen = []
    for percent in (90, 91, 89, 86, 85, 88, 91):
        place.disk.faults.used_percent = percent
        place.retention.measure()
        seen.append(place.retention.disk_full)
    assert seen == [False, True, True, True, False, False, True]


def test_a_round_takes_a_batch_and_pauses_between_files(tmp_path: Path) -> None:
    place = Place(tmp_path, delete_at_most=3, delete_pause_ms=250)
    place.retention.ask()
    assert len(place.retention.clean().deleted) == 3
    assert place.pauses == [0.25, 0.25]
    assert len(place.retention.clean().deleted) == 3
    assert place.retention.clean().deleted == []


def test_a_request_to_clean_holds_twenty_rounds(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.retention.ask()
    assert len(place.retention.clean().deleted) == 6
    place.clock.advance(minutes=60)
    for _ in range(18):
        place.retention.clean()
    assert place.numbers_left() == [7, 8, 9]
    place.retention.clean()
    place.clock.advance(minutes=60)
    assert place.retention.clean().deleted == [], "the twenty rounds are over"


@pytest.mark.parametrize(("setting", "percent"), [(1, 11), (99, 96)])
def test_the_first_mark_stays_within_bounds(tmp_path: Path, setting: int, percent: int) -> None:
    place = Place(tmp_path, disk_clean_percent=setting, clean_forcibly=False)
    place.disk.faults.used_percent = percent - 1
    assert place.retention.clean().deleted == []
    place.disk.faults.used_percent = percent
    assert len(place.retention.clean().deleted) == 6


def test_the_other_marks_stay_within_bounds(tmp_path: Path) -> None:
    place = Place(tmp_path, disk_force_percent=100, disk_refuse_percent=100, keep_hours=1000)
    place.disk.faults.used_percent = 91
    assert place.retention.clean().forced
    assert place.retention.disk_full


def test_a_view_of_a_deleted_file_stays_readable(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.log.segments[0].memory[:5] = b"hello"
    view = place.log.slice(0, 5)
    assert view is not None
    place.disk.faults.used_percent = 86
    place.retention.clean()
    assert place.log.start > 0
    assert bytes(view) == b"hello"


def test_a_file_somebody_else_removed_counts_as_expired(tmp_path: Path) -> None:
    place = Place(tmp_path, keep_hours=1000)
    place.log.segments[0].file.path.unlink()
    place.retention.ask()
    assert place.retention.clean().deleted == [0]


def test_after_a_power_cut_no_file_is_back_whose_entries_are_gone(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.retention.ask()
    place.retention.clean()
    place.disk.sync_directory(place.config.index_path)
    place.disk.crash()
    assert SegmentedLog(place.disk, place.config.commit_log_path, SIZE).start == 6 * SIZE
