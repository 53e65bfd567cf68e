"""Topics into a lake, each message exactly once: planned by the driver, pulled, decoded and written by the workers.

A batch is a range of offsets of every queue. Its plan is kept before it runs and its manifest published when all its files are
there (lake.py), so an archive that is killed at any moment goes on where it was: the batch under way is run again by its plan
and makes files of the same rows. What "once" means: the row of (broker, topic, queue, offset) is in the files of the manifests once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.errors import ConfigError
from orbitmq.message import QueueRef
from orbitmq.protocol.codes import ResponseCode
from orbitmq.spark.access import link
from orbitmq.spark.bounds import ending_offsets, resumed, starting_offsets
from orbitmq.spark.discovery import extents, find_queues
from orbitmq.spark.group_offsets import commit_offsets
from orbitmq.spark.jobs import run_tasks
from orbitmq.spark.lake import Begun, DataFile, Lake, LakeState, Manifest
from orbitmq.spark.lake_writer import LakeWriter, Layout, try_name
from orbitmq.spark.patience import patiently
from orbitmq.spark.planning import QueueRange, plan, ranges_between
from orbitmq.spark.queue_offsets import Offsets, OffsetsJson, from_json, listed, to_json
from orbitmq.spark.range_reading import RangeReader
from orbitmq.spark.rate_limits import TriggerPace
from orbitmq.spark.schema import projection
from orbitmq.spark.table_formats import begun_state, begun_table, check_layout, publish_beside_others

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from orbitmq.client.cluster import Cluster
    from orbitmq.clock import Clock
    from orbitmq.spark.schema import Projection
    from orbitmq.spark.source_options import SourceOptions
    from orbitmq.spark.table_formats import LakeFormat

logger = logging.getLogger(__name__)

Progress = Callable[[str], None]
_NO_SIZE: Final = 0.0  # batches are limited by messages, not by bytes


class PlannedRange(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    broker: str
    queue: int
    start: int
    until: int


class BatchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch reads, task by task, and where it ends."""

    source: str
    tasks: list[list[PlannedRange]]
    offsets: OffsetsJson
    layout: str = ""  # empty: not known
    asked_at_ms: int | None = None  # when the queues were asked where they end


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveTask:
    options: SourceOptions
    ranges: tuple[QueueRange, ...]
    wanted: Projection
    lake: str
    name: str
    is_table: bool
    layout: Layout
    compression: str


@dataclass(slots=True, kw_only=True)
class ArchiveSummary:
    batches: int = 0
    rows: int = 0
    bytes: int = 0
    files: int = 0
    topics: set[str] = field(default_factory=set)


class Archive:
    """Topics and the lake they go to. `step` moves one batch."""

    def __init__(
        self,
        spark: SparkSession,
        options: SourceOptions,
        schema: StructType,
        address: str,
        *,
        layout: Layout,
        compression: str,
        clock: Clock,
        table_format: LakeFormat = "parquet",
        progress: Progress | None = None,
    ) -> None:
        self._spark = spark
        self._options = options
        self._wanted = projection(schema)
        self._lake = Lake(address)
        self._layout: Layout = layout
        self._compression = compression
        self._clock = clock
        self._progress = progress or (lambda _text: None)
        self._pace = TriggerPace(options.limits)
        self._link = link(options.access)
        self._format = table_format
        self.state: LakeState
        self._table, self.state = begun_table(self._lake, table_format, self._wanted.arrow, layout)
        self.summary = ArchiveSummary()
        self._asked_at_ms: int | None = None
        self._unread: set[QueueRef] = set()
        self._has_told_group = False
        self._source = archived_source(options)
        begun = self._lake.pending(self.state, BatchPlan)
        for known in (self.state.source, begun.plan.source if begun else ""):
            if known and not _is_same_source(known, self._source):
                raise ConfigError(
                    f"{address} holds what came from {known}, not from {self._source}",
                    hint="archive other topics, or by another filter, into a directory of their own",
                )
        if begun is not None:
            check_layout(self._lake, begun.plan.layout, layout)
            self._lake.remove(self._lake.abandoned(self.state))

    def run_once(self) -> ArchiveSummary:
        """Batch after batch up to where the queues end now."""
        goal: Offsets | None = None
        while True:
            self.look_again()
            begun = self._lake.pending(self.state, BatchPlan)
            if begun is None:
                start, latest = self._ask()
                if goal is None:
                    goal = latest
                else:  # queues that came since are for the next run
                    goal = {queue: min(end, goal.get(queue, start[queue])) for queue, end in latest.items()}
                begun = self._planned(start, goal)
                if begun is None:
                    return self.summary
            self._run(begun)

    def step(self) -> bool:
        """One batch up to the latest messages, if there are any (or enough, as the limits say)."""
        self.look_again()
        begun = self._lake.pending(self.state, BatchPlan) or self._planned(*self._ask())
        if begun is not None:
            self._run(begun)
        return begun is not None

    def look_again(self) -> None:
        """What the lake holds now: a compaction may have changed it."""
        if not self._lake.is_newest(self.state):
            self.state = begun_state(self._lake, self._format, self._table)

    @property
    def _has_begun(self) -> bool:
        return self.state.next_number > 0

    def _ask(self) -> tuple[Offsets, Offsets]:
        """Where every queue is to be read from, and where it ends."""
        cluster, seconds = self._link.cluster, self._options.retry_ms / 1000
        # A topic that was there may be unknown to a name server that has just been started.
        also = (ResponseCode.TOPIC_NOT_EXIST,) if self.state.offsets else ()
        if self._has_begun and not self._has_told_group:  # who published the last batch may have died before it told
            self._tell_group(from_json(self.state.offsets))
        return self._link.run(patiently(cluster, self._options.topics, seconds, lambda: self._bounds(cluster), also))

    async def _bounds(self, cluster: Cluster) -> tuple[Offsets, Offsets]:
        options = self._options
        self._asked_at_ms = self._clock.now_ms()  # what is stored from now on, this batch may not have
        found = await find_queues(cluster, options, may_be_none=True)
        held = await extents(cluster, found.queues)
        done = from_json(self.state.offsets)
        self._tell_unread(done.keys() - held.keys(), {queue.topic for queue in held})
        start: Offsets = {}
        if not self._has_begun:
            start = await starting_offsets(cluster, options, held)
        for queue, extent in held.items():
            if queue in done:
                start[queue] = await resumed(cluster, options, queue, done[queue], extent, self.state.batch_at_ms)
            elif self._has_begun:  # it came since
                start[queue] = extent.low
        latest = await ending_offsets(cluster, options, held)
        return start, {queue: max(latest[queue], start[queue]) for queue in held}

    def _tell_unread(self, away: set[QueueRef], topics: set[str]) -> None:
        """Nothing is wrong with a topic that was deleted; of one that is there, a broker may be down, or a queue no longer readable."""
        unread = {queue for queue in away if queue.topic in topics}
        if unread - self._unread:
            logger.warning("not read, because they are in no route now: %s", listed(unread))
        self._unread = unread

    def _planned(self, start: Offsets, latest: Offsets) -> Begun[BatchPlan] | None:
        now_ms = self._clock.now_ms()
        end = self._pace.end(start, latest, now_ms, _NO_SIZE)
        ranges = ranges_between(start, end) if end is not None else []
        if not ranges:
            if self._has_begun or not self._options.starting.moves:
                return None
            end = start  # a batch of nothing: it notes where the archive begins, which is elsewhere when it is sought again
        self._pace.triggered(now_ms)
        parallel = self._spark.sparkContext.defaultParallelism
        tasks = plan(ranges, self._options.min_partitions, self._options.max_partitions or 4 * parallel)
        done = from_json(self.state.offsets)
        batch = BatchPlan(
            source=self._source,
            tasks=[[_planned_range(one) for one in task.ranges] for task in tasks],
            offsets=to_json({**done, **(end or {})}),
            layout=self._layout,
            asked_at_ms=self._asked_at_ms,
        )
        return self._lake.intend(self.state, batch)

    def _run(self, begun: Begun[BatchPlan]) -> None:
        number, batch = begun
        if self._table is not None:
            self._table.create(self._wanted.arrow, self._layout)
        manifest = self._written(number, batch)
        lake = self._lake
        self.state = publish_beside_others(
            lake, self._table, manifest, self.state, lambda now: lake.under_way(now) == number
        )
        self._count(batch, manifest.added)
        self._tell_group(from_json(batch.offsets))

    def _tell_group(self, offsets: Offsets) -> None:
        if not self._options.commit:
            return
        cluster, seconds = self._link.cluster, self._options.retry_ms / 1000
        topics = {queue.topic for queue in offsets}
        self._link.run(
            patiently(cluster, topics, seconds, lambda: commit_offsets(cluster, self._options.group, offsets))
        )
        self._has_told_group = True

    def _written(self, number: int, batch: BatchPlan) -> Manifest:
        """By the workers; nothing of it counts yet."""
        tasks = [
            ArchiveTask(
                options=self._options,
                ranges=tuple(map(_queue_range, ranges)),
                wanted=self._wanted,
                lake=self._lake.address,
                name=f"{number:08d}-{index:05d}",
                is_table=self._table is not None,
                layout=self._layout,
                compression=self._compression,
            )
            for index, ranges in enumerate(batch.tasks)
        ]
        messages = sum(one.until - one.start for ranges in batch.tasks for one in ranges)

        def tell(done: int, total: int) -> None:
            self._progress(f"batch {number}: {messages:,} messages, {done} of {total} tasks done")

        results = run_tasks(self._spark, f"archive-{number}", tasks, archive_ranges, tell)
        files = [file for result in results for file in result]
        return Manifest(
            number=self.state.next_number,
            kind="archive",
            source=batch.source,
            written_at_ms=self._clock.now_ms(),
            asked_at_ms=batch.asked_at_ms,
            offsets=batch.offsets,
            added=files,
            format=self._format,
        )

    def _count(self, batch: BatchPlan, files: list[DataFile]) -> None:
        self.summary.batches += bool(batch.tasks)
        self.summary.rows += sum(file.rows for file in files)
        self.summary.bytes += sum(file.bytes for file in files)
        self.summary.files += len(files)
        self.summary.topics |= {one.topic for ranges in batch.tasks for one in ranges}


def archived_source(options: SourceOptions) -> str:
    """What makes two archives the same, in words. Topics are named with their namespace; a pattern looks inside of one."""
    topics = options.pattern or ",".join(sorted(options.topics))
    inside = f" in {options.access.namespace}" if options.pattern and options.access.namespace else ""
    return f"topics {topics}{inside} tags {options.tags or '*'} {options.sql}".strip()


def _is_same_source(known: str, given: str) -> bool:
    """Older versions kept topics in the order they were named."""
    return _sorted_topics(known) == _sorted_topics(given)


def _sorted_topics(source: str) -> list[str]:
    said, topics, *rest = source.split(" ", 2)
    return [said, *sorted(topics.split(",")), *rest]


def archive_ranges(task: ArchiveTask) -> list[DataFile]:
    """In a worker."""
    name = try_name(task.name) if task.is_table else task.name
    writer = LakeWriter(Lake(task.lake), name, task.wanted.arrow, layout=task.layout, compression=task.compression)
    try:
        for batch in RangeReader(link(task.options.access), task.options, task.wanted).batches(task.ranges):
            writer.write(batch)
        return writer.close()
    except BaseException:
        writer.abandon()
        raise


def _planned_range(one: QueueRange) -> PlannedRange:
    queue = one.queue
    return PlannedRange(
        topic=queue.topic, broker=queue.broker_name, queue=queue.queue_id, start=one.start, until=one.until
    )


def _queue_range(one: PlannedRange) -> QueueRange:
    return QueueRange(QueueRef(one.topic, one.broker, one.queue), one.start, one.until)
