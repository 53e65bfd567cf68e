"""A deleted topic stays deleted, and one that is made again under its name has its own messages, all of them and no others."""

from __future__ import annotations

import shutil
from random import Random
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.message.properties import encode_properties
from orbitmq.message.sysflags import INNER_BATCH, NEED_UNWRAP
from orbitmq.storage import deletions
from orbitmq.storage.files import LocalDisk
from orbitmq.storage.lock import LastExit
from orbitmq.storage.queue_index import NOWHERE, QueueIndex
from orbitmq.storage.queue_table import QueueTable
from orbitmq.storage.reader import StoreReader
from orbitmq.storage.segmented_log import segment_name
from orbitmq.storage.verification import verify
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.store_kit import BORN_AT_MS, BORN_HOST, bodies, open_store, put, small_config

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.storage.store import Store

pytestmark = pytest.mark.usefixtures("loops")

OLD = [b"old %d" % number for number in range(13)]  # more than a file of a queue holds
NEW = [b"new %d" % number for number in range(3)]
FILES: dict[str, Any] = {"segment_bytes": 1 << 16}
BODY_AT = 88  # in a record


@pytest.fixture(params=list(LastExit))
def last_exit(request: pytest.FixtureRequest) -> LastExit:
    found: LastExit = request.param
    return found


def send(store: Store, *sent: bytes, queue_id: int = 0) -> list[int]:
    numbers = [put(store, queue_id=queue_id, body=body, UNIQ_KEY=body.decode()).queue_offset for body in sent]
    store.dispatch()
    return numbers


def delete_and_make_again(directory: Path, *, written: bool = False, **changes: Any) -> Store:
    """Two queues of old messages, and new ones in the first of them; a topic that has nothing to do with it."""
    store = open_store(directory, **FILES, **changes)
    send(store, *OLD)
    send(store, *OLD, queue_id=1)
    put(store, "U", body=b"other")
    store.flush()
    assert store.delete_topic("T") == 2
    assert send(store, *NEW) == [0, 1, 2]
    if written:
        store.flush()
    return store


def leave(store: Store, last_exit: LastExit) -> None:
    if last_exit is LastExit.CLEAN:
        store.close()
        return
    store.abandon()
    if last_exit is LastExit.CRASHED:
        (store.config.directory / "abort").write_text("1\nanother boot\n")


def open_again(directory: Path, last_exit: LastExit, **changes: Any) -> Store:
    store = open_store(directory, **FILES, **changes)
    assert store.last_exit is last_exit
    return store


def assert_made_again(store: Store) -> None:
    assert bodies(store) == bodies(store, offset=0) == NEW
    assert bodies(store, "U") == [b"other"]
    assert send(store, b"next") == [3]
    assert bodies(store) == [*NEW, b"next"]


def test_a_deleted_topic_stays_deleted_whatever_ends_the_store(tmp_path: Path, last_exit: LastExit) -> None:
    store = open_store(tmp_path, **FILES)
    send(store, *OLD)
    put(store, "U", body=b"other")
    store.flush()
    store.delete_topic("T")
    for _ in range(2):
        leave(store, last_exit)
        store = open_again(tmp_path, last_exit)
        assert store.topics() == {"U"}
        assert bodies(store) == []
    assert send(store, *NEW) == [0, 1, 2]
    assert_made_again(store)
    store.close()


@pytest.mark.parametrize("written", [False, True], ids=["queues in memory", "queues on disk"])
def test_a_topic_made_again_has_its_own_messages_whatever_ends_the_store(
    tmp_path: Path, last_exit: LastExit, written: bool
) -> None:
    leave(delete_and_make_again(tmp_path, written=written), last_exit)
    store = open_again(tmp_path, last_exit)
    assert store.queue_range("T", 1) == (0, 0)
    assert_made_again(store)
    store.close()


@pytest.mark.parametrize("loses_queues", [False, True], ids=["with its queues", "without"])
def test_the_log_alone_says_which_messages_are_those_of_the_topic_made_again(
    tmp_path: Path, last_exit: LastExit, loses_queues: bool
) -> None:
    """As in a directory that Apache's broker wrote: nothing is noted of the deletion."""
    store = delete_and_make_again(tmp_path)
    leave(store, last_exit)
    (tmp_path / deletions.NAME).unlink()
    if loses_queues:
        for path in sorted((tmp_path / "consumequeue").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    store = open_again(tmp_path, last_exit)
    assert_made_again(store)
    store.close()


def damage_first_of_new(store: Store, at: int) -> None:
    offset = dict(store._deletions.log_offsets)["T"] + at
    path = store.config.commit_log_path / segment_name(0)
    path.write_bytes(path.read_bytes()[:offset] + b"\x7f\x7f" + path.read_bytes()[offset + 2 :])


def make_safe(store: Store) -> None:
    """Later messages were flushed, too: so what comes before the last of them is known to have been on the disk."""
    for _ in range(2):
        store.clock.advance(ms=1000)  # type: ignore[attr-defined]
        put(store, "U", body=b"later")
    store.flush()


@pytest.mark.parametrize("at", [0, BODY_AT], ids=["its size", "its body"])
def test_no_deleted_message_takes_the_number_of_a_damaged_one(tmp_path: Path, last_exit: LastExit, at: int) -> None:
    store = delete_and_make_again(tmp_path)
    make_safe(store)
    leave(store, last_exit)
    damage_first_of_new(store, at)
    shutil.rmtree(tmp_path / "consumequeue")
    store = open_again(tmp_path, last_exit)
    assert len(store.recovered.damages) == 1
    assert store.queue_range("T", 0) == (1, 3)
    assert bodies(store) == bodies(store, offset=0) == NEW[1:]
    assert send(store, b"next") == [3]
    store.close()


@pytest.mark.parametrize("at", [0, BODY_AT], ids=["its size", "its body"])
def test_a_topic_made_again_keeps_the_number_of_its_only_message_though_that_is_damaged(
    tmp_path: Path, last_exit: LastExit, at: int
) -> None:
    store = open_store(tmp_path, **FILES)
    send(store, *OLD)
    store.flush()
    store.delete_topic("T")
    assert send(store, NEW[0]) == [0]
    make_safe(store)
    leave(store, last_exit)
    damage_first_of_new(store, at)
    for _ in range(3):
        store = open_again(tmp_path, last_exit)
        assert bodies(store) == []
        assert store.queue_range("T", 0).max_offset == 1
        leave(store, last_exit)
    store = open_again(tmp_path, last_exit)
    assert send(store, NEW[1]) == [1]
    assert bodies(store) == [NEW[1]]
    store.close()


@pytest.mark.parametrize("seed", range(8))
def test_a_power_cut_mixes_nothing_of_both(tmp_path: Path, seed: int) -> None:
    disk = FaultyDisk(tmp_path)
    store = delete_and_make_again(tmp_path, disk=disk)
    store.queues.write_out()
    store._log_flusher.flush()
    store.abandon()
    disk.crash(Random(seed) if seed else None)
    store = open_again(tmp_path, LastExit.CRASHED, disk=disk)
    assert store.queue_range("T", 1) == (0, 0)
    assert_made_again(store)
    store.close()


def test_inner_batches_of_a_topic_made_again_are_those_that_are_read(tmp_path: Path, last_exit: LastExit) -> None:
    def send_batch(store: Store, body: bytes) -> int:
        properties = encode_properties({"INNER_NUM": "4"})
        appended = store.append("B", 0, body, properties, BORN_AT_MS, BORN_HOST, 0, INNER_BATCH | NEED_UNWRAP)
        store.dispatch()
        return appended.queue_offset

    kind: dict[str, Any] = {"is_batch_topic": lambda topic: topic == "B"}
    store = open_store(tmp_path, **FILES, **kind)
    for body in OLD:
        send_batch(store, body)
    store.flush()
    store.delete_topic("B")
    assert [send_batch(store, body) for body in NEW] == [0, 4, 8]
    leave(store, last_exit)
    (tmp_path / deletions.NAME).unlink()
    store = open_again(tmp_path, last_exit, **kind)
    assert store.queue_range("B", 0) == (0, 12)
    assert bodies(store, "B") == NEW
    assert send_batch(store, b"next") == 12
    store.close()


def test_an_inner_batch_behind_a_damaged_one_is_entered_after_every_start(tmp_path: Path) -> None:
    kind: dict[str, Any] = {"is_batch_topic": lambda topic: topic == "B"}
    store = open_store(tmp_path, **FILES, **kind)
    properties = encode_properties({"INNER_NUM": "4"})
    flags = INNER_BATCH | NEED_UNWRAP
    first = store.append("B", 0, OLD[0], properties, BORN_AT_MS, BORN_HOST, 0, flags)
    second = store.append("B", 0, OLD[1], properties, BORN_AT_MS, BORN_HOST, 0, flags)
    put(store, "U", body=b"other")
    store.close()
    path = tmp_path / "commitlog" / segment_name(0)
    path.write_bytes(path.read_bytes().replace(OLD[1], b"x" * len(OLD[1])))
    for _ in range(2):
        store = open_again(tmp_path, LastExit.CLEAN, **kind)
        assert [damage.start for damage in store.recovered.damages] == [second.commit_log_offset]
        assert bodies(store, "B") == [OLD[0]]
        store.close()
    store = open_again(tmp_path, LastExit.CLEAN, **kind)
    third = store.append("B", 0, OLD[2], properties, BORN_AT_MS, BORN_HOST, 0, flags)
    assert (first.queue_offset, second.queue_offset, third.queue_offset) == (0, 4, 8)
    assert bodies(store, "B", offset=8) == [OLD[2]]
    store.close()


@pytest.mark.parametrize("sent", [1, 2], ids=["the only one", "the second"])
def test_the_numbers_of_a_damaged_inner_batch_are_kept_after_every_start(
    tmp_path: Path, last_exit: LastExit, sent: int
) -> None:
    kind: dict[str, Any] = {"is_batch_topic": lambda topic: topic == "B"}
    store = open_store(tmp_path, **FILES, **kind)
    properties, flags = encode_properties({"INNER_NUM": "4"}), INNER_BATCH | NEED_UNWRAP
    for body in NEW[:sent]:
        last = store.append("B", 0, body, properties, BORN_AT_MS, BORN_HOST, 0, flags)
    make_safe(store)
    leave(store, last_exit)
    path = tmp_path / "commitlog" / segment_name(0)
    data = bytearray(path.read_bytes())
    data[last.commit_log_offset : last.commit_log_offset + 2] = b"\x7f\x7f"
    path.write_bytes(data)
    for _ in range(3):
        store = open_again(tmp_path, last_exit, **kind)
        assert store.queue_range("B", 0).max_offset == 4 * sent
        assert bodies(store, "B") == NEW[: sent - 1]
        leave(store, last_exit)
    store = open_again(tmp_path, last_exit, **kind)
    assert store.append("B", 0, NEW[2], properties, BORN_AT_MS, BORN_HOST, 0, flags).queue_offset == 4 * sent
    assert bodies(store, "B")[sent - 1 :] == [NEW[2]]
    store.close()


def test_a_deleted_light_queue_stays_deleted_and_begins_again(tmp_path: Path, last_exit: LastExit) -> None:
    def send_light(store: Store, *sent: bytes) -> None:
        for body in sent:
            put(store, body=body, INNER_MULTI_DISPATCH="%LMQ%a")
        store.dispatch()

    store = open_store(tmp_path, light_queues=True, **FILES)
    send_light(store, *OLD)
    store.flush()
    store.delete_topic("%LMQ%a")
    send_light(store, *NEW)
    leave(store, last_exit)
    store = open_again(tmp_path, last_exit, light_queues=True)
    assert bodies(store, "%LMQ%a") == NEW
    assert bodies(store) == [*OLD, *NEW]
    store.delete_topic("%LMQ%a")
    leave(store, last_exit)
    store = open_again(tmp_path, last_exit, light_queues=True)
    assert "%LMQ%a" not in store.topics()
    store.close()


def copy(master: Store, slave: Store) -> None:
    assert slave.replica is not None
    start, end = slave.log.end, master.log.end
    slave.replica.append([(start, bytes(master.log.files.segments[0].memory[start:end]))])
    slave.dispatch()


@pytest.mark.parametrize("written", [False, True], ids=["queues in memory", "queues on disk"])
def test_a_slave_serves_the_messages_of_the_topic_made_again_and_goes_on_with_them_as_a_master(
    tmp_path: Path, last_exit: LastExit, written: bool
) -> None:
    """Nobody tells it of the deletion: the numbers in the log do."""
    master = open_store(tmp_path / "master", **FILES)
    slave = open_store(tmp_path / "slave", **FILES)
    slave.follow()
    send(master, *OLD)
    put(master, "U", body=b"other")
    copy(master, slave)
    assert bodies(slave) == OLD
    if written:
        slave.flush()
    master.delete_topic("T")
    send(master, *NEW[:1])
    copy(master, slave)
    assert bodies(slave) == NEW[:1]
    send(master, *NEW[1:])
    copy(master, slave)
    master.close()
    assert bodies(slave) == NEW
    leave(slave, last_exit)
    heir = open_again(tmp_path / "slave", last_exit)
    assert_made_again(heir)
    heir.close()


@pytest.mark.parametrize("copied", [NEW, []], ids=["with more", "with nothing more"])
def test_what_a_slave_copies_to_where_its_log_was_cut_was_not_deleted(tmp_path: Path, copied: list[bytes]) -> None:
    """It was a master, and deleted a topic; its successor never had the end of its log."""
    former = open_store(tmp_path / "former", **FILES)
    send(former, OLD[0])
    shared = former.log.end
    send(former, *OLD[1:])
    former.delete_topic("T")
    assert former.log.end == dict(former._deletions.log_offsets)["T"]
    former.close()
    heir = open_store(tmp_path / "heir", **FILES)
    send(heir, OLD[0], *copied)
    former = open_store(tmp_path / "former", **FILES)
    former.follow().cut(shared)
    copy(heir, former)
    heir.close()
    former.abandon()
    former = open_store(tmp_path / "former", **FILES)
    assert bodies(former) == [OLD[0], *copied], "as its successor, which has deleted nothing"
    former.close()


def test_a_deletion_is_forgotten_once_the_log_has_nothing_of_it(tmp_path: Path) -> None:
    noted = deletions.Deletions(LocalDisk(), tmp_path)
    noted.note("T", 0, 500)
    noted.note("U", 400, 900)
    assert deletions.Deletions(LocalDisk(), tmp_path).log_offsets == {"T": 500, "U": 900}
    noted.note("V", 500, 1000)
    assert deletions.Deletions(LocalDisk(), tmp_path).log_offsets == {"U": 900, "V": 1000}
    noted.log_was_cut(950)
    assert deletions.Deletions(LocalDisk(), tmp_path).log_offsets == {"U": 900, "V": 950}
    noted.another_log_follows(940)
    assert deletions.Deletions(LocalDisk(), tmp_path).log_offsets == {"U": 900}
    noted.log_was_cut(0)
    assert deletions.Deletions(LocalDisk(), tmp_path).log_offsets == {}


def test_who_reads_the_directory_sees_what_a_start_would_show(tmp_path: Path, last_exit: LastExit) -> None:
    leave(delete_and_make_again(tmp_path), last_exit)
    for _ in range(2):
        with StoreReader(tmp_path) as reader:
            assert [message.body for message in reader.messages("T", 0)] == NEW
            assert reader.queue_keys() == [("T", 0), ("U", 0)]
            assert [str(found) for found in verify(reader, LocalDisk()).errors] == []
        open_again(tmp_path, last_exit).close()
        last_exit = LastExit.CLEAN


def test_who_reads_the_directory_of_a_killed_slave_sees_what_a_start_would_show(tmp_path: Path) -> None:
    master = delete_and_make_again(tmp_path / "master")
    slave = open_store(tmp_path / "slave", **FILES)
    slave.follow()
    end_of_old = dict(master._deletions.log_offsets)["T"]
    assert slave.replica is not None
    slave.replica.append([(0, bytes(master.log.files.segments[0].memory[:end_of_old]))])
    slave.flush()
    copy(master, slave)
    slave.abandon()
    master.close()
    with StoreReader(tmp_path / "slave") as reader:
        assert [message.body for message in reader.messages("T", 0)] == NEW
        assert [message.body for message in reader.messages("T", 1)] == OLD
        assert [str(found) for found in verify(reader, LocalDisk()).errors] == []


def a_queue(directory: Path, count: int, first: int = 0) -> tuple[QueueTable, QueueIndex]:
    table = QueueTable(LocalDisk(), small_config(directory), lambda _topic: False)
    queue = table.open("T", 0)
    assert isinstance(queue, QueueIndex)
    for number in range(first, first + count):
        queue.put(number, number * 100, 100, 0)
    return table, queue


def test_a_queue_of_which_only_later_files_are_left_begins_again(tmp_path: Path) -> None:
    table, queue = a_queue(tmp_path, 25)
    table.touched([queue])
    table.write_out()
    assert table.delete_below(1500) == 1
    assert queue.min_offset == 15
    with table.lock:
        assert queue.put(0, 5000, 100, 0)
        assert queue.put(1, 5100, 100, 0)
    assert (queue.min_offset, queue.next_offset, queue.max_physical) == (0, 2, 5200)
    table.touched([queue])
    table.close()
    table = QueueTable(LocalDisk(), small_config(tmp_path), lambda _topic: False)
    table.load(trust=True)
    found = table.queues["T", 0]
    assert (found.next_offset, found.max_physical) == (2, 5200)


def test_a_number_that_is_kept_for_a_damaged_record_is_no_sign_of_a_deletion(tmp_path: Path) -> None:
    table, queue = a_queue(tmp_path, 5)
    table.lead_nowhere(400, 500)
    table.touched([queue])
    table.close()
    table = QueueTable(LocalDisk(), small_config(tmp_path), lambda _topic: False)
    table.load(trust=True)
    found = table.queues["T", 0]
    assert isinstance(found, QueueIndex)
    with table.lock:
        assert not found.put(4, 400, 100, 0), "it can be read again, and looks like the first of others"
    assert found.next_offset == 5
    assert found.entries(4, 1) == NOWHERE
    table.abandon()


def test_a_queue_begins_again_while_its_files_are_written(tmp_path: Path) -> None:
    table, queue = a_queue(tmp_path, 5)
    table.touched([queue])
    has_files, done = Event(), Event()

    def write() -> None:
        with table._files_lock:
            first, data = queue.log.unwritten()
            has_files.set()
            with table.lock:  # only once the other one has let it go
                queue.log.files.write(first * queue.log.entry_bytes, data)
                queue.log.mark_written(first, len(data))
        done.set()

    writer = Thread(target=write)
    with table.lock:
        writer.start()
        assert has_files.wait(60)
        queue.put(0, 5000, 100, 0)
    writer.join(60)
    assert done.is_set()
    assert (queue.next_offset, queue.entry(0), queue.max_physical) == (1, (5000, 100, 0), 5100)
    table.touched([queue])
    table.close()
    table = QueueTable(LocalDisk(), small_config(tmp_path), lambda _topic: False)
    table.load(trust=True)
    assert table.queues["T", 0].next_offset == 1
    table.abandon()
