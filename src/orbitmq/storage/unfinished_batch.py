"""Which batch, or batches that came together, are being written to the log: all of their messages count or, after a kill, none.

    unfinished-batch    4096 bytes

    offset  size  field
    0       8     the offset in the log where it begins
    8       8     where it ends; 0: none is being written

Noted before the first byte of a batch and taken back behind its last, unsynced: a killed process leaves it in the page cache, with all else
that it wrote. So it is believed only where the last process was killed (lock.py); then whatever the records look like: of the last one a part of
the properties may be missing, which no checksum covers, and nobody was told of any. After a power cut any part of this and of the batch may be lost,
and then as many messages of the batch count as are whole, from the front; so they do for a broker of Apache's, which passes over this file.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.storage.checkpoint import CheckpointFile
from orbitmq.storage.lock import LastExit, last_exit
from orbitmq.storage.log_walk import next_record

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.storage.files import Disk
    from orbitmq.storage.segmented_log import SegmentedLog

NAME: Final = "unfinished-batch"
_RANGE: Final = struct.Struct(">qq")
_END_AT: Final = 8
_NO_END: Final = bytes(8)


class LogRange(NamedTuple):
    start: int
    end: int


class UnfinishedBatch:
    """Belongs to the thread that appends."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._path = directory / NAME
        self._file: CheckpointFile | None = None
        self._memory = memoryview(b"")

    def begin(self, start: int, end: int) -> None:
        """Something of [start, end) is written next. StorageError if this cannot be noted."""
        if self._file is None:
            self._file = CheckpointFile(self._disk, self._path)
            self._memory = self._file.place(_RANGE.size, 0)
        # As one copy, not byte by byte: who is killed half way must not leave a range that never was.
        self._memory[:] = _RANGE.pack(start, end)

    def finish(self) -> None:
        """All of it is written, or nothing is left of it."""
        self._memory[_END_AT:] = _NO_END

    def forget(self) -> None:
        """What an earlier process left. The file is there from now on: when the first batch comes, the disk may be full."""
        self.begin(0, 0)

    def close(self) -> None:
        if self._file is not None:
            self._memory.release()
            self._file.close()
            self._file = None


def unfinished_range(disk: Disk, directory: Path, log: SegmentedLog) -> LogRange | None:
    """What the last process, which was killed, or still runs, has not written whole."""
    path = directory / NAME
    if last_exit(disk, directory) is not LastExit.KILLED or disk.stat(path) is None:
        return None
    noted = disk.read(path)[: _RANGE.size].ljust(_RANGE.size, b"\0")
    batch = LogRange(*_RANGE.unpack(noted))
    segment = log.segment_of(batch.start) if batch.start < batch.end else None
    if segment is None or batch.end > segment.end:
        return None
    if next_record(segment, batch.end - segment.start) < len(segment.memory):
        return None  # of a process that knows of no such notes, which wrote on behind it
    return batch
