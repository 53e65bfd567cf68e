"""`df.writeStream.format("orbitmq-table")`: rows into a Delta or Iceberg table, exactly once, whatever Spark's version.

    df.writeStream.format("orbitmq-table").options(tableFormat="delta", checkpointLocation=...).start("/lake/orders")

The workers write the files; a micro-batch counts by one commit of the table that bears the id of the query and the number of the
batch, and a batch that the table has got already is passed over. Files have names of their own at every try. Those of a try that
died are known to no version of the table: they go with `VACUUM`, or with the removal of orphan files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema

from orbitmq.clock import SystemClock
from orbitmq.errors import ConfigError
from orbitmq.spark.failures import plain_errors
from orbitmq.spark.lake import DataFile, Lake
from orbitmq.spark.lake_writer import COMPRESSIONS, LakeWriter, try_name
from orbitmq.spark.options import Options
from orbitmq.spark.table_formats import TABLE_FORMATS, TableChange, open_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

TABLE_SINK: Final = "orbitmq-table"
_ONCE: Final = "orbitmq-once"  # who commits what is no stream
_OPTIONS: Final[dict[str, tuple[str, ...]]] = {"path": (), "tableFormat": (), "compression": ()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkTable:
    """The table, and how its files are written."""

    address: str
    kind: str
    compression: str = "zstd"


@dataclass
class WrittenFiles(WriterCommitMessage):
    """What one task wrote."""

    query: str = ""
    files: list[DataFile] = field(default_factory=list)


def sink_table(options: Mapping[str, str]) -> SinkTable:
    """Checked; a missing package is told here, before anything runs."""
    given = Options(options, _OPTIONS, "a table")
    kind = given.choice("tableFormat", "", TABLE_FORMATS)
    if not kind or not given.text("path"):
        raise ConfigError(
            "a table needs a path and a tableFormat",
            hint=f"give the path to start() or save(), and tableFormat as one of {', '.join(TABLE_FORMATS)}",
        )
    compression = given.choice("compression", "zstd", COMPRESSIONS)
    lake = Lake(given.text("path"))
    open_table(lake, kind)
    return SinkTable(address=lake.address, kind=kind, compression=compression)


class TableSinkSource(DataSource):
    """What Spark asks for by name."""

    @classmethod
    def name(cls) -> str:
        return TABLE_SINK

    @plain_errors
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        made = BatchTableWriter(sink_table(self.options), schema, overwrite)
        made.check()
        return made

    @plain_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - Spark's name
        made = StreamTableWriter(sink_table(self.options), schema, overwrite)
        made.check()
        return made


class FileWriter:
    """What both writers do in a worker, and on the driver."""

    def __init__(self, table: SinkTable, schema: StructType, replaces_all: bool) -> None:
        self.table = table
        self.schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self.replaces_all = replaces_all

    def check(self) -> None:
        """What does not fit into the table is told before anything is written."""
        open_table(Lake(self.table.address), self.table.kind).check(self.schema, "none")

    def write_files(self, batches: Iterator[pa.RecordBatch]) -> WrittenFiles:
        context = TaskContext.get()
        assert context is not None, "Spark writes in tasks"
        query = context.getLocalProperty("sql.streaming.queryId") or ""
        name = try_name(f"part-{context.partitionId():05d}")
        lake, compression = Lake(self.table.address), self.table.compression
        writer = LakeWriter(lake, name, self.schema, layout="none", compression=compression)
        try:
            for batch in batches:
                if batch.num_rows:
                    writer.write(batch.cast(self.schema))
            return WrittenFiles(query, writer.close())
        except BaseException:
            writer.abandon()
            raise

    def commit_files(self, messages: Sequence[WriterCommitMessage | None], batch: int | None) -> None:
        written = [message for message in messages if isinstance(message, WrittenFiles)]
        lake = Lake(self.table.address)
        table = open_table(lake, self.table.kind)
        table.create(self.schema, "none")
        writer = next((message.query for message in written if message.query), _ONCE)
        number = table.committed(writer) + 1 if batch is None else batch
        files = [file for message in written for file in message.files]
        if table.committed(writer) >= number:
            lake.remove(file.path for file in files)  # the table has got those rows, in files of an earlier try
            return
        lake.check_written(files)
        change = TableChange(
            writer=writer,
            number=number,
            added=files,
            replaces_all=self.replaces_all,
            at_ms=SystemClock().now_ms(),
        )
        table.commit(change)


class BatchTableWriter(DataSourceArrowWriter, FileWriter):
    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        return self.write_files(iterator)

    @plain_errors
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self.commit_files(messages, None)


class StreamTableWriter(DataSourceStreamArrowWriter, FileWriter):
    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        return self.write_files(iterator)

    @plain_errors
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self.commit_files(messages, batchId)
