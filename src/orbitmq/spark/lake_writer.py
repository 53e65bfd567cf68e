"""Writing batches into a lake from a worker: one Parquet file for each partition that the batches touch.

The rows never reach the JVM: a worker decodes and writes them itself, which is four times as fast as Spark's own writer. File
names follow from the batch and the task, so a task that runs again replaces what it wrote; in tables, which name files with their
sizes for good, every try has names of its own.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from orbitmq.spark.lake import DataFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from orbitmq.spark.lake import Lake

Layout = Literal["none", "topic", "date", "hour"]
LAYOUTS: Final[tuple[Layout, ...]] = ("none", "topic", "date", "hour")
COMPRESSIONS: Final = ("snappy", "zstd", "lz4", "gzip", "none")

_ROW_GROUP_BYTES: Final = 32 << 20
_HOUR_US: Final = 3_600_000_000
# Where values repeat. Bodies and ids do not, and trying costs more than it saves.
_REPETITIVE: Final = (
    "topic",
    "tags",
    "brokerName",
    "queueId",
    "flag",
    "bornHost",
    "storeHost",
    "sysFlag",
    "reconsumeTimes",
)


def try_name(name: str) -> str:
    """That of no other try: a worker that was given up and is not dead never replaces a file that a table names."""
    return f"{name}-{uuid.uuid4().hex}"


class _OpenFile(NamedTuple):
    path: str
    context: AbstractContextManager[Any]
    parquet: parquet.ParquetWriter
    waiting: list[pa.RecordBatch]
    counts: list[int]  # bytes waiting, rows written


class LakeWriter:
    """For the batches of one task; `name` is that of its files."""

    def __init__(self, lake: Lake, name: str, schema: pa.Schema, *, layout: Layout, compression: str) -> None:
        self._lake = lake
        self._name = name
        self._schema = schema
        self._layout = layout
        self._compression = compression
        self._open: dict[str, _OpenFile] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        """Needs the columns that the layout divides by: topic, and storeTimestamp."""
        for folder, part in _divided(batch, self._layout):
            file = self._open.get(folder)
            if file is None:
                file = self._open[folder] = self._create(folder)
            file.waiting.append(part)
            file.counts[0] += part.nbytes
            if file.counts[0] >= _ROW_GROUP_BYTES:
                _flush(file, self._schema)

    def close(self) -> list[DataFile]:
        """The files, whole and under their names."""
        for file in self._open.values():
            _flush(file, self._schema)
            file.parquet.close()
            file.context.__exit__(None, None, None)
        paths = [file.path for file in self._open.values()]
        rows = [file.counts[1] for file in self._open.values()]
        sizes = self._lake.sizes(paths) if paths else []
        self._open.clear()
        return [DataFile(path=path, rows=n, bytes=size) for path, n, size in zip(paths, rows, sizes, strict=True)]

    def abandon(self) -> None:
        """Leave nothing behind."""
        for file in self._open.values():
            file.parquet.close()
            file.context.__exit__(Exception, None, None)
        self._open.clear()

    def _create(self, folder: str) -> _OpenFile:
        path = f"{folder}/{self._name}.parquet" if folder else f"{self._name}.parquet"
        context = self._lake.creating(path)
        writer = parquet.ParquetWriter(
            context.__enter__(),
            self._schema,
            compression=self._compression,
            use_dictionary=[*_REPETITIVE, "properties.key_value.key"],
            write_statistics=[name for name in self._schema.names if name not in ("body", "properties")],
            version="2.6",
        )
        return _OpenFile(path, context, writer, [], [0, 0])


def _flush(file: _OpenFile, schema: pa.Schema) -> None:
    if file.waiting:
        table = pa.Table.from_batches(file.waiting, schema)
        file.parquet.write_table(table, row_group_size=table.num_rows)
        file.counts[1] += table.num_rows
        file.counts[0] = 0
        file.waiting.clear()


def _divided(batch: pa.RecordBatch, layout: Layout) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of a batch by the folder they belong into."""
    if layout == "none" or not batch.num_rows:
        yield "", batch
        return
    topics = batch.column("topic").dictionary_encode()
    codes = topics.indices.to_numpy().astype(np.int64)
    hours = np.zeros(batch.num_rows, np.int64)
    if layout != "topic":
        hours = batch.column("storeTimestamp").cast(pa.int64()).to_numpy() // _HOUR_US
        if layout == "date":
            hours -= hours % 24
    first, span = int(hours.min()), int(np.ptp(hours)) + 1
    places = codes * span + (hours - first)
    for place in np.unique(places).tolist() if np.ptp(places) else [int(places[0])]:
        folder = _folder(topics.dictionary[place // span].as_py(), first + place % span, layout)
        rows = places == place
        yield folder, batch if rows.all() else batch.filter(pa.array(rows))


def _folder(topic: str, hour: int, layout: Layout) -> str:
    folder = f"topic={quote(topic, safe='')}"
    if layout in ("date", "hour"):
        day = np.datetime64(0, "D") + np.timedelta64(hour // 24, "D")
        folder += f"/date={day}"
    return f"{folder}/hour={hour % 24:02d}" if layout == "hour" else folder
