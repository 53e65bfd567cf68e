"""A lake as a Delta table: `_delta_log` beside the files. Needs `pip install "orbitmq[delta]"`.

Topic, and date and hour of the store time, are partition columns, as the folders are. Files that a compaction replaced stay until
`VACUUM`: older versions of the table name them. Its log is synced behind each
commit.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

from orbitmq.errors import StorageError
from orbitmq.spark.table_formats import optional, partition_columns, partition_values
from orbitmq.spark.table_shape import TableShape, check_fit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orbitmq.spark.lake import DataFile, Lake
    from orbitmq.spark.lake_writer import Layout
    from orbitmq.spark.table_formats import TableChange

_LOG: Final = "_delta_log"
_FILES: Final = "orbitmq.files."
_COMMITS_LOOKED_AT: Final = 100
_FOLDER_TYPES: Final = {"date": pa.date32(), "hour": pa.int32()}


class DeltaLakeTable:
    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def check(self, schema: pa.Schema, layout: Layout) -> None:
        with _plain(self._lake.address):
            if not DeltaTable.is_deltatable(self._lake.address):
                return
            table = DeltaTable(self._lake.address)
            held = TableShape(pa.schema(table.schema().to_arrow()), tuple(table.metadata().partition_columns))
            given = TableShape(
                pa.schema(Schema.from_arrow(_columns(schema, layout)).to_arrow()), partition_columns(layout)
            )
        check_fit(f"the Delta table {self._lake.address}", held, given)

    def create(self, schema: pa.Schema, layout: Layout) -> None:
        partitions = list(partition_columns(layout)) or None
        self._lake.make()
        known = self._lake.names_in(_LOG)
        with _plain(self._lake.address):
            try:
                DeltaTable.create(self._lake.address, _columns(schema, layout), mode="ignore", partition_by=partitions)
            except CommitFailedError:  # somebody made it at the same moment: then it is checked, too
                if not DeltaTable.is_deltatable(self._lake.address):
                    raise
        self._lake.sync_new(_LOG, known)
        self.check(schema, layout)

    def committed(self, writer: str) -> int:
        with _plain(self._lake.address):
            version = DeltaTable(self._lake.address).transaction_version(writer)
        return -1 if version is None else version

    def committed_digest(self, writer: str) -> str:
        with _plain(self._lake.address):
            commits = DeltaTable(self._lake.address).history(_COMMITS_LOOKED_AT)
        return next((str(commit[name]) for commit in commits if (name := f"{_FILES}{writer}") in commit), "")

    def commit(self, change: TableChange) -> None:
        known = self._lake.names_in(_LOG)
        with _plain(self._lake.address):
            table = DeltaTable(self._lake.address)
            partitioned = table.metadata().partition_columns
            actions: list[Any] = [_addition(file, change, partitioned) for file in change.added]
            actions += [_removal(path, change, partitioned) for path in change.removed]
            table.create_write_transaction(
                actions,
                "overwrite" if change.replaces_all else "append",
                table.schema(),
                partition_by=partitioned,
                commit_properties=CommitProperties(
                    custom_metadata={f"{_FILES}{change.writer}": change.digest},
                    app_transactions=[Transaction(change.writer, change.number)],
                ),
            )
        self._lake.sync_new(_LOG, known)

    def paths(self) -> set[str]:
        with _plain(self._lake.address):
            actions = pa.table(DeltaTable(self._lake.address).get_add_actions())
        return {unquote(path) for path in actions["path"].to_pylist()}


def _columns(schema: pa.Schema, layout: Layout) -> pa.Schema:
    """Of the files, and those that their folders say."""
    columns = optional(schema)
    for name in partition_columns(layout):
        if name not in columns.names:
            columns = columns.append(pa.field(name, _FOLDER_TYPES[name]))
    return columns


def _addition(file: DataFile, change: TableChange, partitioned: list[str]) -> AddAction:
    return AddAction(
        path=file.path,  # encoded by the library
        size=file.bytes,
        partition_values=_partition(file.path, partitioned),
        modification_time=change.at_ms,
        data_change=not change.is_rearranged,
        stats=json.dumps({"numRecords": file.rows}),
    )


def _removal(path: str, change: TableChange, partitioned: list[str]) -> RemoveAction:
    return RemoveAction(path, not change.is_rearranged, change.at_ms, partition_values=_partition(path, partitioned))


def _partition(path: str, partitioned: list[str]) -> dict[str, str | None]:
    values = partition_values(path)
    if not values.keys() >= set(partitioned):
        raise StorageError(
            f"{path} is not in folders of {', '.join(partitioned)}, by which the Delta table is partitioned",
            hint="remove the newest _manifests/*.files.json, if it names the file: its batch is then written again",
        )
    return {name: values[name] for name in partitioned}


@contextmanager
def _plain(address: str) -> Iterator[None]:
    try:
        yield
    except DeltaError as error:
        raise StorageError(f"the Delta table {address}: {error}") from error
