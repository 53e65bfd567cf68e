"""A producer may put a whole record into a body, and knows where it will stand: no restart, and no slave, takes it for a message."""

from __future__ import annotations

import errno
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.errors import StorageError
from orbitmq.message.batch import BatchMember
from orbitmq.message.record import MAGIC_V1, SIZE_AND_MAGIC, encode_record, topic_field
from orbitmq.storage import log_walk
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


def stored_parts_of_a_head() -> list[frozenset[int]]:
    """Which of its bytes who was killed may have stored: a call of the system or a copy, front to back; Python, the last byte of each number
    first; the accelerator, the magic before the size."""
    calls = [range(count) for count in range(HEAD)]
    python = [
        *(range(4 - count, 4) for count in range(1, 4)),
        *((0, 1, 2, 3, *range(8 - count, 8)) for count in range(1, 4)),
    ]
    return [frozenset(part) for part in (*calls, *python, range(4, 8))]


@pytest.mark.parametrize("kept", stored_parts_of_a_head(), ids=lambda kept: "".join(map(str, sorted(kept))) or "none")
def test_an_append_that_was_killed_is_the_end(tmp_path: Path, kept: frozenset[int]) -> None:
    store = open_large(tmp_path)
    store.append("T", 0, b"first", b"", 1, BORN_HOST)
    at = store.log.end
    # Wherever the part of its size that was stored leads to, a forged one is there.
    body, size = bytearray(40_340), 0x9DF0
    whole = SIZE_AND_MAGIC.pack(size, MAGIC_V1)
    head = bytes(byte if number in kept else 0 for number, byte in enumerate(whole))
    told: int = SIZE_AND_MAGIC.unpack(head)[0]
    for place in {BODY_AT, told} if BODY_AT < told < size - 200 else {BODY_AT}:
        data = forged(at + place)
        body[place - BODY_AT : place - BODY_AT + len(data)] = data
    assert store.append("T", 0, bytes(body), b"", 1, BORN_HOST).end == at + size
    patch(store, at, head)
    store.abandon()
    with open_large(tmp_path) as again:
        assert again.log.end == at
        assert again.recovered.damages == []
        assert_nothing_forged(again)


@pytest.mark.parametrize(
    ("start", "end"),
    [(4, 8), (0, 4), (0, 8), (7, 8), (2, 6)],
    ids=["the magic", "the size", "both", "the last byte", "half of each"],
)
@pytest.mark.parametrize("filler", [b"\0", b"\x7f"], ids=["zeroes", "others"])
@pytest.mark.parametrize("topic", ["T", "T" * 200], ids=["V1", "V2"])
def test_a_damaged_head_costs_its_message_and_nothing_else(
    tmp_path: Path, start: int, end: int, filler: bytes, topic: str
) -> None:
    store = open_large(tmp_path)
    store.append(topic, 0, b"first", b"", 1, BORN_HOST)
    at = store.log.end
    store.append(topic, 0, forged(at + BODY_AT) + bytes(9000), b"KEYS\x01k\x02", 1, BORN_HOST)
    behind = store.log.end
    store.append(topic, 0, b"second", b"", 1, BORN_HOST)
    patch(store, at + start, filler * (end - start))
    store.abandon()
    with open_large(tmp_path) as again:
        assert [(hole.start, hole.end) for hole in again.recovered.damages] == [(at, behind)]
        assert_nothing_forged(again)
        assert bodies(again, topic, 0) == [b"first", b"second"]


def test_what_follows_a_lost_page_stays(tmp_path: Path) -> None:
    store = open_large(tmp_path)
    while store.log.end < 5 << 12:
        store.append("T", 0, b"%07d" % store.log.end + b"x" * 700, b"", 1, BORN_HOST)
    patch(store, 1 << 12, bytes(1 << 12))
    store.abandon()
    with open_large(tmp_path) as again:
        (hole,) = again.recovered.damages
        assert hole.start < 1 << 12 < 2 << 12 < hole.end < (2 << 12) + 800
        found = [int(body[:7]) for body in bodies(again, "T", 0)]
        assert found[0] == 0
        assert hole.start not in found
        assert hole.end in found


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


def test_many_damaged_messages_in_a_row_are_gone_over_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_large(tmp_path)
    starts = []
    for number in range(200):
        starts.append(store.log.end)
        store.append("T", 0, b"%03d" % number, b"", 1, BORN_HOST)
    for at in starts[:190]:
        patch(store, at + BODY_AT, b"\xff")
    store.abandon()
    steps = 0
    real = log_walk.behind_broken

    def counted(*arguments: Any) -> int:
        nonlocal steps
        steps += 1
        return real(*arguments)

    monkeypatch.setattr(log_walk, "behind_broken", counted)
    with open_large(tmp_path) as again:
        assert bodies(again, "T", 0) == [b"%03d" % number for number in range(190, 200)]
    assert 190 <= steps < 190 * 10


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


def test_a_slave_looks_into_no_body_while_the_record_behind_it_is_still_to_come(tmp_path: Path) -> None:
    with open_large(tmp_path / "master") as master:
        master.append("T", 0, b"first", b"", 1, BORN_HOST)
        at = put_forged(master)
        behind = master.log.end
        master.append("T", 0, b"second", b"", 1, BORN_HOST)
        patch(master, at + 4, bytes(4))
        data = bytes(master.log.files.segments[0].memory[: master.log.end])
        patch(master, at + 4, MAGIC_V1.to_bytes(4, "big", signed=True))
    for cut in range(behind - 2, behind + 40, 3):
        with open_large(tmp_path / f"slave-{cut}") as slave:
            replica = slave.follow()
            replica.append([(0, data[:cut])])
            replica.index(cut)
            assert replica.whole_end in (at, behind)
            replica.append([(cut, data[cut:])])
            replica.index(len(data))
            assert replica.whole_end == len(data)
            assert_nothing_forged(slave)
            assert bodies(slave, "T", 0) == [b"first", b"second"]


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


def test_a_batch_that_the_disk_refused_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a message of its own nor one that stood in a body, behind a smaller one that came in its place."""
    store = open_large(tmp_path)
    store.append("T", 0, b"first", b"", 1, BORN_HOST)
    write = MappedFile.write
    at = store.log.end
    behind_second = at + BODY_AT + len(b"second") + 4

    def fail(file: MappedFile, parts: Sequence[bytes | memoryview], position: int) -> None:
        whole = b"".join(parts)
        write(file, [whole[: len(whole) // 2]], position)
        raise storage_error("write", file.path, OSError(errno.EIO, "it failed"))

    with monkeypatch.context() as patched:
        patched.setattr(MappedFile, "write", fail)
        members = [BatchMember(bytes(behind_second - at - BODY_AT) + forged(behind_second))]
        members += [BatchMember(bytes([n]) * 1000) for n in range(40)]
        with pytest.raises(StorageError, match="it failed"):
            store.append_batch("T", 0, members, b"", 1, BORN_HOST)
    assert not any(store.log.files.segments[0].memory[at:])
    end = store.append("T", 0, b"second", b"", 1, BORN_HOST).end
    assert end == behind_second
    store.abandon()
    with open_large(tmp_path) as again:
        assert again.log.end == end
        assert bodies(again, "T", 0) == [b"first", b"second"]
        assert_nothing_forged(again)
