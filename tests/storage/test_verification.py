"""Every kind of damage is named by file and byte, can be mended, and the mended store serves what was intact."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from orbitmq.cli.store import store as store_command
from orbitmq.cli.store_rows import RecordRow
from orbitmq.clock import ManualClock
from orbitmq.errors import StoreLocked
from orbitmq.message.hosts import pack_host
from orbitmq.message.record import decode_record
from orbitmq.storage.config import StorageConfig
from orbitmq.storage.files import LocalDisk
from orbitmq.storage.lock import take_lock
from orbitmq.storage.reader import StoreReader
from orbitmq.storage.repair import apply, plan
from orbitmq.storage.store import Store
from orbitmq.storage.verification import ERROR, NOTE, StoreFinding, Verification, verify
from tests import golden_stores

if TYPE_CHECKING:
    from pathlib import Path

SEGMENT = 8192
MESSAGES = 100
HOST = pack_host("127.0.0.1", 10911)


def config(directory: Path) -> StorageConfig:
    return StorageConfig(
        directory=directory, segment_bytes=SEGMENT, queue_file_bytes=400, index_slots=50, index_entries=100
    )


def fill(directory: Path) -> Path:
    """A hundred messages over four queues and several files, stopped properly."""
    store = Store(config(directory), HOST, clock=ManualClock())
    for number in range(MESSAGES):
        properties = f"KEYS\x01k{number} all\x02TAGS\x01t{number % 3}\x02UNIQ_KEY\x01u{number}\x02".encode()
        store.append(f"T{number % 2}", number % 4, b"body %d" % number * 20, properties, 1, HOST)
    store.close()
    return directory


def check(directory: Path) -> Verification:
    disk = LocalDisk()
    with StoreReader(directory, disk=disk) as reader:
        return verify(reader, disk)


def mend(directory: Path) -> list[str]:
    disk = LocalDisk()
    with StoreReader(directory, disk=disk) as reader:
        steps = plan(reader, disk, verify(reader, disk))
        apply(reader, disk, ManualClock(), steps)
        return [str(step) for step in steps]


def bodies(directory: Path) -> set[bytes]:
    """What a store opened there serves, through its queues."""
    store = Store(config(directory), HOST, clock=ManualClock())
    served = set()
    for (topic, queue_id), queue in store.queue_ranges().items():
        offset = queue.min_offset
        while offset < queue.max_offset:
            result = store.read(topic, queue_id, offset)
            served |= {decode_record(buffer).body for buffer in result.buffers}
            assert result.next_offset > offset
            offset = result.next_offset
    store.close()
    return served


def whole() -> set[bytes]:
    return {b"body %d" % number * 20 for number in range(MESSAGES)}


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def log_file(directory: Path, number: int) -> Path:
    return directory / "commitlog" / f"{number * SEGMENT:020d}"


def records(directory: Path) -> list[tuple[int, int]]:
    with StoreReader(directory) as reader:
        return [(record.commit_log_offset, len(record.data)) for record in reader.records()]


def only(found: Verification, severity: str = ERROR) -> StoreFinding:
    chosen = [finding for finding in found.findings if finding.severity == severity]
    assert len(chosen) == 1, found.findings
    return chosen[0]


@pytest.mark.parametrize("version", golden_stores.VERSIONS)
def test_apaches_stores_are_sound(version: str, tmp_path: Path) -> None:
    found = check(golden_stores.unpack(version, tmp_path))
    assert found.findings == []
    assert found.records == found.queue_entries == len(golden_stores.manifest(version)["messages"])
    assert found.key_entries > found.records
    assert found.tables >= 5


def test_our_store_is_sound_and_needs_no_mending(tmp_path: Path) -> None:
    found = check(fill(tmp_path))
    assert found.findings == []
    assert (found.records, found.queue_entries, found.key_entries) == (MESSAGES, MESSAGES, 3 * MESSAGES)
    assert mend(tmp_path) == []
    assert bodies(tmp_path) == whole()


def in_file(directory: Path, number: int) -> list[tuple[int, int]]:
    """Which messages stand in a log file, and where in it."""
    return [(i, offset % SEGMENT) for i, (offset, _) in enumerate(records(directory)) if offset // SEGMENT == number]


@pytest.mark.parametrize("number", [0, 1])
def test_a_flipped_bit_in_an_old_record_is_named_and_covered(tmp_path: Path, number: int) -> None:
    path = log_file(fill(tmp_path), number)
    victim, position = in_file(tmp_path, number)[3]
    overwrite(path, position + 95, bytes([path.read_bytes()[position + 95] ^ 1]))
    in_log = next(finding for finding in check(tmp_path).errors if finding.path.startswith("commitlog"))
    assert (in_log.path, in_log.byte) == (f"commitlog/{path.name}", position)
    assert "CRC" in in_log.problem
    steps = mend(tmp_path)
    assert any(step.startswith("cover") for step in steps)
    assert any("lead nowhere" in step for step in steps)
    assert check(tmp_path).errors == []
    assert bodies(tmp_path) == whole() - {b"body %d" % victim * 20}


@pytest.mark.parametrize("number", [0, 1])
def test_broken_records_in_a_row_are_covered_at_once_and_kept_aside(tmp_path: Path, number: int) -> None:
    path = log_file(fill(tmp_path), number)
    victims = in_file(tmp_path, number)[2:5]
    for _, position in victims:
        overwrite(path, position + 4, b"junk")
    before = path.read_bytes()
    mend(tmp_path)
    assert check(tmp_path).errors == []
    assert bodies(tmp_path) == whole() - {b"body %d" % victim * 20 for victim, _ in victims}
    start, end = victims[0][1], in_file(tmp_path, number)[3][1]
    saved = next(tmp_path.glob(f"repair-*/commitlog/{path.name}.from-byte-{start}"))
    assert saved.read_bytes() == before[start:end]
    report = json.loads(next(tmp_path.glob("repair-*/report.json")).read_text())
    assert report[0]["do"] == "cover"


def test_a_torn_tail_is_a_note_and_is_cleared(tmp_path: Path) -> None:
    fill(tmp_path)
    offset, size = records(tmp_path)[-1]
    last = log_file(tmp_path, offset // SEGMENT)
    overwrite(last, (offset + size) % SEGMENT, struct.pack(">ii", 500, -626843481) + b"half a record")
    note = only(check(tmp_path), NOTE)
    assert note.byte == (offset + size) % SEGMENT
    assert any(step.startswith("clear") for step in mend(tmp_path))
    assert check(tmp_path).findings == []
    assert bodies(tmp_path) == whole()


def test_a_file_that_is_not_closed_is_closed_where_it_breaks_off(tmp_path: Path) -> None:
    fill(tmp_path)
    in_first = [(number, place) for number, place in enumerate(records(tmp_path)) if place[0] < SEGMENT]
    cut_at = in_first[-3][1][0]
    overwrite(log_file(tmp_path, 0), cut_at, bytes(SEGMENT - cut_at))
    found = check(tmp_path)
    assert any(finding.byte == cut_at and "later files" in finding.problem for finding in found.errors)
    assert any(step.startswith("close") for step in mend(tmp_path))
    lost = {b"body %d" % number * 20 for number, _ in in_first[-3:]}
    assert bodies(tmp_path) == whole() - lost


def test_a_missing_middle_file_is_replaced_by_an_empty_one(tmp_path: Path) -> None:
    fill(tmp_path)
    lost = {b"body %d" % i * 20 for i, (offset, _) in enumerate(records(tmp_path)) if offset // SEGMENT == 1}
    log_file(tmp_path, 1).unlink()
    assert any(finding.problem.startswith("is missing") for finding in check(tmp_path).errors)
    mend(tmp_path)
    assert log_file(tmp_path, 1).stat().st_size == SEGMENT
    assert bodies(tmp_path) == whole() - lost


@pytest.mark.parametrize("change", ["shorter", "longer", "empty"])
def test_a_log_file_of_another_length_is_brought_to_the_right_one(tmp_path: Path, change: str) -> None:
    fill(tmp_path)
    path = log_file(tmp_path, 1)
    data = path.read_bytes()
    path.write_bytes({"shorter": data[:3000], "longer": data + b"more", "empty": b""}[change])
    assert any(finding.path == f"commitlog/{path.name}" for finding in check(tmp_path).errors)
    mend(tmp_path)
    assert path.stat().st_size == SEGMENT
    mend(tmp_path)  # what the shorter file lost can be named only once the file is whole
    kept = {"shorter": 3000, "longer": SEGMENT, "empty": 0}[change]
    served = bodies(tmp_path)
    places = [(number, offset - SEGMENT, size) for number, (offset, size) in enumerate(records_of(data))]
    assert len(served) >= MESSAGES - len(places)
    if change == "longer":
        assert served == whole()
        assert next(tmp_path.glob("repair-*/commitlog/*.from-byte-8192")).read_bytes() == b"more"
    else:
        assert len(whole() - served) == sum(offset + SEGMENT + size > kept + SEGMENT for _, offset, size in places)


def records_of(data: bytes) -> list[tuple[int, int]]:
    places: list[tuple[int, int]] = []
    at = 0
    while True:
        size, magic = struct.unpack_from(">ii", data, at)
        if magic != -626843481:
            return places
        places.append((at + SEGMENT, size))
        at += size


def test_stray_files_are_moved_aside(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "commitlog" / "README").write_text("hello")
    (tmp_path / "commitlog" / f"{99 * SEGMENT:020d}").touch()
    assert only(check(tmp_path)).path == "commitlog/README"
    assert "move commitlog/README aside" in mend(tmp_path)
    assert next(tmp_path.glob("repair-*/commitlog/README")).read_text() == "hello"
    assert check(tmp_path).findings == []
    assert bodies(tmp_path) == whole()


@pytest.mark.parametrize(
    ("position", "data", "problem"),
    [
        (20, struct.pack(">q", 3), "no record is"),
        (28, struct.pack(">i", 99), "99 bytes of a record"),
        (32, struct.pack(">q", 12345), "tag hash"),
        (20, None, "leads to message"),
    ],
)
def test_a_wrong_queue_entry_is_named_and_the_queues_are_built_again(
    tmp_path: Path, position: int, data: bytes | None, problem: str
) -> None:
    fill(tmp_path)
    path = tmp_path / "consumequeue" / "T1" / "1" / f"{0:020d}"
    overwrite(path, position, data or path.read_bytes()[:20])
    found = only(check(tmp_path))
    assert (found.path, found.byte) == ("consumequeue/T1/1/" + "0" * 20, 20)
    assert problem in found.problem
    mend(tmp_path)
    assert next(tmp_path.glob("repair-*/consumequeue/T1/1"))
    assert bodies(tmp_path) == whole()
    assert check(tmp_path).findings == []


def test_missing_newest_entries_are_an_error_only_after_a_clean_stop(tmp_path: Path) -> None:
    fill(tmp_path)
    path = tmp_path / "consumequeue" / "T0" / "0" / f"{400:020d}"
    overwrite(path, 80, bytes(20))
    assert "newest 1 messages" in only(check(tmp_path)).problem
    (tmp_path / "abort").touch()
    assert "newest 1 messages" in only(check(tmp_path), NOTE).problem


def test_a_wrong_key_entry_is_named_and_the_key_index_is_built_again(tmp_path: Path) -> None:
    fill(tmp_path)
    path = min((tmp_path / "index").iterdir())
    position = 40 + 4 * 50 + 20 * 7
    overwrite(path, position, struct.pack(">iq", 77, 3))
    found = only(check(tmp_path))
    assert (found.path, found.byte) == (f"index/{path.name}", position)
    assert mend(tmp_path)[:2] == ["move index aside", "move checkpoint aside"]
    store = Store(config(tmp_path), HOST, clock=ManualClock())
    assert len(store.find_by_key("T0", "all", limit=1000).records) == MESSAGES // 2
    store.close()
    assert check(tmp_path).findings == []


def test_a_torn_table_gives_way_to_the_one_before(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config" / "topics.json").write_text('{"topicConfigTable":')
    (tmp_path / "config" / "topics.json.bak").write_text('{"topicConfigTable":{"T0":{"topicName":"T0"}}}')
    (tmp_path / "config" / "delayOffset.json").write_text("")
    assert {finding.path for finding in check(tmp_path).errors} == {"config/topics.json", "config/delayOffset.json"}
    mend(tmp_path)
    assert "T0" in (tmp_path / "config" / "topics.json").read_text()
    assert next(tmp_path.glob("repair-*/config/topics.json")).read_text() == '{"topicConfigTable":'
    assert check(tmp_path).findings == []


def test_a_wrong_checkpoint_is_a_note(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "checkpoint").write_bytes(b"\xff" * 4096)
    assert only(check(tmp_path), NOTE).path == "checkpoint"
    (tmp_path / "checkpoint").write_bytes(b"\0" * 40)
    assert only(check(tmp_path), NOTE).byte == 40


def test_mending_waits_for_no_running_broker(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "commitlog" / "README").write_text("hello")
    lock = take_lock(LocalDisk(), tmp_path)
    with pytest.raises(StoreLocked):
        mend(tmp_path)
    lock.release()
    assert (tmp_path / "commitlog" / "README").exists()


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(store_command, arguments, catch_exceptions=False)
    return result.exit_code, result.stdout


def test_the_command_lists_checks_and_prints(tmp_path: Path) -> None:
    directory = str(golden_stores.unpack("5.3.3", tmp_path))
    code, text = run("ls", directory)
    assert code == 0
    assert "TopicA" in text
    assert "log: offsets 0 to 85042" in text
    listing: dict[str, Any] = json.loads(run("ls", directory, "-o", "json", "--topic", "TopicA")[1])
    assert [queue["messages"] for queue in listing["queues"]] == [8, 8, 9, 9]
    assert run("verify", directory) == (
        0,
        "157 records, 157 queue entries, 296 key entries, 8 tables: 0 errors, 0 notes\n",
    )
    assert json.loads(run("verify", directory, "-o", "json")[1])["findings"] == []
    assert len(run("dump", directory, "--count", "3")[1].splitlines()) == 3
    lines = run("dump", directory, "--topic", "TopicA", "--queue", "1", "--from", "2", "-o", "json")[1].splitlines()
    rows = [msgspec.json.decode(line, type=RecordRow) for line in lines]
    assert [row.offset for row in rows] == list(range(2, 8))
    assert {(row.topic, row.queue, row.broker) for row in rows} == {("TopicA", 1, None)}
    assert rows[0].offset_id.endswith(f"{rows[0].log_offset:016X}")
    assert "common" in run("dump", directory, "--topic", "TopicA", "--key", "common", "--full")[1]
    of_topic = ("dump", directory, "--topic", "TopicA")
    assert len(run(*of_topic, "-o", "json")[1].splitlines()) == 34, "what is read by a program is all there is"
    shown = CliRunner().invoke(store_command, [*of_topic])
    assert len(shown.stdout.splitlines()) == 20
    assert shown.stderr == "only the first 20 are shown: --count gives more, -o json all of them\n"
    for whole in (("--count", "34"), ("--queue", "1")):
        assert CliRunner().invoke(store_command, [*of_topic, *whole]).stderr == ""
    for command in (
        ("ls", directory),
        ("verify", directory),
        ("dump", directory, "--count", "3"),
        ("repair", directory, "--dry-run"),
    ):
        code, text = run(*command, "-o", "yaml")
        assert (code, yaml.safe_load(text) is not None) == (0, True)
        assert run(*command, "-o", "csv")[0] == 0
    assert run("ls", directory, "-o", "csv", "--topic", "TopicA")[1].splitlines()[1] == "TopicA,0,0,8,8,false"
    assert len(run("dump", directory, "--count", "3", "-o", "csv")[1].splitlines()) == 4
    assert run("repair", directory) == (0, "nothing to mend\n")


def test_the_command_says_what_is_wrong_and_mends_only_when_told(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "commitlog" / "README").write_text("hello")
    code, text = run("verify", str(tmp_path))
    assert code == 1
    assert text.startswith("error: commitlog/README: ")
    code, text = run("repair", str(tmp_path))  # nobody answers
    assert (code, (tmp_path / "commitlog" / "README").exists()) == (6, True)
    code, text = run("repair", str(tmp_path), "--dry-run")
    assert (code, (tmp_path / "commitlog" / "README").exists()) == (0, True)
    assert text == "move commitlog/README aside\n"
    planned = json.loads(run("repair", str(tmp_path), "--dry-run", "-o", "json")[1])
    assert (len(planned["steps"]), planned["kept_in"]) == (1, None)
    code, text = run("repair", str(tmp_path), "--yes")
    assert (code, (tmp_path / "commitlog" / "README").exists()) == (0, False)
    assert json.loads(run("repair", str(tmp_path), "-o", "json")[1]) == {"steps": [], "kept_in": None}


def test_a_terminal_does_not_obey_a_message(tmp_path: Path) -> None:
    store = Store(config(tmp_path), HOST, clock=ManualClock())
    store.append("T", 0, b"\x1b[2J bell \x07", b"KEYS\x01a\x1b[31mb\x02", 1, HOST)
    store.close()
    for arguments in ((), ("--full",)):
        text = run("dump", str(tmp_path), *arguments)[1]
        assert "\x1b" not in text
        assert "bell" in text


def test_options_that_need_a_topic_say_so(tmp_path: Path) -> None:
    result = CliRunner().invoke(store_command, ["dump", str(tmp_path), "--key", "k"])
    assert result.exit_code == 2
    assert "--topic" in result.output
