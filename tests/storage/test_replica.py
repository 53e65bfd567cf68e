"""What a slave has copied, and the indexes it makes of it: the compiled loops do what those in Python do, with whatever they are given."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.accelerated import SWITCH, compiled
from orbitmq.clock import ManualClock
from orbitmq.errors import StorageError
from orbitmq.message.log_entry import entries_at
from orbitmq.message.record_check import valid_run
from orbitmq.message.sysflags import TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from orbitmq.storage import index_file, indexer
from orbitmq.storage.health import RunningFlags
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.store_kit import BORN_AT_MS, BORN_HOST, bodies, open_store, put
from tests.storage.test_indexer import index_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

    from orbitmq.message.log_entry import LogEntry

BASE = 1 << 40
MOST = 1000
IPV6_HOST = bytes(range(16)) + BORN_HOST[-4:]


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv(SWITCH, "1")
    found: ModuleType | None = compiled("indexes")
    if found is None:
        pytest.skip("orbitmq-accelerator is not installed: `make setup` builds it where there is a C compiler")
    return found


def log_of(tmp_path: Path, *, unusual: bool) -> bytes:
    store = open_store(tmp_path, segment_bytes=1 << 16)
    for number in range(60):
        topic = ("T", "Ünicode", "T" * 127, "T" * 200 if unusual else "U")[number % 4]
        host = IPV6_HOST if unusual and number % 7 == 0 else BORN_HOST
        properties = b"UNIQ_KEY\x01u%d\x02" % number * (number % 3)
        store.append(topic, number % 5, b"x" * (number * 7 % 300), properties, 1, host)
    data = bytes(store.log.files.segments[0].memory[: store.log.end])
    store.close()
    return data


def by_python(data: bytes, start: int, limit: int) -> list[LogEntry]:
    memory = memoryview(data)
    positions, _ = valid_run(memory, start, limit, MOST, check_crc=False)
    return entries_at(memory, positions, BASE)


def test_usual_records_are_the_same_wherever_they_are_cut(tmp_path: Path, loops: ModuleType) -> None:
    data = log_of(tmp_path, unusual=False)
    for limit in range(0, len(data) + 1, 13):
        assert loops.usual_records(memoryview(data), 0, limit, BASE, MOST) == by_python(data, 0, limit)
    assert len(loops.usual_records(memoryview(data), 0, len(data), BASE, MOST)) == 60
    assert len(loops.usual_records(memoryview(data), 0, len(data), BASE, 7)) == 7


def test_what_is_unusual_or_damaged_is_left_to_python(tmp_path: Path, loops: ModuleType) -> None:
    whole, chance = log_of(tmp_path, unusual=True), Random(20261116)
    starts = [entry[1] - BASE for entry in by_python(whole, 0, len(whole))]
    assert len(starts) == 60
    for _ in range(3000):
        data = bytearray(whole)
        start = chance.choice(starts)
        for _ in range(chance.randrange(4)):
            data[start + chance.randrange(120) if chance.random() < 0.7 else chance.randrange(len(data))] = chance.choice(
                (0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256))
            )  # fmt: skip
        found = loops.usual_records(memoryview(data), start, len(data), BASE, MOST)
        assert found == by_python(bytes(data), start, len(data))[: len(found)]


KEYS = ("", "k1", "k1 k2", " two  spaces ", "   ", "schlüssel")


def fill(directory: Path, chance: Random, files: dict[str, Any]) -> list[tuple[int, bytes]]:
    """A master's log with all kinds of messages; where each of its files begins, and what is in it."""
    clock = ManualClock(BORN_AT_MS)
    store = open_store(directory, clock=clock, **files)
    for number in range(600):
        clock.advance(ms=chance.randrange(400))
        topic, queue = chance.choice(("T", "T", "T", "U", "Ünicode", "SCHEDULE_TOPIC_XXXX")), chance.randrange(3)
        named = {"UNIQ_KEY": f"{number:032X}"} if chance.random() < 0.9 else {}
        named |= {"TAGS": chance.choice("ABC")} if chance.random() < 0.7 else {}
        named |= {"KEYS": chance.choice(KEYS)} if chance.random() < 0.4 else {}
        named |= {"DELAY": "3"} if chance.random() < 0.1 else {}
        sys_flag = chance.choice((0,) * 20 + (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK))
        properties = "".join(f"{name}\x01{value}\x02" for name, value in named.items()).encode()
        store.append(topic, queue, b"x" * chance.randrange(1, 300), properties, BORN_AT_MS, BORN_HOST, 0, sys_flag)
    store.dispatch()
    log = store.log
    found = [(segment.start, bytes(segment.memory[: log.end - segment.start])) for segment in log.files.segments]
    store.close()
    return found


def pieces(log: list[tuple[int, bytes]], chance: Random, sizes: tuple[int, ...]) -> Iterator[list[tuple[int, bytes]]]:
    """As reads of a slave bring them: cut anywhere, some at a time."""
    read: list[tuple[int, bytes]] = []
    for start, data in log:
        at = 0
        while at < len(data):
            size = chance.choice(sizes)
            read.append((start + at, data[at : at + size]))
            at += size
            if chance.random() < 0.3:
                yield read
                read = []
    yield read


@pytest.mark.parametrize("files", [{}, {"segment_bytes": 1 << 20, "index_entries": 4000}], ids=["many files", "few"])
def test_the_indexes_of_a_copied_log_are_the_masters_whichever_loop_makes_them(
    tmp_path: Path, loops: ModuleType, monkeypatch: pytest.MonkeyPatch, files: dict[str, Any]
) -> None:
    chance = Random(20261116)
    log = fill(tmp_path / "master", chance, files)
    made = {"master": index_files(tmp_path / "master")}
    for switch in ("0", "1"):
        monkeypatch.setenv(SWITCH, switch)
        slave = open_store(tmp_path / switch, **files)
        replica = slave.follow()
        for read in pieces(log, chance, (1, 90, 700, 2000)):
            replica.append(read)
            slave.dispatch()
        assert [bytes(segment.memory[: len(data)]) for segment, (_, data) in zip(slave.log.files.segments, log, strict=True)] == [
            data for _, data in log
        ]  # fmt: skip
        slave.close()
        made[switch] = index_files(tmp_path / switch)
    assert made["1"] == made["0"] == made["master"]


@pytest.mark.parametrize("switch", ["0", "1"], ids=["in Python", "compiled"])
def test_a_slave_copies_no_more_while_its_disk_keeps_keys_out_of_the_index_and_none_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    monkeypatch.setenv(SWITCH, switch)
    if switch == "1" and compiled("indexes") is None:
        pytest.skip("orbitmq-accelerator is not installed: `make setup` builds it where there is a C compiler")
    monkeypatch.setattr(index_file, "_RESERVE_ENTRIES", 4)
    monkeypatch.setattr(index_file, "_LOW_ENTRIES", 0)  # no thread reserves ahead
    monkeypatch.setattr(indexer, "_KEYS_AT_ONCE", 8)  # so that the compiled loop has to reserve in each read
    files: dict[str, Any] = {"segment_bytes": 1 << 20, "index_entries": 10_000}
    ((_, log),) = fill(tmp_path / "master", Random(20261116), files)
    reads = [(at, log[at : at + 8192]) for at in range(0, len(log), 8192)]
    disk = FaultyDisk(tmp_path / "slave")
    slave = open_store(tmp_path / "slave", disk=disk, **files)
    replica = slave.follow()
    for read in reads[:5]:
        replica.append([read])
        slave.dispatch()
    disk.faults.reserve_fails = True
    indexed = slave.dispatched_offset
    replica.append([reads[5]])
    slave.dispatch()
    assert slave.dispatched_offset > indexed, "the messages are in their queues all the same"
    slave.find_by_key("T", "any")
    assert slave.health.flags == RunningFlags.INDEX_ERROR
    with pytest.raises(StorageError, match="Input/output error"):
        replica.append([reads[6]])  # else the keys that wait would be more and more
    disk.faults.reserve_fails = False
    for read in reads[6:]:
        replica.append([read])
        slave.dispatch()
    assert not slave.health.flags
    slave.close()
    assert index_files(tmp_path / "slave") == index_files(tmp_path / "master")


def test_what_a_slave_has_copied_long_before_it_is_read_need_not_stay_in_memory_and_can_be_read(tmp_path: Path) -> None:
    files: dict[str, Any] = {"segment_bytes": 4 << 20}
    with open_store(tmp_path / "master", **files) as master:
        for number in range(80):
            put(master, body=b"%02d" % number * 60_000)
        segments = master.log.files.segments
        log = [(segment.start, bytes(segment.memory[: master.log.end - segment.start])) for segment in segments]
    slave = open_store(tmp_path / "slave", **files)
    replica = slave.follow()
    replica.pass_through(enabled=True)
    for read in pieces(log, Random(1), (1 << 20,)):
        replica.append(read)
        slave.flush()
    assert len(log) == 3
    assert bodies(slave) == [b"%02d" % number * 60_000 for number in range(80)]
    slave.close()


def test_pieces_that_do_not_follow_each_other_are_not_put_together(tmp_path: Path) -> None:
    slave = open_store(tmp_path)
    replica = slave.follow()
    with pytest.raises(StorageError, match="offset 300 cannot follow a log that ends at 200"):
        replica.append([(0, b"a" * 100), (100, b"b" * 100), (300, b"c" * 100)])
    assert bytes(slave.log.files.segments[0].memory[:300]) == b"a" * 100 + b"b" * 100 + bytes(100)
    slave.close()
