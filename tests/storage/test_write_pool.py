from __future__ import annotations

import shutil
from threading import Event
from typing import TYPE_CHECKING

import pytest

from orbitmq.errors import ConfigError, MessageError
from orbitmq.message.batch import BatchMember
from orbitmq.message.record_check import check_record
from orbitmq.storage.commit_log import CommitLog
from orbitmq.storage.config import FlushMode
from orbitmq.storage.files import LocalDisk
from orbitmq.storage.lock import mark_running
from tests.storage.store_kit import BORN_HOST, bodies, open_store, put

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.storage.store import Store


def pooled(directory: Path, buffers: int = 2) -> Store:
    return open_store(directory, write_pool_buffers=buffers, commit_every_ms=5)


def test_what_is_in_the_pool_cannot_be_read_until_it_is_committed(tmp_path: Path) -> None:
    store = pooled(tmp_path)
    appended = put(store, body=b"1")
    store.dispatch()
    assert store.queue_range("T", 0).max_offset == 0
    assert store.record_at(appended.commit_log_offset) is None
    assert not any(store.log.files.segments[0].memory)
    store.log.commit()
    assert bodies(store) == [b"1"]
    assert store.record_at(appended.commit_log_offset) is not None
    store.close()


@pytest.mark.parametrize("buffers", [1, 2, 5])
@pytest.mark.parametrize("commit_every", [1, 7, 1000])
def test_all_messages_arrive_over_any_number_of_files_and_buffers(
    tmp_path: Path, buffers: int, commit_every: int
) -> None:
    store = pooled(tmp_path, buffers)
    for number in range(200):
        put(store, body=b"%0100d" % number)
        if number % commit_every == 0:
            store.log.commit()
    store.flush()
    assert [int(body) for body in bodies(store)] == list(range(200))
    store.close()
    store = open_store(tmp_path)
    assert [int(body) for body in bodies(store)] == list(range(200))
    assert store.recovered.damages == []
    store.close()


def test_a_commit_while_a_batch_is_stored_takes_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may commit between any two of its messages; a process killed then would leave the first of them."""
    store = pooled(tmp_path / "store")
    put(store, body=b"first")
    write, image, written = CommitLog._write, tmp_path / "image", []

    def write_and_commit(log: CommitLog, at: int, record: bytes) -> None:
        write(log, at, record)
        written.append(at)
        if len(written) == 1:
            log.commit()

    monkeypatch.setattr(CommitLog, "_write", write_and_commit)
    store.append_batch("T", 0, [BatchMember(b"a"), BatchMember(b"b")], b"", 1, BORN_HOST)
    shutil.copytree(tmp_path / "store", image)  # killed before the next commit
    mark_running(LocalDisk(), image)
    with open_store(image) as again:
        assert bodies(again) == [b"first"]
    store.flush()
    assert bodies(store) == [b"first", b"a", b"b"]
    store.close()


def test_the_flushing_thread_commits_by_itself_and_says_so(tmp_path: Path) -> None:
    store = pooled(tmp_path)
    more = Event()
    store.on_flushed = more.set
    store.start()
    put(store, body=b"1")
    assert more.wait(30)
    assert bodies(store) == [b"1"]
    store.close()


def test_a_killed_process_loses_what_was_not_committed_and_nothing_else(tmp_path: Path) -> None:
    store = pooled(tmp_path)
    for number in range(50):
        put(store, body=b"%0100d" % number)
        if number == 30:
            store.log.commit()
    store.abandon()
    store = pooled(tmp_path)
    assert [int(body) for body in bodies(store)] == list(range(31))
    assert put(store, body=b"31").queue_offset == 31
    store.flush()
    assert len(bodies(store)) == 32
    store.close()


def test_a_callback_comes_when_a_pooled_message_is_on_disk(tmp_path: Path) -> None:
    store = pooled(tmp_path)
    store.start()
    done = Event()
    store.when_durable(put(store).end, lambda _error: done.set())
    assert done.wait(30)
    store.close()


def test_a_commit_cut_short_leaves_nothing_that_looks_like_a_record(tmp_path: Path) -> None:
    store = pooled(tmp_path)
    put(store, body=b"first")
    memory = store.log.files.segments[0].memory
    pool = store.log._pool
    assert pool is not None
    begun = pool._begun[0]
    assert begun.buffer is not None
    memory[8 : store.log.end] = begun.buffer[8 : store.log.end]  # what `commit` stores first
    with pytest.raises(MessageError):
        check_record(memory, 0, len(memory))
    store.close()
    assert check_record(memory, 0, len(memory)) > 0


def test_a_write_pool_cannot_keep_the_promise_of_synchronous_flush(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="write pool"):
        open_store(tmp_path, write_pool_buffers=1, flush_mode=FlushMode.SYNC)
