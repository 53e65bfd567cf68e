from __future__ import annotations

import time
from datetime import datetime

import pytest

from orbitmq.clock import ManualClock
from orbitmq.errors import MessageError
from orbitmq.message.hosts import host_text, pack_host, unpack_host
from orbitmq.message.ids import UniqueIds, offset_message_id, parse_offset_message_id


def local_ms(*moment: int) -> int:
    return int(datetime(*moment).astimezone().timestamp() * 1000)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("address", "offset", "message_id"),
    [
        ("127.0.0.1", 0, "7F00000100002A9F0000000000000000"),
        ("10.1.2.3", 123_456, "0A01020300002A9F000000000001E240"),
        ("::1", 1, "0000000000000000000000000000000100002A9F0000000000000001"),
    ],
)
def test_the_offset_id_says_host_and_place(address: str, offset: int, message_id: str) -> None:
    host = pack_host(address, 10_911)
    assert offset_message_id(host, offset) == message_id
    assert parse_offset_message_id(message_id) == (host, offset)
    assert parse_offset_message_id(message_id.lower()) == (host, offset)


@pytest.mark.parametrize("text", ["", "7F", "zz" * 16, "7F00000100002A9F00000000000000", "7F" * 17])
def test_what_is_no_offset_id_is_refused(text: str) -> None:
    with pytest.raises(MessageError, match="not an offset message id"):
        parse_offset_message_id(text)


def test_a_unique_id_holds_address_pid_loader_time_and_counter() -> None:
    clock = ManualClock(local_ms(2026, 11, 1) + 0x0102)
    ids = UniqueIds(clock, bytes([10, 0, 0, 1]), pid=0x1_2345, loader=0xAABBCCDD, counter_start=0xFFFF)
    assert next(ids) == "0A000001" + "2345" + "AABBCCDD" + "00000102" + "FFFF"
    clock.advance(ms=1)
    assert next(ids) == "0A000001" + "2345" + "AABBCCDD" + "00000103" + "0000"


def test_a_unique_id_over_ipv6_has_56_digits() -> None:
    ids = UniqueIds(ManualClock(), bytes(15) + b"\x01", pid=1, loader=2)
    assert len(next(ids)) == 56


def test_the_time_in_a_unique_id_starts_again_with_the_month() -> None:
    clock = ManualClock(local_ms(2026, 12, 31, 23, 59, 59))
    ids = UniqueIds(clock, bytes(4), pid=0, loader=0)
    assert int(next(ids)[20:28], 16) == 31 * 86_400_000 - 1000
    clock.advance(seconds=2)
    assert int(next(ids)[20:28], 16) == 1000


def test_a_clock_set_back_a_little_over_the_start_of_the_month_counts_as_its_start() -> None:
    clock = ManualClock(local_ms(2026, 11, 1))
    ids = UniqueIds(clock, bytes(4), pid=0, loader=0)
    clock.advance(ms=-999_999)
    assert next(ids)[20:28] == "00000000"
    clock.advance(ms=-1)
    assert int(next(ids)[20:28], 16) == (1 << 32) - 1_000_000


def test_many_ids_differ() -> None:
    ids = UniqueIds(ManualClock(int(time.time() * 1000)), bytes(4), pid=0, loader=0)
    assert len({next(ids) for _ in range(65_536)}) == 65_536


def test_an_address_of_another_length_is_refused() -> None:
    with pytest.raises(MessageError, match="4 or 16 bytes"):
        UniqueIds(ManualClock(), bytes(5), pid=0, loader=0)


@pytest.mark.parametrize(
    ("address", "port", "text"),
    [("127.0.0.1", 1, "127.0.0.1:1"), ("::1", 65_535, "[::1]:65535"), ("0.0.0.0", 0, "0.0.0.0:0")],
)
def test_a_host_is_packed_and_unpacked(address: str, port: int, text: str) -> None:
    packed = pack_host(address, port)
    assert unpack_host(packed) == (address, port)
    assert host_text(packed) == text


def test_what_is_no_host_is_refused() -> None:
    with pytest.raises(MessageError):
        pack_host("localhost", 1)
    with pytest.raises(MessageError):
        pack_host("127.0.0.1", 1 << 40)
    with pytest.raises(MessageError):
        unpack_host(b"12345")


def test_ids_taken_at_once_are_those_that_would_have_come_one_by_one() -> None:
    clock = ManualClock(1_700_000_000_000)
    one_by_one, at_once = (UniqueIds(clock, bytes(4), pid=1, loader=2, counter_start=0xFFFE) for _ in range(2))
    assert at_once.take(4) == [next(one_by_one) for _ in range(4)]
    assert next(at_once) == next(one_by_one)
    assert at_once.take(0) == []
    assert at_once.take(1) == [next(one_by_one)]
