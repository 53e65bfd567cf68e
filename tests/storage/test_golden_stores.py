"""Directories that Apache's brokers wrote: everything in them is found, and what we add is found beside it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.clock import ManualClock
from orbitmq.message.properties import KEYS, UNIQUE_KEY
from orbitmq.message.record import decode_record
from orbitmq.message.tags import tag_code
from orbitmq.storage.config import StorageConfig
from orbitmq.storage.offset_search import Boundary
from orbitmq.storage.queue_index import QueueIndex
from orbitmq.storage.store import Store
from tests.golden_stores import VERSIONS, manifest, unpack
from tests.storage.store_kit import BORN_AT_MS, BORN_HOST, STORE_HOST

if TYPE_CHECKING:
    from pathlib import Path

NOW_MS = 1_794_735_000_000  # shortly after both were written
NO_QUEUE_ENTRY = 0x4


def open_golden(directory: Path) -> Store:
    config = StorageConfig(
        directory=directory,
        segment_bytes=32_768,
        queue_file_bytes=400,
        index_slots=100,
        index_entries=60,
        prepare_next_segment=False,
    )
    return Store(config, STORE_HOST, clock=ManualClock(NOW_MS))


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def by_queue(version: str) -> dict[tuple[str, int], list[dict[str, Any]]]:
    queues: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for message in manifest(version)["messages"]:
        if not message["sysFlag"] & NO_QUEUE_ENTRY:
            queues[(message["topic"], message["queueId"])].append(message)
    return queues


def assert_holds_everything(store: Store, version: str) -> None:
    wanted = by_queue(version)
    assert {key for key, found in store.queue_ranges().items() if found.max_offset} == set(wanted)
    for (topic, queue_id), messages in wanted.items():
        assert store.queue_range(topic, queue_id) == (0, len(messages))
        read: list[int] = []
        offset = 0
        while offset < len(messages):
            result = store.read(topic, queue_id, offset)
            for buffer in result.buffers:
                at = 0
                while at < len(buffer):
                    message = decode_record(buffer, at)
                    read.append(message.commit_log_offset)
                    at += message.size
            offset = result.next_offset
        assert read == [message["commitLogOffset"] for message in messages]
        assert [message["queueOffset"] for message in messages] == list(range(len(messages)))


def test_every_message_is_in_its_queue(version: str, tmp_path: Path) -> None:
    with open_golden(unpack(version, tmp_path)) as store:
        assert store.last_exit.name == "CLEAN"
        assert store.recovered.damages == []
        assert_holds_everything(store, version)


@pytest.mark.parametrize(
    "lost", [["consumequeue"], ["index"], ["consumequeue", "index"], ["consumequeue", "index", "checkpoint"]]
)
@pytest.mark.parametrize("abort", [False, True])
def test_what_is_lost_of_the_indexes_is_built_again_as_apache_built_it(
    version: str, tmp_path: Path, lost: list[str], abort: bool
) -> None:
    directory = unpack(version, tmp_path)
    before = {
        path.relative_to(directory): path.read_bytes()
        for path in (directory / "consumequeue").rglob("*")
        if path.is_file()
    }
    for name in lost:
        if (directory / name).is_dir():
            for path in sorted((directory / name).rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
        else:
            (directory / name).unlink()
    if abort:
        (directory / "abort").touch()
    with open_golden(directory) as store:
        assert_holds_everything(store, version)
        if "consumequeue" in lost or "index" not in lost or abort:
            assert_keys_are_found(store, version)
    after = {
        path.relative_to(directory): path.read_bytes()
        for path in (directory / "consumequeue").rglob("*")
        if path.is_file()
    }
    assert {name: data for name, data in after.items() if any(data)} == {
        name: data for name, data in before.items() if any(data)
    }


def assert_keys_are_found(store: Store, version: str) -> None:
    for message in manifest(version)["messages"]:
        keys = [*message["properties"].get(KEYS, "").split(" "), message["properties"].get(UNIQUE_KEY, "")]
        for key in filter(None, keys):
            found = store.find_by_key(message["topic"], key, limit=1000)
            offsets = [decode_record(record).commit_log_offset for record in found.records]
            assert message["commitLogOffset"] in offsets


def test_every_key_is_found(version: str, tmp_path: Path) -> None:
    with open_golden(unpack(version, tmp_path)) as store:
        assert_keys_are_found(store, version)


def test_every_message_is_found_by_where_it_is_stored(version: str, tmp_path: Path) -> None:
    with open_golden(unpack(version, tmp_path)) as store:
        for message in manifest(version)["messages"]:
            record = store.record_at(message["commitLogOffset"])
            assert record is not None
            assert decode_record(record).offset_id == message["msgId"]
            assert store.record_at(message["commitLogOffset"] + 1) is None


def test_times_lead_to_offsets_and_back(version: str, tmp_path: Path) -> None:
    with open_golden(unpack(version, tmp_path)) as store:
        for (topic, queue_id), messages in by_queue(version).items():
            times = [message["storeTimestamp"] for message in messages]
            for at_ms in {time + shift for time in times for shift in (-1, 0, 1)}:
                lower = store.offset_by_time(topic, queue_id, at_ms)
                upper = store.offset_by_time(topic, queue_id, at_ms, Boundary.UPPER)
                assert lower == sum(time < at_ms for time in times)
                assert upper == max(0, sum(time <= at_ms for time in times) - 1)
            assert [store.stored_at_ms(topic, queue_id, offset) for offset in range(len(times))] == times
        assert store.earliest_stored_at_ms() == manifest(version)["messages"][0]["storeTimestamp"]


def test_entries_hold_the_tag_hash_or_the_delivery_time(version: str, tmp_path: Path) -> None:
    with open_golden(unpack(version, tmp_path)) as store:
        for key, messages in by_queue(version).items():
            queue = store.queues.queues[key]
            assert isinstance(queue, QueueIndex)
            for message in messages:
                code = queue.entry(message["queueOffset"])[2]
                if key[0] == "SCHEDULE_TOPIC_XXXX":
                    level = int(message["properties"]["DELAY"])
                    assert code == message["storeTimestamp"] + store.config.delay_levels_ms[level - 1]
                else:
                    assert code == (tag_code(message["tags"]) if message.get("tags") else 0)


def test_new_messages_go_on_where_apaches_broker_stopped(version: str, tmp_path: Path) -> None:
    directory = unpack(version, tmp_path)
    end = 0
    for _ in range(2):
        with open_golden(directory) as store:
            known = store.queue_range("TopicA", 0)
            appended = store.append("TopicA", 0, b"ours", b"KEYS\x01ours\x02", BORN_AT_MS, BORN_HOST)
            assert appended.queue_offset == known.max_offset
            assert appended.commit_log_offset >= end
            end = appended.end
            store.dispatch()
            assert store.read("TopicA", 0, known.max_offset).count == 1
    with open_golden(directory) as store:
        assert len(store.find_by_key("TopicA", "ours").records) == 2
        assert store.last_exit.name == "CLEAN"
