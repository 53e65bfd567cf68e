"""What a power cut may take is what was never synced, by whichever process it was written."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from orbitmq.clock import ManualClock
from orbitmq.storage.lock import LastExit
from orbitmq.storage.store import Store
from tests.crash.workload import HOST, config
from tests.storage.faulty_disk import FaultyDisk

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("thorough", [False, True])
def test_entries_of_a_killed_process_are_synced_before_the_checkpoint_vouches_for_them(
    tmp_path: Path, thorough: bool
) -> None:
    disk, clock = FaultyDisk(tmp_path), ManualClock()
    settings = replace(config(tmp_path), prepare_next_segment=False, segment_bytes=16_384)
    store = Store(settings, HOST, clock=clock, disk=disk)
    for number in range(100):
        store.append("T", number % 3, b"x" * 300, b"UNIQ_KEY\x01u%d\x02" % number, 1, HOST)
        clock.advance(seconds=1)
    store.dispatch()
    store._index_flusher.flush(thorough=thorough)
    store.abandon()
    store = Store(settings, HOST, clock=clock, disk=disk)
    assert store.last_exit is LastExit.KILLED
    for _ in range(60):
        store.append("T", 0, b"y" * 300, b"", 1, HOST)
        clock.advance(seconds=100)
    store.flush()
    disk.crash()
    store = Store(settings, HOST, clock=clock, disk=disk)
    assert store.last_exit is LastExit.CRASHED
    ranges = store.queue_ranges("T")
    assert [ranges["T", queue_id].max_offset for queue_id in range(3)] == [34 + 60, 33, 33]
    found = [store.find_by_key("T", f"u{number}").records for number in range(100)]
    assert all(len(records) == 1 for records in found)
    store.close()


def test_behind_the_first_of_several_holes_nothing_counts(tmp_path: Path) -> None:
    """The end of one file and the start of the next were lost, what follows was not: it was never synced either."""
    disk, clock = FaultyDisk(tmp_path), ManualClock()
    settings = replace(config(tmp_path), prepare_next_segment=False, segment_bytes=16_384)
    store = Store(settings, HOST, clock=clock, disk=disk)
    store.append("T", 0, b"safe", b"", 1, HOST)
    store.flush()
    clock.advance(seconds=10)
    while store.log.end < 2.5 * settings.segment_bytes:
        store.append("T", 0, b"x" * 300, b"", 1, HOST)
    kept = store.log.files.segments[0].memory
    first, second = settings.segment_bytes - 4096, 4096
    torn = bytes(kept[first - 200 : first])
    kept[first:] = bytes(4096)
    store.log.files.segments[1].memory[:second] = bytes(second)
    for segment in store.log.files.segments:
        segment.file.sync()
    assert any(torn)
    disk.crash()
    store = Store(settings, HOST, clock=clock, disk=disk)
    assert store.last_exit is LastExit.CRASHED
    assert store.log.end <= first
    assert not any(store.log.files.segments[0].memory[store.log.end :])
    assert len(store.log.files.segments) == 1
    assert store.queue_range("T", 0).max_offset == store.recovered.records
    store.close()
