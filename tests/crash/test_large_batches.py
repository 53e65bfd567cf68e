"""A large batch goes to the log by two calls of the system, `CommitLog.write_together`: a kill after any page of either, and a power cut."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from orbitmq.message.batch import BatchMember
from orbitmq.storage.commit_log import LARGE_BATCH_BYTES
from orbitmq.storage.lock import LastExit
from orbitmq.storage.open_files import PAGE_BYTES, MappedFile
from tests.crash.page_writes import pages_of, writing_by_pages
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.store_kit import BORN_HOST, bodies, open_store
from tests.storage.test_forged_records import BODY_AT, HEAD, assert_nothing_forged, forged

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from orbitmq.storage.files import Disk
    from orbitmq.storage.store import Store

OVERHEAD = BODY_AT + len(b"\x01T") + 2
LAST_BYTES = 300
PAGES = HEAD + 2  # that the batch lies on


class Killed(BaseException):
    """Nothing of ours catches it."""


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


def dying_after(writes: int) -> Callable[[], None]:
    left = writes

    def count() -> None:
        nonlocal left
        if left == 0:
            raise Killed
        left -= 1

    return count


@pytest.mark.parametrize("writes", range(2 * PAGES))
def test_a_kill_after_any_page_leaves_the_first_members_whole_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    store = open_large(tmp_path)
    at = store.append("T", 0, b"first", b"", 1, BORN_HOST).end
    members, starts = batch_from(at)
    ends = [*starts[1:], starts[-1] + LAST_BYTES]
    page_ends = [start + len(data) for start, data in pages_of([bytes(ends[-1] - at)], at)]
    assert len(page_ends) == PAGES
    with monkeypatch.context() as patched:
        patched.setattr(MappedFile, "write", writing_by_pages(dying_after(writes)))
        with pytest.raises(Killed):
            append(store, members)
    store.abandon()
    # The first call stores no heads. Of the second, who has a head is whole.
    written_to = page_ends[writes - PAGES - 1] if writes > PAGES else at
    whole = sum(start + HEAD <= written_to for start in starts)
    with open_large(tmp_path) as again:
        assert again.last_exit is LastExit.KILLED
        assert again.recovered.damages == []
        assert again.log.end == [at, *ends][whole]
        assert bodies(again, "T", 0) == [b"first", *(member.body for member in members[:whole])]
        assert_nothing_forged(again)
        append(again, [*members[whole:], BatchMember(b"last")])
        assert bodies(again, "T", 0) == [b"first", *(member.body for member in members), b"last"]


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
