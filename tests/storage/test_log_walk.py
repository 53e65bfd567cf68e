from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orbitmq.message.record import crc31, encode_blank, encode_record, topic_field
from orbitmq.storage import log_walk
from orbitmq.storage.files import LocalDisk
from orbitmq.storage.log_walk import LogRecord, NoRecord, walk
from orbitmq.storage.segmented_log import SegmentedLog

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.storage.segmented_log import Segment

HOST = bytes(8)
SIZE = 3 << 20
WINDOW = 1 << 20


def record(offset: int, body: bytes = b"body") -> bytes:
    return encode_record(topic_field("T"), 0, 0, 0, offset, 0, 1, HOST, 2, HOST, 0, 0, body, crc31(body), b"")


def log_of(directory: Path, files: int = 1) -> SegmentedLog:
    log = SegmentedLog(LocalDisk(), directory, SIZE)
    for _ in range(files):
        log.roll()
    return log


def put(log: SegmentedLog, offset: int, body: bytes = b"body") -> int:
    """Where the record put there ends."""
    data = record(offset, body)
    view = log.slice(offset, len(data))
    assert view is not None
    view[:] = data
    return offset + len(data)


def found(log: SegmentedLog, start: int = 0) -> list[tuple[str, int, int]]:
    return [
        ("record", item.offset, item.offset + item.size)
        if isinstance(item, LogRecord)
        else ("nothing", item.start, item.end)
        for item in walk(log.segments, start)
    ]


def test_records_are_followed_from_file_to_file(tmp_path: Path) -> None:
    log = log_of(tmp_path, 2)
    first = put(log, 0)
    second = put(log, first, b"x" * 1000)
    closing = log.slice(second, 8)
    assert closing is not None
    closing[:] = encode_blank(SIZE - second)
    third = put(log, SIZE)
    assert found(log) == [
        ("record", 0, first),
        ("record", first, second),
        ("record", SIZE, third),
        ("nothing", third, 2 * SIZE),
    ]
    assert found(log, first)[0] == ("record", first, second)
    assert found(log, SIZE)[0] == ("record", SIZE, third)


@pytest.mark.parametrize("distance", range(-9, 10))
def test_a_record_behind_damage_is_found_wherever_it_lies(tmp_path: Path, distance: int) -> None:
    """Also where its first bytes lie across the edge of a window of the search."""
    log = log_of(tmp_path)
    end = put(log, 0)
    at = end + 1 + WINDOW + distance
    after = put(log, at)
    assert found(log) == [("record", 0, end), ("nothing", end, at), ("record", at, after), ("nothing", after, SIZE)]


def test_a_record_that_names_another_place_is_not_taken_for_one_behind_damage(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    end = put(log, 0)
    stray = record(12345)  # as the body of another record may hold it
    view = log.slice(end + 100, len(stray))
    assert view is not None
    view[:] = stray
    assert found(log) == [("record", 0, end), ("nothing", end, SIZE)]


def test_the_unwritten_rest_of_a_file_is_told_from_garbage(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    end = put(log, 0)
    rest = list(walk(log.segments))[-1]
    assert isinstance(rest, NoRecord)
    assert rest.is_rest_of_file
    assert rest.is_blank()
    log.segments[0].memory[SIZE - 1] = 1
    rest = list(walk(log.segments))[-1]
    assert isinstance(rest, NoRecord)
    assert (rest.start, rest.is_blank()) == (end, False)


def test_a_body_that_does_not_match_its_crc_is_damage_only_when_asked(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    end = put(log, 0)
    after = put(log, end)
    log.segments[0].memory[88] ^= 1
    assert found(log)[:2] == [("nothing", 0, end), ("record", end, after)]
    assert next(item for item in walk(log.segments, check_crc=False) if isinstance(item, LogRecord)).offset == 0


def test_what_comes_while_the_walk_looks_behind_the_end_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that runs stores two records between the look at the first one's place and the look at what lies behind."""
    log = log_of(tmp_path)
    first = put(log, 0)

    second = first + len(record(first, b"second"))
    look = log_walk.behind_broken

    def be_stored_before_the_look(segment: Segment, position: int) -> int:
        if position == first:
            put(log, first, b"second")
            put(log, second, b"third")
        return look(segment, position)

    monkeypatch.setattr(log_walk, "behind_broken", be_stored_before_the_look)
    assert [item[:2] for item in found(log)][:3] == [("record", 0), ("record", first), ("record", second)]
