"""Small files of a lake made into few: rows keep their order, and what counts changes by one manifest.

Files that no longer count are removed after that manifest is there. A crash leaves some behind; the next compaction removes
them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyarrow import parquet

from orbitmq.errors import ConfigError
from orbitmq.spark.jobs import run_tasks
from orbitmq.spark.lake import DataFile, Lake, Manifest
from orbitmq.spark.lake_writer import LakeWriter
from orbitmq.spark.table_formats import begun_state, lake_format, lake_table, live_paths, publish_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
            lake=address,
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
    replaced = [path for task in tasks for path in task.paths]
    manifest = Manifest(
        number=number,
        kind="compaction",
        source=state.source,
        written_at_ms=clock.now_ms(),
        added=[file for files in results for file in files],
        removed=replaced,
        format=state.format,
    )
    after = publish_batch(lake, table, manifest, state)
    if table is None:
        lake.remove(replaced)
    return CompactionSummary(len(state.files), len(after.files))


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
    path = f"{task.folder}/{task.name}" if task.folder else task.name
    with lake.files.open_input_file(f"{lake.root}/{task.paths[0]}") as first:
        schema = parquet.read_schema(first)
    writer = LakeWriter(lake, path, schema, layout="none", compression=task.compression)
    try:
        for source in task.paths:
            with lake.files.open_input_file(f"{lake.root}/{source}") as stream:
                for batch in parquet.ParquetFile(stream).iter_batches():
                    writer.write(batch)
        return writer.close()
    except BaseException:
        writer.abandon()
        raise
