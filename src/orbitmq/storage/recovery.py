"""What happens at start, top to bottom: find the end of the log, and make the indexes agree with it.

    batch             one that a kill left unfinished is cleared (unfinished_batch.py)
    where to begin    clean stop: the file that holds the newest record known to a queue
                      otherwise: a file whose first record the checkpoint says is in log and queues
    walk              record by record to the end of the log; each is checked and offered to the indexes
    cut               what stands behind the end is cleared; queues and key index forget it
    deleted topics    queues that the log would bring back go again (deletions.py)

Where Apache's recovery ends, at the first bytes that are no record, ours looks whether records follow. If so, those bytes are
damage, not the end: they are stepped over, nothing that leads to them is served, and what is intact behind them stays.

Java: DefaultMessageStore.recover, CommitLog.recoverNormally, recoverAbnormally
"""

from __future__ import annotations

import logging
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.errors import MessageError, StorageError
from orbitmq.message.log_entry import entries_at
from orbitmq.message.record import END_OF_FILE, record_layout, stored_at_ms
from orbitmq.message.record_check import check_record
from orbitmq.storage.indexer import NEVER
from orbitmq.storage.lock import LastExit
from orbitmq.storage.log_walk import EndOfFile, NoRecord, Run, walk_runs
from orbitmq.storage.open_files import PAGE_BYTES, clear_pages
from orbitmq.storage.unfinished_batch import unfinished_range

if TYPE_CHECKING:
    from orbitmq.message.log_entry import LogEntry
    from orbitmq.storage.checkpoint import Checkpoint
    from orbitmq.storage.commit_log import CommitLog
    from orbitmq.storage.config import StorageConfig
    from orbitmq.storage.deletions import Deletions
    from orbitmq.storage.files import Disk
    from orbitmq.storage.indexer import Indexer
    from orbitmq.storage.key_index import KeyIndex
    from orbitmq.storage.queue_table import AnyQueue, QueueTable
    from orbitmq.storage.segmented_log import Segment
    from orbitmq.storage.unfinished_batch import LogRange

logger = logging.getLogger(__name__)

_WINDOW_BYTES: Final = 1 << 20
_ZEROES: Final = bytes(_WINDOW_BYTES)
_ZERO_WINDOWS: Final = 16  # behind so many zeroes nothing was ever written


class Damage(NamedTuple):
    """Bytes of the log, [start, end), that are no records though records follow."""

    start: int
    end: int
    reason: str


class Recovered(NamedTuple):
    end: int
    records: int
    damages: list[Damage]
    unindexed_from_ms: int | None = None  # store time of the first record that the indexes did not know
    last_record: int | None = None  # where the last one begins


def recover(
    disk: Disk,
    config: StorageConfig,
    log: CommitLog,
    queues: QueueTable,
    keys: KeyIndex | None,
    indexer: Indexer,
    checkpoint: Checkpoint,
    deletions: Deletions,
    exit_: LastExit,
) -> Recovered:
    """Leaves log, queues and key index agreeing with each other, and the log ready to append."""
    if not log.files.segments:
        # As Apache does: entries that lead into a log that is gone would be served as other messages later.
        queues.destroy()
        if keys is not None:
            keys.truncate(0)
        deletions.log_was_cut(0)
        log.place_end(0)
        return Recovered(0, 0, [])
    _clear_unfinished(unfinished_range(disk, config.directory, log.files), log)
    dropped = _drop_torn_entries(log, queues) if exit_ is not LastExit.CLEAN else []
    first = _segment_to_begin_with(config, log, queues, checkpoint, exit_)
    keys_lost = keys is not None and keys.lost_some
    if keys is not None and (keys_lost or exit_ is LastExit.CRASHED):
        _rebuild_keys(config, log, indexer, log.files.segments[first].start)
    # Of what was not synced, a power cut keeps any pages it likes: behind a hole there nothing counts. None: never.
    unsynced_from_ms = checkpoint.log_synced_ms if exit_ is LastExit.CRASHED and checkpoint.is_known else None
    # A clean stop left a whole key index unless somebody damaged it, and so did a killed process up to its last record.
    keyed_to = NEVER if exit_ is LastExit.CLEAN and not keys_lost else indexer.keyed_to
    if exit_ is LastExit.CRASHED:
        queues.distrust_from(log.files.segments[first].start)
    recovered = _walk(
        config, log, queues, indexer, deletions, first, keyed_to, unsynced_from_ms, trust=exit_ is not LastExit.CRASHED
    )
    indexer.enter_waiting_keys()
    for damage in recovered.damages:
        logger.error(
            "%d bytes of the log at %d are damaged: %s", damage.end - damage.start, damage.start, damage.reason
        )
    clear_behind(log, recovered.end)
    queues.truncate(recovered.end)
    queues.trust()
    deletions.log_was_cut(recovered.end)
    for damage in recovered.damages:
        queues.lead_nowhere(damage.start, damage.end)
        # Of these it was the record that is broken, not the entry.
        broken = [lost for lost in dropped if damage.start <= lost.physical < damage.end]
        queues.keep_numbers((lost.queue, lost.next_offset) for lost in broken)
    for topic, offset in deletions.log_offsets.items():
        queues.keep_deleted(topic, offset)
    queues.sync_changes()
    indexer.forget_keys(recovered.end)
    queues.correct_min(log.start)
    log.set_queue_offsets(queues.next_offsets())
    log.place_end(recovered.end)
    log.last_stored_at_ms = indexer.last_stored_at_ms
    indexer.indexed_to = recovered.end
    return recovered


def _clear_unfinished(batch: LogRange | None, log: CommitLog) -> None:
    segment = log.files.segment_of(batch.start) if batch is not None else None
    if batch is not None and segment is not None:
        clear_pages(segment.memory[batch.start - segment.start : batch.end - segment.start])


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


class _Dropped(NamedTuple):
    queue: AnyQueue
    next_offset: int  # the queue's, with the entry
    physical: int


def _drop_torn_entries(log: CommitLog, queues: QueueTable) -> list[_Dropped]:
    """A queue's last entry may be half written: drop it unless it leads to its record. The walk enters it again."""
    dropped = []
    for queue in queues.queues.values():
        last = queue.last_record()
        segment = log.files.segment_of(last[0]) if last else None
        # An offset outside the log is no tear: its record was cut off or has expired.
        if last is not None and segment is not None and _size_at(segment, last[0]) != last[1]:
            dropped.append(_Dropped(queue, queue.next_offset, last[0]))
            queue.drop_last()
    return dropped


def _size_at(segment: Segment, offset: int) -> int:
    try:
        return check_record(segment.memory, offset - segment.start, len(segment.memory), check_crc=False)
    except MessageError:
        return -1


def _walk(
    config: StorageConfig,
    log: CommitLog,
    queues: QueueTable,
    indexer: Indexer,
    deletions: Deletions,
    first: int,
    keyed_to: int,
    unsynced_from_ms: int | None,
    *,
    trust: bool,
) -> Recovered:
    segments = log.files.segments[first:]
    end = segments[0].start
    records = 0
    damages: list[Damage] = []
    hole: Damage | None = None  # the first since the last record
    unindexed_from_ms: int | None = None
    last: Run | None = None
    # Most records are in the indexes already. Knowing which saves decoding them, and that is most of the work. After a power cut
    # each is entered again, which mends entries of which a part is lost.
    known = None if config.light_queues or not trust else queues.known_from(end)
    for found in walk_runs(segments, check_crc=config.check_crc_on_recover, property_crc=config.verify_record_crc):
        if isinstance(found, NoRecord):
            damages.append(Damage(found.start, found.end, found.reason))
            hole = hole or damages[-1]
        elif isinstance(found, EndOfFile):
            end = found.segment.end if hole is None else end
        elif hole is not None and unsynced_from_ms is not None and _is_unsynced(found, last, unsynced_from_ms):
            end = hole.start
            break
        else:
            hole = None
            whole = found if unsynced_from_ms is None else _without_torn(found, unsynced_from_ms)
            is_torn, found = whole is not found, whole
            end = found.end
            if not found.positions:
                break
            last = found
            records += len(found.positions)
            memory, base = found.segment.memory, found.segment.start
            indexed = known.before(end) if known is not None else set()
            if end > keyed_to or not indexed.issuperset([base + position for position in found.positions]):
                fresh = [at for at in found.positions if base + at not in indexed or base + at >= keyed_to]
                batch = entries_at(memory, fresh, base)
                _enter(indexer, deletions, batch)
                if batch and unindexed_from_ms is None:
                    unindexed_from_ms = batch[0][5]
            if is_torn:
                break
    last_record = None
    if last is not None:
        indexer.last_stored_at_ms = stored_at_ms(last.segment.memory, last.positions[-1])
        last_record = last.segment.start + last.positions[-1]
    return Recovered(end, records, [damage for damage in damages if damage.start < end], unindexed_from_ms, last_record)


def _enter(indexer: Indexer, deletions: Deletions, batch: list[LogEntry]) -> None:
    """Those of deleted topics into no queue: there they would take the numbers of damaged ones of topics made again."""
    deleted = deletions.log_offsets
    for was_deleted, run in groupby(batch, lambda entry: entry[1] < deleted.get(entry[0][0], 0)):
        if was_deleted:
            indexer.index_deleted(list(run))
        else:
            indexer.index(list(run))


def _without_torn(run: Run, unsynced_from_ms: int) -> Run:
    """The run up to the first record of which a power cut took a page with its topic or properties: the CRC covers the body alone.

    What was never on the disk reads as zeroes, and neither text has any.
    """
    memory, base = run.segment.memory, run.segment.start
    for number, (position, behind) in enumerate(pairwise([*run.positions, run.end - base])):
        second_page = position - position % PAGE_BYTES + PAGE_BYTES
        if second_page >= behind or stored_at_ms(memory, position) < unsynced_from_ms:
            continue
        _, _, _, topic_at, topic_end = record_layout(memory, position, behind)
        for page in range(second_page, behind, PAGE_BYTES):
            for text_start, text_end in ((topic_at, topic_end), (topic_end + 2, behind)):
                piece = bytes(memory[max(page, text_start) : min(page + PAGE_BYTES, text_end)])
                if piece and piece == _ZEROES[: len(piece)]:
                    return Run(run.segment, run.positions[:number], base + position)
    return run


def _is_unsynced(run: Run, last: Run | None, unsynced_from_ms: int) -> bool:
    """What follows a hole; `last`: what came before it.

    It is if what came before is, whatever time it says itself: it may have stood in a body.
    """
    stored_ms = stored_at_ms(run.segment.memory, run.positions[0])
    before_ms = 0 if last is None else stored_at_ms(last.segment.memory, last.positions[-1])
    return max(stored_ms, before_ms) >= unsynced_from_ms


def clear_behind(log: CommitLog, end: int) -> None:
    """Drop the files behind `end`, and clear what stands behind it in its own: no reader may take it for a record."""
    files = log.files
    files.truncate(max(end, files.start + 1))
    segment = files.last
    if segment is None:
        raise StorageError(f"the log has no file for its end at {end}")
    position = max(0, end - segment.start)
    zero_windows = 0
    written = []
    while position < len(segment.memory) and zero_windows < _ZERO_WINDOWS:
        window = segment.memory[position : position + _WINDOW_BYTES]
        if bytes(window) == _ZEROES[: len(window)]:
            zero_windows += 1
        else:
            zero_windows = 0
            written.append(window)
        position += len(window)
    for window in reversed(written):
        clear_pages(window)


def _rebuild_keys(config: StorageConfig, log: CommitLog, indexer: Indexer, end: int) -> None:
    """After a power cut the key index may have lost more than the walk will pass: offer it the rest."""
    start = max(indexer.keyed_to, log.start)
    segments = [segment for segment in log.files.segments if segment.start < end]
    for found in walk_runs(
        segments, start, check_crc=config.check_crc_on_recover, property_crc=config.verify_record_crc
    ):
        if isinstance(found, Run):
            indexer.enter_keys(entries_at(found.segment.memory, found.positions, found.segment.start))
