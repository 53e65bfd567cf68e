"""What is in a store directory, at a glance: files, ranges and sizes, for `orbitmq store ls`. Looks, never checks or writes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from orbitmq.storage.index_file import IndexFile, infer_slots
from orbitmq.storage.key_index import list_index_files
from orbitmq.storage.verification import TABLES

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.storage.files import Disk
    from orbitmq.storage.reader import StoreReader


class LogFile(msgspec.Struct, frozen=True):
    """A file of the commit log. Its offsets are those of the log."""

    path: str
    start: int
    end: int
    modified_at: datetime


class StoredQueue(msgspec.Struct, frozen=True):
    topic: str
    queue_id: int
    min_offset: int
    max_offset: int  # one beyond the newest
    messages: int
    is_batch: bool


class KeyFile(msgspec.Struct, frozen=True):
    """A file of the index that finds messages by their keys."""

    path: str
    entries: int
    begins_at: datetime
    ends_at: datetime
    begin_offset: int  # in the log
    end_offset: int


class StoredTable(msgspec.Struct, frozen=True):
    """A file of settings: topics, groups, offsets, ..."""

    path: str
    size: int  # bytes
    modified_at: datetime


class Listing(msgspec.Struct, frozen=True):
    """A store directory."""

    directory: str
    owner: int | None  # process id of the broker that has it open; 0 if it cannot be named
    is_clean: bool  # the last broker stopped properly
    log_start: int
    log_end: int
    segment_bytes: int  # of each file of the log
    log_files: list[LogFile]
    queues: list[StoredQueue]
    key_files: list[KeyFile]
    tables: list[StoredTable]


def list_store(reader: StoreReader, disk: Disk) -> Listing:
    start, end = reader.log_range
    return Listing(
        directory=str(reader.directory),
        owner=reader.owner,
        is_clean=reader.is_clean,
        log_start=start,
        log_end=end,
        segment_bytes=reader.log.segment_bytes,
        log_files=_log_files(reader, disk),
        queues=[
            StoredQueue(queue.topic, queue.queue_id, queue.min_offset, queue.max_offset, queue.max_offset - queue.min_offset, queue.is_batch)
            for queue in reader.queues()
        ],
        key_files=_key_files(reader, disk),
        tables=_tables(reader.directory, disk),
    )  # fmt: skip


def _log_files(reader: StoreReader, disk: Disk) -> list[LogFile]:
    files = []
    for segment in reader.log.segments:
        found = disk.stat(segment.file.path)
        modified_ms = found.modified_ms if found is not None else 0
        files.append(LogFile(segment.file.path.name, segment.start, segment.end, _moment(modified_ms)))
    return files


def _key_files(reader: StoreReader, disk: Disk) -> list[KeyFile]:
    files = []
    for path, _ in list_index_files(disk, reader.directory / "index"):
        file = disk.map(path)
        slots = infer_slots(file.memory)
        if slots is not None:
            index = IndexFile(file, slots, writable=False)
            times = (_moment(index.begin_ms), _moment(index.end_ms))
            files.append(KeyFile(path.name, index.next_entry - 1, *times, index.begin_offset, index.end_offset))
        file.close()
    return files


def _tables(directory: Path, disk: Disk) -> list[StoredTable]:
    found = [disk.stat(directory / "config" / name) for name in TABLES]
    return [StoredTable(file.name, file.size, _moment(file.modified_ms)) for file in found if file is not None]


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)
