"""Rows that could not be sent, kept as Parquet: their columns as they were, and a column `error` that says why.

One file a task, `<query or job>-<batch>-<task>.parquet`: a task that is run again writes the same file again. It has that name when it
is whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from orbitmq.errors import ConfigError

if TYPE_CHECKING:
    from orbitmq.spark.sink_rows import RefusedRows


class DeadLetters:
    """Of one task; `save` writes what was added, if anything."""

    def __init__(self, folder: str, name: str) -> None:
        self._folder = folder
        self._name = name
        self._tables: list[pa.Table] = []

    def add(self, batch: pa.RecordBatch, refused: RefusedRows) -> None:
        rows = pa.Table.from_batches([batch]).take(pa.array(refused.rows))
        self._tables.append(rows.append_column("error", pa.array(refused.reasons, pa.string())))

    def save(self) -> str | None:
        """The path of the file; None when every row could be sent."""
        if not self._tables:
            return None
        filesystem, folder = _opened(self._folder)
        path = f"{folder.rstrip('/')}/{self._name}.parquet"
        try:
            filesystem.create_dir(folder, recursive=True)
            unfinished = f"{folder.rstrip('/')}/_{self._name}.unfinished"  # readers pass such names over
            pq.write_table(pa.concat_tables(self._tables), unfinished, filesystem=filesystem)
            filesystem.move(unfinished, path)
        except OSError as error:
            raise ConfigError(
                f"the rows that cannot be sent cannot be kept in {self._folder}: {error}",
                hint="deadLetterPath must be a folder that every executor can write to",
            ) from error
        return path


def _opened(folder: str) -> tuple[fs.FileSystem, str]:
    if "://" in folder or folder.startswith("file:"):
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(folder)
        return found
    return fs.LocalFileSystem(), str(Path(folder).absolute())
