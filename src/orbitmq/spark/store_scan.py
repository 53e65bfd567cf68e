"""Reading a store directory in pieces, many records at once: the plan is made in one place, the pieces are read anywhere.

A piece is a range of one file of the commit log. Whoever reads it takes the queue entries of the wanted queues that lead into
the range, which says what begins where without touching the log; drops those that tags, then store times rule out; and
decodes the rest in the order of the log. A record that is not what its entry says is damage: told with its place, or an error.
"""

from __future__ import annotations

import os
import zlib
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orbitmq.errors import ConfigError, MessageError, StorageError, StoreCorrupt
from orbitmq.message.record import stored_at_ms
from orbitmq.message.record_check import check_record
from orbitmq.message.sysflags import INNER_BATCH
from orbitmq.message.tags import tag_code
from orbitmq.spark.decoding import RecordDecoder
from orbitmq.spark.record_fields import BadRecord, Mask, Numbers, RecordBytes, RecordFields, sound_records
from orbitmq.spark.worker_process import settle
from orbitmq.storage.queue_extension import LAST_EXTENSION_ADDRESS
from orbitmq.storage.reader import StoreReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from orbitmq.spark.schema import Projection
    from orbitmq.spark.store_options import StoreScan

_LARGEST_PIECE: Final = 128 << 20
_SMALLEST_PIECE: Final = 4 << 20
_PIECES: Final = 8  # of a small store, so that several workers have something to do
_BATCH_BYTES: Final = 4 << 20
_BATCH_RECORDS: Final = 8192
_ENTRY: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
_NOWHERE_SIZE: Final = 0x7FFFFFFF  # of an entry without a message
_DELAYED_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"  # its entries hold delivery times where others hold tag hashes
# A file is left out by time only if it is this far off: the clock of a broker may have been put back.
_CLOCK_SLACK_MS: Final = 600_000
_MARK_BYTES: Final = (
    4096  # of a log: several records with their times, or the end of one, with the id that its producer gave it
)


class LogRange(NamedTuple):
    """The records that begin in [start, end), all in one file of the log."""

    start: int
    end: int
    log_end: int  # of the whole plan: a reader that knows the log up to here knows enough


class Damage(NamedTuple):
    """A message that cannot be read, or a stretch of the log that is not there (then no queue is named)."""

    topic: str | None
    queue_id: int | None
    queue_offset: int | None
    log_offset: int
    size: int
    reason: str

    def __str__(self) -> str:
        what = f"{self.topic} queue {self.queue_id} offset {self.queue_offset}" if self.topic else "log"
        return f"{what}, bytes {self.log_offset} to {self.log_offset + self.size}: {self.reason}"


class Piece(NamedTuple):
    batch: pa.RecordBatch
    damage: list[Damage]


class _Entries(NamedTuple):
    """Queue entries of several queues, by where their records begin."""

    offsets: Numbers
    sizes: Numbers
    queues: Numbers  # index into the list of queues
    queue_offsets: Numbers

    def chosen(self, rows: Mask | Numbers | slice) -> _Entries:
        return _Entries(*(values[rows] for values in self))


def plan(scan: StoreScan, *, start: int | None = None, mark: int | None = None) -> tuple[list[LogRange], list[Damage]]:
    """The ranges to read, and the gaps between the log's files. `start`: where somebody who read the log before ended, at the end of a
    record, and `mark`, the `log_mark` of it then; an error where this is no longer that log."""
    with StoreReader(scan.directory, commit_log_directory=scan.commit_log_directory) as reader:
        log_start, log_end = reader.log_range
        if start is not None:
            _check_same_log(scan, reader, start, mark)
        _check_topics(scan, reader)
        begin = log_start if start is None else max(start, log_start)
        gaps = [Damage(None, None, None, a, b - a, "no file of the log holds this") for a, b in reader.log.gaps()]
        if start is not None and start < log_start:
            gaps.insert(0, _removed(scan, start, log_start, "the broker removed this since the last time it was read"))
        total = max(0, log_end - begin)
        piece = scan.partition_bytes or min(_LARGEST_PIECE, max(_SMALLEST_PIECE, total // _PIECES))
        ranges = []
        for low, high in _wanted_files(scan, reader, begin, log_end):
            ranges += [LogRange(at, min(at + piece, high), log_end) for at in range(low, high, piece)]
        if scan.is_filtered:
            spans = list(_spans(scan, reader))
            ranges = [one for one in ranges if any(low < one.end and high >= one.start for low, high in spans)]
        return ranges, gaps


def log_mark(scan: StoreScan, end: int) -> int | None:
    """By which a log that was read up to `end`, the end of a record, is known again; None where its file is gone."""
    with StoreReader(scan.directory, commit_log_directory=scan.commit_log_directory) as reader:
        return _mark(reader, end)


def read_range(scan: StoreScan, log_range: LogRange, projection: Projection) -> Iterator[Piece]:
    """Raises StoreCorrupt at the first damage unless the scan skips it."""
    settle()
    reader = _reader(scan, log_range.log_end)
    segment = reader.log.segment_of(log_range.start)
    if segment is None:
        yield _expired(scan, log_range, projection)
        return
    data = RecordBytes(segment.memory)
    queues = [key for key in reader.queue_keys() if scan.wants_queue(*key)]
    entries = _entries(scan, reader, queues, log_range)
    decoder = RecordDecoder(projection.with_columns(["tags"] if scan.tags else []), broker_name=scan.broker_name)
    for rows in _batches(entries.sizes):
        some = entries.chosen(rows)
        fields, bad = _matching_records(data, some, queues, segment.start, scan)
        if scan.begin_ms is not None or scan.end_ms is not None:
            fields = fields.chosen(_in_time(scan, fields.stored_at_ms))
        decoded = decoder.batch_of(fields)
        damage = [_damage(record, some, queues, segment.start) for record in (*bad, *decoded.bad)]
        if damage and not scan.skips_corrupt:
            raise _corrupt(scan.directory, damage)
        batch = _with_tags(decoded.batch, scan.tags).select(projection.columns) if scan.tags else decoded.batch
        if batch.num_rows or damage:
            yield Piece(batch, damage)


def check_gaps(scan: StoreScan, gaps: Sequence[Damage]) -> None:
    if gaps and not scan.skips_corrupt:
        raise _corrupt(scan.directory, gaps)


def _corrupt(directory: Path, damage: Sequence[Damage]) -> StoreCorrupt:
    more = f" and {len(damage) - 1} more" if len(damage) > 1 else ""
    return StoreCorrupt(
        f"{directory} is damaged: {damage[0]}{more}",
        hint='onCorrupt="skip" reads the rest, read="damage" lists what is wrong, `orbitmq store verify` checks every byte',
    )


def _expired(scan: StoreScan, log_range: LogRange, projection: Projection) -> Piece:
    lost = _removed(scan, log_range.start, log_range.end, "the broker removed this file since the scan was planned")
    return Piece(pa.RecordBatch.from_pylist([], schema=projection.arrow), [lost])


def _removed(scan: StoreScan, start: int, end: int, reason: str) -> Damage:
    """The broker's retention was quicker than we."""
    lost = Damage(None, None, None, start, end - start, reason)
    if not scan.skips_corrupt:
        raise StorageError(f"{scan.directory}: {lost}", hint="scan a copy, or let the broker keep its files longer")
    return lost


def _check_same_log(scan: StoreScan, reader: StoreReader, known_to: int, mark: int | None) -> None:
    """A log that was made anew, or lost its end with its machine, has other messages at the same offsets: going on would leave them out."""
    log_end = reader.log_range[1]
    if log_end < known_to:
        what = f"the log of {scan.directory} ends at {log_end}"
    elif mark is not None and _mark(reader, known_to) not in (None, mark):
        what = f"the log of {scan.directory} holds other messages before {known_to}"
    elif log_end > known_to and not scan.skips_corrupt and not _may_begin_at(reader, known_to):
        what = f"no record of the log of {scan.directory} begins at {known_to}"
    else:
        return
    raise StorageError(
        f"{what}, but it was read up to {known_to} before: it was made anew, or lost its end in a crash",
        hint="read all of it into another directory",
    )


def _mark(reader: StoreReader, end: int) -> int | None:
    segment = reader.log.segment_of(end - 1) if end else None
    if segment is None:
        return None
    stop = end - segment.start
    return zlib.crc32(segment.memory[max(0, stop - _MARK_BYTES) : stop])


def _may_begin_at(reader: StoreReader, offset: int) -> bool:
    """A record, or the blank end of a file. Of a file that is gone nobody knows."""
    segment = reader.log.segment_of(offset)
    if segment is None:
        return True
    try:
        check_record(segment.memory, offset - segment.start, len(segment.memory), check_crc=False)
    except MessageError:
        return False
    return True


def _check_topics(scan: StoreScan, reader: StoreReader) -> None:
    there = reader.topics()
    for topic in scan.topics:
        if topic not in there:
            near = get_close_matches(topic, there, 1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(there[:10]) or 'no topics'}"
            raise ConfigError(f"the store in {scan.directory} has no topic {topic!r}", hint=hint)


def _wanted_files(scan: StoreScan, reader: StoreReader, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Ranges of the log, file by file, without files that hold only messages from outside the wanted time."""
    segments = [segment for segment in reader.log.segments if segment.start < end and segment.end > begin]
    firsts: list[int | None] = []
    for segment in segments:
        entry = reader.entry(segment.start) if scan.begin_ms is not None or scan.end_ms is not None else None
        firsts.append(None if entry is None else stored_at_ms(segment.memory))
    for index, segment in enumerate(segments):
        first = firsts[index]
        following = firsts[index + 1] if index + 1 < len(segments) else None
        if scan.end_ms is not None and first is not None and first >= scan.end_ms + _CLOCK_SLACK_MS:
            continue
        if scan.begin_ms is not None and following is not None and following < scan.begin_ms - _CLOCK_SLACK_MS:
            continue
        yield max(begin, segment.start), min(end, segment.end)


def _spans(scan: StoreScan, reader: StoreReader) -> Iterator[tuple[int, int]]:
    """Where in the log the first and the last wanted record of each wanted queue begin; there may be others between."""
    wanted = scan.queue_offsets
    for topic, queue_id in reader.queue_keys():
        if not scan.wants_queue(topic, queue_id) or not wanted:
            continue
        view = reader.view(topic, queue_id)
        first = next(view.places(wanted.start, wanted.stop), None) if view is not None else None
        if view is not None and first is not None:
            last = next(view.places(wanted.stop - 1, wanted.stop), None) or view.last or first
            yield first.commit_log_offset, last.commit_log_offset
        for place in reader.unindexed(topic, queue_id):
            yield place.commit_log_offset, place.commit_log_offset


def _entries(scan: StoreScan, reader: StoreReader, queues: Sequence[tuple[str, int]], log_range: LogRange) -> _Entries:
    codes = np.array(sorted({tag_code(tag) for tag in scan.tags}), np.int64)
    pieces: list[_Entries] = []
    for index, (topic, queue_id) in enumerate(queues):
        by_tag = codes if len(codes) and topic != _DELAYED_TOPIC else None
        pieces += _indexed(scan, reader, (topic, queue_id), index, log_range, by_tag)
        pieces += _listed(reader.unindexed(topic, queue_id), index, log_range)
    if not pieces:
        nothing = np.zeros(0, np.int64)
        return _Entries(nothing, nothing, nothing, nothing)
    together = _Entries(*(np.concatenate(values) for values in zip(*pieces, strict=True)))
    return together.chosen(np.argsort(together.offsets, kind="stable"))


def _indexed(
    scan: StoreScan, reader: StoreReader, key: tuple[str, int], index: int, log_range: LogRange, codes: Numbers | None
) -> Iterator[_Entries]:
    view = reader.view(*key)
    if view is None:
        return
    if view.is_batch:
        places = (place for number in range(view.first, view.next, 4096) for place in view.read(number, 4096))
        yield from _listed((place for place in places if not place.leads_nowhere), index, log_range)
        return
    for number, data in view.entries_between(log_range.start, log_range.end):
        raw = np.frombuffer(data, _ENTRY)
        offsets, sizes = raw["offset"].astype(np.int64), raw["size"].astype(np.int64)
        inside = (offsets >= log_range.start) & (offsets < log_range.end) & (sizes != _NOWHERE_SIZE)
        if codes is not None:
            found = raw["code"].astype(np.int64)
            # An address into the queue's extension says nothing of tags: the record does.
            inside &= np.isin(found, codes) | (found <= LAST_EXTENSION_ADDRESS)
        inside[: max(0, scan.queue_offsets.start - number)] = False
        inside[max(0, scan.queue_offsets.stop - number) :] = False
        rows = np.flatnonzero(inside)
        if len(rows):
            yield _Entries(offsets[rows], sizes[rows], np.full(len(rows), index), number + rows)


def _listed(places: Iterable[tuple[int, int, int, int, int]], index: int, log_range: LogRange) -> Iterator[_Entries]:
    rows = [place for place in places if log_range.start <= place[2] < log_range.end]
    if rows:
        queue_offsets, _, offsets, sizes, _ = (np.array(column, np.int64) for column in zip(*rows, strict=True))
        yield _Entries(offsets, sizes, np.full(len(rows), index), queue_offsets)


def _batches(sizes: Numbers) -> Iterator[slice]:
    """Rows that make batches of a few megabytes, which cross to the JVM quickest."""
    ends = np.cumsum(sizes)
    begin = 0
    while begin < len(sizes):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + _BATCH_BYTES)))
        end = min(end, begin + _BATCH_RECORDS)
        yield slice(begin, end)
        begin = end


def _matching_records(
    data: RecordBytes, entries: _Entries, queues: Sequence[tuple[str, int]], base: int, scan: StoreScan
) -> tuple[RecordFields, list[BadRecord]]:
    """The records that are what their entries say, and the others."""
    starts = entries.offsets - base
    fields, bad = sound_records(data, starts, check_crc=scan.check_crc)
    rows = np.searchsorted(starts, fields.starts)
    queue_ids = np.array([queue_id for _, queue_id in queues], np.int64)[entries.queues[rows]]
    fits = fields.queue_ids == queue_ids
    fits &= fields.log_offsets == entries.offsets[rows]
    fits &= fields.sizes == entries.sizes[rows]
    fits &= (fields.queue_offsets == entries.queue_offsets[rows]) | (fields.sys_flags & INNER_BATCH != 0)
    fits &= _topics_match(data, fields, entries.queues[rows], queues)
    if fits.all():
        return fields, bad
    strangers = [BadRecord(int(at), "another record stands there than the queue says") for at in fields.starts[~fits]]
    return fields.chosen(fits), bad + strangers


def _topics_match(data: RecordBytes, fields: RecordFields, which: Numbers, queues: Sequence[tuple[str, int]]) -> Mask:
    """By length and first and last bytes of the names: a stale entry that fits in all else is no accident."""
    names = [topic.encode() for topic, _ in queues]
    lengths = np.array([len(name) for name in names], np.int64)[which]
    firsts = np.array([name[0] for name in names], np.uint8)[which]
    lasts = np.array([name[-1] for name in names], np.uint8)[which]
    same: Mask = fields.topic_end - fields.topic_at == lengths
    same &= data.array[fields.topic_at] == firsts
    same &= data.array[fields.topic_end - 1] == lasts
    return same


def _in_time(scan: StoreScan, stored_at: Numbers) -> Mask:
    inside = np.ones(len(stored_at), np.bool_)
    if scan.begin_ms is not None:
        inside &= stored_at >= scan.begin_ms
    if scan.end_ms is not None:
        inside &= stored_at < scan.end_ms
    return inside


def _with_tags(batch: pa.RecordBatch, tags: Sequence[str]) -> pa.RecordBatch:
    """Hashes of tags collide: the tags themselves decide."""
    return batch.filter(pc.is_in(batch.column("tags"), pa.array(tags, pa.string())))


def _damage(record: BadRecord, entries: _Entries, queues: Sequence[tuple[str, int]], base: int) -> Damage:
    row = int(np.searchsorted(entries.offsets, record.position + base))
    topic, queue_id = queues[int(entries.queues[row])]
    return Damage(
        topic, queue_id, int(entries.queue_offsets[row]), record.position + base, int(entries.sizes[row]), record.reason
    )


_opened: dict[tuple[Path, Path | None, int], tuple[StoreReader, int]] = {}  # in this process; Spark reuses its workers


def _reader(scan: StoreScan, log_end: int) -> StoreReader:
    """One that knows the log up to `log_end`."""
    key = (scan.directory, scan.commit_log_directory, os.getpid())
    reader, known = _opened.get(key, (None, -1))
    if reader is not None and known != log_end:
        reader.close()
        reader = None
    if reader is None:
        try:
            reader = StoreReader(scan.directory, commit_log_directory=scan.commit_log_directory)
        except StorageError as error:
            raise StorageError(
                error.message,
                hint="a store is read where it lies: every worker needs its directory under the same path",
            ) from error
        _opened[key] = (reader, log_end)
    return reader
