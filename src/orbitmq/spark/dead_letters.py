"""Rows that could not be sent, kept as Parquet: their columns as they were, and a column `error` that says why.

One file a task, `<query or job>-<batch>-<task>.parquet`: a task that is run again writes the same file again. It is written while the task
runs, and has its name when it is whole.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from orbitmq.errors import ConfigError, OrbitError
from orbitmq.spark.lake import Lake

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orbitmq.spark.sink_rows import RefusedRows
    from orbitmq.spark.whole_files import NewFile

_WAITING_BYTES: Final = 8 << 20  # a row group of few rows would cost more than the rows


class DeadLetters:
    """Of one task. `save` keeps what was added, if anything; `abandon` does not."""

    def __init__(self, folder: str, name: str) -> None:
        self._folder = folder
        self._path = f"{name}.parquet"
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._file: NewFile | None = None
        self._writer: Any = None

    def add(self, batch: pa.RecordBatch, refused: RefusedRows) -> None:
        rows = pa.Table.from_batches([batch]).take(pa.array(refused.rows))
        self._waiting.append(rows.append_column("error", pa.array(refused.reasons, pa.string())))
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= _WAITING_BYTES:
            with self._told():
                self._write()

    def save(self) -> str | None:
        """The path of the file; None when every row could be sent."""
        if self._file is None and not self._waiting:
            return None
        with self._told():
            lake = Lake(self._folder)
            file = self._write()
            self._writer.close()
            file.keep()
            lake.sync_folders([self._path])
        return lake.address_of(self._path)

    def abandon(self) -> None:
        if self._writer is not None:
            with suppress(OSError):  # a full disk takes no end of the file, either
                self._writer.close()
        if self._file is not None:
            self._file.discard()

    def _write(self) -> NewFile:
        if self._file is None:
            self._file = Lake(self._folder).creating(self._path)
            self._writer = pq.ParquetWriter(self._file.stream, self._waiting[0].schema)
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting))
        self._waiting, self._waiting_bytes = [], 0
        return self._file

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (OSError, OrbitError) as error:
            raise ConfigError(
                f"the rows that cannot be sent cannot be kept in {self._folder}: {error}",
                hint="deadLetterPath must be a folder that every executor can write to",
            ) from error
