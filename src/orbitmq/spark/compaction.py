"""Small files of a lake made into few: rows keep their order, and what counts changes by one manifest.

Files of one folder may have been written with different columns; the new one has all of them, null where a file had none.

Files that no longer count are removed after that manifest is there. A crash leaves some behind; a later compaction removes them, those of
another compaction when they are a day old: it may be at work.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyarrow import parquet

from orbitmq.errors import ConfigError, StorageError
from orbitmq.spark.jobs import run_tasks
from orbitmq.spark.lake import DataFile, Lake, Manifest
from orbitmq.spark.lake_writer import LakeWriter, file_batches, try_name
from orbitmq.spark.table_formats import (
    begun_state,
    file_columns,
    lake_format,
    lake_table,
    live_paths,
    publish_beside_others,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from orbitmq.clock import Clock

TARGET_BYTES: Final = 128 << 20
_SMALL: Final = 0.5  # of the target: larger files stay as they are


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionTask:
    lake: str
    folder: str
    name: str
    paths: tuple[str, ...]
    compression: str


@dataclass(frozen=True, slots=True)
class CompactionSummary:
    files_before: int
    files_after: int


def compact(
    spark: SparkSession,
    address: str,
    *,
    compression: str,
    clock: Clock,
    target_bytes: int = TARGET_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> CompactionSummary:
    lake = Lake(address)
    kind = lake_format(lake)
    table = lake_table(lake, kind)
    state = begun_state(lake, kind, table)
    if not state.next_number:
        raise ConfigError(f"{address} holds no archive and no export", hint="`orbitmq spark archive` makes one")
    lake.remove(lake.leftovers(state))
    live_paths(lake, state)  # a table that somebody else changed is not ours to rearrange
    groups = _groups(state.files, target_bytes)
    number = state.next_number
    tasks = [
        CompactionTask(
            lake=lake.address,
            folder=folder,
            name=f"compacted-{number:08d}-{index:05d}",
            paths=tuple(paths),
            compression=compression,
        )
        for index, (folder, paths) in enumerate(groups)
    ]
    if not tasks:
        return CompactionSummary(len(state.files), len(state.files))
    results = run_tasks(spark, f"compact-{number}", tasks, compact_files, progress)
    made = [file for files in results for file in files]
    replaced = [path for task in tasks for path in task.paths]
    manifest = Manifest(
        number=number,
        kind="compaction",
        source=state.source,
        written_at_ms=clock.now_ms(),
        added=made,
        removed=replaced,
        format=state.format,
    )
    # An archive beside it only adds: what is replaced is still there then.
    try:
        after = publish_beside_others(lake, table, manifest, state, lambda now: now.files.keys() >= set(replaced))
    except StorageError:
        if table is None:  # a table may name them
            counted = lake.state().files
            lake.remove(file.path for file in made if file.path not in counted)
        raise
    if table is None:
        lake.remove(replaced)
    return CompactionSummary(len(after.files) - len(made) + len(replaced), len(after.files))


def _groups(files: Mapping[str, DataFile], target_bytes: int) -> list[tuple[str, list[str]]]:
    """Small files of one folder, in the order of their names, as many as make one file of the target size."""
    by_folder: dict[str, list[DataFile]] = defaultdict(list)
    for path in sorted(files):
        if files[path].bytes < _SMALL * target_bytes:
            by_folder[path.rpartition("/")[0]].append(files[path])
    groups: list[tuple[str, list[str]]] = []
    for folder, small in by_folder.items():
        paths: list[str] = []
        size = 0
        for file in small:
            if paths and size + file.bytes > target_bytes:
                groups.append((folder, paths))
                paths, size = [], 0
            paths.append(file.path)
            size += file.bytes
        groups.append((folder, paths))
    return [(folder, paths) for folder, paths in groups if len(paths) > 1]


def compact_files(task: CompactionTask) -> list[DataFile]:
    """In a worker."""
    lake = Lake(task.lake)
    name = try_name(task.name)  # of two compactions that began with one number neither replaces a file of the other
    schema = _all_columns(lake, task.paths)
    writer = LakeWriter(
        lake, f"{task.folder}/{name}" if task.folder else name, schema, layout="none", compression=task.compression
    )
    try:
        for source in task.paths:
            with lake.files.open_input_file(f"{lake.root}/{source}") as stream:
                for batch in file_batches(parquet.ParquetFile(stream)):
                    writer.write(_with_all_columns(batch, schema))
        return writer.close()
    except BaseException:
        writer.abandon()
        raise


def _all_columns(lake: Lake, paths: Sequence[str]) -> pa.Schema:
    """Of all files. They may be null: not every file has them."""
    schemas = [file_columns(lake, path) for path in paths]
    try:
        return pa.unify_schemas(schemas)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise StorageError(
            f"files of {lake.address} cannot be made into one, {paths[0]} and those behind it: {error}",
            hint="a column has two types there; read the files one by one",
        ) from error


def _with_all_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    there = set(batch.schema.names)
    columns = [
        batch.column(field.name) if field.name in there else pa.nulls(batch.num_rows, field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
