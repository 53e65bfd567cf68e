"""Rows that could not be sent, kept as Parquet: their columns as they were, and a column `error` that says why.

One file a task, `<query or job>-<batch>-<task>.parquet`: a task that is run again writes the same file again. It has its name
when it is whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from orbitmq.errors import ConfigError, OrbitError
from orbitmq.spark.lake import Lake

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
        path = f"{self._name}.parquet"
        try:
            lake = Lake(self._folder)
            with lake.creating(path) as stream:
                pq.write_table(pa.concat_tables(self._tables), stream)
        except (OSError, OrbitError) as error:
            raise ConfigError(
                f"the rows that cannot be sent cannot be kept in {self._folder}: {error}",
                hint="deadLetterPath must be a folder that every executor can write to",
            ) from error
        return lake.address_of(path)
