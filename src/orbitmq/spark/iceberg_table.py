"""A lake as an Iceberg table in its directory, without a catalog service. Needs `pip install "orbitmq[iceberg]"`.

    <lake>/metadata/v7.metadata.json      the table as of its seventh commit
    <lake>/metadata/version-hint.text     "7"

This is the layout of Iceberg's HadoopTables. It was seen read by pyiceberg's `StaticTable`; other readers were not tried. Partitions are
the topic and the day or hour of storeTimestamp. One writer at a time, like the lake itself: the next metadata file must not be there
yet. Files that a compaction replaced stay until their snapshots are expired.

Java: org.apache.iceberg.hadoop.HadoopTableOperations
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.table import CommitTableResponse, StaticTable, Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import update_table_metadata
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform, Transform

from orbitmq.errors import StorageError
from orbitmq.spark.table_formats import optional
from orbitmq.spark.table_shape import TableShape, check_fit

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.table import Transaction
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from pyiceberg.typedef import Identifier

    from orbitmq.spark.lake import Lake
    from orbitmq.spark.lake_writer import Layout
    from orbitmq.spark.table_formats import TableChange

# Of bodies and properties we write no statistics; it would say so for every file.
logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)

_METADATA: Final = "metadata"
_HINT: Final = f"{_METADATA}/version-hint.text"
_COMMITTED: Final = "orbitmq.committed."
_FILES: Final = "orbitmq.files."
_TIMES: Final[dict[Layout, tuple[str, Transform[Any, Any]]]] = {
    "date": ("storeTimestamp_day", DayTransform()),
    "hour": ("storeTimestamp_hour", HourTransform()),
}


class IcebergTable:
    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._catalog = _DirectoryCatalog(lake)

    def check(self, schema: pa.Schema, layout: Layout) -> None:
        if not self._catalog.version():
            return
        table = self._catalog.load()
        given = _shape(*self._catalog.form(optional(schema), layout))
        check_fit(f"the Iceberg table {self._lake.address}", _shape(table.schema(), table.spec()), given)

    def create(self, schema: pa.Schema, layout: Layout) -> None:
        if not self._catalog.version():
            self._catalog.create(optional(schema), layout)
        self.check(schema, layout)

    def committed(self, writer: str) -> int:
        return int(self._catalog.load().properties.get(f"{_COMMITTED}{writer}", -1))

    def committed_digest(self, writer: str) -> str:
        return self._catalog.load().properties.get(f"{_FILES}{writer}", "")

    def commit(self, change: TableChange) -> None:
        table = self._catalog.load()
        said = {"orbitmq.writer": change.writer, "orbitmq.number": str(change.number)}
        added = [self._catalog.address(file.path) for file in change.added]
        try:
            with table.transaction() as transaction:
                transaction.set_properties(
                    {
                        f"{_COMMITTED}{change.writer}": str(change.number),
                        f"{_FILES}{change.writer}": change.digest,
                    }
                )
                if change.replaces_all and table.current_snapshot() is not None:
                    transaction.delete(AlwaysTrue(), snapshot_properties=said)
                if change.removed:
                    _replace(table, transaction, added, [self._catalog.address(path) for path in change.removed], said)
                elif added:
                    # Names are of one batch or one compaction, and no number is committed twice.
                    transaction.add_files(added, snapshot_properties=said, check_duplicate_files=False)
        except (CommitFailedException, ValueError, OSError) as error:
            raise StorageError(f"the Iceberg table {self._lake.address}: {error}") from error

    def paths(self) -> set[str]:
        tasks = list(self._catalog.load().scan().plan_files())
        if any(task.delete_files for task in tasks):
            raise StorageError(
                f"of the Iceberg table {self._lake.address} rows were deleted by another program",
                hint="read it with a reader of Iceberg",
            )
        root = self._catalog.address("")
        return {task.file.file_path.removeprefix(root) for task in tasks}


def _shape(schema: Schema, spec: PartitionSpec) -> TableShape:
    names = [(str(one.transform), schema.find_column_name(one.source_id) or one.name) for one in spec.fields]
    partitions = [name if transform == "identity" else f"{transform} of {name}" for transform, name in names]
    return TableShape(schema_to_pyarrow(schema, include_field_ids=False), tuple(partitions))


def _replace(
    table: Table, transaction: Transaction, added: list[str], removed: list[str], said: dict[str, str]
) -> None:
    """Some files by others, in one snapshot."""
    gone = set(removed)
    with transaction.update_snapshot(snapshot_properties=said).overwrite() as snapshot:
        for task in table.scan().plan_files():
            if task.file.file_path in gone:
                snapshot.delete_data_file(task.file)
        for path in added:
            snapshot.append_data_file(parquet_file_to_data_file(table.io, transaction.table_metadata, path))


class _DirectoryCatalog(NoopCatalog):
    """The one table of a directory. Its name server is the version hint; whoever finds it behind looks further."""

    def __init__(self, lake: Lake) -> None:
        super().__init__("directory")
        self._lake = lake
        self._known: set[str] = (
            set()
        )  # names of metadata when the table was last loaded: what came since is of the commit under way
        self._location = lake.address.rstrip("/")

    def address(self, path: str) -> str:
        return f"{self._location}/{path}"

    def version(self) -> int:
        """0: there is no table."""
        hinted = self._lake.text(_HINT) if self._lake.has(_HINT) else "0"
        version = int(hinted)
        while self._lake.has(_metadata_path(version + 1)):
            version += 1
        if version != int(hinted):  # a crash came between the two
            self._lake.keep_text(_HINT, str(version))
        return version

    def form(self, columns: pa.Schema, layout: Layout) -> tuple[Schema, PartitionSpec]:
        """Of a table that is made for such files."""
        schema = assign_fresh_schema_ids(self._convert_schema_if_needed(columns))
        fields = []
        if layout != "none":
            topic = schema.find_field("topic").field_id
            fields.append(PartitionField(source_id=topic, field_id=1000, transform=IdentityTransform(), name="topic"))
        if layout in _TIMES:
            name, transform = _TIMES[layout]
            stored = schema.find_field("storeTimestamp").field_id
            fields.append(PartitionField(source_id=stored, field_id=1001, transform=transform, name=name))
        return schema, PartitionSpec(*fields)

    def create(self, columns: pa.Schema, layout: Layout) -> None:
        schema, spec = self.form(columns, layout)
        metadata = new_table_metadata(schema, spec, UNSORTED_SORT_ORDER, self._location, {"format-version": "2"})
        self._write(metadata, 1)

    def load(self) -> Table:
        self._known = self._lake.names_in(_METADATA)
        return self._load(self.version())

    def _load(self, version: int) -> Table:
        address = self.address(_metadata_path(version))
        loaded = StaticTable.from_metadata(address)
        return Table(("lake", "table"), loaded.metadata, address, loaded.io, self)

    def load_table(self, identifier: str | Identifier) -> Table:
        return self.load()

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        version = self.version()  # what is checked, what is built on and what comes next are told by this one look
        current = self._load(version)
        for requirement in requirements:
            requirement.validate(current.metadata)
        metadata = update_table_metadata(current.metadata, updates, metadata_location=current.metadata_location)
        self._write(metadata, version + 1)
        where = self.address(_metadata_path(version + 1))
        return CommitTableResponse.model_validate({"metadata": metadata, "metadata-location": where})

    def _write(self, metadata: TableMetadata, version: int) -> None:
        self._lake.sync_new(_METADATA, self._known)  # the lists of files that it names
        if not self._lake.keep_new_text(_metadata_path(version), metadata.model_dump_json(exclude_none=True)):
            raise CommitFailedException(f"version {version} came from somebody else")
        self._lake.keep_text(_HINT, str(version))


def _metadata_path(version: int) -> str:
    return f"{_METADATA}/v{version}.metadata.json"
