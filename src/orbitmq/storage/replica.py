"""A copy of another broker's log: bytes come in pieces that end anywhere; records and indexes are made of them here.

    append    pieces, at the offsets they have in the master's log
    index     every whole record that has come
    cut       forget everything behind an offset, in log and indexes: the master has something else there

Belongs to the thread that owns the store.

Java: CommitLog.appendData, ReputMessageService
"""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING, Final

from orbitmq.accelerated import compiled
from orbitmq.errors import StorageError
from orbitmq.message.log_entry import entries_at
from orbitmq.message.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, record_layout
from orbitmq.message.record_check import valid_run
from orbitmq.storage.log_walk import Run, behind_broken, walk_runs
from orbitmq.storage.recovery import clear_behind
from orbitmq.storage.segmented_log import segment_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from orbitmq.message.log_entry import LogEntry
    from orbitmq.storage.commit_log import CommitLog
    from orbitmq.storage.deletions import Deletions
    from orbitmq.storage.files import Disk
    from orbitmq.storage.flush import LogFlusher
    from orbitmq.storage.indexer import Indexer
    from orbitmq.storage.queue_table import QueueTable
    from orbitmq.storage.segmented_log import Segment

logger = logging.getLogger(__name__)

_PROPERTIES_LENGTH_BYTES: Final = 2
_SIZE_AND_MAGIC: Final = struct.Struct(">ii")
_RUN_RECORDS: Final = 1024
_CHUNK_BYTES: Final = 8 << 20


class Replica:
    def __init__(
        self,
        disk: Disk,
        log: CommitLog,
        queues: QueueTable,
        indexer: Indexer,
        flusher: LogFlusher,
        deletions: Deletions,
    ) -> None:
        self._disk = disk
        self._log = log
        self._queues = queues
        self._indexer = indexer
        self._flusher = flusher
        self._deletions = deletions
        self._loops = compiled("indexes")

    @property
    def end(self) -> int:
        """What comes next must begin here; 0 if there is nothing yet, and then it may begin anywhere."""
        return self._log.end

    @property
    def whole_end(self) -> int:
        """Where the last whole record ends."""
        return self._indexer.indexed_to

    def append(self, pieces: Iterable[tuple[int, bytes | memoryview]]) -> None:
        """Offsets and bytes.

        StorageError if one does not begin at the end of the log, the disk is full or has failed, or keeps keys out of their index.
        """
        if self._flusher.failed is not None:
            raise self._flusher.failed
        if self._indexer.keys_are_kept_out:
            self._indexer.retry_keys()  # as before a master's append: else those that wait would be more and more
        for offset, parts in self._runs(pieces):
            first = not self._log.files.segments
            self._log.append_copied(offset, parts)
            if first:
                self._indexer.indexed_to = offset
        if self._flusher.is_synchronous and self._flusher.idle:
            self._flusher.wake()  # the master waits for our report, and the report for the disk

    def _runs(
        self, pieces: Iterable[tuple[int, bytes | memoryview]]
    ) -> Iterator[tuple[int, Sequence[bytes | memoryview]]]:
        """Pieces of one file that follow each other, together."""
        start = end = -1
        parts: list[bytes | memoryview] = []
        for offset, data in pieces:
            if parts and (offset != end or offset % self._log.files.segment_bytes == 0):
                yield start, parts
                parts = []
            if not parts:
                start = offset
            parts.append(data)
            end = offset + len(data)
        if parts:
            yield start, parts

    def pass_through(self, *, enabled: bool) -> None:
        """Whether what is copied need not stay in memory once it is on the disk: much is still to come, and nobody reads it soon."""
        self._flusher.forgets = enabled

    def index(self, confirmed: int) -> None:
        """Enter what has come whole, up to the log offset `confirmed`."""
        indexer = self._indexer
        while indexer.indexed_to < confirmed:
            at = indexer.indexed_to
            segment = self._log.files.segment_of(at)
            if segment is None:
                return
            position, limit = at - segment.start, min(confirmed, segment.end) - segment.start
            if indexer.index_copied(segment.memory, position, limit, segment.start) > position:
                self._log.last_stored_at_ms = indexer.last_stored_at_ms
            elif entries := self._entries(segment, position, limit):
                indexer.index(entries)
                self._log.last_stored_at_ms = indexer.last_stored_at_ms
            elif not self._pass_over(segment, position, limit):
                return

    def _entries(self, segment: Segment, position: int, limit: int) -> list[LogEntry]:
        """Of records that lie there one behind the other; none if there is no whole one."""
        memory = segment.memory
        if self._loops is not None:
            entries: list[LogEntry] = self._loops.usual_records(memory, position, limit, segment.start, _RUN_RECORDS)
            if entries:
                return entries
        positions, _ = valid_run(memory, position, limit, _RUN_RECORDS, check_crc=False)
        return entries_at(memory, positions, segment.start)

    def record_starts(self, segment: Segment) -> list[int]:
        """The log offsets of all whole records of a file."""
        starts: list[int] = []
        for found in walk_runs((segment,), check_crc=False):
            if isinstance(found, Run):
                starts.extend(segment.start + position for position in found.positions)
        return [start for start in starts if start < self.whole_end]

    def cut(self, end: int, keep_in: Path | None = None) -> None:
        """Forget what stands behind `end`, where a record ends. With `keep_in`, a copy of it goes to files in that folder.

        The copy is durable when this returns; that it is forgotten, after the next flush.
        """
        log = self._log
        if keep_in is not None:
            self._keep(end, keep_in)
        self._deletions.another_log_follows(end)
        with self._flusher.cutting_back(end):
            clear_behind(log, end)
            log.place_end(end)
        self._queues.truncate(end)
        self._indexer.forget_keys(end)
        self._indexer.indexed_to = end

    def cut_partial_record(self) -> None:
        """Before a stop: what has come of a record in the middle comes again later, and would make the stop an unclean one."""
        if self._log.files.segments and self.whole_end < self.end:
            with self._flusher.cutting_back(self.whole_end):
                clear_behind(self._log, self.whole_end)
                self._log.place_end(self.whole_end)

    def cut_if_torn(self, start: int) -> None:
        """The record at `start` is the last that a restart found. If its end had not come yet it was taken for whole: the CRC covers the body alone.

        What has not come reads as zeroes, and neither topic nor properties end in one.
        """
        segment = self._log.files.segment_of(start)
        assert segment is not None, "the restart found it there"
        memory = segment.memory
        size, _, _, _, topic_end = record_layout(memory, start - segment.start, len(memory))
        end = start - segment.start + size
        has_properties = end > topic_end + _PROPERTIES_LENGTH_BYTES
        if memory[topic_end - 1] == 0 or (has_properties and memory[end - 1] == 0):
            self.cut(start)

    def _pass_over(self, segment: Segment, position: int, limit: int) -> bool:
        """Step over the blank end of a file, or over damage that the master has as well; False: more must come first."""
        file_is_whole = limit == len(segment.memory)
        if limit - position < _SIZE_AND_MAGIC.size:
            return False
        size, magic = _SIZE_AND_MAGIC.unpack_from(segment.memory, position)
        if magic == MAGIC_BLANK:
            if file_is_whole:
                self._indexer.indexed_to = segment.end
            return file_is_whole
        if magic in (MAGIC_V1, MAGIC_V2) and limit < position + size <= len(segment.memory):
            return False
        resumed = behind_broken(segment, position, None if file_is_whole else limit)
        if resumed >= limit and not file_is_whole:
            return False
        logger.error(
            "the master's log is damaged at %d; going on at %d", segment.start + position, segment.start + resumed
        )
        self._indexer.indexed_to = segment.start + resumed
        return True

    def _keep(self, end: int, folder: Path) -> None:
        """All of it, or nothing: whoever finds the disk full tries again each second."""
        try:
            for segment in self._log.files.segments:
                start, stop = max(segment.start, end), min(segment.end, self._log.end)
                if start < stop:
                    self._copy(segment, start, stop, folder / segment_name(start))
            for named_in in (folder, folder.parent, folder.parent.parent):
                self._disk.sync_directory(named_in)
        except StorageError:
            if self._disk.stat(folder) is not None:
                for file in self._disk.list(folder):
                    self._disk.remove(folder / file.name)
                self._disk.remove_directory(folder)
            raise

    def _copy(self, segment: Segment, start: int, stop: int, path: Path) -> None:
        copy = self._disk.create_sparse(path, stop - start)
        try:
            for at in range(start, stop, _CHUNK_BYTES):
                piece = segment.memory[at - segment.start : min(at + _CHUNK_BYTES, stop) - segment.start]
                copy.pwrite(piece, at - start)
            copy.sync()
        finally:
            copy.close()
