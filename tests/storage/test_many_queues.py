"""Starting and stopping with many queues: by what is asked of the disk, not by time."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from orbitmq.errors import StorageError
from orbitmq.storage.files import FileStat, LocalDisk
from orbitmq.storage.open_files import PAGE_BYTES, MappedFile, PlainFile
from tests.storage.store_kit import open_store, put

if TYPE_CHECKING:
    from pathlib import Path


class CountingDisk(LocalDisk):
    """Counts what it is asked for, by path."""

    def __init__(self) -> None:
        super().__init__()
        self.lists: Counter[Path] = Counter()
        self.reads: Counter[Path] = Counter()
        self.syncs: Counter[Path] = Counter()

    def list(self, path: Path) -> list[FileStat]:
        self.lists[path] += 1
        return super().list(path)

    def open(self, path: Path, *, writable: bool = False) -> PlainFile:
        return _CountedFile(self, super().open(path, writable=writable).path, writable=writable)

    def create_sparse(self, path: Path, size: int) -> PlainFile:
        super().create_sparse(path, size).close()
        return self.open(path, writable=True)


class _CountedFile(PlainFile):
    __slots__ = ("_disk",)

    def __init__(self, disk: CountingDisk, path: Path, *, writable: bool) -> None:
        super().__init__(path, disk._pool, writable=writable)
        self._disk = disk

    def pread(self, size: int, offset: int) -> bytes:
        self._disk.reads[self.path] += 1
        return super().pread(size, offset)

    def sync(self) -> None:
        self._disk.syncs[self.path] += 1
        super().sync()


def test_a_clean_start_looks_at_each_queue_once_or_twice_and_a_stop_syncs_what_was_written(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_bytes=1 << 20, queue_file_bytes=20_000)
    for number in range(100):
        for _ in range(3):
            put(store, f"T{number // 4}", number % 4)
    store.close()
    disk = CountingDisk()
    store = open_store(tmp_path, disk=disk, segment_bytes=1 << 20, queue_file_bytes=20_000)
    assert len(store.queues.queues) == 100
    assert set(store.queue_ranges().values()) == {(0, 3)}
    files = [path for path in disk.reads if "consumequeue" in path.parts]
    assert len(files) == 100
    assert max(disk.reads[path] for path in files) <= 2, "one look at load, one to tell known records from others"
    assert max(disk.lists.values()) == 1
    written = [("T0", 0), ("T9", 1), ("T24", 3)]
    for topic, queue_id in written:
        put(store, topic, queue_id)
    store.close()
    synced = {(path.parent.parent.name, int(path.parent.name)) for path in disk.syncs if "consumequeue" in path.parts}
    assert synced == set(written)


class SparseDisk(LocalDisk):
    """Gives new files no blocks, so that a big store can be made quickly. Nobody here fills the disk."""

    def allocate(self, path: Path, size: int, *, reserve: int | None = None) -> MappedFile:
        return super().allocate(path, size, reserve=PAGE_BYTES)


def test_a_clean_start_of_a_big_store_goes_over_its_last_file_only(tmp_path: Path) -> None:
    disk, gigabyte = SparseDisk(), 1 << 30
    store = open_store(tmp_path, disk=disk, segment_bytes=gigabyte)
    for number in range(50):
        put(store, "T", number % 8)
        store.log._roll()
    for number in range(100):
        put(store, "T", number % 8)
    store.close()
    again = open_store(tmp_path, disk=disk, segment_bytes=gigabyte)
    assert again.log.end > 50 * gigabyte
    assert again.recovered.records == 100
    assert sum(queue.max_offset for queue in again.queue_ranges().values()) == 150
    again.close()


def test_many_queues_are_synced_by_several_threads_and_a_failure_is_told(tmp_path: Path) -> None:
    class FailsForOne(CountingDisk):
        def sync_directory(self, path: Path) -> None:
            if path.parts[-2:] == ("T7", "2") and failing:
                raise StorageError("this one fails")
            super().sync_directory(path)

    failing, disk = True, FailsForOne()
    store = open_store(tmp_path, disk=disk, segment_bytes=1 << 20)
    for number in range(100):
        put(store, f"T{number // 4}", number % 4)
    with pytest.raises(StorageError, match="this one fails"):
        store.flush()
    failing = False
    store.flush()
    assert len(disk.syncs) >= 100
    store.close()
    again = open_store(tmp_path, segment_bytes=1 << 20)
    assert again.queue_range("T7", 2) == (0, 1)
    again.close()
