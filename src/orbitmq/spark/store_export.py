"""A store directory into a lake, without a broker: the workers decode ranges of the log and write Parquet themselves.

The next export into the same lake goes on where this one ended. A range that cannot be read is told in the manifest and in the
summary; with `onCorrupt=fail` it ends the export, and nothing of the batch counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from orbitmq.errors import ConfigError
from orbitmq.spark.jobs import run_tasks
from orbitmq.spark.lake import DataFile, Lake, Manifest
from orbitmq.spark.lake_writer import LakeWriter, Layout, try_name
from orbitmq.spark.schema import projection
from orbitmq.spark.store_scan import LogRange, check_gaps, log_mark, plan, read_range
from orbitmq.spark.table_formats import begun_table, check_layout, publish_beside_others

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from orbitmq.clock import Clock
    from orbitmq.spark.schema import Projection
    from orbitmq.spark.store_options import StoreScan
    from orbitmq.spark.store_scan import Damage
    from orbitmq.spark.table_formats import LakeFormat


class ExportPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The ranges of the log that a batch reads: kept before it runs, so that one run again writes the same files."""

    source: str
    ranges: list[tuple[int, int, int]]
    layout: str = ""  # empty: not known
    log_mark: int | None = None  # of the log before the end of the last range


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportTask:
    scan: StoreScan
    log_range: LogRange
    wanted: Projection
    lake: str
    name: str
    is_table: bool
    layout: Layout
    compression: str


@dataclass(frozen=True, slots=True)
class TaskResult:
    files: list[DataFile]
    damage: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSummary:
    log_start: int
    log_end: int
    files: list[DataFile]
    damage: list[str]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def export_store(
    spark: SparkSession,
    scan: StoreScan,
    schema: StructType,
    address: str,
    *,
    layout: Layout,
    compression: str,
    clock: Clock,
    table_format: LakeFormat = "parquet",
    progress: Callable[[int, int], None] | None = None,
) -> ExportSummary:
    lake = Lake(address)
    wanted = projection(schema)
    table, state = begun_table(lake, table_format, wanted.arrow, layout)
    source = _source(scan)
    begun = lake.pending(state, ExportPlan)
    _check_source(address, source, {state.source, begun.plan.source if begun else ""})
    if begun is not None:
        check_layout(lake, begun.plan.layout, layout)
        lake.remove(lake.abandoned(state))
    begin = state.log_end
    # A batch under way is of what is before its end.
    end = begun.plan.ranges[-1][2] if begun else None
    known_to, mark = (end, begun.plan.log_mark) if begun else (begin, state.log_mark)
    ranges, gaps = plan(scan, start=known_to, mark=mark)
    if begun is not None:
        ranges = [LogRange(*one) for one in begun.plan.ranges]
    elif ranges:
        mark = log_mark(scan, ranges[-1].log_end)
        planned = ExportPlan(source=source, ranges=[(*one,) for one in ranges], layout=layout, log_mark=mark)
        begun = lake.intend(state, planned)
    number = begun.number if begun else state.next_number
    gaps = [gap for gap in gaps if _is_between(gap, begin, end)]
    check_gaps(scan, gaps)
    if table is not None and ranges:
        table.create(wanted.arrow, layout)
    tasks = [
        ExportTask(
            scan=scan,
            log_range=log_range,
            wanted=wanted,
            lake=lake.address,
            name=_range_name(log_range) if table is None else f"{number:08d}-{index:05d}",
            is_table=table is not None,
            layout=layout,
            compression=compression,
        )
        for index, log_range in enumerate(ranges)
    ]
    results = run_tasks(spark, f"export-{number}", tasks, export_range, progress)
    files = [file for result in results for file in result.files]
    damage = [*map(str, gaps), *(text for result in results for text in result.damage)]
    log_end = ranges[-1].log_end if ranges else (begin or 0)
    if ranges:
        manifest = Manifest(
            number=state.next_number,
            kind="export",
            source=source,
            written_at_ms=clock.now_ms(),
            log_end=log_end,
            log_mark=mark,
            added=files,
            damage=damage,
            format=table_format,
        )
        publish_beside_others(lake, table, manifest, state, lambda now: lake.under_way(now) == number)
    first = ranges[0].start if ranges else log_end
    return ExportSummary(log_start=first, log_end=log_end, files=files, damage=damage)


def _source(scan: StoreScan) -> str:
    """What makes two exports the same, in words."""
    chosen = {
        "topics": scan.topics or scan.topic_pattern,
        "queues": scan.queue_ids,
        "tags": scan.tags,
        "from": scan.begin_ms,
        "until": scan.end_ms,
    }
    said = " ".join(f"{name} {value}" for name, value in chosen.items() if value)
    return f"store {scan.directory.absolute()} {said}".strip()


def _check_source(address: str, source: str, known: set[str]) -> None:
    for other in known - {"", source}:
        raise ConfigError(f"{address} holds what came from {other}", hint="export into a directory of its own")


def _is_between(gap: Damage, begin: int | None, end: int | None) -> bool:
    is_later = end is not None and gap.log_offset >= end
    return not is_later and (begin is None or gap.log_offset + gap.size > begin)


def _range_name(log_range: LogRange) -> str:
    return f"{log_range.start:020d}-{log_range.end:020d}"


def export_range(task: ExportTask) -> TaskResult:
    """In a worker."""
    name = try_name(task.name) if task.is_table else task.name
    writer = LakeWriter(Lake(task.lake), name, task.wanted.arrow, layout=task.layout, compression=task.compression)
    damage: list[str] = []
    try:
        for piece in read_range(task.scan, task.log_range, task.wanted):
            damage += map(str, piece.damage)
            if piece.batch.num_rows:
                writer.write(piece.batch)
        return TaskResult(writer.close(), damage)
    except BaseException:
        writer.abandon()
        raise
