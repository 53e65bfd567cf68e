"""How far everything is safely on disk: two small files of big-endian 64-bit numbers, 4096 bytes each.

    checkpoint            offset  config/timercheck
    log synced, ms        0       time the timer wheel was read up to, ms
    queues synced, ms     8       timer log synced up to, offset
    index synced, ms      16      queue offset of the timer topic read up to
    master flushed        24      the same on the master
    confirmed offset      32      data version: state version
    (zero)                40      data version: timestamp, ms
    (zero)                48      data version: counter
    (zero)                64      ours: how far the timers are at this moment, see timer_store.py

The times are store times of messages: everything stored up to then was synced. They decide where recovery starts after a
crash, so a time may only advance after the sync it speaks of. The numbers share one disk sector and are written at once.

Java: StoreCheckpoint, TimerCheckpoint
"""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.storage.files import Disk
    from orbitmq.storage.open_files import MappedFile

logger = logging.getLogger(__name__)

FILE_BYTES: Final = 4096
_CHECKPOINT: Final = struct.Struct(">5q")
_TIMER_CHECKPOINT: Final = struct.Struct(">7q")

# Java steps back as much, because the order of store times and syncs is only known this roughly.
_MARGIN_MS: Final = 3000
# A clock may be wrong by minutes; a time further ahead is garbage, and would make recovery skip what it must look at.
_BELIEVABLE_MS: Final = 24 * 3600 * 1000


@dataclass(slots=True)
class Checkpoint:
    log_synced_ms: int = 0
    queues_synced_ms: int = 0
    index_synced_ms: int = 0
    master_flushed_offset: int = 0
    confirmed_offset: int = 0
    is_known: bool = field(default=True, compare=False)  # False: the file is missing, or was not believed

    @property
    def safe_until_ms(self) -> int:
        """Messages stored up to here are in the log and in the queue indexes. (Java: getMinTimestamp)"""
        return max(0, min(self.log_synced_ms, self.queues_synced_ms) - _MARGIN_MS)

    def pack(self) -> bytes:
        return _CHECKPOINT.pack(
            self.log_synced_ms,
            self.queues_synced_ms,
            self.index_synced_ms,
            self.master_flushed_offset,
            self.confirmed_offset,
        )


@dataclass(slots=True)
class TimerCheckpoint:
    read_until_ms: int = 0
    log_synced_offset: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    version_state: int = 0
    version_ms: int = 0
    version_counter: int = 0

    def pack(self) -> bytes:
        return _TIMER_CHECKPOINT.pack(
            self.read_until_ms,
            self.log_synced_offset,
            self.queue_offset,
            self.master_queue_offset,
            self.version_state,
            self.version_ms,
            self.version_counter,
        )


def read_checkpoint(disk: Disk, path: Path, now_ms: int) -> Checkpoint:
    """Zeroes where the file is missing, short or not believable: recovery then looks at the whole log."""
    if disk.stat(path) is None:
        return Checkpoint(is_known=False)
    values = _CHECKPOINT.unpack_from(_padded(disk, path))
    if min(values) < 0 or max(values[:3]) > now_ms + _BELIEVABLE_MS:
        logger.warning("%s says %s, which cannot be; going by the log alone", path, values)
        return Checkpoint(is_known=False)
    return Checkpoint(*values)


def read_timer_checkpoint(disk: Disk, path: Path) -> TimerCheckpoint:
    return unpack_timer_checkpoint(_padded(disk, path)) or TimerCheckpoint()


def unpack_timer_checkpoint(data: bytes) -> TimerCheckpoint | None:
    """None if that is none."""
    if len(data) < _TIMER_CHECKPOINT.size:
        return None
    values = _TIMER_CHECKPOINT.unpack_from(data)
    return None if min(values[:4]) < 0 else TimerCheckpoint(*values)


class CheckpointFile:
    """The file kept open: it is saved every second."""

    def __init__(self, disk: Disk, path: Path) -> None:
        found = disk.stat(path)
        if found is None or found.size != FILE_BYTES:
            disk.replace(path, _padded(disk, path)[:FILE_BYTES])
        self._file: MappedFile = disk.map(path, writable=True)
        self._saved = b""

    def save(self, checkpoint: Checkpoint | TimerCheckpoint) -> None:
        """Durable on return. Writes nothing if nothing changed."""
        data = checkpoint.pack()
        if data != self._saved:
            self._file.memory[: len(data)] = data
            self._file.sync()
            self._saved = data

    def note(self, data: bytes, at: int) -> None:
        """Bytes that Java does not look at. In the page cache on return: a killed process leaves them, a power cut may not."""
        self._file.memory[at : at + len(data)] = data

    def place(self, size: int, at: int) -> memoryview:
        """Where bytes can be noted without a call."""
        return self._file.memory[at : at + size]

    def read(self, size: int, at: int) -> bytes:
        return bytes(self._file.memory[at : at + size])

    def close(self) -> None:
        self._file.close()
        self._file.memory = memoryview(b"")  # a map has a descriptor of its own, which goes with the last view


def _padded(disk: Disk, path: Path) -> bytes:
    return (disk.read(path) if disk.stat(path) is not None else b"").ljust(FILE_BYTES, b"\0")
