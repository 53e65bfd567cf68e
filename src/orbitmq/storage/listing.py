"""What is in a store directory, at a glance: files, ranges and sizes, for `orbitmq store ls`. Looks, never checks or writes."""

from __future__ import annotations

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
    path: str
    start: int
    end: int
    modified_ms: int


class Queue(msgspec.Struct, frozen=True):
    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    messages: int
    is_batch: bool


class KeyFile(msgspec.Struct, frozen=True):
    path: str
    entries: int
    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int


class Table(msgspec.Struct, frozen=True):
    path: str
    size: int
    modified_ms: int


class Listing(msgspec.Struct, frozen=True):
    directory: str
    owner: int | None  # process id; 0 if it cannot be named
    is_clean: bool
    log_start: int
    log_end: int
    segment_bytes: int
    log_files: list[LogFile]
    queues: list[Queue]
    key_files: list[KeyFile]
    tables: list[Table]


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
            Queue(queue.topic, queue.queue_id, queue.min_offset, queue.max_offset, queue.max_offset - queue.min_offset, queue.is_batch)
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
        files.append(LogFile(segment.file.path.name, segment.start, segment.end, modified_ms))
    return files


def _key_files(reader: StoreReader, disk: Disk) -> list[KeyFile]:
    files = []
    for path, _ in list_index_files(disk, reader.directory / "index"):
        file = disk.map(path)
        slots = infer_slots(file.memory)
        if slots is not None:
            index = IndexFile(file, slots, writable=False)
            bounds = (index.begin_ms, index.end_ms, index.begin_offset, index.end_offset)
            files.append(KeyFile(path.name, index.next_entry - 1, *bounds))
        file.close()
    return files


def _tables(directory: Path, disk: Disk) -> list[Table]:
    found = [disk.stat(directory / "config" / name) for name in TABLES]
    return [Table(file.name, file.size, file.modified_ms) for file in found if file is not None]
