"""Writing batches into a lake from a worker: one Parquet file for each partition that the batches touch.

The rows never reach the JVM: a worker decodes and writes them itself, which is four times as fast as Spark's own writer. File
names follow from the batch and the task, so a task that runs again replaces what it wrote; in tables, which name files with their
sizes for good, every try has names of its own.

However many partitions there are, memory and open files are bounded: rows wait until there are enough for a row group of one file, or
too many of all; and of the files that were begun, the one that was written to longest ago is closed when there are too many. One
that gets more rows later goes on in another piece. Pieces are joined at the end: which files there are, and which rows are in them,
does not depend on how the rows came.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from orbitmq.errors import StorageError
from orbitmq.spark.lake import DataFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from orbitmq.spark.lake import Lake
    from orbitmq.spark.whole_files import NewFile

Layout = Literal["none", "topic", "date", "hour"]
LAYOUTS: Final[tuple[Layout, ...]] = ("none", "topic", "date", "hour")
COMPRESSIONS: Final = ("snappy", "zstd", "lz4", "gzip", "none")

_ROW_GROUP_BYTES: Final = 32 << 20
_WAITING_BYTES: Final = 96 << 20  # of all files together
_OPEN_FILES: Final = 100
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


class _Piece(NamedTuple):
    """Of a file, or the whole of it, before it has its name."""

    new: NewFile
    parquet: parquet.ParquetWriter

    def close(self) -> None:
        self.parquet.close()
        self.new.stream.close()

    def discard(self) -> None:
        self.parquet.close()
        self.new.discard()


@dataclass(slots=True)
class _File:
    """One that is to be made: rows that wait, behind those that are written."""

    path: str
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_bytes: int = 0
    rows: int = 0
    pieces: list[_Piece] = field(default_factory=list)
    is_open: bool = False  # the last piece


class LakeWriter:
    """For the batches of one task; `name` is that of its files."""

    def __init__(self, lake: Lake, name: str, schema: pa.Schema, *, layout: Layout, compression: str) -> None:
        self._lake = lake
        self._name = name
        self._schema = schema
        self._layout = layout
        self._compression = compression
        self._files: dict[str, _File] = {}
        self._open: dict[str, _File] = {}  # the one written to longest ago is first
        self._waiting_bytes = 0
        self._mark: NewFile | None = None  # gone when another run has taken the batch over

    def write(self, batch: pa.RecordBatch) -> None:
        """Needs the columns that the layout divides by: topic, and storeTimestamp."""
        if self._mark is None:
            self._mark = self._lake.creating(f"{self._name}.parquet")
            self._mark.stream.close()
        for folder, part in _divided(batch, self._layout):
            file = self._files.get(folder)
            if file is None:
                path = f"{folder}/{self._name}.parquet" if folder else f"{self._name}.parquet"
                file = self._files[folder] = _File(path)
            file.waiting.append(part)
            file.waiting_bytes += part.nbytes
            self._waiting_bytes += part.nbytes
            if file.waiting_bytes >= _ROW_GROUP_BYTES:
                self._flush(file)
        while self._waiting_bytes > _WAITING_BYTES:
            self._flush(max(self._files.values(), key=lambda file: file.waiting_bytes))

    def close(self) -> list[DataFile]:
        """The files, whole and under their names, and durable on local disks."""
        for file in self._files.values():
            if file.waiting:
                self._flush(file)
            self._finish(file)
        paths = [file.path for file in self._files.values()]
        rows = [file.rows for file in self._files.values()]
        if paths:
            self._lake.sync_folders(paths)
        sizes = self._lake.sizes(paths) if paths else []
        self._files.clear()
        self._unmark()
        return [DataFile(path=path, rows=n, bytes=size) for path, n, size in zip(paths, rows, sizes, strict=True)]

    def abandon(self) -> None:
        """Leave nothing behind."""
        for file in self._files.values():
            for piece in file.pieces:
                piece.discard()
        self._files.clear()
        self._open.clear()
        self._unmark()

    def _unmark(self) -> None:
        if self._mark is not None:
            self._mark.discard()
            self._mark = None

    def _flush(self, file: _File) -> None:
        if not file.is_open:
            if len(self._open) >= _OPEN_FILES:
                self._shut(next(iter(self._open.values())))
            file.pieces.append(self._begin(file.path))
            file.is_open = True
        self._open.pop(file.path, None)
        self._open[file.path] = file
        file.rows += self._write_group(file.pieces[-1], file.waiting)
        self._waiting_bytes -= file.waiting_bytes
        file.waiting_bytes = 0
        file.waiting.clear()

    def _shut(self, file: _File) -> None:
        file.pieces[-1].close()
        file.is_open = False
        del self._open[file.path]

    def _finish(self, file: _File) -> None:
        if file.is_open:
            self._shut(file)
        # Pieces that were begun before are gone as well then, and cannot be kept.
        if self._mark is not None and not self._lake.has(self._mark.below):
            raise StorageError(f"cannot write {file.path}: another run has taken its batch over")
        if len(file.pieces) > 1:
            pieces, whole = list(file.pieces), self._begin(file.path)
            file.pieces.append(whole)
            for batches in _row_groups(self._read_again(pieces)):
                self._write_group(whole, batches)
            whole.close()
            for piece in pieces:
                piece.discard()
        file.pieces[-1].new.keep()

    def _read_again(self, pieces: Iterable[_Piece]) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            with self._lake.files.open_input_file(piece.new.temporary) as stream:
                for batch in file_batches(parquet.ParquetFile(stream)):
                    yield pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)

    def _begin(self, path: str) -> _Piece:
        new = self._lake.creating(path)
        writer = parquet.ParquetWriter(
            new.stream,
            self._schema,
            compression=self._compression,
            use_dictionary=[*_REPETITIVE, "properties.key_value.key"],
            write_statistics=[name for name in self._schema.names if name not in ("body", "properties")],
            version="2.6",
        )
        return _Piece(new, writer)

    def _write_group(self, piece: _Piece, batches: list[pa.RecordBatch]) -> int:
        table = pa.Table.from_batches(batches, self._schema)
        piece.parquet.write_table(table, row_group_size=max(1, table.num_rows))
        return int(table.num_rows)


def file_batches(file: parquet.ParquetFile, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """None of more than a row group: Arrow would join groups up to 65,536 rows, and so many large messages are gigabytes."""
    for group in range(file.num_row_groups):
        yield from file.iter_batches(row_groups=[group], columns=columns)


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= _ROW_GROUP_BYTES:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting


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
