"""A lake that is also a Delta or an Iceberg table: the files that workers wrote, made to count by one commit of the table.

The rows reach neither the JVM nor the driver, and no jar of the format is needed: the tables are committed to by their own
Python writers (`deltalake`, `pyiceberg`), whatever Spark's version. Every commit says who makes it and its number, and a table
remembers the newest number of each writer, so a commit that is tried again after a crash is made once:

    Delta     the action `txn` (appId, version) in the same commit; `orbitmq.files.<writer>` in its commitInfo tells which files
    Iceberg   the table properties `orbitmq.committed.<writer>` and `orbitmq.files.<writer>` in the same commit; writer and number
              in the snapshot's summary, too
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Literal, Protocol
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from pyarrow import parquet

from orbitmq.errors import ConfigError, StorageError
from orbitmq.spark.table_shape import check_partitions, check_types

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.spark.lake import DataFile, Lake, LakeState, Manifest
    from orbitmq.spark.lake_writer import Layout

LakeFormat = Literal["parquet", "delta", "iceberg"]
TABLE_FORMATS: Final = ("delta", "iceberg")
WRITER: Final = "orbitmq-lake"  # of archives, exports and compactions; the directory is the table, so one name will do

_PACKAGES: Final = {"delta": "deltalake", "iceberg": "pyiceberg"}
_HOMES: Final = {
    "delta": ("orbitmq.spark.delta_table", "DeltaLakeTable"),
    "iceberg": ("orbitmq.spark.iceberg_table", "IcebergTable"),
}
_DIVIDED_BY: Final[dict[str, tuple[str, ...]]] = {  # the columns that folders of each layout are made of
    "none": (),
    "topic": ("topic",),
    "date": ("topic", "storeTimestamp"),
    "hour": ("topic", "storeTimestamp"),
}
_FOLDERS: Final[dict[str, tuple[str, ...]]] = {  # of each layout
    "none": (),
    "topic": ("topic",),
    "date": ("topic", "date"),
    "hour": ("topic", "date", "hour"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """One commit. `number` grows with every commit of a writer; one that the table has got already is not made again."""

    writer: str
    number: int
    added: list[DataFile]
    removed: list[str] = field(default_factory=list)
    is_rearranged: bool = False  # the same rows in other files
    replaces_all: bool = False
    at_ms: int

    @property
    def digest(self) -> str:
        """Tells a change from another of the same number."""
        files = (sorted(file.path for file in self.added), sorted(self.removed), self.is_rearranged)
        return hashlib.sha256(msgspec.json.encode(files)).hexdigest()


class LakeTable(Protocol):
    def check(self, schema: pa.Schema, layout: Layout) -> None:
        """ConfigError where the table exists and such files do not fit into it."""

    def create(self, schema: pa.Schema, layout: Layout) -> None:
        """Unless it exists: then it is checked."""

    def committed(self, writer: str) -> int:
        """The newest number of that writer; -1 if there is none."""

    def committed_digest(self, writer: str) -> str:
        """Of that writer's newest change; empty where the table does not know it."""

    def commit(self, change: TableChange) -> None: ...

    def paths(self) -> set[str]:
        """The files that count, below the lake."""


def open_table(lake: Lake, kind: str) -> LakeTable:
    package = _PACKAGES[kind]
    if find_spec(package) is None:
        raise ConfigError(
            f"{kind.title()} tables need the package {package}, which is not installed here",
            hint=f'pip install "orbitmq[{kind}]"',
        )
    module, name = _HOMES[kind]
    opened: Callable[[Lake], LakeTable] = getattr(import_module(module), name)
    return opened(lake)


def lake_table(lake: Lake, kind: str) -> LakeTable | None:
    """None for a lake of plain Parquet files."""
    return open_table(lake, kind) if kind in TABLE_FORMATS else None


def lake_format(lake: Lake) -> str:
    """As its batches say, the one that only waits for its commit too; parquet where there is none."""
    state = lake.state()
    prepared = lake.prepared(state)
    return state.format or (prepared.format if prepared else "parquet")


def begun_table(lake: Lake, kind: str, schema: pa.Schema, layout: Layout) -> tuple[LakeTable | None, LakeState]:
    """For whoever is about to write such files. Before anything is planned, so that what does not fit leaves nothing behind."""
    _check_divisible(schema, layout)
    table = lake_table(lake, kind)
    if table is not None:
        table.check(schema, layout)
    state = begun_state(lake, kind, table)
    if not state.next_number and (outer := lake.outer()) is not None:
        raise ConfigError(
            f"{lake.address} is inside of another archive or export, {outer}: who reads that directory would read both",
            hint="give a directory beside it",
        )
    if table is None and state.files:
        newest = next(reversed(state.files))
        check_partitions(f"the lake {lake.address}", tuple(partition_values(newest)), partition_columns(layout))
        check_types(f"the lake {lake.address}", file_columns(lake, newest), optional(schema))
    return table, state


def _check_divisible(schema: pa.Schema, layout: Layout) -> None:
    missing = [name for name in _DIVIDED_BY[layout] if name not in schema.names]
    if missing:
        raise ConfigError(
            f"folders by {layout} are made of columns that are not written: {', '.join(missing)}",
            hint=f"give --columns with {' and '.join(_DIVIDED_BY[layout])}, or --by none",
        )


def check_layout(lake: Lake, begun: str, layout: Layout) -> None:
    """A batch under way is run again in the folders it was begun with: else what it wrote first would stay beside. `begun` is
    empty where an older version planned it."""
    if begun:
        check_partitions(f"the batch under way in {lake.address}", partition_columns(begun), partition_columns(layout))


def begun_state(lake: Lake, kind: str, table: LakeTable | None) -> LakeState:
    """What the lake holds, once a batch of which only the commit, or the word of it, was missing is finished."""
    state = lake.state()
    prepared = lake.prepared(state)
    for known in (state.format, prepared.format if prepared else ""):
        if known not in ("", kind):
            raise ConfigError(
                f"{lake.address} is a lake of format {known}, not {kind}",
                hint=f"give --format {known}, or another directory",
            )
    return publish_batch(lake, table, prepared, state) if prepared is not None else state


def commit_once(table: LakeTable, change: TableChange) -> bool:
    """Whoever died after the last try. False where the table has got another change of that number."""
    newest = table.committed(change.writer)
    if newest < change.number:
        table.commit(change)
        return True
    return newest == change.number and table.committed_digest(change.writer) in ("", change.digest)


def publish_batch(lake: Lake, table: LakeTable | None, manifest: Manifest, state: LakeState) -> LakeState:
    """Make a batch count: in the table, if the lake is one, and then by its manifest."""
    if table is not None:
        lake.prepare(manifest)  # the same again, if it was
        if manifest.added or manifest.removed:
            change = TableChange(
                writer=WRITER,
                number=manifest.number,
                added=manifest.added,
                removed=manifest.removed,
                is_rearranged=manifest.kind == "compaction",
                at_ms=manifest.written_at_ms,
            )
            if not commit_once(table, change):
                raise lake.taken(manifest.number)
    return lake.publish(manifest, state)


def publish_beside_others(
    lake: Lake, table: LakeTable | None, manifest: Manifest, state: LakeState, is_due: Callable[[LakeState], bool]
) -> LakeState:
    """The same where somebody else, a compaction beside an archive, may have taken its number: then by the next that is free, as
    long as the batch `is_due` with what the other did."""
    while True:
        lake.check_written(manifest.added)  # with nothing in between: who takes them for leftovers does so before
        try:
            return publish_batch(lake, table, manifest, state)
        except StorageError:
            if lake.is_newest(state):
                raise  # of another reason
            state = begun_state(lake, manifest.format, table)
            if table is not None and manifest.added and all(file.path in state.files for file in manifest.added):
                return state  # the other found it listed, and finished it
            if state.next_number <= manifest.number or not is_due(state):
                raise
            manifest = msgspec.structs.replace(manifest, number=state.next_number)


def live_paths(lake: Lake, state: LakeState) -> list[str]:
    """The files that count, as the lake's manifests say. A table that somebody else changed is not read past its back."""
    paths = sorted(state.files)
    table = lake_table(lake, state.format)
    if table is not None and table.paths() != set(paths) and lake.prepared(state) is None:
        raise ConfigError(
            f"the {state.format.title()} table {lake.address} has been changed by another program",
            hint=f"read it with a reader of {state.format.title()}",
        )
    return paths


def partition_columns(layout: str) -> tuple[str, ...]:
    return _FOLDERS[layout]


def partition_values(path: str) -> dict[str, str]:
    """What the folders of a file say: `topic=Orders/date=2026-11-15/...`."""
    pairs = (folder.partition("=") for folder in path.split("/")[:-1])
    return {name: unquote(value) for name, equals, value in pairs if equals}


def file_columns(lake: Lake, path: str) -> pa.Schema:
    """Of a file below the lake."""
    try:
        with lake.files.open_input_file(f"{lake.root}/{path}") as stream:
            return optional(parquet.read_schema(stream))
    except (OSError, pa.ArrowInvalid) as error:
        raise StorageError(f"{lake.address_of(path)} cannot be read: {error}") from error


def optional(schema: pa.Schema) -> pa.Schema:
    """A table's columns may all be null: another writer of the same table need not know ours."""
    return pa.schema([column.with_nullable(True).remove_metadata() for column in schema])
