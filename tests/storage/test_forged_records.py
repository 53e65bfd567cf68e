"""A producer may put a whole record into a body, and knows where it will stand: no restart, and no slave, takes it for a message."""

from __future__ import annotations

import errno
import zlib
from typing import TYPE_CHECKING

import pytest

from orbitmq.errors import StorageError
from orbitmq.message.batch import BatchMember
from orbitmq.message.record import encode_record, topic_field
from orbitmq.storage.open_files import MappedFile, storage_error
from tests.storage.store_kit import BORN_HOST, bodies, open_store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orbitmq.storage.store import Store

BODY_AT = 88  # of a record, with addresses of IPv4
HEAD = 8


def open_large(directory: Path) -> Store:
    return open_store(directory, segment_bytes=1 << 17)


def forged(at: int, stored_at_ms: int = 1) -> bytes:
    body = b"forged"
    crc = zlib.crc32(body) & 0x7FFFFFFF
    field = topic_field("Secret")
    return encode_record(
        field, 0, 0, 0, at, 0, 1, BORN_HOST, stored_at_ms, BORN_HOST, 0, 0, body, crc, b"TAGS\x01a\x02"
    )


def put_forged(store: Store, properties: bytes = b"") -> int:
    """Where the message begins of which the body begins with the forged one."""
    at = store.log.end
    store.append("T", 0, forged(at + BODY_AT) + bytes(9000), properties, 1, BORN_HOST)
    return at


def patch(store: Store, at: int, data: bytes) -> None:
    store.log.files.segments[0].memory[at : at + len(data)] = data


def assert_nothing_forged(store: Store) -> None:
    assert store.queue_range("Secret", 0).max_offset == 0


@pytest.mark.parametrize("head_bytes", range(HEAD))
def test_an_append_that_was_killed_is_the_end(tmp_path: Path, head_bytes: int) -> None:
    store = open_large(tmp_path)
    store.append("T", 0, b"first", b"", 1, BORN_HOST)
    at = put_forged(store)
    patch(store, at + head_bytes, bytes(HEAD - head_bytes))  # those are stored last
    store.abandon()
    with open_large(tmp_path) as again:
        assert again.log.end == at
        assert_nothing_forged(again)


@pytest.mark.parametrize("damage", [4096, 9000], ids=["in the body", "at its end"])
def test_a_damaged_message_costs_itself_and_nothing_else(tmp_path: Path, damage: int) -> None:
    store = open_large(tmp_path)
    at = put_forged(store)
    store.append("T", 0, b"second", b"", 1, BORN_HOST)
    patch(store, at + damage, b"\xff")
    store.abandon()
    with open_large(tmp_path) as again:
        assert [hole.start for hole in again.recovered.damages] == [at]
        assert_nothing_forged(again)
        again.append("T", 0, b"third", b"", 1, BORN_HOST)
        again.dispatch()
        assert bodies(again, "T", 0)[-2:] == [b"second", b"third"]


def test_a_slave_that_is_killed_takes_no_part_of_a_record_for_one(tmp_path: Path) -> None:
    with open_large(tmp_path / "master") as master:
        master.append("T", 0, b"first", b"", 1, BORN_HOST)
        at = put_forged(master, b"KEYS\x01k\x02TAGS\x01t\x02")
        end = master.log.end
        data = bytes(master.log.files.segments[0].memory[:end])
    near_the_start, body, near_the_end = range(at + 1, at + 89), range(at + 89, end - 40, 1500), range(end - 40, end)
    for cut in (*near_the_start[::6], *body, *near_the_end):
        folder = tmp_path / f"slave-{cut}"
        slave = open_large(folder)
        slave.follow().append([(0, data[:cut])])
        slave.abandon()
        with open_large(folder) as again:
            replica = again.follow()
            assert replica.end == at, f"what came ended {cut - at} bytes behind the start of the record"
            assert_nothing_forged(again)
            replica.append([(at, data[at:])])
            again.dispatch()
            assert again.queue_range("T", 0).max_offset == 2
            assert bytes(again.log.files.segments[0].memory[:end]) == data


@pytest.mark.parametrize("is_late", [False, True])
def test_a_page_that_a_power_cut_took_lets_nothing_out_of_a_body(tmp_path: Path, is_late: bool) -> None:
    store = open_large(tmp_path)
    store.append("T", 0, b"first", b"", 1, BORN_HOST)
    store.flush()
    store.clock.advance(ms=100)  # type: ignore[attr-defined]
    at = store.log.end
    place = at + 5000  # on a page that was kept
    stored_at_ms = store.log.last_stored_at_ms if is_late else 1
    store.append("T", 0, bytes(place - at - BODY_AT) + forged(place, stored_at_ms) + bytes(900), b"", 1, BORN_HOST)
    patch(store, at, bytes(4096 - at))
    store.abandon()
    (tmp_path / "abort").write_text("1\nanother boot\n")
    with open_large(tmp_path) as again:
        assert again.log.end == at
        assert_nothing_forged(again)


def test_a_refused_batch_stays_refused_though_the_disk_fails_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_large(tmp_path)
    store.append("T", 0, b"first", b"", 1, BORN_HOST)
    write, calls = MappedFile.write, []

    def fail(file: MappedFile, parts: Sequence[bytes | memoryview], position: int) -> None:
        calls.append(position)
        whole = b"".join(parts)
        if len(calls) <= 2:
            write(file, [whole if len(calls) == 1 else whole[: len(whole) // 2]], position)
        if len(calls) >= 2:
            raise storage_error("write", file.path, OSError(errno.EIO, "it failed"))

    with monkeypatch.context() as patched:
        patched.setattr(MappedFile, "write", fail)
        with pytest.raises(StorageError, match="it failed"):
            store.append_batch("T", 0, [BatchMember(bytes([n]) * 1000) for n in range(40)], b"", 1, BORN_HOST)
    assert len(calls) >= 2
    store.append("T", 0, b"second", b"", 1, BORN_HOST)
    end = store.log.end
    store.abandon()
    with open_large(tmp_path) as again:
        assert again.log.end == end
        assert bodies(again, "T", 0) == [b"first", b"second"]
