from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.clock import ManualClock
from orbitmq.errors import MessageError, StorageError, StoreFull
from orbitmq.message.batch import BatchMember
from orbitmq.message.hosts import pack_host
from orbitmq.message.properties import decode_properties, encode_properties
from orbitmq.message.record import BLANK_BYTES, END_OF_FILE, decode_record, encode_blank
from orbitmq.message.record_check import check_record
from orbitmq.message.sysflags import (
    BORN_HOST_IPV6,
    INNER_BATCH,
    NEED_UNWRAP,
    STORE_HOST_IPV6,
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from orbitmq.storage.appended import AppendCode
from orbitmq.storage.commit_log import LARGE_BATCH_BYTES, CommitLog
from orbitmq.storage.segmented_log import SegmentedLog
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.store_kit import BORN_AT_MS, BORN_HOST, STORE_HOST, small_config

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.message.message import StoredMessage
    from orbitmq.storage.segmented_log import Segment


def open_log(
    directory: Path, *, store_host: bytes = STORE_HOST, clock: ManualClock | None = None, **changes: Any
) -> CommitLog:
    disk = FaultyDisk(directory)
    log = CommitLog(disk, small_config(directory, **changes), clock or ManualClock(), store_host)
    log.place_end(0)
    return log


def put(
    log: CommitLog, body: bytes = b"body", topic: str = "T", queue_id: int = 0, properties: bytes = b"", **more: Any
) -> int:
    return log.append(topic, queue_id, body, properties, BORN_AT_MS, BORN_HOST, **more).commit_log_offset


def at(log: CommitLog, offset: int) -> StoredMessage:
    segment = log.files.segment_of(offset)
    assert segment is not None
    return decode_record(segment.memory, offset - segment.start)


def test_an_appended_message_is_in_the_log_as_it_was_given(tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000_123)
    log = open_log(tmp_path, clock=clock)
    put(log)
    appended = log.append("T", 3, b"hello", b"TAGS\x01a\x02", BORN_AT_MS, BORN_HOST, 7, 2, 5, 9)
    message = at(log, appended.commit_log_offset)
    assert (message.topic, message.queue_id, message.body, message.raw_properties) == (
        "T",
        3,
        b"hello",
        b"TAGS\x01a\x02",
    )
    assert (message.flag, message.sys_flag, message.reconsume_times, message.prepared_transaction_offset) == (
        7,
        2,
        5,
        9,
    )
    assert (message.born_at_ms, message.born_host, message.store_host) == (BORN_AT_MS, BORN_HOST, STORE_HOST)
    assert (message.stored_at_ms, message.commit_log_offset) == (1_700_000_000_123, appended.commit_log_offset)
    assert appended.end == appended.commit_log_offset + message.size == log.end


def test_each_queue_counts_its_own_messages(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    offsets = [
        log.append(topic, queue_id, b"", b"", BORN_AT_MS, BORN_HOST).queue_offset
        for topic, queue_id in [("A", 0), ("A", 1), ("A", 0), ("B", 0), ("A", 0)]
    ]
    assert offsets == [0, 0, 1, 0, 2]


@pytest.mark.parametrize(
    ("transaction", "counts"),
    [(TRANSACTION_PREPARED, False), (TRANSACTION_ROLLBACK, False), (TRANSACTION_COMMIT, True)],
)
def test_prepared_and_rolled_back_messages_take_no_number(tmp_path: Path, transaction: int, counts: bool) -> None:
    log = open_log(tmp_path)
    put(log)
    appended = log.append("T", 0, b"", b"", BORN_AT_MS, BORN_HOST, 0, transaction)
    assert appended.queue_offset == (1 if counts else 0)
    assert at(log, put(log)).queue_offset == (2 if counts else 1)


def test_a_file_without_room_is_closed_by_a_blank_record(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=1000)
    first = put(log, b"x" * 500)
    second = put(log, b"y" * 500)
    size = at(log, first).size
    assert (first, second) == (0, 1000)
    memory = log.files.segments[0].memory
    assert bytes(memory[size : size + BLANK_BYTES]) == encode_blank(1000 - size)
    assert check_record(memory, size, 1000) == END_OF_FILE


@pytest.mark.parametrize("left", range(20))
def test_every_file_keeps_eight_bytes_for_its_blank_record(tmp_path: Path, left: int) -> None:
    log = open_log(tmp_path, segment_bytes=1000)
    overhead = 92  # of a record with the topic "T"
    body = b"x" * (1000 - overhead - left)
    if left < BLANK_BYTES:
        with pytest.raises(MessageError, match="does not fit into a file"):
            put(log, body)
    else:
        put(log, body)
        assert put(log) == 1000
        memory = log.files.segments[0].memory
        assert bytes(memory[1000 - left :][:BLANK_BYTES]) == encode_blank(left)


def test_a_record_larger_than_a_file_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=1000)
    put(log)
    end = log.end
    with pytest.raises(MessageError, match="does not fit into a file") as raised:
        put(log, b"x" * 1000)
    assert raised.value.code == AppendCode.MESSAGE_ILLEGAL
    assert log.end == end
    assert len(log.files.segments) == 1
    assert at(log, put(log)).queue_offset == 1


def test_what_is_too_large_by_itself_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=1 << 20, max_message_bytes=100)
    put(log, b"x" * 100)
    with pytest.raises(MessageError, match="takes up to 100") as raised:
        put(log, b"x" * 101)
    assert raised.value.code == AppendCode.MESSAGE_ILLEGAL
    with pytest.raises(MessageError, match="32767"):
        put(log, properties=b"k\x01" + b"v" * 32_767)
    assert at(log, put(log)).queue_offset == 1


def test_a_number_too_large_for_its_field_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log)
    end = log.end
    numbers: list[dict[str, Any]] = [
        {"flag": 1 << 31},
        {"reconsume_times": -(1 << 40)},
        {"prepared_transaction_offset": 1 << 63},
    ]
    for number in numbers:
        with pytest.raises(MessageError, match="does not fit into its field") as raised:
            put(log, **number)
        assert raised.value.code == AppendCode.MESSAGE_ILLEGAL
    with pytest.raises(MessageError, match="does not fit into its field"):
        log.append_batch("T", 0, [BatchMember(b"1"), BatchMember(b"2", b"", 1 << 31)], b"", BORN_AT_MS, BORN_HOST)
    assert log.end == end
    assert at(log, put(log)).queue_offset == 1


@pytest.mark.parametrize("topic", ["", "a/b", "..", "é" * 64])
def test_what_cannot_be_a_topic_is_refused(tmp_path: Path, topic: str) -> None:
    with pytest.raises(MessageError) as raised:
        put(open_log(tmp_path), topic=topic)
    assert raised.value.code == AppendCode.MESSAGE_ILLEGAL


def test_a_full_disk_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    log = CommitLog(disk, small_config(tmp_path, segment_bytes=1000), ManualClock(), STORE_HOST)
    log.place_end(0)
    put(log, b"x" * 500)
    before, end = bytes(log.files.segments[0].memory), log.end
    disk.faults.space_left = 0
    with pytest.raises(StoreFull):
        put(log, b"x" * 500)
    assert (bytes(log.files.segments[0].memory), log.end, len(log.recent)) == (before, end, 1)
    put(log, b"small")
    disk.faults.space_left = None
    assert at(log, put(log, b"x" * 500)).queue_offset == 2


def test_ipv6_hosts_are_flagged_by_the_store_itself(tmp_path: Path) -> None:
    log = open_log(tmp_path, store_host=pack_host("::1", 10_911))
    offset = log.append("T", 0, b"", b"", BORN_AT_MS, pack_host("2001:db8::1", 5)).commit_log_offset
    message = at(log, offset)
    assert message.sys_flag == BORN_HOST_IPV6 | STORE_HOST_IPV6
    assert message.born_address == "[2001:db8::1]:5"


def test_a_record_crc_covers_the_whole_record(tmp_path: Path) -> None:
    log = open_log(tmp_path, record_crc=True)
    offset = put(log, properties=b"TAGS\x01a")
    segment = log.files.segments[0]
    assert at(log, offset).properties["TAGS"] == "a"
    assert check_record(segment.memory, offset, 4096, property_crc=True) == at(log, offset).size
    log.append_batch("T", 0, [BatchMember(b"1"), BatchMember(b"2")], b"", BORN_AT_MS, BORN_HOST)
    end = at(log, offset).size
    for _ in range(2):
        end += check_record(segment.memory, end, 4096, property_crc=True)
    assert end == log.end


def test_a_long_topic_makes_a_v2_record(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    topic = "%RETRY%" + "g" * 200
    assert at(log, put(log, topic=topic)).topic == topic


def test_members_of_a_batch_become_neighbours_with_numbers_in_a_row(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log)
    members = [BatchMember(b"1", b"KEYS\x01a", 7), BatchMember(b"22", b"KEYS\x01b\x02", 8), BatchMember(b"333")]
    appended = log.append_batch("T", 0, members, b"CLUSTER\x01c\x02", BORN_AT_MS, BORN_HOST)
    stored = [at(log, offset) for offset in appended.commit_log_offsets]
    assert [message.body for message in stored] == [b"1", b"22", b"333"]
    assert [message.flag for message in stored] == [7, 8, 0]
    assert [message.queue_offset for message in stored] == [1, 2, 3]
    assert [message.raw_properties for message in stored] == [
        b"KEYS\x01a\x02CLUSTER\x01c\x02",
        b"KEYS\x01b\x02CLUSTER\x01c\x02",
        b"CLUSTER\x01c\x02",
    ]
    assert appended.queue_offset == 1
    assert [message.commit_log_offset + message.size for message in stored] == [
        *appended.commit_log_offsets[1:],
        log.end,
    ]
    assert appended.message_ids(STORE_HOST) == [message.offset_id for message in stored]
    assert at(log, put(log)).queue_offset == 4


def test_a_batch_is_kept_together_in_one_file(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=1000)
    put(log, b"x" * 340)
    members = [BatchMember(b"y" * 200), BatchMember(b"z" * 200)]
    appended = log.append_batch("T", 0, members, b"", BORN_AT_MS, BORN_HOST)
    assert appended.commit_log_offsets == [1000, 1292]


def test_a_batch_that_cannot_be_stored_is_refused_whole(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=1000, max_message_bytes=700)
    put(log)
    end = log.end
    for members, reason in [
        ([], "at least one"),
        ([BatchMember(b"x" * 400), BatchMember(b"x" * 400)], "takes up to 700"),
        ([BatchMember(b"x" * 300)] * 2 + [BatchMember(b"")] * 5, "does not fit into a file"),
        ([BatchMember(b"", b"x" * 32_760)], "32767"),
    ]:
        with pytest.raises(MessageError, match=reason) as raised:
            log.append_batch("T", 0, members, b"CLUSTER\x01c\x02", BORN_AT_MS, BORN_HOST)
        assert raised.value.code == AppendCode.MESSAGE_ILLEGAL
    assert log.end == end
    assert at(log, put(log)).queue_offset == 1


def test_an_inner_batch_takes_as_many_numbers_as_it_holds_messages(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log)
    appended = log.append("T", 0, b"", b"INNER_NUM\x015\x02", BORN_AT_MS, BORN_HOST, 0, INNER_BATCH | NEED_UNWRAP)
    assert appended.queue_offset == 1
    assert at(log, appended.commit_log_offset).properties == {"INNER_NUM": "5", "INNER_BASE": "1"}
    assert at(log, put(log)).queue_offset == 6


@pytest.mark.parametrize("count", ["", "0", "-1", "x", "40000"])
def test_an_inner_batch_that_does_not_say_its_size_is_refused(tmp_path: Path, count: str) -> None:
    properties = encode_properties({"INNER_NUM": count})
    with pytest.raises(MessageError, match="INNER_NUM"):
        open_log(tmp_path).append("T", 0, b"", properties, BORN_AT_MS, BORN_HOST, 0, INNER_BATCH)


def test_a_message_for_light_queues_gets_a_number_in_each(tmp_path: Path) -> None:
    log = open_log(tmp_path, light_queues=True)
    for names, offsets in [("%LMQ%a", "0"), ("%LMQ%a,%LMQ%b", "1,0"), ("%LMQ%b", "1")]:
        properties = encode_properties({"INNER_MULTI_DISPATCH": names, "WAIT": "true", "mine": "1"})
        stored = decode_properties(at(log, put(log, properties=properties)).raw_properties)
        assert stored == {"INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": offsets, "mine": "1"}


@pytest.mark.parametrize("topic", ["%RETRY%g", "rmq_sys_x", "SCHEDULE_TOPIC_XXXX"])
def test_messages_of_system_topics_go_to_no_light_queue(tmp_path: Path, topic: str) -> None:
    log = open_log(tmp_path, light_queues=True)
    properties = encode_properties({"INNER_MULTI_DISPATCH": "%LMQ%a"})
    assert at(log, put(log, topic=topic, properties=properties)).raw_properties == properties


def test_light_queues_are_bounded_and_must_be_called_so(tmp_path: Path) -> None:
    log = open_log(tmp_path, light_queues=True, max_light_queues=2)
    put(log, properties=encode_properties({"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"}))
    with pytest.raises(MessageError, match="2 light queues already") as raised:
        put(log, properties=encode_properties({"INNER_MULTI_DISPATCH": "%LMQ%c"}))
    assert raised.value.code == AppendCode.SYSTEM_ERROR
    for name in ("plain", "%LMQ%a/b", "%LMQ%a\0b", "%LMQ%" + "l" * 251):
        with pytest.raises(MessageError, match="not a light queue"):
            put(log, properties=encode_properties({"INNER_MULTI_DISPATCH": name}))
    log.forget_topic("%LMQ%a")
    log.forget_topic("%LMQ%a")  # again, and nothing is there to forget
    put(log, properties=encode_properties({"INNER_MULTI_DISPATCH": "%LMQ%c"}))
    with pytest.raises(MessageError, match="2 light queues already"):
        put(log, properties=encode_properties({"INNER_MULTI_DISPATCH": "%LMQ%d"}))


@pytest.mark.parametrize(
    "topic",
    ["", ".", "..", "a/b", "a\0b", "\ud800", "t" * 256, "\N{GREEK SMALL LETTER ALPHA}" * 128],
    ids=["empty", "here", "above", "path", "null", "no text", "long", "long in bytes"],
)
def test_a_topic_that_can_be_no_folder_is_refused(tmp_path: Path, topic: str) -> None:
    log = open_log(tmp_path)
    for sys_flag in (0, TRANSACTION_PREPARED):
        with pytest.raises(MessageError, match="cannot be a topic") as raised:
            put(log, topic=topic, sys_flag=sys_flag)
        assert raised.value.code == AppendCode.MESSAGE_ILLEGAL
    with pytest.raises(MessageError, match="cannot be a topic"):
        log.append_batch(topic, 0, [BatchMember(b"x", b"")], b"", BORN_AT_MS, BORN_HOST)
    assert (log.end, log.topic_fields) == (0, {})


def test_a_topic_may_be_as_long_as_a_folder_can_be_called(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert at(log, put(log, topic="t" * 255)).topic == "t" * 255


class _StopAtHead(Exception):
    pass


def test_until_its_first_eight_bytes_are_stored_a_record_does_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    put(log, b"first")
    end = log.end

    def die(*_store: object) -> None:
        raise _StopAtHead

    monkeypatch.setattr("orbitmq.storage.commit_log._write_size_and_magic", die)
    with pytest.raises(_StopAtHead):
        put(log, b"second")
    assert_written_but_no_record(log, b"second", end)


def test_the_same_holds_for_a_record_that_is_written_the_long_way(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    put(log, b"first")
    end = log.end

    class DiesBeforeTheHead:
        """The mapped file of a process that is killed between the two stores of an append."""

        def __init__(self, memory: memoryview) -> None:
            self.memory = memory

        def __setitem__(self, where: slice, data: bytes) -> None:
            if where.start == end:
                raise _StopAtHead
            self.memory[where] = data

    log.memory = DiesBeforeTheHead(log.memory)  # type: ignore[assignment]
    with pytest.raises(_StopAtHead):
        log.append("T", 0, b"second", b"", BORN_AT_MS, pack_host("2001:db8::1", 5))
    assert_written_but_no_record(log, b"second", end)


def assert_written_but_no_record(log: CommitLog, body: bytes, end: int) -> None:
    memory = log.files.segments[0].memory
    assert body in bytes(memory)
    with pytest.raises(MessageError, match="no record starts here"):
        check_record(memory, end, 4096)


@pytest.mark.parametrize("properties", [b"", b"TAGS\x01a\x02", b"k\x01v"])
@pytest.mark.parametrize("topic", ["T", "t" * 127, "t" * 128])
@pytest.mark.parametrize("body", [b"", b"b" * 300])
def test_the_quick_way_and_the_long_way_write_the_same_bytes(
    tmp_path: Path, topic: str, body: bytes, properties: bytes
) -> None:
    quick, long = open_log(tmp_path / "quick"), open_log(tmp_path / "long")
    long.is_special = True
    for log in (quick, long):
        for queue_id in (0, 7, 0):
            appended = log.append(topic, queue_id, body, properties, BORN_AT_MS, BORN_HOST, -5, 1, 3, 12345)
        assert appended.queue_offset == 1
    assert bytes(quick.files.segments[0].memory) == bytes(long.files.segments[0].memory)
    assert list(quick.recent) == list(long.recent)
    assert quick.end == long.end


def test_a_log_of_large_batches_has_no_pages_made_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    prepare = SegmentedLog.prepare_pages

    def note(files: SegmentedLog, segment: Segment, offset: int, *, is_stored_to: bool = True) -> int:
        asked.append(is_stored_to)
        return prepare(files, segment, offset, is_stored_to=is_stored_to)

    monkeypatch.setattr(SegmentedLog, "prepare_pages", note)
    log = open_log(tmp_path, segment_bytes=32 << 20, max_message_bytes=8 << 20, prepare_next_segment=True)
    put(log)
    for bodies in ([500_000] * 3, [LARGE_BATCH_BYTES] * 60):
        log.append_batch("T", 0, [BatchMember(bytes(size)) for size in bodies], b"", BORN_AT_MS, BORN_HOST)
    put(log, bytes(1 << 20))
    put(log, bytes(1 << 20))
    assert asked == [True, True, False, False, True]
    log.files.close()


def test_a_batch_is_written_together_within_its_file_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=64 << 10)
    put(log)
    size = (log.files.segments[0].file.path).stat().st_size
    for start, length in ((log.end, 64 << 10), ((64 << 10) - 10, 10), (-1, 1)):
        with pytest.raises(StorageError, match="do not fit"):
            log.write_together(start, [bytes(length)])
    members = [BatchMember(bytes([number]) * 1000) for number in range(LARGE_BATCH_BYTES // 1000)]
    done = log.append_batch("T", 0, members, b"", BORN_AT_MS, BORN_HOST)
    assert [at(log, offset).body for offset in done.commit_log_offsets] == [member.body for member in members]
    assert log.end == done.end
    assert (log.files.segments[0].file.path).stat().st_size == size
    log.files.close()
