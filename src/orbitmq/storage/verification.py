"""Checking a store directory byte by byte, without changing it: log, queues, key index, tables, and that they agree.

Each finding names the file and the first byte that is wrong. Errors are what a broker could not serve; notes are what it puts
right by itself when it starts, such as the newest queue entries of one that was killed.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.errors import BodyError, MessageError
from orbitmq.message.properties import KEYS, TAGS, UNIQUE_KEY, decode_properties
from orbitmq.message.record import decode_entry
from orbitmq.message.sysflags import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from orbitmq.message.tags import tag_code
from orbitmq.storage import tables
from orbitmq.storage.checkpoint import FILE_BYTES, read_checkpoint
from orbitmq.storage.index_file import ENTRY, HEADER, SLOT, IndexFile, infer_slots, key_hash
from orbitmq.storage.json_file import read_table
from orbitmq.storage.key_index import list_index_files
from orbitmq.storage.log_walk import LogRecord, NoRecord, walk
from orbitmq.storage.reader import message_numbers
from orbitmq.storage.segmented_log import is_segment_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from orbitmq.message.record import RecordEntry
    from orbitmq.storage.files import Disk
    from orbitmq.storage.java_object import JavaObject
    from orbitmq.storage.queue_view import Place, QueueView
    from orbitmq.storage.reader import StoreReader

ERROR: Final = "error"
NOTE: Final = "note"

TABLES: Final[dict[str, type[JavaObject]]] = {
    tables.TOPICS: tables.TopicTable,
    tables.GROUPS: tables.GroupTable,
    tables.OFFSETS: tables.OffsetTable,
    tables.LIGHT_OFFSETS: tables.OffsetTable,
    tables.DELAYS: tables.DelayTable,
    tables.FILTERS: tables.FilterTable,
    tables.ORDERS: tables.OrderTable,
    tables.REQUEST_MODES: tables.RequestModeTable,
    tables.QUEUE_MAPPINGS: tables.QueueMappingTable,
    tables.TIMER_COUNTS: tables.TimerCountTable,
    tables.HALF_COUNTS: tables.HalfCountTable,
}

_OWN_OFFSET: Final = struct.Struct(">28xq")
_DELAY_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
_LIGHT_PREFIX: Final = "%LMQ%"
_FIRST_EXTENSION_ADDRESS: Final = -(2**31) - 1  # a tag hash is never this small
_TIMER_WHEEL_BYTES: Final = 38_707_200


class StoreFinding(msgspec.Struct, frozen=True):
    """What is wrong with one file of a store."""

    severity: str  # error, or note: a broker puts it right when it starts
    path: str  # in the store directory
    byte: int | None  # the first wrong one in that file
    problem: str


class DamagedRange(msgspec.Struct, frozen=True):
    """Bytes of one log file that are no record."""

    start: int  # offset in the log
    end: int
    reason: str
    is_rest_of_file: bool


class Verification(msgspec.Struct):
    """What was looked at, and what is wrong with it."""

    records: int = 0
    queue_entries: int = 0
    key_entries: int = 0
    tables: int = 0
    findings: list[StoreFinding] = msgspec.field(default_factory=list)
    damages: list[DamagedRange] = msgspec.field(default_factory=list)

    @property
    def errors(self) -> list[StoreFinding]:
        return [finding for finding in self.findings if finding.severity == ERROR]


def verify(reader: StoreReader, disk: Disk, progress: Callable[[str], None] = lambda _: None) -> Verification:
    """Everything. `progress` is told what comes next."""
    check = _Check(reader, disk)
    for what, step in (
        ("the files of the log", check.log_files),
        ("the log", check.log),
        ("the queues", check.queues),
        ("the key index", check.key_index),
        ("the tables", check.tables),
        ("the checkpoint and the timer", check.small_files),
    ):
        progress(what)
        step()
    return check.result


class _Check:
    def __init__(self, reader: StoreReader, disk: Disk) -> None:
        self.result = Verification()
        self._reader = reader
        self._disk = disk
        self._next_offsets: dict[tuple[str, int], int] = {}
        self._covers: list[tuple[int, int]] = []  # what an earlier repair put over damaged bytes

    def _report(self, severity: str, path: Path, byte: int | None, problem: str) -> None:
        root = self._reader.directory
        name = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
        self.result.findings.append(StoreFinding(severity, name, byte, problem))

    def log_files(self) -> None:
        log = self._reader.log
        files = [file for file in self._disk.list(log.directory) if not file.is_directory]
        last = max((file.name for file in files if is_segment_name(file.name)), default="")
        for file in files:
            path = log.directory / file.name
            if not is_segment_name(file.name):
                self._report(ERROR, path, None, "is no file of the log; a broker refuses to start with it here")
            elif file.size == 0 and file.name == last:
                self._report(NOTE, path, 0, "is empty, left by an interrupted allocation; a start removes it")
            elif file.size != log.segment_bytes:
                problem = f"has {file.size} bytes, the others {log.segment_bytes}; a broker refuses to start with it"
                self._report(ERROR, path, min(file.size, log.segment_bytes), problem)
        for start, end in log.gaps():
            self._report(ERROR, log.directory / f"{start:020d}", None, f"is missing: offsets {start} to {end} are lost")

    def log(self) -> None:
        """Every record, its CRC, its own offset, and that each queue counts up by one."""
        rest: NoRecord | None = None
        for found in walk(self._reader.log.segments, self._reader.log.start):
            if isinstance(found, LogRecord):
                if rest is not None and rest.segment is not found.segment:
                    self._damage(rest, "records follow in later files")
                    rest = None
                self._record(found)
            elif found.is_rest_of_file:
                # Unwritten, unless a later file holds records.
                rest = rest or found
            else:
                self._damage(found, f"records follow from {found.end} on")
        if rest is not None and not rest.is_blank():
            position = rest.start - rest.segment.start
            problem = f"{rest.reason}: bytes behind the last record; a start clears them"
            self._report(NOTE, rest.segment.file.path, position, problem)
            self.result.damages.append(DamagedRange(rest.start, rest.end, rest.reason, is_rest_of_file=True))

    def _damage(self, found: NoRecord, where: str) -> None:
        problem = f"{found.reason}, at log offset {found.start}; {where}"
        self._report(ERROR, found.segment.file.path, found.start - found.segment.start, problem)
        self.result.damages.append(DamagedRange(found.start, found.end, found.reason, found.is_rest_of_file))

    def _record(self, found: LogRecord) -> None:
        self.result.records += 1
        data = found.data
        path, position = found.segment.file.path, found.offset - found.segment.start
        own_offset: int = _OWN_OFFSET.unpack_from(data)[0]
        if own_offset != found.offset:
            self._report(ERROR, path, position + 28, f"the record at {found.offset} says it is at {own_offset}")
        entry = decode_entry(data, 0, found.offset)
        if entry.sys_flag & TRANSACTION_PREPARED:
            if is_cover(entry):
                self._covers.append((found.offset, found.offset + found.size))
            return
        if self._reader.is_deleted(entry.topic, found.offset):
            return
        key = (entry.topic, entry.queue_id)
        first, count = message_numbers(entry)
        expected = self._next_offsets.get(key, first)
        if first < expected and self._leads_to(key, first, found.offset):
            expected = first  # its topic was deleted and made again, and its queue knows
        if first != expected:
            severity = NOTE if self._known_to_be_lost(key, expected, first) else ERROR
            problem = f"{key[0]} queue {key[1]}: number {first} where {expected} is due"
            self._report(severity, path, position + 20, problem)
        self._next_offsets[key] = max(expected, first + count)

    def _leads_to(self, key: tuple[str, int], number: int, offset: int) -> bool:
        return any(place.commit_log_offset == offset for place in self._reader.places(*key, number, number + 1))

    def _known_to_be_lost(self, key: tuple[str, int], start: int, stop: int) -> bool:
        """Whether the queue itself says that these messages are gone: its entries lead nowhere."""
        view = self._reader.view(*key)
        return start < stop and view is not None and not any(view.places(start, stop))

    def queues(self) -> None:
        for view in self._reader.views():
            bad = Counter[str]()
            wrong: tuple[int, str] | None = None
            for number, place in _numbered_entries(view):
                self.result.queue_entries += 1
                problem = self._entry_problem(view, place)
                if problem is not None:
                    wrong = wrong or (number, problem)
                    bad[problem] += 1
            if wrong is not None:
                path, byte = view.position(wrong[0])
                more = f" (and {bad.total() - 1} more entries of this queue are wrong)" if bad.total() > 1 else ""
                self._report(ERROR, path, byte, f"entry {wrong[0]}: {wrong[1]}{more}")
            self._completeness(view)
        known = {(view.topic, view.queue_id) for view in self._reader.views()}
        for topic, queue_id in sorted(set(self._next_offsets) - known):
            severity = ERROR if self._reader.is_clean else NOTE
            path = self._reader.directory / "consumequeue" / topic / str(queue_id)
            self._report(severity, path, None, "is missing: the log has messages of this queue")

    def _entry_problem(self, view: QueueView, place: Place) -> str | None:
        if place.leads_nowhere or not self._is_in_log(place.commit_log_offset):
            return None
        if self._is_lost(place.commit_log_offset):
            return "leads to a damaged record"
        entry = self._reader.entry(place.commit_log_offset)
        if entry is None:
            return f"leads to {place.commit_log_offset}, where no record is"
        if entry.size != place.size:
            return f"says {place.size} bytes of a record of {entry.size}"
        if view.topic.startswith(_LIGHT_PREFIX):
            return None
        if (entry.topic, entry.queue_id) != (view.topic, view.queue_id):
            return f"leads to a record of {entry.topic} queue {entry.queue_id}"
        if message_numbers(entry)[0] != place.queue_offset:
            return f"leads to message {message_numbers(entry)[0]} of its queue"
        return _tags_problem(view, place, entry)

    def _is_in_log(self, offset: int) -> bool:
        """Not if it has expired with its file, nor if a running broker appended it since we looked at the files."""
        log = self._reader.log
        return log.start <= offset and (offset < log.end or self._reader.owner is None)

    def _is_lost(self, offset: int) -> bool:
        damages = [(damage.start, damage.end) for damage in self.result.damages]
        return any(start <= offset < end for start, end in (*damages, *self._covers))

    def _completeness(self, view: QueueView) -> None:
        due = self._next_offsets.get((view.topic, view.queue_id))
        if due is None or due <= view.max_offset or view.topic.startswith(_LIGHT_PREFIX):
            return
        path, byte = view.position(view.next) if view.file_bytes else (view.directory, 0)
        missing = f"the newest {due - view.max_offset} messages have no entry"
        if self._reader.is_clean:
            self._report(ERROR, path, byte, f"{missing} though the last stop was clean")
        else:
            self._report(NOTE, path, byte, f"{missing} yet; a start adds them")

    def key_index(self) -> None:
        for path, size in list_index_files(self._disk, self._reader.directory / "index"):
            file = self._disk.map(path)
            slots = infer_slots(file.memory)
            if slots is None:
                empty = size > HEADER.size and HEADER.unpack_from(file.memory)[5] <= 1
                if not empty:
                    self._report(ERROR, path, 0, "is no index file, or its entries contradict its slots")
            else:
                self._index_entries(IndexFile(file, slots, writable=False))
            file.close()

    def _index_entries(self, index: IndexFile) -> None:
        entries_at = HEADER.size + SLOT.size * index.slots
        for number in range(1, index.next_entry):
            self.result.key_entries += 1
            hashed, offset, _, older = index.entry(number)
            problem = f"its chain goes on at entry {older}" if older >= number else self._key_problem(hashed, offset)
            if problem is not None:
                self._report(ERROR, index.file.path, entries_at + ENTRY.size * number, f"entry {number}: {problem}")
                return

    def _key_problem(self, hashed: int, offset: int) -> str | None:
        if not self._is_in_log(offset):
            return None
        if self._is_lost(offset):
            return None  # reported where the log is
        entry = self._reader.entry(offset)
        if entry is None:
            return f"leads to {offset}, where no record is"
        properties = decode_properties(entry.properties)
        keys = [properties.get(UNIQUE_KEY, ""), *properties.get(KEYS, "").split(" ")]
        if hashed not in {key_hash(entry.topic, key) for key in keys if key}:
            return f"leads to a record at {offset} that has no such key"
        if entry.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
            return f"leads to a rolled-back record at {offset}"
        return None

    def tables(self) -> None:
        for name, shape in TABLES.items():
            path = self._reader.directory / "config" / name
            try:
                self.result.tables += read_table(self._disk, path, shape) is not None
            except BodyError as error:
                self._report(ERROR, path, None, f"cannot be read: {error}")

    def small_files(self) -> None:
        root = self._reader.directory
        checkpoint = self._disk.stat(root / "checkpoint")
        if checkpoint is not None and checkpoint.size != FILE_BYTES:
            self._report(
                NOTE, root / "checkpoint", checkpoint.size, f"has {checkpoint.size} bytes; a start completes it"
            )
        elif checkpoint is not None:
            data = self._disk.read(root / "checkpoint")[:40]
            if any(data) and read_checkpoint(self._disk, root / "checkpoint", 2**53).pack() != data:
                self._report(NOTE, root / "checkpoint", 0, "holds times that cannot be; a start goes by the log alone")
        wheel = self._disk.stat(root / "timerwheel")
        if wheel is not None and wheel.size != _TIMER_WHEEL_BYTES:
            problem = (
                f"has {wheel.size} bytes where {_TIMER_WHEEL_BYTES} are usual; Apache's broker refuses another length"
            )
            self._report(NOTE, root / "timerwheel", min(wheel.size, _TIMER_WHEEL_BYTES), problem)


def is_cover(entry: RecordEntry) -> bool:
    """Whether a repair put this record over damaged bytes (see repair.py). No broker stores anything at time 0."""
    return entry.sys_flag & TRANSACTION_MASK == TRANSACTION_PREPARED and entry.stored_at_ms == 0


def _numbered_entries(view: QueueView) -> Iterator[tuple[int, Place]]:
    number = view.first
    while number < view.next:
        places = view.read(number, 4096)
        if not places:
            return
        yield from enumerate(places, number)
        number += len(places)


def _tags_problem(view: QueueView, place: Place, entry: RecordEntry) -> str | None:
    """Whether the tag hash is that of the record; delayed messages keep a time there, extended entries an address."""
    if view.topic == _DELAY_TOPIC or place.tags_code <= _FIRST_EXTENSION_ADDRESS or place.messages > 1:
        return None
    try:
        tags = decode_properties(entry.properties).get(TAGS)
    except MessageError as error:
        return str(error)
    expected = tag_code(tags) if tags else 0
    return None if place.tags_code == expected else f"has tag hash {place.tags_code}, its record {expected}"
