"""What happens at start, top to bottom: find the end of the log, and make the indexes agree with it.

    where to begin    clean stop: the file that holds the newest record known to a queue
                      otherwise: a file whose first record the checkpoint says is in log and queues
    walk              record by record to the end of the log; each is checked and offered to the indexes
    cut               what stands behind the end is cleared; queues and key index forget it

Where Apache's recovery ends, at the first bytes that are no record, ours looks whether records follow. If so, those bytes are
damage, not the end: they are stepped over, nothing that leads to them is served, and what is intact behind them stays.

Java: DefaultMessageStore.recover, CommitLog.recoverNormally, recoverAbnormally
"""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.errors import MessageError, StorageError
from orbitmq.message.record import (
    END_OF_FILE,
    MAGIC_V1,
    MAGIC_V2,
    check_record,
    stored_at_ms,
)
from orbitmq.storage.lock import LastExit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orbitmq.storage.checkpoint import Checkpoint
    from orbitmq.storage.commit_log import CommitLog, LogEntry
    from orbitmq.storage.config import StorageConfig
    from orbitmq.storage.indexer import Indexer
    from orbitmq.storage.key_index import KeyIndex
    from orbitmq.storage.queue_table import QueueTable
    from orbitmq.storage.segmented_log import Segment

logger = logging.getLogger(__name__)

_BATCH: Final = 1024
_OFFSET_AT: Final = 28  # where a record says its own offset
_LONG: Final = struct.Struct(">q")
_MAGICS: Final = tuple(struct.pack(">i", magic) for magic in (MAGIC_V1, MAGIC_V2))

# How far to look for records behind bytes that are none: past this many zeroes nothing was ever written.
_LOOK_BYTES: Final = 1 << 20
_ZERO_RUN: Final = 16
_ZEROES: Final = bytes(_LOOK_BYTES)


class Damage(NamedTuple):
    """Bytes of the log, [start, end), that are no records though records follow."""

    start: int
    end: int
    reason: str


class Recovered(NamedTuple):
    end: int
    records: int
    damages: list[Damage]


def recover(
    config: StorageConfig,
    log: CommitLog,
    queues: QueueTable,
    keys: KeyIndex | None,
    indexer: Indexer,
    checkpoint: Checkpoint,
    exit_: LastExit,
) -> Recovered:
    """Leaves log, queues and key index agreeing with each other, and the log ready to append."""
    if not log.files.segments:
        # As Apache does: entries that lead into a log that is gone would be served as other messages later.
        queues.destroy()
        if keys is not None:
            keys.truncate(0)
        log.place_end(0)
        return Recovered(0, 0, [])
    if exit_ is not LastExit.CLEAN:
        _drop_torn_entries(log, queues)
    first = _segment_to_begin_with(config, log, queues, checkpoint, exit_)
    if keys is not None and exit_ is LastExit.CRASHED:
        _rebuild_keys(config, log, indexer, keys.resume_offset, log.files.segments[first].start)
    recovered = _walk(config, log, indexer, first)
    for damage in recovered.damages:
        logger.error(
            "%d bytes of the log at %d are damaged: %s", damage.end - damage.start, damage.start, damage.reason
        )
    _cut(log, recovered.end)
    queues.truncate(recovered.end)
    for damage in recovered.damages:
        queues.lead_nowhere(damage.start, damage.end)
    if keys is not None:
        keys.truncate(recovered.end)
    queues.correct_min(log.start)
    log.set_queue_offsets(queues.next_offsets())
    log.place_end(recovered.end)
    log.last_stored_at_ms = indexer.last_stored_at_ms
    indexer.indexed_to = recovered.end
    return recovered


def _segment_to_begin_with(
    config: StorageConfig, log: CommitLog, queues: QueueTable, checkpoint: Checkpoint, exit_: LastExit
) -> int:
    """The number of the segment where the walk starts; at worst the first."""
    segments = log.files.segments
    known_end = queues.max_physical
    for number in range(len(segments) - 1, 0, -1):
        segment = segments[number]
        try:
            if check_record(segment.memory, 0, len(segment.memory), check_crc=False) == END_OF_FILE:
                continue
        except MessageError:
            continue
        first_stored_at_ms = stored_at_ms(segment.memory)
        if config.index_safe and first_stored_at_ms > checkpoint.index_synced_ms:
            continue
        if segment.start > known_end:
            continue  # no queue knows it: the queues were lost, or are far behind
        if exit_ is LastExit.CLEAN or 0 < first_stored_at_ms <= checkpoint.safe_until_ms:
            return number
    return 0


def _drop_torn_entries(log: CommitLog, queues: QueueTable) -> None:
    """A queue's last entry may be half written: keep it only if it leads to its record. The walk enters it again."""
    for queue in queues.queues.values():
        if queue.log.next > queue.log.first:
            physical, size = queue.last_record()
            segment = log.files.segment_of(physical)
            # An offset outside the log is no tear: its record was cut off or has expired.
            if segment is not None and _size_at(segment, physical) != size:
                queue.drop_last()


def _size_at(segment: Segment, offset: int) -> int:
    try:
        return check_record(segment.memory, offset - segment.start, len(segment.memory), check_crc=False)
    except MessageError:
        return -1


def _walk(config: StorageConfig, log: CommitLog, indexer: Indexer, first: int) -> Recovered:
    end = log.files.segments[first].start
    records = 0
    damages: list[Damage] = []
    batch: list[LogEntry] = []
    for found in _walk_segments(config, log.files.segments[first:]):
        if isinstance(found, Damage):
            damages.append(found)
            continue
        segment, at, size = found
        if size == END_OF_FILE:
            end = segment.end
            continue
        records += 1
        end = at + size
        batch.append(indexer.entry_at(segment.memory, at - segment.start, at))
        if len(batch) == _BATCH:
            indexer.index(batch)
            batch = []
    indexer.index(batch)
    return Recovered(end, records, [damage for damage in damages if damage.start < end])


def _walk_segments(config: StorageConfig, segments: tuple[Segment, ...]) -> Iterator[tuple[Segment, int, int] | Damage]:
    """Every record as segment, offset and size (END_OF_FILE for a blank one), and every damage; all in order."""
    for segment in segments:
        memory, length = segment.memory, len(segment.memory)
        position = 0
        while position < length:
            try:
                size = check_record(
                    memory,
                    position,
                    length,
                    check_crc=config.check_crc_on_recover,
                    property_crc=config.verify_record_crc,
                )
            except MessageError as error:
                resumed = _next_record(config, segment, position)
                yield Damage(segment.start + position, segment.start + resumed, error.message)
                position = resumed
                continue
            yield segment, segment.start + position, size
            if size == END_OF_FILE:
                break
            position += size


def _next_record(config: StorageConfig, segment: Segment, position: int) -> int:
    """Where, behind `position`, a record begins that says so itself; the end of the segment if none does."""
    memory, length = segment.memory, len(segment.memory)
    zero_runs = 0
    at = position + 1
    while at < length:
        window = bytes(memory[at : at + _LOOK_BYTES + len(_MAGICS[0]) - 1])
        zero_runs = zero_runs + 1 if window == _ZEROES[: len(window)] else 0
        if zero_runs == _ZERO_RUN:
            break
        for candidate in sorted(_magic_positions(window)):
            start = at + candidate - 4
            if start > position and _is_record(config, segment, start):
                return start
        at += _LOOK_BYTES
    return length


def _magic_positions(window: bytes) -> Iterator[int]:
    for magic in _MAGICS:
        found = window.find(magic)
        while found >= 0:
            yield found
            found = window.find(magic, found + 1)


def _is_record(config: StorageConfig, segment: Segment, position: int) -> bool:
    try:
        size = check_record(
            segment.memory, position, len(segment.memory), check_crc=True, property_crc=config.verify_record_crc
        )
    except MessageError:
        return False
    own_offset: int = _LONG.unpack_from(segment.memory, position + _OFFSET_AT)[0]
    return size != END_OF_FILE and own_offset == segment.start + position


def _cut(log: CommitLog, end: int) -> None:
    """Drop the files behind `end`, and clear what stands behind it in its own: no reader may take it for a record."""
    files = log.files
    files.truncate(max(end, files.start + 1))
    segment = files.last
    if segment is None:
        raise StorageError(f"the log has no file for its end at {end}")
    position = max(0, end - segment.start)
    zero_runs = 0
    while position < len(segment.memory) and zero_runs < _ZERO_RUN:
        window = segment.memory[position : position + _LOOK_BYTES]
        if bytes(window) == _ZEROES[: len(window)]:
            zero_runs += 1
        else:
            zero_runs = 0
            window[:] = _ZEROES[: len(window)]
        position += len(window)


def _rebuild_keys(config: StorageConfig, log: CommitLog, indexer: Indexer, start: int, end: int) -> None:
    """After a power cut the key index may have lost more than the walk will pass: offer it the rest."""
    batch: list[LogEntry] = []
    segments = tuple(segment for segment in log.files.segments if start < segment.end and segment.start < end)
    for found in _walk_segments(config, segments):
        if not isinstance(found, Damage) and found[1] >= start and found[2] != END_OF_FILE:
            segment, at, _ = found
            batch.append(indexer.entry_at(segment.memory, at - segment.start, at))
            if len(batch) == _BATCH:
                indexer.enter_keys(batch)
                batch = []
    indexer.enter_keys(batch)
