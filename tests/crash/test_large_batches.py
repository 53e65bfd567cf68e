"""A large batch goes to the log by a call of the system, `CommitLog.write_together`: a kill after any page of it, and a power cut."""

from __future__ import annotations

import shutil
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.message.batch import BatchMember
from orbitmq.storage.commit_log import LARGE_BATCH_BYTES, CommitLog
from orbitmq.storage.files import LocalDisk
from orbitmq.storage.lock import LastExit, mark_running
from orbitmq.storage.log_walk import walk
from orbitmq.storage.open_files import PAGE_BYTES, MappedFile
from orbitmq.storage.reader import StoreReader
from orbitmq.storage.unfinished_batch import UnfinishedBatch
from tests.crash.page_writes import pages_of, writing_by_pages
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.store_kit import BORN_HOST, bodies, open_store
from tests.storage.test_forged_records import BODY_AT, HEAD, assert_nothing_forged, forged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from orbitmq.storage.files import Disk
    from orbitmq.storage.log_walk import LogRecord, NoRecord
    from orbitmq.storage.store import Store

OVERHEAD = BODY_AT + len(b"\x01T") + 2
LAST_BYTES = 300
PAGES = HEAD + 2  # that the batch lies on


class _Killed(BaseException):
    pass


def open_large(directory: Path, disk: Disk | None = None) -> Store:
    return open_store(directory, disk=disk, segment_bytes=1 << 17)


def batch_from(at: int) -> tuple[list[BatchMember], list[int]]:
    """Members whose records begin so that size and magic lie across the ends of pages in all ways; each holds what looks like a record.

    And where they begin, if the first does at `at`.
    """
    starts = [at, *(page * PAGE_BYTES - page for page in range(1, HEAD + 2))]
    members = []
    for start, end in zip(starts, [*starts[1:], starts[-1] + LAST_BYTES], strict=True):
        disguised = forged(start + BODY_AT)
        members.append(BatchMember(disguised + bytes(end - start - OVERHEAD - len(disguised))))
    return members, starts


def append(store: Store, members: list[BatchMember]) -> None:
    store.append_batch("T", 0, members, b"", 1, BORN_HOST)


def at_page(number: int, act: Callable[[], None]) -> Callable[[], None]:
    """Called before each page is written."""
    pages = count()
    return lambda: act() if next(pages) == number else None


def members_of_one_batch(
    directory: Path, image: Path, monkeypatch: pytest.MonkeyPatch, written_pages: int
) -> list[BatchMember]:
    """Written behind a first message; `image` is the directory as it was when so many of PAGES were."""

    def take_image() -> None:
        shutil.copytree(directory, image)

    finish = UnfinishedBatch.finish

    def take_image_and_finish(batch: UnfinishedBatch) -> None:
        take_image()
        finish(batch)

    store = open_large(directory)
    at = store.append("T", 0, b"first", b"", 1, BORN_HOST).end
    members, starts = batch_from(at)
    assert len(list(pages_of([bytes(starts[-1] + LAST_BYTES - at)], at))) == PAGES
    with monkeypatch.context() as patched:
        patched.setattr(MappedFile, "write", writing_by_pages(at_page(written_pages, take_image)))
        if written_pages == PAGES:
            patched.setattr(UnfinishedBatch, "finish", take_image_and_finish)
        append(store, members)
    assert bodies(store, "T", 0) == [b"first", *(member.body for member in members)]
    store.abandon()
    return members


@pytest.mark.parametrize("written", range(PAGES + 1))
def test_a_kill_after_any_page_leaves_nothing_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    image = tmp_path / "image"
    members_of_one_batch(tmp_path / "store", image, monkeypatch, written)
    mark_running(LocalDisk(), image)  # as if it had always been this directory
    with StoreReader(image) as reader:
        assert [message.body for message in reader.messages("T", 0)] == [b"first"]
    with open_large(image) as again:
        assert again.last_exit is LastExit.KILLED
        assert again.recovered.damages == []
        assert bodies(again, "T", 0) == [b"first"]
        assert not any(again.log.files.segments[0].memory[again.log.end :])
        assert_nothing_forged(again)
        append(again, [BatchMember(b"last")])
        again.abandon()
    with open_large(image) as again:
        assert bodies(again, "T", 0) == [b"first", b"last"]


@pytest.mark.parametrize("written", range(PAGES + 1))
def test_who_does_not_know_of_unfinished_batches_keeps_whole_messages_from_the_front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """A broker of Apache's; and ours where it is not sure that it was a process, and not a machine, that went down."""
    image = tmp_path / "image"
    members = members_of_one_batch(tmp_path / "store", image, monkeypatch, written)
    with open_large(image) as again:
        assert again.last_exit is LastExit.CRASHED
        assert again.recovered.damages == []
        found = bodies(again, "T", 0)
        assert found == [b"first", *(member.body for member in members)][: len(found)]
        assert len(found) >= 1 + (len(members) if written == PAGES else max(0, written - 2))
        assert_nothing_forged(again)


@pytest.mark.parametrize("written", range(8))
def test_a_kill_in_the_properties_of_the_last_member_leaves_nothing_of_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """Its size, its body and the lengths of its parts are right by then: only what is noted tells."""
    image = tmp_path / "image"
    store = open_large(tmp_path / "store")
    store.append("T", 0, b"first", b"", 1, BORN_HOST)
    long = b"name\x01" + b"x" * (3 * PAGE_BYTES) + b"\x02"
    members = [BatchMember(bytes(LARGE_BATCH_BYTES)), BatchMember(b"last", long)]

    def take_image() -> None:
        shutil.copytree(tmp_path / "store", image)

    with monkeypatch.context() as patched:
        patched.setattr(MappedFile, "write", writing_by_pages(at_page(written, take_image)))
        append(store, members)
    store.abandon()
    mark_running(LocalDisk(), image)
    with StoreReader(image) as reader:
        assert [message.body for message in reader.messages("T", 0)] == [b"first"]
    with open_large(image) as again:
        assert bodies(again, "T", 0) == [b"first"]
        assert not any(again.log.files.segments[0].memory[again.log.end :])


def test_what_is_noted_is_not_believed_where_something_was_written_behind_it(tmp_path: Path) -> None:
    """By a broker that does not know of such notes, which was killed as well."""
    store = open_large(tmp_path)
    at = store.append("T", 0, b"first", b"", 1, BORN_HOST).end
    end = store.append("T", 0, b"second", b"", 1, BORN_HOST).end
    store.append("T", 0, b"third", b"", 1, BORN_HOST)
    store.log.unfinished.begin(at, end - 8)
    store.abandon()
    with open_large(tmp_path) as again:
        assert again.last_exit is LastExit.KILLED
        assert bodies(again, "T", 0) == [b"first", b"second", b"third"]


def test_what_an_earlier_process_left_unfinished_is_not_believed_later(tmp_path: Path) -> None:
    """Its place was taken by others since, or by another kind of broker."""
    store = open_large(tmp_path)
    at = store.append("T", 0, b"first", b"", 1, BORN_HOST).end
    store.log.unfinished.begin(at, at + LARGE_BATCH_BYTES)
    store.close()
    with open_large(tmp_path) as again:
        assert again.last_exit is LastExit.CLEAN
        again.append("T", 0, b"second", b"", 1, BORN_HOST)
        again.abandon()
    with open_large(tmp_path) as again:
        assert again.last_exit is LastExit.KILLED
        assert bodies(again, "T", 0) == [b"first", b"second"]


def test_a_kill_between_the_messages_of_a_small_batch_leaves_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_large(tmp_path / "store")
    store.append("T", 0, b"first", b"", 1, BORN_HOST)
    write, image = CommitLog._write, tmp_path / "image"

    def write_and_be_killed(log: CommitLog, at: int, record: bytes) -> None:
        write(log, at, record)
        if not image.exists():
            shutil.copytree(tmp_path / "store", image)

    monkeypatch.setattr(CommitLog, "_write", write_and_be_killed)
    append(store, [BatchMember(b"a"), BatchMember(b"b")])
    store.abandon()
    mark_running(LocalDisk(), image)
    with open_large(image) as again:
        assert bodies(again, "T", 0) == [b"first"]


def test_a_reader_takes_nothing_of_a_batch_that_is_begun_while_it_looks_for_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill would take back what it saw, and others would get those numbers."""
    store = open_large(tmp_path)
    end = store.append("T", 0, b"first", b"", 1, BORN_HOST).end
    write = CommitLog._write

    def write_one(log: CommitLog, at: int, record: bytes) -> None:
        if b"second" in record:
            raise _Killed
        write(log, at, record)

    def walk_while_it_is_written(*arguments: Any, **options: Any) -> Iterator[LogRecord | NoRecord]:
        with pytest.raises(_Killed):
            store.append_batch("Fresh", 0, [BatchMember(b"one"), BatchMember(b"second")], b"", 1, BORN_HOST)
        return walk(*arguments, **options)

    monkeypatch.setattr(CommitLog, "_write", write_one)
    monkeypatch.setattr(UnfinishedBatch, "finish", lambda _: None)
    monkeypatch.setattr("orbitmq.storage.reader.walk", walk_while_it_is_written)
    with StoreReader(tmp_path) as reader:
        assert [message.body for message in reader.messages("T", 0)] == [b"first"]
        assert reader.log_range[1] == end
        assert reader.queue_keys() == [("T", 0)]
    store.abandon()


@pytest.mark.parametrize("seed", range(12))
def test_a_power_cut_takes_whole_members_from_the_end(tmp_path: Path, seed: int) -> None:
    disk = FaultyDisk(tmp_path)
    store = open_large(tmp_path, disk)
    store.append("T", 0, b"first", b"", 1, BORN_HOST)
    store.flush()
    store.clock.advance(ms=100)  # type: ignore[attr-defined]
    members, starts = batch_from(store.log.end)
    assert starts[-1] - starts[0] > LARGE_BATCH_BYTES
    append(store, members)
    store.clock.advance(ms=100)  # type: ignore[attr-defined]
    append(store, [BatchMember(bytes([number]) * LARGE_BATCH_BYTES) for number in range(4)])
    disk.crash(Random(seed))
    again = open_large(tmp_path, disk)
    assert again.last_exit is LastExit.CRASHED
    assert again.recovered.damages == []
    found = bodies(again, "T", 0)
    assert found[0] == b"first"
    assert found[1 : 1 + len(members)] == [member.body for member in members][: len(found) - 1]
    assert_nothing_forged(again)
    again.close()
