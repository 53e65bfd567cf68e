"""Archives and streams into Delta and Iceberg tables that stop dead at a chosen place. As a program it is a driver to be killed.

python -m tests.spark.table_ledger NAME_SERVER TOPIC FOLDER PLACE

    writing      archives stop in the middle of a file; there are no streams
    committed    both stop between the commit of the table and the word of it: the manifest, the checkpoint
    nowhere      they go on to the end, for whoever kills them at any time

Batch 0 always gets through. Whoever stops says so in a file `stopped-<table>`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orbitmq.clock import SystemClock
from orbitmq.spark import archive as archiving
from orbitmq.spark.archive import Archive, archive_ranges
from orbitmq.spark.lake import Lake
from orbitmq.spark.lake_writer import LakeWriter
from orbitmq.spark.session import start_session
from orbitmq.spark.source_options import source_options, source_schema
from orbitmq.spark.table_sink import StreamTableWriter, TableSinkSource, sink_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from orbitmq.spark.archive import ArchiveTask
    from orbitmq.spark.lake import DataFile

KINDS: Final = ("delta", "iceberg")
ARCHIVES: Final = tuple(f"archive-{kind}" for kind in KINDS)
STREAMED: Final = ("delta",)  # a stream costs seconds to start; those of Iceberg commit by the same code
STREAMS: Final = tuple(f"stream-{kind}" for kind in STREAMED)
STOPPING_SINK: Final = "stopping-table"
_ROWS_A_BATCH: Final = "100"


def stop(table: str) -> None:
    """For ever, or until whoever started us is gone."""
    where = Path(table)
    where.with_name(f"stopped-{where.name}").touch()
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.05)
    os._exit(1)


def reading(name_server: str, topic: str) -> dict[str, str]:
    """Two tasks a batch: of those that stop, each keeps a slot of Spark's."""
    return {
        "nameServer": name_server,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": _ROWS_A_BATCH,
        "maxPartitions": "2",
    }


def an_archive(spark: SparkSession, name_server: str, topic: str, folder: Path, kind: Any) -> Archive:
    options = reading(name_server, topic)
    wanted, schema = source_options(options, streaming=True), source_schema(options)
    where, clock = str(folder / f"archive-{kind}"), SystemClock()
    return Archive(spark, wanted, schema, where, layout="topic", compression="snappy", clock=clock, table_format=kind)


def a_stream(
    spark: SparkSession, name_server: str, topic: str, folder: Path, kind: str, sink: str = "orbitmq-table"
) -> StreamingQuery:
    frame = spark.readStream.format("rocketmq").options(**reading(name_server, topic)).load()
    writing = frame.writeStream.format(sink).option("tableFormat", kind)
    writing = writing.option("checkpointLocation", str(folder / f"checkpoint-{kind}"))
    return writing.trigger(availableNow=True).start(str(folder / f"stream-{kind}"))


def stopping_in_a_file(task: ArchiveTask) -> list[DataFile]:
    """In a worker, instead of archive_ranges."""
    if Lake(task.lake).state().next_number:
        LakeWriter.close = lambda _: stop(task.lake)  # type: ignore[assignment,method-assign,return-value]
    return archive_ranges(task)


def stopping_before_the_manifest() -> None:
    publish = Lake.publish

    def stopping(self: Lake, manifest: Any, state: Any) -> Any:
        if manifest.number:
            stop(self.address)
        return publish(self, manifest, state)

    Lake.publish = stopping  # type: ignore[method-assign]


def stopping_sink(place: str) -> type[TableSinkSource]:
    """Travels to the process that commits: it is one of Spark's workers."""

    class StoppingWriter(StreamTableWriter):
        def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
            super().commit(messages, batchId)
            if batchId and place == "committed":
                stop(self.table.address)

    class StoppingSink(TableSinkSource):
        @classmethod
        def name(cls) -> str:
            return STOPPING_SINK

        def streamWriter(self, schema: StructType, overwrite: bool) -> StoppingWriter:
            return StoppingWriter(sink_table(self.options), schema, overwrite)

    return StoppingSink


def main() -> None:
    name_server, topic, where, place = sys.argv[1:]
    folder = Path(where)
    conf = {"spark.driver.memory": "600m", "spark.sql.shuffle.partitions": "2", "spark.local.dir": f"{folder}/local"}
    spark = start_session("tables", master="local[8]", conf=conf)
    spark.dataSource.register(stopping_sink(place))
    if place == "writing":
        archiving.archive_ranges = stopping_in_a_file
    elif place == "committed":
        stopping_before_the_manifest()
    archives = [an_archive(spark, name_server, topic, folder, kind) for kind in KINDS]
    threads = [threading.Thread(target=archive.run_once) for archive in archives]
    for thread in threads:
        thread.start()
    kinds = () if place == "writing" else STREAMED
    streams = [a_stream(spark, name_server, topic, folder, kind, STOPPING_SINK) for kind in kinds]
    for thread in threads:
        thread.join()
    for stream in streams:
        stream.awaitTermination()


if __name__ == "__main__":
    main()
