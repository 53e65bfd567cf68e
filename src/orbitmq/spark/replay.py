"""What a lake or a topic holds, sent again to a topic: at a rate, with keys and times kept or changed, and resumable.

The work is cut into units (a file of the lake, a range of a queue). A few units are sent at a time, and what is done is kept
after each round: a replay that was interrupted begins with the round it was in. Messages of that round may be sent twice; both
carry the same id (ORBITMQ_DEDUP_ID), made of job, unit and row, so `drop_repeats` and consumers can tell.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from orbitmq.errors import ConfigError, StorageError
from orbitmq.message import QueueRef
from orbitmq.message.properties import SHARDING_KEY
from orbitmq.spark.access import link
from orbitmq.spark.batch_reader import BatchReader
from orbitmq.spark.jobs import run_tasks
from orbitmq.spark.lake import Lake
from orbitmq.spark.lake_writer import file_batches
from orbitmq.spark.planning import QueueRange
from orbitmq.spark.range_reading import RangeReader
from orbitmq.spark.schema import projection, table_schema
from orbitmq.spark.sink import RowWriter, TaskName
from orbitmq.spark.table_formats import live_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from orbitmq.spark.sink_options import SinkOptions
    from orbitmq.spark.source_options import SourceOptions

Keys = Literal["keep", "drop", "id"]
Times = Literal["new", "keep"]

ORIGIN: Final = ("REPLAY_MSG_ID", "REPLAY_BORN_MS", "REPLAY_STORED_MS")  # the properties that say what a message was
_COLUMNS: Final = "topic,tags,keys,body,properties,msgId,bornTimestamp,storeTimestamp"
_SINK_COLUMNS: Final = ("topic", "body", "tags", "keys", "properties", "orderKey")
_UNIT_MESSAGES: Final = 50_000
_STATE: Final = "replay.json"
_SLICES_A_SECOND: Final = 5


class Unit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file of a lake, or messages [start, until) of a queue."""

    path: str = ""
    topic: str = ""
    broker: str = ""
    queue: int = 0
    start: int = 0
    until: int = 0


class ReplayState(msgspec.Struct, kw_only=True):
    """What is kept in the state directory."""

    job: str
    source: str
    units: list[Unit]
    done: int = 0
    sent: int = 0
    left_out: int = 0  # because no broker would take them


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """Which messages are sent, and what is changed in them."""

    topics: tuple[str, ...] = ()  # of a lake; none named: all
    tags: tuple[str, ...] = ()
    begin_ms: int | None = None  # store time
    end_ms: int | None = None
    to_topic: str = ""  # empty: each to its own topic
    keys: Keys = "keep"
    times: Times = "new"  # of birth; when it is stored is the broker's word
    stamps_origin: bool = True
    rate: float | None = None  # messages a second, all workers together


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTask:
    unit: Unit
    number: int
    job: str
    lake: str
    source: SourceOptions | None
    sink: SinkOptions
    wishes: Wishes


class Replay:
    """Either from a lake or, with `source`, from topics."""

    def __init__(
        self,
        spark: SparkSession,
        sink: SinkOptions,
        wishes: Wishes,
        *,
        lake: str = "",
        source: SourceOptions | None = None,
        state: str = "",
        job: str,
    ) -> None:
        self._spark = spark
        self._sink = replace(sink, topic=wishes.to_topic or sink.topic)
        self._wishes = wishes
        self._lake = lake
        self._source = source
        self._kept = Lake(state) if state else None
        self.state = self._opened(job)

    def run(self, progress: Callable[[int, int], None] | None = None) -> int:
        """How many messages were sent, now and before."""
        at_once = max(1, self._spark.sparkContext.defaultParallelism)
        units = self.state.units
        began, before = time.monotonic(), self.state.sent
        while self.state.done < len(units):
            self._wait_for_turn(began, self.state.sent - before)
            first = self.state.done
            chosen = units[first : first + at_once]
            rate = self._wishes.rate / len(chosen) if self._wishes.rate else None
            tasks = [
                ReplayTask(
                    unit=unit,
                    number=first + index,
                    job=self.state.job,
                    lake=Lake(self._lake).address if self._lake else "",
                    source=self._source,
                    sink=self._sink,
                    wishes=replace(self._wishes, rate=rate),
                )
                for index, unit in enumerate(chosen)
            ]
            for sent, left_out in run_tasks(self._spark, f"replay-{first}", tasks, replay_unit):
                self.state.sent += sent
                self.state.left_out += left_out
            self.state.done += len(chosen)
            if self._kept is not None:
                self._kept.write(_STATE, self.state)
            if progress is not None:
                progress(self.state.done, len(units))
        return self.state.sent

    def _wait_for_turn(self, began: float, sent: int) -> None:
        """A worker paces what it sends, and begins at once: of short units that would be most of it."""
        early = began + sent / self._wishes.rate - time.monotonic() if self._wishes.rate else 0.0
        if early > 0:
            time.sleep(early)

    def _opened(self, job: str) -> ReplayState:
        said = f"lake {self._lake}" if self._lake else f"topics {self._source and self._source.topics}"
        said = f"{said} {self._wishes.topics} {self._wishes.tags} {self._wishes.begin_ms} {self._wishes.end_ms}"
        said = f"{said} to {self._wishes.to_topic or 'their own topics'}"
        if self._kept is not None and self._kept.has(_STATE):
            state = self._kept.read(_STATE, ReplayState)
            if state.source != said:
                raise ConfigError(
                    f"{self._kept.address} belongs to another replay: {state.source}",
                    hint="give it a directory of its own",
                )
            return state
        state = ReplayState(job=job, source=said, units=self._lake_units() if self._lake else self._topic_units())
        if self._kept is not None:
            self._kept.write(_STATE, state)
        return state

    def _lake_units(self) -> list[Unit]:
        lake = Lake(self._lake)
        files = live_paths(lake, lake.state())
        if not files:
            raise ConfigError(f"{self._lake} holds no archive and no export", hint="`orbitmq spark archive` makes one")
        return [Unit(path=path) for path in files]

    def _topic_units(self) -> list[Unit]:
        assert self._source is not None, "a replay is from a lake or from topics"
        planned: Any = BatchReader(self._source, projection(table_schema(_COLUMNS))).partitions()
        return [
            Unit(
                topic=one.queue.topic,
                broker=one.queue.broker_name,
                queue=one.queue.queue_id,
                start=start,
                until=min(start + _UNIT_MESSAGES, one.until),
            )
            for partition in planned
            for one in partition.ranges
            for start in range(one.start, one.until, _UNIT_MESSAGES)
        ]


def replay_unit(task: ReplayTask) -> tuple[int, int]:
    """In a worker. How many were sent, and left out."""
    changed = (_changed(batch, task.wishes) for batch in _chosen(_batches(task), task.wishes))
    columns = {name: name for name in _SINK_COLUMNS}
    if task.wishes.times == "keep":
        columns["bornAt"] = "bornTimestamp"
    name = TaskName(task.job, "0", task.number)
    written = RowWriter(task.sink, columns).write_rows(_paced(changed, task.wishes.rate), name)
    return written.sent, sum(written.refused.values())


def _batches(task: ReplayTask) -> Iterator[pa.RecordBatch]:
    unit = task.unit
    if task.source is not None:
        ranges = [QueueRange(QueueRef(unit.topic, unit.broker, unit.queue), unit.start, unit.until)]
        wanted = projection(table_schema(_COLUMNS))
        yield from RangeReader(link(task.source.access), task.source, wanted).batches(ranges)
        return
    lake = Lake(task.lake)
    try:
        opened = lake.files.open_input_file(f"{lake.root}/{unit.path}")
    except FileNotFoundError:
        if not lake.has_manifests():
            raise StorageError(
                f"a worker does not find the archive {lake.address}",
                hint="every executor must reach it under that name: a disk that all of them mount, or s3://, gs://, hdfs://",
            ) from None
        raise StorageError(
            f"{lake.address_of(unit.path)} is gone: the archive was compacted since this replay was planned",
            hint="begin anew with another --state; what was sent has the same REPLAY_MSG_ID then, and other dedup ids",
        ) from None
    with opened as stream:
        file = parquet.ParquetFile(stream)
        missing = [name for name in _COLUMNS.split(",") if name not in file.schema_arrow.names]
        if missing:
            raise ConfigError(f"{unit.path} lacks {', '.join(missing)}", hint="archive with the standard columns")
        yield from file_batches(file, _COLUMNS.split(","))


def _chosen(batches: Iterator[pa.RecordBatch], wishes: Wishes) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        times = batch.column("storeTimestamp").cast(pa.int64())
        masks = [
            pc.is_in(batch.column("topic"), pa.array(wishes.topics, pa.string())) if wishes.topics else None,
            pc.is_in(batch.column("tags"), pa.array(wishes.tags, pa.string())) if wishes.tags else None,
            pc.greater_equal(times, wishes.begin_ms * 1000) if wishes.begin_ms is not None else None,
            pc.less(times, wishes.end_ms * 1000) if wishes.end_ms is not None else None,
        ]
        chosen = batch
        wanted = [mask for mask in masks if mask is not None]
        if wanted:
            together = wanted[0]
            for mask in wanted[1:]:
                together = pc.and_(together, mask)
            chosen = batch.filter(together)
        if chosen.num_rows:
            yield chosen


def _changed(batch: pa.RecordBatch, wishes: Wishes) -> pa.RecordBatch:
    """In the columns of the sink, and when each was born."""
    topics = pa.repeat(pa.scalar(wishes.to_topic), batch.num_rows) if wishes.to_topic else batch.column("topic")
    keys = batch.column("keys")
    if wishes.keys == "drop":
        keys = pa.nulls(batch.num_rows, pa.string())
    elif wishes.keys == "id":
        keys = batch.column("msgId")
    properties = batch.column("properties")
    order_keys = pc.map_lookup(properties, SHARDING_KEY, "first")
    if wishes.stamps_origin:
        properties = _with_origin(batch)
    arrays = [
        topics,
        batch.column("body"),
        batch.column("tags"),
        keys,
        properties,
        order_keys,
        batch.column("bornTimestamp"),
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[*_SINK_COLUMNS, "bornTimestamp"])


def _with_origin(batch: pa.RecordBatch) -> pa.Array:
    """The properties and, behind them, who the message was and when."""
    rows = batch.num_rows
    properties = batch.column("properties")
    stamps = [
        batch.column("msgId"),
        *(_ms_text(batch.column(name)) for name in ("bornTimestamp", "storeTimestamp")),
    ]
    lists = properties.cast(pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.string())])))
    names, values = lists.flatten().flatten()
    owners = np.concatenate([np.asarray(pc.list_parent_indices(lists), np.int64), *[np.arange(rows)] * len(stamps)])
    names = pa.concat_arrays([names, *(pa.repeat(pa.scalar(name), rows) for name in ORIGIN)])
    values = pa.concat_arrays([values, *stamps])
    is_stale = np.zeros(len(names), np.bool_)  # of a message that was replayed before
    is_stale[: len(names) - rows * len(stamps)] = pc.is_in(
        names.slice(0, len(names) - rows * len(stamps)), pa.array(ORIGIN)
    ).to_numpy(zero_copy_only=False)
    order = np.argsort(owners, kind="stable")
    order = order[~is_stale[order]]
    offsets = np.searchsorted(owners[order], np.arange(rows + 1)).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(offsets), names.take(pa.array(order)), values.take(pa.array(order)))


def _ms_text(times: pa.Array) -> pa.Array:
    return pc.divide(times.cast(pa.int64()), 1000).cast(pa.string())


def _paced(batches: Iterator[pa.RecordBatch], rate: float | None) -> Iterator[pa.RecordBatch]:
    """In small pieces, none before its time."""
    if rate is None:
        yield from batches
        return
    started, sent = time.monotonic(), 0
    step = max(1, int(rate / _SLICES_A_SECOND))
    for batch in batches:
        for first in range(0, batch.num_rows, step):
            piece = batch.slice(first, step)
            early = started + sent / rate - time.monotonic()
            if early > 0:
                time.sleep(early)
            yield piece
            sent += piece.num_rows
