from __future__ import annotations

import struct
from collections import defaultdict
from random import Random
from threading import Event, Thread, current_thread
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitmq.clock import ManualClock
from orbitmq.errors import StoreFull
from orbitmq.message.tags import java_hash
from orbitmq.storage import index_file, key_index
from orbitmq.storage.files import Disk, LocalDisk
from orbitmq.storage.index_file import HEADER, IndexFile, KeyedRecord, infer_slots, key_hash, positive
from orbitmq.storage.key_index import KeyIndex, find_offsets, list_index_files
from orbitmq.storage.open_files import MappedFile
from tests import golden_stores
from tests.storage.faulty_disk import FaultyDisk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from orbitmq.storage.threads import Rounds

pytestmark = pytest.mark.usefixtures("loops")

EVER = (0, 2**63 - 1)
GOLDEN_SLOTS, GOLDEN_ENTRIES = 100, 60


def small(directory: Path, disk: Disk | None = None, **more: Any) -> KeyIndex:
    return KeyIndex(disk or LocalDisk(), directory, ManualClock(), slots=4, entries=10, **more)


def golden_entries(version: str) -> list[tuple[int, int, str, str | None, str | None, int]]:
    """What each record of a golden store should be indexed by."""
    entries = []
    for record in golden_stores.manifest(version)["messages"]:
        properties = record["properties"]
        unique, keys = properties.get("UNIQ_KEY"), properties.get("KEYS")
        entries.append(
            (record["commitLogOffset"], record["storeTimestamp"], record["topic"], unique, keys, record["sysFlag"])
        )
    return entries


def test_the_hash_of_a_key_is_javas_and_never_negative() -> None:
    assert key_hash("a", "b") == ord("a") * 961 + ord("#") * 31 + ord("b")
    # "polygenelubricants" is the classic text whose Java hash is the smallest int, which abs() leaves negative.
    assert positive(java_hash("polygenelubricants")) == 0


@pytest.mark.parametrize("version", golden_stores.VERSIONS)
def test_every_key_of_an_apache_store_is_found(version: str, tmp_path: Path) -> None:
    store = golden_stores.unpack(version, tmp_path)
    index = KeyIndex(LocalDisk(), store / "index", ManualClock(), slots=GOLDEN_SLOTS, entries=GOLDEN_ENTRIES)
    expected: dict[tuple[str, str], list[int]] = defaultdict(list)
    for offset, _, topic, unique, keys, _ in golden_entries(version):
        for key in filter(None, [unique, *(keys or "").split(" ")]):
            expected[topic, key].append(offset)
    assert expected
    for (topic, key), offsets in expected.items():
        found = index.find(topic, key, 1000, *EVER).offsets
        assert sorted(set(offsets) - set(found)) == [], f"{topic}#{key}"
        assert found == sorted(found, reverse=True)
    assert index.find("TopicA", "no such key", 1000, *EVER).offsets == []


@pytest.mark.parametrize("version", golden_stores.VERSIONS)
def test_building_from_apaches_log_gives_apaches_bytes(version: str, tmp_path: Path) -> None:
    theirs = list_index_files(LocalDisk(), golden_stores.unpack(version, tmp_path) / "index")
    ours = KeyIndex(LocalDisk(), tmp_path / "ours", ManualClock(), slots=GOLDEN_SLOTS, entries=GOLDEN_ENTRIES)
    for entry in golden_entries(version):
        ours.put(*entry)
    ours.close()
    built = list_index_files(LocalDisk(), tmp_path / "ours")
    assert len(built) == len(theirs)
    for (our_path, _), (their_path, _) in zip(built, theirs, strict=True):
        assert our_path.read_bytes() == their_path.read_bytes(), their_path.name


@pytest.mark.parametrize("version", golden_stores.VERSIONS)
def test_replaying_apaches_whole_log_over_its_index_changes_nothing(version: str, tmp_path: Path) -> None:
    store = golden_stores.unpack(version, tmp_path)
    before = [path.read_bytes() for path, _ in list_index_files(LocalDisk(), store / "index")]
    index = KeyIndex(LocalDisk(), store / "index", ManualClock(), slots=GOLDEN_SLOTS, entries=GOLDEN_ENTRIES)
    for entry in golden_entries(version):
        index.put(*entry)
    index.close()
    assert [path.read_bytes() for path, _ in list_index_files(LocalDisk(), store / "index")] == before


@pytest.mark.parametrize("version", golden_stores.VERSIONS)
def test_the_number_of_slots_can_be_told_from_a_file(version: str, tmp_path: Path) -> None:
    store = golden_stores.unpack(version, tmp_path)
    for path, _ in list_index_files(LocalDisk(), store / "index"):
        assert infer_slots(LocalDisk().map(path).memory) == GOLDEN_SLOTS


@pytest.mark.parametrize("entries", [1, 2, 3, 10, 40])
def test_the_number_of_slots_can_be_told_from_a_file_that_begins_at_offset_zero(tmp_path: Path, entries: int) -> None:
    index = KeyIndex(LocalDisk(), tmp_path, ManualClock(), slots=40, entries=60)
    for number in range(entries):
        index.put(number * 100, 1000, "t", f"k{number}", None)
    assert infer_slots(index.files[0].memory) == 40


@pytest.mark.parametrize("records", [1, 2, 5, 30])
def test_the_number_of_slots_is_told_though_the_rest_looks_like_an_entry(tmp_path: Path, records: int) -> None:
    """With its first slot in use, a file that begins at offset 0 makes sense with fewer slots, too: entries of zeroes alone."""
    slots, chance = 997, Random(20261116)
    first = next(key for key in map(str, range(100_000)) if key_hash("t", key) % slots == 0)
    for number in range(20):
        index = KeyIndex(LocalDisk(), tmp_path / str(number), ManualClock(), slots=slots, entries=60)
        index.put(0, 1000, "t", first, None)
        offset = 0
        for _ in range(1, records):
            offset += chance.randrange(90, 3000)
            index.put(offset, 1000, "t", f"{chance.random()}", None)
        assert infer_slots(index.files[0].memory) == slots
        index.close()


def test_a_key_leads_to_its_records_newest_first_up_to_the_limit(tmp_path: Path) -> None:
    index = small(tmp_path)
    for number in range(30):
        index.put(number * 100, 1_000_000 + number * 1000, "t", None, f"k{number % 3} other")
    assert index.find("t", "k1", 100, *EVER).offsets == [number * 100 for number in range(28, 0, -3)]
    assert index.find("t", "k1", 2, *EVER).offsets == [2800, 2500]
    assert index.find("t", "k1", 0, *EVER).offsets == []
    assert len(index.find("t", "other", 100, *EVER).offsets) == 30
    assert index.find("u", "k1", 100, *EVER).offsets == []
    matches = index.find("t", "k1", 100, *EVER)
    assert (matches.last_stored_at_ms, matches.last_offset) == (1_029_000, 2900)
    assert len(index.files) == 7, "nine entries a file"


def test_a_range_of_time_is_respected_to_the_second(tmp_path: Path) -> None:
    index = small(tmp_path)
    for number in range(30):
        index.put(number * 100, 1_000_000 + number * 1000, "t", "k", None)
    assert index.find("t", "k", 100, 1_010_000, 1_012_000).offsets == [1200, 1100, 1000]
    assert index.find("t", "k", 100, 1_010_500, 1_012_999).offsets == [1200, 1100, 1000]
    assert index.find("t", "k", 100, 0, 999_999).offsets == []
    assert index.find("t", "k", 100, 1_030_000, 2_000_000).offsets == []


def test_rolled_back_transactions_and_messages_without_keys_are_not_entered(tmp_path: Path) -> None:
    index = small(tmp_path)
    index.put(0, 1000, "t", "k", None, 0x00C)
    index.put(100, 1000, "t", None, None)
    index.put(200, 1000, "t", "", "")
    assert not index.files
    index.put(300, 1000, "t", "k", "  a  b ", 0x004)
    assert index.files[0].next_entry == 4


def test_a_record_whose_keys_span_two_files_is_not_doubled_by_a_replay(tmp_path: Path) -> None:
    records = [(number * 100, 5000 + number, "t", f"u{number}", "a b c") for number in range(12)]
    index = small(tmp_path)
    for record in records:
        index.put(*record)
    index.close()
    again = small(tmp_path)
    for record in records:
        again.put(*record)
    for key in ("a", "b", "c"):
        assert again.find("t", key, 100, *EVER).offsets == [number * 100 for number in range(11, -1, -1)]


def test_a_kill_within_a_record_is_healed_and_the_rest_of_its_keys_entered(tmp_path: Path) -> None:
    index = small(tmp_path)
    index.put(0, 5000, "t", "first", None)
    before = bytes(index.files[0].memory)
    index.put(100, 6000, "t", "u", "a first")
    # As if killed before the header was written: entries and slots are there, the header is the old one.
    index.files[0].memory[: HEADER.size] = before[: HEADER.size]
    index.abandon()
    unhealed = IndexFile(LocalDisk().map(tmp_path / index.files[0].file.path.name), 4, writable=False)
    assert unhealed.find(key_hash("t", "first"), *EVER)[0] == [0], "a reader sees what the header counts"
    again = small(tmp_path)
    assert again.files[0].slots_used == HEADER.unpack(before[: HEADER.size])[4]
    assert again.resume_offset == 0
    again.put(0, 5000, "t", "first", None)
    again.put(100, 6000, "t", "u", "a first")
    assert again.find("t", "first", 9, *EVER).offsets == [100, 0]
    assert again.find("t", "u", 9, *EVER).offsets == [100]
    assert again.find("t", "a", 9, *EVER).offsets == [100]


def test_a_kill_right_after_the_next_file_was_made_doubles_nothing(tmp_path: Path) -> None:
    records = [(number * 100, 5000 + number, "t", f"u{number}", None) for number in range(9)]
    index = small(tmp_path)
    for record in records:
        index.put(*record)
    index.abandon()
    (tmp_path / f"{int(index.files[0].file.path.name) + 1}").write_bytes(bytes(40 + 4 * 4 + 20 * 10))
    again = small(tmp_path)
    assert again.resume_offset == 800
    for record in records:
        again.put(*record)
    assert [again.find("t", f"u{number}", 9, *EVER).offsets for number in range(9)] == [[n * 100] for n in range(9)]


@pytest.mark.parametrize("half", [slice(0, 32), slice(32, 40)])
def test_a_header_of_two_halves_doubles_nothing(tmp_path: Path, half: slice) -> None:
    index = small(tmp_path)
    index.put(0, 5000, "t", "u0", None)
    before = bytes(index.files[0].memory[: HEADER.size])
    index.put(100, 6000, "t", "u1", "k")
    index.files[0].memory[half] = before[half]
    index.abandon()
    again = small(tmp_path)
    again.put(0, 5000, "t", "u0", None)
    again.put(100, 6000, "t", "u1", "k")
    assert [again.find("t", key, 9, *EVER).offsets for key in ("u0", "u1", "k")] == [[0], [100], [100]]


def test_a_record_of_which_only_some_keys_were_entered_gets_the_others(tmp_path: Path) -> None:
    index = small(tmp_path)
    index.put(0, 5000, "t", "u", "a a")
    index.put(0, 5000, "t", "u", "a a b a")
    assert [index.find("t", key, 9, *EVER).offsets for key in "uab"] == [[0], [0, 0, 0], [0]]


def test_after_a_machine_crash_files_not_known_to_be_synced_are_built_again(tmp_path: Path) -> None:
    index = small(tmp_path)
    for number in range(20):
        index.put(number * 100, 1000 + number, "t", f"k{number}", None)
    safe = index.sync()
    assert safe == 1017, "the last record of the second full file"
    index.abandon()
    again = small(tmp_path, trusted_until_ms=safe)
    assert len(again.files) == 2
    assert again.resume_offset == 1700
    for number in range(17, 20):
        again.put(number * 100, 1000 + number, "t", f"k{number}", None)
    assert [again.find("t", f"k{number}", 9, *EVER).offsets for number in range(20)] == [[n * 100] for n in range(20)]
    assert small(tmp_path / "none", trusted_until_ms=0).resume_offset == 0


def test_files_filled_by_a_killed_process_are_synced_before_they_are_vouched_for(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    index = small(tmp_path, disk)
    for number in range(20):
        index.put(number * 100, 1000 + number, "t", f"k{number}", None)
    index.abandon()
    index = small(tmp_path, disk)
    for number in range(20, 30):
        index.put(number * 100, 1000 + number, "t", f"k{number}", None)
    safe = index.sync()
    disk.crash()
    again = small(tmp_path, disk, trusted_until_ms=safe)
    assert again.resume_offset == 2600
    assert [again.find("t", f"k{number}", 9, *EVER).offsets for number in range(27)] == [[n * 100] for n in range(27)]


def test_an_empty_file_that_others_follow_was_lost(tmp_path: Path) -> None:
    index = small(tmp_path)
    for number in range(25):
        index.put(number * 100, 1000 + number, "t", f"k{number}", None)
    index.close()
    list_index_files(LocalDisk(), tmp_path)[1][0].write_bytes(bytes(40 + 4 * 4 + 20 * 10))
    assert small(tmp_path, trusted_until_ms=10**9).resume_offset == 800


def test_a_file_of_another_size_and_all_after_it_are_built_again(tmp_path: Path) -> None:
    index = small(tmp_path)
    for number in range(25):
        index.put(number * 100, 1000 + number, "t", f"k{number}", None)
    index.close()
    paths = [path for path, _ in list_index_files(LocalDisk(), tmp_path)]
    with paths[1].open("r+b") as file:
        file.truncate(50)
    (tmp_path / "README").write_text("not an index file: left alone")
    again = small(tmp_path)
    assert [path for path, _ in list_index_files(LocalDisk(), tmp_path)] == paths[:1]
    assert again.resume_offset == 800
    assert (tmp_path / "README").exists()


def test_cutting_the_log_takes_entries_back_exactly(tmp_path: Path) -> None:
    whole = small(tmp_path / "whole")
    cut = small(tmp_path / "cut")
    for number in range(30):
        whole.put(number * 100, 1_000_000 + number * 1000, "t", f"u{number}", f"k{number % 3}")
        cut.put(number * 100, 1_000_000 + number * 1000, "t", f"u{number}", f"k{number % 3}")
    cut.truncate(1150)
    assert cut.resume_offset == 1100
    assert cut.find("t", "k0", 99, *EVER).offsets == [900, 600, 300, 0]
    for number in range(30):
        cut.put(number * 100, 1_000_000 + number * 1000, "t", f"u{number}", f"k{number % 3}")
    assert [bytes(file.memory) for file in cut.files] == [bytes(file.memory) for file in whole.files]
    cut.truncate(0)
    assert not cut.files
    assert list_index_files(LocalDisk(), tmp_path / "cut") == []


def test_old_files_go_with_the_log_but_never_the_last(tmp_path: Path) -> None:
    index = small(tmp_path)
    for number in range(30):
        index.put(number * 100, 1000 + number, "t", f"k{number}", None)
    assert index.delete_below(1000) == 1
    assert index.find("t", "k9", 9, *EVER).offsets == [900]
    assert index.delete_below(10**9) == 2
    assert len(list_index_files(LocalDisk(), tmp_path)) == 1


def test_files_are_named_in_order_even_when_the_clock_is_set_back(tmp_path: Path) -> None:
    clock = ManualClock()
    index = KeyIndex(LocalDisk(), tmp_path, clock, slots=4, entries=3)
    for number in range(6):
        index.put(number, 1000, "t", f"k{number}", None)
        clock.advance(seconds=-100 if number % 2 else 1)
    names = [file.file.path.name for file in index.files]
    assert names == sorted(set(names))
    assert all(len(name) == 17 for name in names)


def test_a_big_file_takes_few_blocks_until_it_is_used(tmp_path: Path) -> None:
    index = KeyIndex(LocalDisk(), tmp_path, ManualClock(), slots=1000, entries=20_000_000)
    index.put(0, 1000, "t", "k", None)
    status = index.files[0].file.path.stat()
    assert status.st_size == 40 + 4 * 1000 + 20 * 20_000_000
    assert status.st_blocks * 512 < 4 << 20


class _AtOnce:
    """`Threads` whose rounds are done by whoever wakes them."""

    def repeat(
        self, name: str, round_: Callable[[], bool], is_due: Callable[[], bool], every_seconds: float | None
    ) -> Rounds:
        self.rounds = 0

        def wake() -> None:
            while is_due():
                self.rounds += 1
                round_()

        return SimpleNamespace(idle=True, start=lambda: None, wake=wake, finish=wake, stop=lambda: None)


def _records(first: int, end: int) -> list[KeyedRecord]:
    return [(number * 100, 1000, "t", b"k%d" % number, None) for number in range(first, end)]


def test_blocks_for_entries_are_reserved_before_they_are_needed(tmp_path: Path) -> None:
    threads = _AtOnce()
    index = KeyIndex(LocalDisk(), tmp_path, ManualClock(), slots=1000, entries=60_000, threads=threads)
    index.put_many(_records(0, 100))
    path = index.files[0].file.path
    few = path.stat().st_blocks
    index.put_many(_records(100, 40_000))
    assert threads.rounds == 1
    assert path.stat().st_blocks * 512 >= 20 * 60_000 > few * 512
    index.put_many(_records(40_000, 59_000))
    assert threads.rounds == 1  # to the end of the file there is nothing more to reserve
    assert index.find("t", "k58999", 1, *EVER).offsets == [5_899_900]
    index.close()


def test_a_full_disk_is_met_once_by_who_reserves_and_then_by_who_puts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk, threads = FaultyDisk(tmp_path), _AtOnce()
    index = KeyIndex(disk, tmp_path, ManualClock(), slots=1000, entries=120_000, threads=threads)
    index.put_many(_records(0, 100))
    disk.faults.space_left = 0
    index.put_many(_records(100, 40_000))
    assert threads.rounds == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    with pytest.raises(StoreFull):
        index.put_many(_records(40_000, 60_000))
    disk.faults.space_left = None
    entered = index.resume_offset // 100
    index.put_many(_records(entered, 90_000))
    assert threads.rounds == 2
    assert index.find("t", "k89999", 1, *EVER).offsets == [8_999_900]
    index.close()


def test_who_puts_and_who_reserves_ahead_do_not_reserve_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a file system cannot reserve, the C library writes back what it has read: entries put in between would be gone."""
    monkeypatch.setattr(index_file, "_RESERVE_ENTRIES", 4)
    index = KeyIndex(LocalDisk(), tmp_path, ManualClock(), slots=8, entries=100)
    for number in range(5):  # as many as there are blocks for
        index.put(number * 100, 1000, "t", f"k{number}", None)
    reserving, has_put = Event(), Event()

    def by_writing_back(file: MappedFile, start: int, size: int) -> None:
        before = bytes(file.memory[start : start + size])
        if current_thread() is ahead:
            reserving.set()
            has_put.wait(0.5)  # in vain: who puts waits for this
        file.memory[start : start + size] = before

    monkeypatch.setattr(MappedFile, "reserve", by_writing_back)
    ahead = Thread(target=index.files[0].reserve_ahead)
    ahead.start()
    assert reserving.wait(60)
    for number in range(5, 8):
        index.put(number * 100, 1000, "t", f"k{number}", None)
    has_put.set()
    ahead.join()
    assert [index.find("t", f"k{number}", 9, *EVER).offsets for number in range(8)] == [[n * 100] for n in range(8)]
    index.close()


def test_a_full_disk_is_an_error_before_anything_is_changed(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    index = small(tmp_path, disk)
    index.put(0, 1000, "t", "k0", None)
    before = bytes(index.files[0].memory)
    disk.faults.space_left = 0
    for number in range(1, 9):
        index.put(number * 100, 1000, "t", f"k{number}", None)
    with pytest.raises(StoreFull):
        index.put(900, 1000, "t", "k9", None)
    disk.faults.space_left = None
    index.put(900, 1000, "t", "k9", None)
    assert [index.find("t", f"k{number}", 9, *EVER).offsets for number in range(10)] == [[n * 100] for n in range(10)]
    assert before != bytes(index.files[0].memory)


def test_a_full_disk_keeps_nobody_from_opening_and_asking(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    index = small(tmp_path, disk)
    for number in range(12):
        index.put(number * 100, 1000, "t", f"k{number}", None)
    index.close()
    disk.faults.space_left = 0
    again = small(tmp_path, disk)
    assert again.find("t", "k11", 9, *EVER).offsets == [1100]
    with pytest.raises(StoreFull):
        again.put(1200, 1000, "t", "k12", None)
    again.truncate(1100)
    assert again.resume_offset == 1000
    again.close()


def test_a_chain_that_runs_in_a_circle_or_out_of_the_file_ends(tmp_path: Path) -> None:
    index = small(tmp_path)
    index.put(0, 1000, "t", "k", "k")
    file = index.files[0]
    entry_at = 40 + 4 * 4 + 20
    struct.pack_into(">i", file.memory, entry_at + 16, 2)  # entry 1 leads back to entry 2
    assert file.find(key_hash("t", "k"), *EVER) == ([0, 0], 2)
    struct.pack_into(">i", file.memory, entry_at + 16, 10**9)
    assert file.find(key_hash("t", "k"), *EVER) == ([0, 0], 2)


def test_chains_are_given_up_after_so_many_looks_by_who_has_others_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_index, "_MOST_LOOKS", 50)
    index = KeyIndex(LocalDisk(), tmp_path, ManualClock(), slots=1, entries=31)  # all keys of a file in one chain
    for number in range(100):
        index.put(100 * number, 1000, "t", f"k{number}", "common")

    assert index.find("t", "k99", 1, *EVER)[::3] == ([9900], True)
    assert index.find("t", "k99", 2, *EVER)[::3] == ([9900], False), "there may be another"
    assert index.find("t", "k0", 1, *EVER)[::3] == ([], False)
    assert index.find("t", "common", 9, *EVER)[::3] == ([9900 - 100 * number for number in range(9)], True)
    assert len(index.files) > 2
    assert find_offsets(index.files, "t", "k0", 1, *EVER) == ([0], True), "who reads a store looks at all"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(["put", "kill", "reopen", "truncate", "replay"]), max_size=40))
def test_any_history_answers_as_a_dictionary_would(
    tmp_path_factory: pytest.TempPathFactory, seed: int, history: list[str]
) -> None:
    random, directory = Random(seed), tmp_path_factory.mktemp("index")
    records: list[tuple[int, int, str, str, str]] = []
    index, next_offset = small(directory), 0
    for step in history:
        if step == "put":
            for _ in range(random.randrange(1, 6)):
                keys = " ".join(random.choice("abcde") for _ in range(random.randrange(4)))
                records.append((next_offset, 10_000 + next_offset, "t", f"u{next_offset}", keys))
                index.put(*records[-1])
                next_offset += 10
        elif step == "truncate":
            next_offset = random.randrange(0, next_offset + 1, 10)
            records = [record for record in records if record[0] < next_offset]
            index.truncate(next_offset)
        else:
            index.close() if step == "reopen" else index.abandon()
            index = small(directory)
            for record in records if step == "replay" else []:
                index.put(*record)
    for key in "abcde":
        expected = [record[0] for record in reversed(records) for part in record[4].split(" ") if part == key]
        found = index.find("t", key, 10_000, *EVER).offsets
        assert [offset for offset in found if offset in set(expected)] == expected
    index.close()


# Some alike, some not ASCII, some longer than a lane, some only spaces.
KEYS = st.one_of(st.none(), st.text(st.sampled_from("abc é"), max_size=6), st.just("k" * 70), st.just("same"))
KEYED = st.lists(st.tuples(st.sampled_from("tu"), KEYS, KEYS, st.integers(0, 3000)), max_size=30)


def encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


@settings(max_examples=60, deadline=None)
@given(rounds=st.lists(KEYED, max_size=4), slots=st.sampled_from([3, 1000]), entries=st.sampled_from([12, 500]))
def test_many_records_at_once_leave_the_bytes_of_one_by_one(
    tmp_path_factory: pytest.TempPathFactory,
    rounds: list[list[tuple[str, str | None, str | None, int]]],
    slots: int,
    entries: int,
) -> None:
    directory = tmp_path_factory.mktemp("index")
    single = KeyIndex(LocalDisk(), directory / "single", ManualClock(), slots=slots, entries=entries)
    many = KeyIndex(LocalDisk(), directory / "many", ManualClock(), slots=slots, entries=entries)
    offset, now_ms = 0, 1_700_000_000_000
    for records in rounds:
        batch: list[KeyedRecord] = []
        for topic, unique_key, keys, later_ms in records:
            offset, now_ms = offset + 100, now_ms + later_ms
            single.put(offset, now_ms, topic, unique_key, keys)
            batch.append((offset, now_ms, topic, encoded(unique_key), encoded(keys)))
        many.put_many(batch)
        many.put_many(batch)  # nothing is entered twice
    assert [bytes(file.memory) for file in many.files] == [bytes(file.memory) for file in single.files]


@pytest.mark.parametrize("slots", [50, 100_000])
def test_more_keys_than_are_hashed_together_leave_the_bytes_of_one_by_one(tmp_path: Path, slots: int) -> None:
    records = [(100 * n, 5000 + 7 * n, "t", f"unique-{n}", f"order-{n} customer-{n % 11}") for n in range(1, 601)]
    single = KeyIndex(LocalDisk(), tmp_path / "single", ManualClock(), slots=slots, entries=1000)
    many = KeyIndex(LocalDisk(), tmp_path / "many", ManualClock(), slots=slots, entries=1000)

    for record in records:
        single.put(*record)
    many.put_many([(offset, at_ms, topic, a.encode(), b.encode()) for offset, at_ms, topic, a, b in records])

    assert [bytes(file.memory) for file in many.files] == [bytes(file.memory) for file in single.files]
    assert len(many.files) == 2


def test_a_kill_among_the_slots_of_many_records_is_healed(tmp_path: Path) -> None:
    def opened() -> KeyIndex:
        return KeyIndex(LocalDisk(), tmp_path / "index", ManualClock(), slots=1000, entries=50)

    batch: list[KeyedRecord] = [(100 * n, 5000, "t", b"u%d" % n, b"k%d" % n) for n in range(1, 11)]
    index = opened()
    index.put(0, 5000, "t", "first", None)
    before = bytes(index.files[0].memory)
    index.put_many(batch)
    after = bytes(index.files[0].memory)
    slots_at, entries_at = 40, 40 + 4 * 1000
    changed = [at for at in range(slots_at, entries_at, 4) if before[at : at + 4] != after[at : at + 4]]
    in_order = sorted(changed, key=lambda at: after[at : at + 4])
    assert len(in_order) == 20
    path = index.files[0].file.path
    index.abandon()
    for stored in range(21):
        # Entries are stored first, then slots in the order of entries, then the header.
        image = bytearray(before[:entries_at] + after[entries_at:])
        for at in in_order[:stored]:
            image[at : at + 4] = after[at : at + 4]
        path.write_bytes(image)
        again = opened()
        assert again.resume_offset == 0
        again.put_many(batch)
        assert bytes(again.files[0].memory) == after
        again.abandon()
