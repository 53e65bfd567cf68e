from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections import defaultdict
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.errors import StorageError, StoreLocked
from orbitmq.message.hosts import pack_host
from orbitmq.message.record import decode_record
from orbitmq.storage import tables
from orbitmq.storage.config import StorageConfig
from orbitmq.storage.queue_index import NOWHERE
from orbitmq.storage.reader import StoreReader
from orbitmq.storage.store import Store
from tests import golden_stores

if TYPE_CHECKING:
    from collections.abc import Iterator

Golden = tuple[Path, dict[str, Any]]


@pytest.fixture(params=golden_stores.VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    return golden_stores.unpack(request.param, tmp_path), golden_stores.manifest(request.param)


def by_queue(manifest: dict[str, Any]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    queues: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for message in manifest["messages"]:
        if not message["sysFlag"] & 0x4:  # neither prepared nor rolled back
            queues[message["topic"], message["queueId"]].append(message)
    return queues


def fingerprint(directory: Path) -> dict[str, tuple[int, str]]:
    return {
        str(path.relative_to(directory)): (path.stat().st_mtime_ns, sha256(path.read_bytes()).hexdigest())
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.stat().st_size < 1 << 20
    }


def check_everything(store: Path, manifest: dict[str, Any]) -> None:
    expected = by_queue(manifest)
    with StoreReader(store) as reader:
        assert {(queue.topic, queue.queue_id) for queue in reader.queues()} == set(expected)
        for (topic, queue_id), messages in expected.items():
            queue = reader.queue(topic, queue_id)
            assert (queue.min_offset, queue.max_offset) == (messages[0]["queueOffset"], messages[-1]["queueOffset"] + 1)
            read = list(reader.messages(topic, queue_id))
            assert [message.queue_offset for message in read] == [message["queueOffset"] for message in messages]
            for got, want in zip(read, messages, strict=True):
                assert got.offset_id == want["msgId"]
                assert sha256(got.body).hexdigest() == want["bodySha256"]
                assert got.properties == want["properties"]
        log = list(reader.records())
        assert [record.commit_log_offset for record in log] == [m["commitLogOffset"] for m in manifest["messages"]]
        last = manifest["messages"][-1]
        assert reader.log_range == (0, last["commitLogOffset"] + last["size"])


def test_every_queue_and_message_of_an_apache_store_is_read(golden: Golden) -> None:
    check_everything(*golden)


def test_without_any_queue_file_the_messages_are_found_in_the_log(golden: Golden) -> None:
    store, manifest = golden
    shutil.rmtree(store / "consumequeue")
    (store / "abort").touch()
    check_everything(store, manifest)


def test_queues_cut_short_by_a_kill_are_completed_from_the_log(golden: Golden) -> None:
    store, manifest = golden
    for queue in (store / "consumequeue").glob("*/*"):
        last = max(queue.iterdir())
        whole = -(-len(last.read_bytes().rstrip(b"\0")) // 20)
        last.write_bytes(last.read_bytes()[: 20 * (whole // 2)].ljust(400, b"\0"))
    (store / "checkpoint").write_bytes(bytes(4096))
    (store / "abort").touch()
    check_everything(store, manifest)


def test_only_what_the_checkpoint_does_not_vouch_for_is_looked_up_in_the_log(golden: Golden) -> None:
    store, manifest = golden
    (store / "abort").touch()
    check_everything(store, manifest)
    with StoreReader(store) as reader:
        looked_at = reader._indexed_to(clean=False)
        assert 0 < looked_at < reader.log_range[1]


def test_reading_changes_nothing_and_takes_no_lock(golden: Golden) -> None:
    store, _ = golden
    (store / "lock").unlink()
    (store / "commitlog" / f"{10**9:020d}").touch()
    (store / "config" / "topics.json").write_bytes(b"{")
    before = fingerprint(store)
    with StoreReader(store) as reader:
        for queue in reader.queues():
            list(reader.messages(queue.topic, queue.queue_id))
        reader.find("TopicA", "k0")
        assert reader.table(tables.TOPICS, tables.TopicTable).topic_config_table["TopicA"].perm == 6
        assert reader.owner is None
        assert reader.is_clean
        reader.refresh()
    assert fingerprint(store) == before


def test_a_part_of_a_queue_can_be_read_raw(golden: Golden) -> None:
    store, manifest = golden
    (topic, queue_id), messages = max(by_queue(manifest).items(), key=lambda item: len(item[1]))
    with StoreReader(store) as reader:
        first, last = messages[2]["queueOffset"], messages[5]["queueOffset"]
        slices = list(reader.slices(topic, queue_id, first, last))
        assert [piece.queue_offset for piece in slices] == [message["queueOffset"] for message in messages[2:5]]
        assert [len(piece.data) for piece in slices] == [message["size"] for message in messages[2:5]]
        assert decode_record(slices[0].data).offset_id == messages[2]["msgId"]
        assert list(reader.slices(topic, queue_id, 10**6)) == []
        assert list(reader.slices("no such topic", 0)) == []
        assert reader.queue("no such topic", 0)[2:4] == (0, 0)
        assert topic in reader.topics()
        start = manifest["messages"][10]["commitLogOffset"]
        stop = manifest["messages"][20]["commitLogOffset"]
        assert len(list(reader.records(start, stop))) == 10


def test_messages_are_found_by_key_and_compared(golden: Golden) -> None:
    store, manifest = golden
    wanted = [message for message in manifest["messages"] if message["topic"] == "TopicA"]
    common = [m["commitLogOffset"] for m in wanted if "common" in m["properties"].get("KEYS", "").split(" ")]
    with StoreReader(store) as reader:
        assert [message.commit_log_offset for message in reader.find("TopicA", "common")] == common[::-1]
        assert len(reader.find("TopicA", "common", limit=2)) == 2
        unique = wanted[3]["properties"]["UNIQ_KEY"]
        assert [message.commit_log_offset for message in reader.find("TopicA", unique)] == [
            wanted[3]["commitLogOffset"]
        ]
        assert reader.find("TopicA", "nothing has this key") == []
        time = wanted[3]["storeTimestamp"]
        assert len(reader.find("TopicA", unique, begin_ms=time, end_ms=time)) == 1
        assert reader.find("TopicA", unique, begin_ms=time + 1) == []


def test_a_message_is_found_by_its_place(golden: Golden) -> None:
    store, manifest = golden
    with StoreReader(store) as reader:
        message = reader.at(manifest["messages"][7]["commitLogOffset"])
        assert message is not None
        assert message.offset_id == manifest["messages"][7]["msgId"]
        assert reader.at(manifest["messages"][7]["commitLogOffset"] + 1) is None
        assert reader.at(10**12) is None


def test_a_queue_with_entries_that_lead_nowhere_still_shows_the_others(golden: Golden) -> None:
    store, manifest = golden
    messages = by_queue(manifest)["TopicA", 1]
    path = store / "consumequeue" / "TopicA" / "1" / f"{0:020d}"
    data = path.read_bytes()
    path.write_bytes(NOWHERE * 2 + data[40:80] + NOWHERE * 2 + data[120:])
    with StoreReader(store) as reader:
        queue = reader.queue("TopicA", 1)
        assert (queue.min_offset, queue.max_offset) == (2, len(messages))
        offsets = [message.queue_offset for message in reader.messages("TopicA", 1)]
        assert offsets == [2, 3, *range(6, len(messages))]


def test_an_entry_that_points_at_no_record_of_its_size_is_left_out(golden: Golden) -> None:
    store, manifest = golden
    path = store / "consumequeue" / "TopicA" / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    struct.pack_into(">q", data, 20, 5)
    path.write_bytes(data)
    with StoreReader(store) as reader:
        offsets = [message.queue_offset for message in reader.messages("TopicA", 0)]
    assert offsets == [offset for offset in range(len(by_queue(manifest)["TopicA", 0])) if offset != 1]


def test_damage_in_the_log_hides_only_what_it_hit(golden: Golden) -> None:
    store, manifest = golden
    victim = manifest["messages"][5]
    with (store / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(victim["commitLogOffset"] + 4)
        file.write(b"\0\0\0\0")
    with StoreReader(store) as reader:
        seen = [record.commit_log_offset for record in reader.records()]
        assert seen == [m["commitLogOffset"] for m in manifest["messages"] if m is not victim]
        queue = [message.queue_offset for message in reader.messages(victim["topic"], victim["queueId"])]
        assert victim["queueOffset"] not in queue


def test_a_queue_whose_only_file_was_never_finished_is_read_from_the_log(golden: Golden) -> None:
    store, manifest = golden
    shutil.rmtree(store / "consumequeue" / "TopicA" / "1")
    (store / "consumequeue" / "TopicA" / "1").mkdir()
    (store / "consumequeue" / "TopicA" / "1" / f"{0:020d}").touch()
    (store / "checkpoint").write_bytes(bytes(4096))
    (store / "abort").touch()
    check_everything(store, manifest)


def test_a_directory_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no store"):
        StoreReader(tmp_path / "nothing")


@pytest.fixture(autouse=True)
def no_descriptor_is_left_open(tmp_path: Path) -> Iterator[None]:
    yield
    left = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert not [path for path in left if path.startswith(str(tmp_path)) and "(deleted)" not in path]


def test_a_running_broker_is_read_to_its_newest_message_and_keeps_its_lock(tmp_path: Path) -> None:
    host = pack_host("127.0.0.1", 10911)
    settings = StorageConfig(
        directory=tmp_path / "store", segment_bytes=16_384, queue_file_bytes=400, index_slots=40, index_entries=60
    )
    store = Store(settings, host)
    with StoreReader(tmp_path / "store") as reader:
        assert reader.queues() == []
        for round_number in range(1, 4):
            for number in range(100):
                store.append("T", number % 2, b"x" * 100, b"UNIQ_KEY\x01u%d-%d\x02" % (round_number, number), 1, host)
            reader.refresh()
            assert [queue.max_offset for queue in reader.queues("T")] == [50 * round_number, 50 * round_number]
            assert len(list(reader.messages("T", 1))) == 50 * round_number
            assert len(reader.find("T", f"u{round_number}-99")) == 1
            assert reader.log_range == (0, store.log.end)
            store.flush()
        assert reader.owner == os.getpid()
        held = next(reader.slices("T", 0)).data
    store.log.files.delete_oldest()
    assert decode_record(held).queue_offset == 0
    with pytest.raises(StoreLocked):
        Store(settings, host)
    probe = "import fcntl,sys\nf=open(sys.argv[1],'r+')\nfcntl.lockf(f, fcntl.LOCK_EX|fcntl.LOCK_NB, 1, 0)"
    assert (
        subprocess.run(
            [sys.executable, "-c", probe, str(tmp_path / "store" / "lock")], stderr=subprocess.DEVNULL, check=False
        ).returncode
        == 1
    )
    with StoreReader(tmp_path / "store") as reader:
        assert reader.queue("T", 0).min_offset > 0
        assert [message.queue_offset for message in reader.messages("T", 0)] == list(
            range(reader.queue("T", 0).min_offset, 150)
        )
    del held
    store.close()


def test_a_batch_queue_is_read_by_its_own_numbers(tmp_path: Path) -> None:
    host = pack_host("127.0.0.1", 10911)
    store = Store(StorageConfig(directory=tmp_path, segment_bytes=16_384), host, is_batch_topic=lambda _: True)
    for count in (3, 2, 4):
        properties = f"INNER_NUM\x01{count}\x02UNIQ_KEY\x01u{count}\x02".encode()
        store.append("B", 0, b"wrapped", properties, 1, host, sys_flag=0x0C0)
    for is_flushed in (False, True):
        if is_flushed:
            store.flush()
        with StoreReader(tmp_path) as reader:
            queue = reader.queue("B", 0)
            assert (queue.min_offset, queue.max_offset) == (0, 9)
            assert [place.queue_offset for place in reader.places("B", 0)] == [0, 3, 5]
            assert [place.queue_offset for place in reader.places("B", 0, 4, 6)] == [3, 5]
    store.close()
