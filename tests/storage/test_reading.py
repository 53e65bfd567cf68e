from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orbitmq.message.batch import BatchMember, encode_batch
from orbitmq.message.properties import encode_properties
from orbitmq.message.record import USUAL_HEAD_BYTES, decode_record, decode_records, with_offset
from orbitmq.message.sysflags import INNER_BATCH, NEED_UNWRAP
from orbitmq.message.tags import tag_code
from orbitmq.storage.batch_queue_index import BatchQueueIndex
from orbitmq.storage.offset_search import Boundary
from orbitmq.storage.queue_index import QueueIndex
from orbitmq.storage.reading import QueueReader, ReadStatus
from tests.storage.store_kit import BORN_AT_MS, BORN_HOST, bodies, open_store, put

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from orbitmq.storage.reading import ReadResult
    from orbitmq.storage.store import Store

pytestmark = pytest.mark.usefixtures("loops")

SIZE_OF_VIEWS = 2000  # three of these are more than the compiled loop copies


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path, segment_bytes=1 << 20, queue_file_bytes=2000)
    yield opened
    opened.close()


def fill(store: Store, count: int, size: int = 10) -> None:
    for number in range(count):
        put(store, body=b"%0*d" % (size, number), TAGS="even" if number % 2 == 0 else "odd")
    store.dispatch()


def read_bodies(result: ReadResult) -> list[int]:
    return [int(message.body) for buffer in result.buffers for message in decode_records(buffer)]


def test_an_unknown_queue_has_no_messages(store: Store) -> None:
    result = store.read("T", 0, 5)
    assert (result.status, result.next_offset, result.count) == (ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0)


def test_an_empty_queue_says_so(store: Store) -> None:
    store.queues.open("T", 0)
    result = store.read("T", 0, 5)
    assert (result.status, result.next_offset) == (ReadStatus.NO_MESSAGE_IN_QUEUE, 0)


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (-1, ReadStatus.OFFSET_TOO_SMALL, 3),
        (2, ReadStatus.OFFSET_TOO_SMALL, 3),
        (10, ReadStatus.OFFSET_OVERFLOW_ONE, 10),
        (11, ReadStatus.OFFSET_OVERFLOW_BADLY, 10),
        (1 << 40, ReadStatus.OFFSET_OVERFLOW_BADLY, 10),
        (9, ReadStatus.FOUND, 10),
    ],
)
def test_an_offset_outside_the_queue_is_corrected(
    store: Store, offset: int, status: ReadStatus, next_offset: int
) -> None:
    fill(store, 10)
    store.queues.queues[("T", 0)].min_offset = 3
    result = store.read("T", 0, offset)
    assert (result.status, result.next_offset, result.min_offset, result.max_offset) == (status, next_offset, 3, 10)


def test_neighbours_come_in_one_buffer(store: Store) -> None:
    fill(store, 10)
    result = store.read("T", 0, 2, max_count=5)
    assert (result.count, result.next_offset, len(result.buffers)) == (5, 7, 1)
    assert read_bodies(result) == [2, 3, 4, 5, 6]
    assert list(result.queue_offsets) == [2, 3, 4, 5, 6]
    assert result.total_bytes == sum(len(buffer) for buffer in result.buffers)


def test_records_with_others_between_them_come_in_pieces(store: Store) -> None:
    for number in range(6):
        put(store, queue_id=number % 2, body=b"%0*d" % (SIZE_OF_VIEWS, number))
    store.dispatch()
    result = store.read("T", 1, 0)
    assert (len(result.buffers), read_bodies(result)) == (3, [1, 3, 5])


def test_buffers_are_views_of_the_log_itself(store: Store) -> None:
    fill(store, 3, SIZE_OF_VIEWS)
    (buffer,) = store.read("T", 0, 0).buffers
    assert buffer.obj is store.log.files.segments[0].memory.obj


def test_an_entry_that_leads_far_beyond_the_log_is_passed_over(store: Store) -> None:
    fill(store, 3)
    queue = store.queues.queues[("T", 0)]
    assert isinstance(queue, QueueIndex)
    queue.log.tail[20:28] = (2**63 - 8).to_bytes(8, "big")  # the second entry
    assert read_bodies(store.read("T", 0, 0))[:1] == [0]


def test_reading_goes_over_the_end_of_a_file_of_the_log(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_bytes=1000)
    fill(store, 20, size=100)
    assert [int(body) for body in bodies(store)] == list(range(20))
    assert len(store.log.files.segments) > 3
    store.close()


def test_the_first_message_is_given_whatever_its_size(store: Store) -> None:
    put(store, body=b"x" * 400_000)
    put(store)
    store.dispatch()
    for max_bytes in (0, 1, 1 << 20):
        result = store.read("T", 0, 0, max_bytes=max_bytes)
        assert (result.count, result.next_offset) == (1, 1)


@pytest.mark.parametrize(("max_count", "count"), [(0, 1), (1, 1), (5, 5), (32, 32), (100, 32)])
def test_a_read_gives_no_more_messages_than_asked_for_and_no_more_than_32(
    store: Store, max_count: int, count: int
) -> None:
    fill(store, 50)
    assert store.read("T", 0, 0, max_count=max_count).count == count
    assert store.read("T", 0, 0, max_count=max_count, accept=lambda _record: True).count == count


def test_a_read_gives_no_more_bytes_than_asked_for_and_no_more_than_256_kb(store: Store) -> None:
    fill(store, 30, size=20_000)
    two = store.read("T", 0, 0, max_count=2).total_bytes
    for accept in (None, lambda _record: True):
        assert store.read("T", 0, 0, max_bytes=2 * two, accept=accept).count == 4
        assert store.read("T", 0, 0, max_bytes=2 * two - 1, accept=accept).count == 3
        assert store.read("T", 0, 0, accept=accept).count == 262_144 // (two // 2)


def test_old_messages_come_in_smaller_portions_and_point_to_a_slave(store: Store) -> None:
    fill(store, 30, size=100)
    reader = QueueReader(store.log, store.queues, store._extensions, store.config, memory_bytes=2000)  # 40 %: 800
    result = reader.read("T", 0, 0)
    assert (result.count, result.far_behind) == (8, True)
    newest = reader.read("T", 0, 28)
    assert (newest.count, newest.far_behind) == (2, False)


def test_a_tag_filter_looks_at_the_hash_alone(store: Store) -> None:
    fill(store, 20)
    result = store.read("T", 0, 0, tag_codes={tag_code("odd")})
    assert read_bodies(result) == list(range(1, 20, 2))
    assert result.next_offset == 20
    assert list(result.queue_offsets) == list(range(1, 20, 2))


def test_when_nothing_matches_the_reader_is_told_where_to_go_on(store: Store) -> None:
    fill(store, 20)
    result = store.read("T", 0, 3, tag_codes={tag_code("none")})
    assert (result.status, result.next_offset, result.buffers) == (ReadStatus.NO_MATCHED_MESSAGE, 20, [])
    result = store.read("T", 0, 3, accept=lambda _record: False)
    assert (result.status, result.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 20)


def test_a_filter_looks_at_a_bounded_number_of_entries_of_one_file(store: Store) -> None:
    fill(store, 300)  # 100 entries a file
    store.queues.write_out()
    result = store.read("T", 0, 10, tag_codes={tag_code("none")})
    assert result.next_offset == 100
    assert store.read("T", 0, 100, tag_codes={tag_code("none")}).next_offset == 200


def test_a_filter_of_records_sees_the_record(store: Store) -> None:
    fill(store, 20)
    result = store.read("T", 0, 0, accept=lambda record: int(decode_record(record).body) % 5 == 0)
    assert read_bodies(result) == [0, 5, 10, 15]


def test_messages_whose_file_is_gone_are_passed_over(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_bytes=1000)
    fill(store, 20, size=100)
    held = store.read("T", 0, 0).buffers
    store.log.files.delete_oldest()
    result = store.read("T", 0, 0)
    gone = result.next_offset - result.count if result.count else result.next_offset
    assert result.status in (ReadStatus.FOUND, ReadStatus.MESSAGE_WAS_REMOVING)
    assert read_bodies(result) == list(range(gone, result.next_offset))
    assert gone > 0
    assert int(decode_record(held[0]).body) == 0, "what a reader holds stays readable"
    store.close()


def test_when_all_messages_looked_at_are_gone_the_reader_is_told_where_to_go_on(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_bytes=1000)
    fill(store, 20, size=100)
    store.log.files.delete_oldest()
    result = store.read("T", 0, 0, max_count=2)
    assert (result.status, result.next_offset) == (ReadStatus.MESSAGE_WAS_REMOVING, 2)
    store.close()


def test_a_missing_queue_file_sends_the_reader_to_the_next(store: Store) -> None:
    fill(store, 250)
    store.queues.write_out()
    store.queues.queues[("T", 0)].log.files.drop(2000)
    result = store.read("T", 0, 150)
    assert (result.status, result.next_offset) == (ReadStatus.OFFSET_FOUND_NULL, 200)


def test_a_key_leads_to_its_messages_in_the_order_of_the_log(store: Store) -> None:
    for number in range(5):
        put(store, body=b"%d" % number, KEYS=f"common k{number}", UNIQ_KEY=f"U{number}")
    put(store, "Other", KEYS="common")
    store.dispatch()
    assert [decode_record(record).body for record in store.find_by_key("T", "common").records] == [
        b"0",
        b"1",
        b"2",
        b"3",
        b"4",
    ]
    assert [decode_record(record).body for record in store.find_by_key("T", "U3").records] == [b"3"]
    found = store.find_by_key("T", "common", limit=2)
    assert [decode_record(record).body for record in found.records] == [b"3", b"4"]
    assert store.find_by_key("T", "absent").records == []


def test_without_a_key_index_nothing_is_found_by_key(tmp_path: Path) -> None:
    store = open_store(tmp_path, key_index=False)
    put(store, KEYS="k")
    store.dispatch()
    assert store.find_by_key("T", "k") == ([], 0, 0, True)
    assert not (tmp_path / "index").exists()
    store.close()


def test_a_place_in_the_log_leads_to_a_record_only_where_one_begins(store: Store) -> None:
    first, second = put(store, body=b"1"), put(store, body=b"2")
    record = store.record_at(second.commit_log_offset)
    assert record is not None
    assert decode_record(record).body == b"2"
    for offset in (-1, 1, first.end + 1, second.end, 1 << 50):
        assert store.record_at(offset) is None


def test_a_place_in_the_log_is_a_message_only_if_its_queue_leads_there(tmp_path: Path) -> None:
    store = open_store(tmp_path, light_queues=True, is_batch_topic=lambda topic: topic == "B")
    inner = [put_inner(store, count) for count in (3, 5)]
    batches = [store.log.recent[number][1] for number in range(len(inner))]
    light = put(store, INNER_MULTI_DISPATCH="%LMQ%a,%LMQ%b")
    plain = put(store, body=b"plain")
    for offset in (*batches, light.commit_log_offset, plain.commit_log_offset):  # not dispatched before the first
        found = store.message_at(offset)
        assert found is not None
        assert decode_record(found).commit_log_offset == offset

    place = store.log.end + USUAL_HEAD_BYTES
    whole = store.record_at(plain.commit_log_offset)
    assert whole is not None
    outer = put(store, body=with_offset(whole, place))
    assert store.record_at(place) is not None
    assert store.message_at(place) is None
    assert store.message_at(outer.commit_log_offset) is not None
    store.delete_topic("T")
    assert store.record_at(plain.commit_log_offset) is not None
    assert store.message_at(plain.commit_log_offset) is None
    assert store.message_at(batches[1]) is not None
    store.close()


# Batch queues


def batched(directory: Path) -> Store:
    return open_store(directory, is_batch_topic=lambda topic: topic == "B")


def put_inner(store: Store, count: int) -> int:
    body = encode_batch([BatchMember(b"%d" % number) for number in range(count)])
    properties = encode_properties({"INNER_NUM": str(count), "TAGS": "x"})
    return store.append("B", 0, body, properties, BORN_AT_MS, BORN_HOST, 0, INNER_BATCH | NEED_UNWRAP).queue_offset


def test_a_batch_queue_counts_messages_and_gives_whole_records(tmp_path: Path) -> None:
    store = batched(tmp_path)
    assert [put_inner(store, count) for count in (3, 5, 1)] == [0, 3, 8]
    assert put(store, "B").queue_offset == 9
    store.dispatch()
    assert store.queue_range("B", 0) == (0, 10)
    for offset, first in [(0, 0), (2, 0), (3, 3), (7, 3), (8, 8), (9, 9)]:
        result = store.read("B", 0, offset, max_count=1)
        assert (result.status, list(result.queue_offsets)) == (ReadStatus.FOUND, [first])
    everything = store.read("B", 0, 0)
    assert (everything.count, everything.next_offset) == (10, 10)
    assert [message.queue_offset for buffer in everything.buffers for message in decode_records(buffer)] == [0, 3, 8, 9]
    store.close()


def test_a_batch_queue_survives_a_restart_and_a_rebuild(tmp_path: Path) -> None:
    store = batched(tmp_path)
    for count in (3, 5, 1, 2, 4, 7, 2, 2, 2, 2, 2, 9):
        put_inner(store, count)
    store.close()
    directory = tmp_path / "batchconsumequeue" / "B" / "0"
    assert [path.stat().st_size for path in sorted(directory.iterdir())] == [460, 460]
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    store = batched(tmp_path)
    assert store.queue_range("B", 0) == (0, 41)
    assert isinstance(store.queues.queues[("B", 0)], BatchQueueIndex)
    assert put_inner(store, 1) == 41
    store.dispatch()
    assert store.read("B", 0, 41).count == 1
    last = store.queues.queues[("B", 0)].last_record()
    assert last is not None
    store.queues.truncate(last[0])
    store.close()
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


def test_times_lead_to_offsets_in_a_batch_queue(tmp_path: Path) -> None:
    store = batched(tmp_path)
    times = []
    for count in (3, 5, 1):
        store.clock.advance(ms=1000)  # type: ignore[attr-defined]
        times.append(store.clock.now_ms())
        put_inner(store, count)
    store.dispatch()
    lower = [store.offset_by_time("B", 0, at_ms) for at_ms in (0, times[0], times[1], times[1] + 1, times[2] + 1)]
    upper = [store.offset_by_time("B", 0, at_ms, Boundary.UPPER) for at_ms in (0, times[0], times[1], times[2] + 1)]
    assert lower == [0, 0, 3, 8, 9]
    assert upper == [0, 0, 3, 8]
    store.close()


def test_expired_records_leave_a_batch_queue(tmp_path: Path) -> None:
    store = batched(tmp_path)
    for _ in range(25):
        put_inner(store, 4)
    store.flush()
    queue = store.queues.queues[("B", 0)]
    assert isinstance(queue, BatchQueueIndex)
    twelfth = queue.entries_from(48, 1)[0]
    assert store.queues.delete_below(twelfth.physical) == 1
    assert store.queue_range("B", 0) == (48, 100)
    store.queues.lead_nowhere(twelfth.physical, twelfth.physical + 1)
    assert store.read("B", 0, 48, max_count=1).count == 0
    assert store.read("B", 0, 52, max_count=1).count == 4
    store.close()
