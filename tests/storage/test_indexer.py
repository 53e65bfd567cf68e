"""What the indexer makes of messages as they come must equal what it makes of the log afterwards."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitmq.accelerated import SWITCH
from orbitmq.clock import ManualClock
from orbitmq.message.batch import BatchMember
from orbitmq.message.properties import decode_properties, encode_properties
from orbitmq.message.record import topic_field
from orbitmq.message.sysflags import INNER_BATCH, NEED_UNWRAP
from orbitmq.message.tags import tag_code
from orbitmq.storage import indexer
from orbitmq.storage.config import FlushMode
from orbitmq.storage.queue_index import QueueIndex
from tests.storage.store_kit import BORN_AT_MS, BORN_HOST, bodies, open_store, put

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.storage.store import Store

pytestmark = pytest.mark.usefixtures("loops")


def entry(store: Store, topic: str, queue_id: int, offset: int) -> tuple[int, int, int]:
    queue = store.queues.queues[(topic, queue_id)]
    assert isinstance(queue, QueueIndex)
    return queue.entry(offset)


def index_files(directory: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for kind in ("consumequeue", "batchconsumequeue"):
        for path in (directory / kind).rglob("*"):
            if path.is_file():
                found[str(path.relative_to(directory))] = path.read_bytes()
    # Index files are named by when they were begun; what counts is their order.
    for number, path in enumerate(sorted((directory / "index").glob("*"))):
        found[f"index {number}"] = path.read_bytes()
    return found


def test_nothing_is_seen_before_dispatch_and_everything_after(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for number in range(5):
        put(store, body=b"%d" % number)
    assert store.queue_range("T", 0) == (0, 0)
    store.dispatch()
    assert store.queue_range("T", 0) == (0, 5)
    assert bodies(store) == [b"0", b"1", b"2", b"3", b"4"]
    store.close()


def test_an_entry_holds_place_size_and_tag(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first, second = put(store, TAGS="TagA"), put(store)
    store.dispatch()
    assert entry(store, "T", 0, 0) == (first.commit_log_offset, first.end - first.commit_log_offset, tag_code("TagA"))
    assert entry(store, "T", 0, 1) == (second.commit_log_offset, second.end - second.commit_log_offset, 0)
    store.close()


@pytest.mark.parametrize(("level", "delay_ms"), [("1", 1000), ("3", 10_000), ("18", 7_200_000), ("99", 7_200_000)])
def test_a_delayed_message_carries_its_delivery_time(tmp_path: Path, level: str, delay_ms: int) -> None:
    clock = ManualClock(1_700_000_000_000)
    store = open_store(tmp_path, clock=clock)
    put(store, "SCHEDULE_TOPIC_XXXX", 2, DELAY=level, TAGS="TagA")
    put(store, "SCHEDULE_TOPIC_XXXX", 2, DELAY="0", TAGS="TagA")
    put(store, "Other", 2, DELAY=level, TAGS="TagA")
    store.dispatch()
    assert entry(store, "SCHEDULE_TOPIC_XXXX", 2, 0)[2] == 1_700_000_000_000 + delay_ms
    assert entry(store, "SCHEDULE_TOPIC_XXXX", 2, 1)[2] == tag_code("TagA")
    assert entry(store, "Other", 2, 0)[2] == tag_code("TagA"), "delivered messages keep the property"
    store.close()


def test_whoever_listens_hears_of_each_queue_once_a_round(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    heard: list[tuple[str, int, int]] = []
    store.listen(lambda topic, queue_id, offset: heard.append((topic, queue_id, offset)))
    for topic, queue_id in [("A", 0), ("A", 1), ("A", 0), ("B", 0)]:
        put(store, topic, queue_id)
    assert heard == []
    store.dispatch()
    assert sorted(heard) == [("A", 0, 2), ("A", 1, 1), ("B", 0, 1)]
    heard.clear()
    store.dispatch()
    assert heard == []
    store.close()


def test_appending_asks_for_a_dispatch_once_and_does_it_itself_when_nobody_comes(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_bytes=1 << 20)
    asked: list[int] = []
    store.on_appended = lambda: asked.append(1)
    put(store)
    put(store)
    assert len(asked) == 1
    store.dispatch()
    for _ in range(256):
        put(store)
    assert len(asked) == 2
    assert store.queue_range("T", 0).max_offset == 258
    store.close()


def test_with_synchronous_flush_only_what_is_on_disk_is_seen(tmp_path: Path) -> None:
    store = open_store(tmp_path, flush_mode=FlushMode.SYNC)
    put(store)
    store.dispatch()
    assert store.queue_range("T", 0) == (0, 0)
    told: list[int] = []
    store.on_flushed = lambda: told.append(store.confirmed_offset)
    store.flush()
    assert told == [store.log.end]
    assert store.queue_range("T", 0) == (0, 1)
    put(store)
    store.dispatch()
    assert store.queue_range("T", 0) == (0, 1)
    store.close()


PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "TAGS": st.sampled_from(["TagA", "标签", "x y"]),
        "KEYS": st.sampled_from(["k1", "k1 k2", "  k3  ", "键"]),
        "UNIQ_KEY": st.sampled_from(["U1", "U2", "7F000001" * 4]),
        "DELAY": st.sampled_from(["1", "5", "99", "x", "0"]),
        "INNER_MULTI_DISPATCH": st.sampled_from(["%LMQ%a", "%LMQ%a,%LMQ%b"]),
    },
)
ONE = st.tuples(
    st.just("one"),
    st.sampled_from(["A", "B", "SCHEDULE_TOPIC_XXXX", "%RETRY%g"]),
    st.integers(0, 2),
    st.integers(0, 600),
    PROPERTIES,
    st.sampled_from([0, 0, 0, 4, 8, 12]),
)
MANY = st.tuples(st.just("many"), st.integers(1, 4), st.sampled_from(["k1", "k4"]))
INNER = st.tuples(st.just("inner"), st.integers(1, 4))
STEPS = st.lists(st.one_of(ONE, ONE, ONE, MANY, INNER), max_size=40)


def perform(store: Store, clock: ManualClock, steps: list[tuple[object, ...]]) -> None:
    for step in steps:
        clock.advance(ms=700)
        match step:
            case ("one", str(topic), int(queue_id), int(size), dict(properties), int(sys_flag)):
                store.append(
                    topic, queue_id, bytes(size), encode_properties(properties), BORN_AT_MS, BORN_HOST, 0, sys_flag
                )
            case ("many", int(count), str(key)):
                members = [BatchMember(b"m", encode_properties({"KEYS": key}))] * count
                store.append_batch("A", 1, members, b"UNIQ_KEY\x01B\x02", BORN_AT_MS, BORN_HOST)
            case ("inner", int(count)):
                inner = encode_properties({"INNER_NUM": str(count), "UNIQ_KEY": "I"})
                store.append("Batched", 0, b"inner", inner, BORN_AT_MS, BORN_HOST, 0, INNER_BATCH | NEED_UNWRAP)
            case unknown:
                raise AssertionError(unknown)


@settings(max_examples=25, deadline=None)
@given(steps=STEPS, dispatch_between=st.booleans())
def test_a_rebuild_from_the_log_equals_what_was_built_on_the_way(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[object, ...]], dispatch_between: bool
) -> None:
    directory = tmp_path_factory.mktemp("store")
    clock = ManualClock()

    def opened() -> Store:
        return open_store(
            directory, clock=clock, light_queues=True, is_batch_topic=lambda topic: topic == "Batched", index_entries=30
        )

    store = opened()
    for step in steps:
        perform(store, clock, [step])
        if dispatch_between:
            store.dispatch()
    store.close()
    built = index_files(directory)
    for name in ("consumequeue", "batchconsumequeue", "index"):
        shutil.rmtree(directory / name, ignore_errors=True)
    opened().close()
    assert index_files(directory) == built


def make_one_entry(store: Store, count: int) -> None:
    """Of the last records that were appended, as sends of large batches do."""
    recent = store.log.recent
    members = [recent.pop() for _ in range(count)][::-1]
    queue, start, _, queue_offset, sys_flag, stored_at_ms, _ = members[0]
    size = members[-1][1] + members[-1][2] - start
    records = store.log.memory[start - store.log.segment_start :][:size]
    recent.append((queue, start, size, queue_offset, sys_flag, stored_at_ms, records))


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(st.one_of(ONE, ONE, MANY, INNER), max_size=60),
    at_once=st.sampled_from([1, 3, 60]),
    many=st.sampled_from([1, 8, 1000]),
)
def test_many_records_at_once_some_of_them_batches_leave_the_indexes_of_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[object, ...]], at_once: int, many: int
) -> None:
    directory = tmp_path_factory.mktemp("store")
    clock = ManualClock()

    def opened() -> Store:
        return open_store(directory, clock=clock, is_batch_topic=lambda topic: topic == "Batched", index_entries=30)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexer, "_MANY", many)
        store = opened()
        put(store, "A", KEYS="k0")
        store.flush()  # the first key of a file is always entered by itself
        for number, step in enumerate(steps):
            perform(store, clock, [step])
            if step[0] == "many" and store.indexes_whole_batches:
                make_one_entry(store, int(str(step[1])))
            if number % at_once == 0:
                store.dispatch()
        store.close()
        built = index_files(directory)
        for name in ("consumequeue", "batchconsumequeue", "index"):
            shutil.rmtree(directory / name, ignore_errors=True)
        patch.setenv(SWITCH, "0")
        opened().close()
    assert index_files(directory) == built


def test_keys_of_a_batch_are_found_though_one_of_its_members_is_unusual(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_bytes=1 << 16)
    put(store, UNIQ_KEY="U", KEYS="before")
    store.flush()
    put(store, UNIQ_KEY="U0", KEYS="waits")
    store.dispatch()
    tags = ["", "", "new", ""]
    members = [
        BatchMember(b"m", encode_properties({"UNIQ_KEY": f"U{number}", **({"TAGS": tag} if tag else {})}))
        for number, tag in enumerate(tags)
    ]
    for _ in range(2):  # the second time, the tag is known
        store.append_batch("T", 0, members, b"", BORN_AT_MS, BORN_HOST)
        if store.indexes_whole_batches:
            make_one_entry(store, len(members))
        store.dispatch()
    assert store.queue_range("T", 0) == (0, 10)
    assert [len(store.find_by_key("T", f"U{number}").records) for number in range(4)] == [3, 2, 2, 2]
    assert [entry(store, "T", 0, offset)[2] for offset in (4, 8)] == [tag_code("new")] * 2
    store.close()


def test_keys_that_wait_are_entered_when_somebody_looks_or_the_indexes_are_flushed(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_bytes=1 << 16)
    assert store.keys is not None
    put(store, UNIQ_KEY="U1", KEYS="k")
    store.dispatch()
    assert store.keys.find("T", "k", 9, 0, 2**62).offsets == [], "one alone is not worth the while"
    assert len(store.find_by_key("T", "k").records) == 1
    put(store, UNIQ_KEY="U2", KEYS="k")
    store.flush()
    assert len(store.keys.find("T", "k", 9, 0, 2**62).offsets) == 2
    store.close()


def test_keys_of_records_that_are_cut_off_are_forgotten_while_they_wait(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_bytes=1 << 16)
    kept = put(store, UNIQ_KEY="U1", KEYS="kept")
    put(store, UNIQ_KEY="U2", KEYS="cut")
    store.dispatch()
    store.follow().cut(kept.end)
    assert [len(store.find_by_key("T", key).records) for key in ("kept", "cut")] == [1, 0]
    store.close()


@pytest.mark.parametrize(
    "odd",
    [
        b"UNIQ_KEY\x01AB\x02D\x01E\x02TAGS\x01t\x02",  # as long as the first, and ends like it, but is cut elsewhere
        b"UNIQ_KEY\x01ABCDEF\x02TAGS\x01u\x02",
        b"UNIQ_KEX\x01ABCDEF\x02TAGS\x01t\x02",
        b"TAGS\x01t\x02UNIQ_KEY\x01ABCDEF\x02",
    ],
)
def test_properties_that_only_look_like_the_ones_before_are_read_for_themselves(tmp_path: Path, odd: bytes) -> None:
    store = open_store(tmp_path, segment_bytes=1 << 16)
    put(store, properties=b"UNIQ_KEY\x01123456\x02TAGS\x01t\x02")
    put(store, properties=odd)
    store.dispatch()
    assert len(store.find_by_key("T", "123456").records) == 1
    named = decode_properties(odd)
    assert entry(store, "T", 0, 1)[2] == tag_code(named["TAGS"])
    assert len(store.find_by_key("T", named.get("UNIQ_KEY", "-")).records) == ("UNIQ_KEY" in named)
    assert store.find_by_key("T", "AB\x02D\x01E").records == []
    store.close()


@pytest.mark.parametrize("topic", ["t" * 256, "a\0b", "../../outside"], ids=["long", "null", "path"])
def test_records_whose_topic_can_be_no_folder_are_in_no_queue_and_stop_nobody(tmp_path: Path, topic: str) -> None:
    """We store none; a log that others wrote, or a master's, may hold one."""
    store = open_store(tmp_path / "store")
    store.log.topic_fields[topic] = topic_field(topic)
    put(store, topic)
    put(store, body=b"fine")
    assert bodies(store) == [b"fine"]
    store.close()
    store = open_store(tmp_path / "store")
    assert put(store, body=b"and on").queue_offset == 1
    assert bodies(store) == [b"fine", b"and on"]
    store.close()
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
