from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.clock import ManualClock
from orbitmq.errors import StorageError, StoreFull
from orbitmq.storage.files import Disk, LocalDisk
from orbitmq.storage.open_files import PAGE_BYTES, MappedFile, clear_pages, storage_error
from orbitmq.storage.pages_ahead import BUSY_STEP_MS, STEP_BYTES, PagesAhead
from tests.child import child
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.store_kit import BORN_HOST, bodies, open_store

if TYPE_CHECKING:
    from collections.abc import Callable


SMAPS = Path("/proc/self/smaps")
tells_what_is_mapped = pytest.mark.skipif(not SMAPS.exists(), reason="this system does not tell what is mapped")


@pytest.fixture(params=["local", "faulty"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return LocalDisk() if request.param == "local" else FaultyDisk(tmp_path)


def test_pages_are_cleared_from_the_back_and_only_where_something_stands() -> None:
    class Noting(bytearray):
        def __setitem__(self, key: Any, value: Any) -> None:
            stored.append(key.start)
            super().__setitem__(key, value)

    stored: list[int] = []
    memory = Noting(5 * PAGE_BYTES + 10)
    for at in (0, 2 * PAGE_BYTES + 7, 5 * PAGE_BYTES + 9):
        bytearray.__setitem__(memory, at, 1)
    clear_pages(memory)
    assert not any(memory)
    assert stored == [5 * PAGE_BYTES, 2 * PAGE_BYTES, 0]
    clear_pages(bytearray())


def test_an_allocated_file_has_its_full_size_and_all_its_blocks(disk: Disk, tmp_path: Path) -> None:
    file = disk.allocate(tmp_path / "log" / "00", 1 << 20)
    status = (tmp_path / "log" / "00").stat()
    assert status.st_size == 1 << 20
    assert status.st_blocks * 512 >= 1 << 20
    assert file.memory.nbytes == 1 << 20
    assert not any(file.memory)


def test_a_file_can_be_allocated_in_part_and_the_rest_reserved_when_needed(disk: Disk, tmp_path: Path) -> None:
    file = disk.allocate(tmp_path / "index", 4 << 20, reserve=8192)
    assert file.memory.nbytes == 4 << 20
    assert (tmp_path / "index").stat().st_blocks * 512 < 1 << 20
    file.reserve(1 << 20, 1 << 20)
    assert (tmp_path / "index").stat().st_blocks * 512 >= 1 << 20
    assert (tmp_path / "index").stat().st_size == 4 << 20


def test_the_page_cache_has_an_id_that_ends_with_it(tmp_path: Path) -> None:
    assert LocalDisk().page_cache_id(tmp_path) == LocalDisk().page_cache_id(tmp_path)
    assert LocalDisk().page_cache_id(tmp_path) != LocalDisk().page_cache_id(tmp_path.parent)
    assert LocalDisk().page_cache_id(tmp_path / "nowhere") == ""
    faulty = FaultyDisk(tmp_path)
    before = faulty.page_cache_id(tmp_path)
    faulty.crash()
    assert faulty.page_cache_id(tmp_path) != before


def test_a_sparse_file_has_its_full_size_and_no_blocks(disk: Disk, tmp_path: Path) -> None:
    file = disk.create_sparse(tmp_path / "queue", 6_000_000)
    assert file.size == 6_000_000
    assert (tmp_path / "queue").stat().st_blocks == 0
    file.pwrite(b"entry", 5_999_995)
    assert file.pread(20, 5_999_990) == bytes(5) + b"entry"


def test_what_is_stored_through_the_map_is_in_the_file(disk: Disk, tmp_path: Path) -> None:
    file = disk.allocate(tmp_path / "f", 8192)
    file.memory[4090:4100] = b"0123456789"
    file.sync()
    assert (tmp_path / "f").read_bytes()[4090:4100] == b"0123456789"
    assert bytes(disk.map(tmp_path / "f").memory[4090:4100]) == b"0123456789"


def test_a_map_for_reading_cannot_be_written(disk: Disk, tmp_path: Path) -> None:
    disk.allocate(tmp_path / "f", 4096)
    with pytest.raises(TypeError):
        disk.map(tmp_path / "f").memory[0:1] = b"x"


def test_a_view_outlives_the_removal_and_the_closing_of_its_file(disk: Disk, tmp_path: Path) -> None:
    file = disk.allocate(tmp_path / "f", 4096)
    file.memory[:5] = b"hello"
    view = file.memory[:5]
    disk.remove(tmp_path / "f")
    file.close()
    del file
    gc.collect()
    assert bytes(view) == b"hello"
    assert disk.stat(tmp_path / "f") is None


def test_syncing_a_closed_file_does_nothing(disk: Disk, tmp_path: Path) -> None:
    file = disk.allocate(tmp_path / "f", 4096)
    file.close()
    file.close()
    assert (tmp_path / "f").exists()


def test_warming_up_writes_every_page(tmp_path: Path) -> None:
    file = LocalDisk().allocate(tmp_path / "f", (1 << 20) + 4096)
    file.warm_up()
    assert not any(file.memory)
    assert (tmp_path / "f").stat().st_size == (1 << 20) + 4096


def test_plain_files_beyond_the_descriptor_limit_still_work(tmp_path: Path) -> None:
    disk = LocalDisk(open_plain_files=3)
    before = len(list(Path("/proc/self/fd").iterdir()))
    files = [disk.create_sparse(tmp_path / f"{number}", 100) for number in range(20)]
    for number, file in enumerate(files):
        file.pwrite(b"%02d" % number, 10)
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 3
    assert [file.pread(2, 10) for file in files] == [b"%02d" % number for number in range(20)]
    for file in files:
        file.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("busy_with", ["fdatasync", "pwrite"])
def test_a_plain_file_can_be_read_while_the_disk_makes_another_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy_with: str
) -> None:
    file = LocalDisk().create_sparse(tmp_path / "f", 100)
    file.pwrite(b"entry", 0)
    read_meanwhile: list[bytes] = []
    at_once = getattr(os, busy_with)

    def slowly(*given: Any) -> Any:
        reader = threading.Thread(target=lambda: read_meanwhile.append(file.pread(5, 0)))
        reader.start()
        reader.join(timeout=30)
        return at_once(*given)

    monkeypatch.setattr(os, busy_with, slowly)
    if busy_with == "pwrite":
        file.pwrite(b"other", 5)
    else:
        file.sync()
    assert read_meanwhile == [b"entry"]


def test_replacing_a_file_leaves_the_new_content_and_nothing_else(disk: Disk, tmp_path: Path) -> None:
    disk.replace(tmp_path / "config" / "topics.json", b"old")
    disk.replace(tmp_path / "config" / "topics.json", b"new")
    assert disk.read(tmp_path / "config" / "topics.json") == b"new"
    assert [file.name for file in disk.list(tmp_path / "config")] == ["topics.json"]


def test_a_listing_is_sorted_and_tells_files_from_directories(disk: Disk, tmp_path: Path) -> None:
    disk.replace(tmp_path / "d" / "b", b"12345")
    disk.make_directory(tmp_path / "d" / "a")
    assert [(file.name, file.is_directory) for file in disk.list(tmp_path / "d")] == [("a", True), ("b", False)]
    found = disk.stat(tmp_path / "d" / "b")
    assert found is not None
    assert found.size == 5
    assert disk.list(tmp_path / "nowhere") == []
    assert disk.stat(tmp_path / "nowhere") is None


def test_renaming_and_removing(disk: Disk, tmp_path: Path) -> None:
    disk.replace(tmp_path / "a", b"x")
    disk.rename(tmp_path / "a", tmp_path / "b")
    assert disk.read(tmp_path / "b") == b"x"
    disk.remove(tmp_path / "b")
    disk.remove(tmp_path / "b")
    disk.make_directory(tmp_path / "empty")
    disk.remove_directory(tmp_path / "empty")
    assert disk.list(tmp_path) == []


def test_errors_name_the_path_the_cause_and_what_to_do(tmp_path: Path) -> None:
    disk = LocalDisk()
    with pytest.raises(StorageError, match="nowhere") as missing:
        disk.map(tmp_path / "nowhere")
    assert isinstance(missing.value.__cause__, FileNotFoundError)
    full = storage_error("write", tmp_path / "f", OSError(errno.ENOSPC, "No space left on device"))
    assert isinstance(full, StoreFull)
    assert "free disk space" in full.hint
    with pytest.raises(StorageError, match="cannot allocate"):
        disk.allocate(tmp_path / "f", 1 << 62)
    assert disk.list(tmp_path) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_write_the_device_has_no_room_for_is_store_full() -> None:
    with pytest.raises(StoreFull, match="/dev/full"):
        LocalDisk().open(Path("/dev/full"), writable=True).pwrite(b"x", 0)


def test_an_existing_file_is_never_allocated_over(disk: Disk, tmp_path: Path) -> None:
    disk.allocate(tmp_path / "f", 4096).memory[:4] = b"keep"
    with pytest.raises(StorageError, match="exists"):
        disk.allocate(tmp_path / "f", 4096)
    with pytest.raises(StorageError, match="exists"):
        disk.create_sparse(tmp_path / "f", 4096)
    assert (tmp_path / "f").read_bytes()[:4] == b"keep"


def test_the_lock_is_refused_to_this_process_and_to_others_until_released(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = disk.lock(path, b"lock")
    assert lock is not None
    assert disk.lock(path, b"lock") is None
    assert disk.lock_owner(path) == os.getpid()
    probe = (
        "import fcntl,sys\nf=open(sys.argv[1],'r+')\n"
        "try: fcntl.lockf(f, fcntl.LOCK_EX|fcntl.LOCK_NB, 1, 0)\nexcept OSError: print('held')\nelse: print('free')"
    )
    run = [sys.executable, "-c", probe, str(path)]
    assert subprocess.check_output(run) == b"held\n"
    lock.release()
    assert disk.lock_owner(path) is None
    assert subprocess.check_output(run) == b"free\n"
    assert path.read_bytes() == b"lock"


def test_a_lock_held_by_another_process_is_refused_and_its_owner_named(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_bytes(b"lock")
    hold = "import fcntl,sys\nf=open(sys.argv[1],'r+')\nfcntl.lockf(f, fcntl.LOCK_EX, 1, 0)\nprint('ok',flush=True)\nsys.stdin.read()"
    with child([sys.executable, "-c", hold, str(path)], stdout=subprocess.PIPE, stdin=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ok\n"
        assert disk.lock(path, b"lock") is None
        assert disk.lock_owner(path) in (other.pid, 0, None)  # a sandbox may hide who holds it
        other.communicate()
    lock = disk.lock(path, b"lock")
    assert lock is not None
    lock.release()


def test_disk_use_is_a_whole_percent_also_of_a_directory_not_made_yet(disk: Disk, tmp_path: Path) -> None:
    assert 0 <= disk.used_percent(tmp_path / "not" / "yet") <= 100
    assert disk.used_percent(tmp_path / "not" / "yet") == disk.used_percent(tmp_path)


def test_the_faulty_disk_loses_what_was_not_synced(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    file = disk.allocate(tmp_path / "f", 8192)
    file.memory[:3] = b"one"
    file.sync()
    file.memory[:3] = b"two"
    unnamed = disk.create_sparse(tmp_path / "g", 10)
    unnamed.pwrite(b"x", 0)
    unnamed.sync()
    disk.crash()
    assert (tmp_path / "f").read_bytes()[:3] == b"one"
    assert not (tmp_path / "g").exists(), "its name was never synced"


def test_the_faulty_disk_can_keep_some_pages_and_lose_others(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    file = disk.allocate(tmp_path / "f", 64 * PAGE_BYTES)
    file.memory[:] = b"x" * (64 * PAGE_BYTES)
    disk.crash(Random(1))
    pages = {bytes((tmp_path / "f").read_bytes()[page * PAGE_BYTES :][:PAGE_BYTES]) for page in range(64)}
    assert pages == {b"x" * PAGE_BYTES, bytes(PAGE_BYTES)}


def test_the_faulty_disk_undoes_an_unsynced_removal(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    disk.replace(tmp_path / "f", b"kept")
    disk.remove(tmp_path / "f")
    disk.crash()
    assert (tmp_path / "f").read_bytes() == b"kept"


def test_the_faulty_disk_fills_up_and_fails_to_sync(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    disk.faults.space_left = 5000
    file = disk.allocate(tmp_path / "a", 4096)
    with pytest.raises(StoreFull):
        disk.allocate(tmp_path / "b", 4096)
    disk.faults.space_left = None
    disk.faults.steps_until_full = disk.faults.steps_taken + 1
    disk.replace(tmp_path / "c", b"1")
    with pytest.raises(StoreFull):
        disk.replace(tmp_path / "c", b"2")
    disk.faults.sync_fails = True
    with pytest.raises(StorageError, match="sync"):
        file.sync()


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("way", [MappedFile.read_in, MappedFile.make_storable])
def test_pages_can_be_had_ready_without_changing_anything(
    tmp_path: Path, way: Callable[[MappedFile, int, int], None]
) -> None:
    file = LocalDisk().allocate(tmp_path / "file", (20 << 20) + 5)
    file.memory[5:8] = b"abc"
    before = bytes(file.memory)
    way(file, 0, 9 << 20)
    way(file, 4097, file.size)
    assert bytes(file.memory) == before
    assert (tmp_path / "file").read_bytes() == before
    file.close()
    way(file, 0, 4096)


@pytest.mark.usefixtures("loops")
def test_stores_into_pages_that_were_had_ready_are_in_the_file(tmp_path: Path) -> None:
    file = LocalDisk().allocate(tmp_path / "file", 1 << 20)
    file.make_storable(4096, 1 << 19)
    file.memory[5000:5003] = b"abc"
    file.memory[1 << 19 : (1 << 19) + 3] = b"def"  # behind them
    file.sync()
    file.close()
    written = (tmp_path / "file").read_bytes()
    assert (written[5000:5003], written[1 << 19 : (1 << 19) + 3]) == (b"abc", b"def")
    assert written.count(0) == len(written) - 6


@pytest.mark.usefixtures("loops")
def test_no_store_is_lost_to_pages_that_are_being_had_ready(tmp_path: Path) -> None:
    file = LocalDisk().allocate(tmp_path / "file", 64 * PAGE_BYTES)
    stored = threading.Event()

    def have_ready() -> None:
        while not stored.is_set():
            file.make_storable(0, file.size)

    thread = threading.Thread(target=have_ready)
    thread.start()
    try:
        for number in range(300):  # of each page the very byte that is stored to by both
            file.memory[::PAGE_BYTES] = bytes([number % 256]) * 64
            assert set(file.memory[::PAGE_BYTES]) == {number % 256}
    finally:
        stored.set()
        thread.join()
    file.close()


def mapped_bytes(path: Path) -> int:
    """Of a file, by this process. By its number: it may have been mapped under another name."""
    total, is_of_file = 0, False
    for line in SMAPS.read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            is_of_file = int(words[4]) == path.stat().st_ino
        elif is_of_file and words[0] == "Rss:":
            total += int(words[1]) * 1024
    return total


@pytest.mark.usefixtures("loops")
@tells_what_is_mapped
def test_pages_that_are_let_go_are_not_mapped_and_stay_as_they_are(tmp_path: Path) -> None:
    path, size = tmp_path / "file", 3 << 20
    LocalDisk().allocate(path, size).close()
    file = MappedFile(path, os.open(path, os.O_RDWR), size, writable=True)
    content = Random(5).randbytes(size)
    file.memory[:] = content
    file.let_go(0, 10 * PAGE_BYTES)  # too few to be worth it
    assert mapped_bytes(path) == size
    file.let_go(100, size - 100)
    assert mapped_bytes(path) == 2 * PAGE_BYTES  # of which a part is let go
    assert file.memory == content
    file.memory[5000:5004] = b"more"
    file.let_go(0, size)
    file.sync()
    assert path.read_bytes() == content[:5000] + b"more" + content[5004:]
    file.close()
    file.let_go(0, size)


@tells_what_is_mapped
def test_a_log_that_is_synced_lets_go_of_what_was_written(tmp_path: Path) -> None:
    with open_store(tmp_path, segment_bytes=4 << 20) as store:
        for number in range(200):
            store.append("T", 0, bytes([number]) * 10_000, b"", 1, BORN_HOST)
        path = store.log.files.segments[0].file.path
        assert mapped_bytes(path) >= 200 * 10_000
        store.flush()
        assert mapped_bytes(path) < 100_000
        assert bodies(store, "T", 0) == [bytes([number]) * 10_000 for number in range(200)]


class _Watched(MappedFile):
    """Of 24 MB: which of its pages are asked for, in megabytes."""

    __slots__ = ("asked", "may_go_on", "reads")

    def __init__(self, path: Path) -> None:
        LocalDisk().allocate(path, 24 << 20).close()
        self.asked: list[tuple[str, int, int]] = []
        self.reads, self.may_go_on = threading.Event(), threading.Event()
        self.may_go_on.set()
        super().__init__(path, os.open(path, os.O_RDWR), 24 << 20, writable=True)

    def read_in(self, start: int, end: int) -> None:
        self.asked.append(("read", start >> 20, end >> 20))
        self.reads.set()
        self.may_go_on.wait()

    def make_storable(self, start: int, end: int) -> None:
        self.asked.append(("storable", start >> 20, end >> 20))

    def read_ahead(self, start: int = 0, *, enabled: bool) -> None:
        self.asked.append(("reads on" if enabled else "reads no more", start >> 20, self.size >> 20))
        super().read_ahead(start, enabled=enabled)


def test_pages_of_a_file_are_asked_for_a_step_at_a_time(tmp_path: Path) -> None:
    file = _Watched(tmp_path / "file")
    pages = PagesAhead()
    position, turns = 0, []
    while position < file.size:
        position = pages.want(file, position)
        pages.stop()  # which lets it end what it does
        turns.append(position)
    pages.stop()
    file.close()
    assert turns == [n * STEP_BYTES for n in range(1, 25)]
    assert file.asked == [("reads no more", 0, 24), ("read", 0, 16), ("read", 16, 20), ("read", 20, 24)]


def test_pages_that_the_appender_has_passed_are_not_had_ready(tmp_path: Path) -> None:
    file = _Watched(tmp_path / "file")
    pages = PagesAhead()
    file.may_go_on.clear()
    pages.want(file, 1 << 20)
    file.reads.wait()
    for megabyte in range(2, 21):
        pages.want(file, megabyte << 20)
    file.may_go_on.set()
    pages.stop()
    file.close()
    assert file.asked == [("reads no more", 1, 24), ("read", 1, 17), ("read", 20, 24)]


def test_the_system_reads_on_in_a_file_that_is_not_appended_to_any_more(tmp_path: Path) -> None:
    first, second = _Watched(tmp_path / "first"), _Watched(tmp_path / "second")
    pages = PagesAhead()
    pages.want(first, 20 << 20)
    pages.want(second, 0)
    pages.stop()
    for file in (first, second):
        file.close()
    assert [asked for asked in first.asked if asked[0] != "read"] == [("reads no more", 20, 24), ("reads on", 0, 24)]
    assert second.asked == [("reads no more", 0, 24), ("read", 0, 16)]


def test_while_much_is_written_the_next_pages_are_made_storable(tmp_path: Path) -> None:
    file, clock = _Watched(tmp_path / "file"), ManualClock()
    pages = PagesAhead(clock)
    position = 0
    for step_ms in (1000, 50, 10, BUSY_STEP_MS + 1, 0, -5, 25, 25, 25, 25, 25, 25):
        clock.advance(ms=step_ms)
        position = pages.want(file, position)
        pages.stop()  # which lets it end what it does
    file.close()
    assert [asked[1:] for asked in file.asked if asked[0] == "storable"] == [
        (1, 3), (2, 8), (4, 17), (6, 9), (7, 10), (8, 11), (9, 12), (10, 13), (11, 14),
    ]  # fmt: skip
    assert [asked[1:] for asked in file.asked if asked[0] == "read"] == [(1, 17), (17, 22), (22, 24)]


def test_while_little_is_written_no_pages_are_had_ready(tmp_path: Path) -> None:
    file, clock = _Watched(tmp_path / "file"), ManualClock()
    pages = PagesAhead(clock)
    for megabyte in range(24):
        clock.advance(ms=BUSY_STEP_MS + 1)
        assert pages.want(file, megabyte << 20) == (megabyte + 1) << 20
        pages.stop()  # which lets it end what it does
    file.close()
    assert file.asked == [("reads no more", 0, 24)]


def test_no_pages_are_had_ready_where_nearly_nothing_is_stored_to_them(tmp_path: Path) -> None:
    file, other, clock = _Watched(tmp_path / "file"), _Watched(tmp_path / "other"), ManualClock()
    pages = PagesAhead(clock)
    pages.want(file, 0)  # from when on it is known how fast it goes
    for megabyte, is_stored_to in ((0, True), (17, False), (18, False), (19, True), (20, False)):
        clock.advance(ms=BUSY_STEP_MS)
        assert pages.want(file, megabyte << 20, is_stored_to=is_stored_to) == (megabyte + 1) << 20
        pages.stop()  # which lets it end what it does
    pages.want(other, 0, is_stored_to=False)
    pages.stop()
    assert [asked for asked in file.asked if asked[0] == "read"] == [("read", 0, 16), ("read", 19, 24)]
    assert other.asked == [("reads no more", 0, 24)]
    file.close()
    other.close()
