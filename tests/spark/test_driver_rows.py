"""Small micro-batches that are read where they are planned: what Spark is handed, and what is left to a task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import ReadAllAvailable

from orbitmq.errors import TransportError
from orbitmq.message import QueueRef
from orbitmq.spark.access import link
from orbitmq.spark.driver_rows import CarriesRows
from orbitmq.spark.lag import lag_of
from orbitmq.spark.legacy import LegacySource
from orbitmq.spark.planning import QueueRange, RangesPartition
from orbitmq.spark.source import RocketMQSource
from orbitmq.spark.stream_reader import StreamReader
from orbitmq.testing import Server
from tests.spark.direct import rows_of, send, stream_reader
from tests.spark.marks import SPARK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = SPARK

ALL = ReadAllAvailable()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


def is_asked_for_rows(reader: CarriesRows) -> bool:
    """As PySpark decides it."""
    return isinstance(reader, _SimpleStreamReaderWrapper)


def handed_over(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for batch in reader.getCache(start, end):
        assert batch.schema.equals(reader.projection.arrow)
        rows += batch.to_pylist()
    return rows


def one_task(offsets: int) -> list[RangesPartition]:
    return [RangesPartition([QueueRange(QueueRef("T", "a", 0), 0, offsets)])]


def test_the_rows_that_come_with_a_plan_are_those_that_its_task_would_read(server: Server) -> None:
    send(server, "Small", [f"{number}" for number in range(20)], tag="t", properties={"n": "1"})
    reader = stream_reader(server, subscribe="Small", startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    for _ in range(2):  # Spark may plan a micro-batch again
        planned = reader.partitions(start, end)
        assert is_asked_for_rows(reader)
        rows = handed_over(reader, start, end)
        assert not is_asked_for_rows(reader), "or Spark would not ask how far the queues go"
        assert rows == rows_of(reader, planned)
        assert len(rows) == 20
    assert reader.reportLatestOffset() == end


@pytest.mark.parametrize("options", [{"driverRows": "19"}, {"driverRows": "0"}, {"minPartitions": "2"}])
def test_what_is_more_than_one_short_task_is_read_by_tasks(server: Server, options: dict[str, str]) -> None:
    topic = "More" + "".join(options.values())
    send(server, topic, [f"{number}" for number in range(20)])
    reader = stream_reader(server, subscribe=topic, startingOffsets="earliest", **options)
    start = reader.initialOffset()
    planned = reader.partitions(start, reader.latestOffset(start, ALL))
    assert not is_asked_for_rows(reader)
    assert len(rows_of(reader, planned)) == 20


def test_old_jobs_get_their_columns_on_this_way_too(server: Server) -> None:
    send(server, "OldSmall", ["x"], properties={"colour": "blå"})
    old = LegacySource(
        CaseInsensitiveDict({"nameServer": server.address, "topic": "OldSmall", "startingOffsets": "earliest"})
    )
    reader = old.streamReader(old.schema())
    assert isinstance(reader, StreamReader)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    planned = reader.partitions(start, end)
    rows = handed_over(reader, start, end)
    assert json.loads(rows[0]["properties"])["colour"] == "blå"
    assert rows == rows_of(reader, planned)


def test_messages_that_are_large_are_left_to_tasks_until_they_may_be_small_again() -> None:
    carrying = CarriesRows(most_rows=1000)
    body_bytes, reads = 200_000, []

    def read(partition: RangesPartition) -> Iterator[pa.RecordBatch]:
        reads.append(partition.offsets)
        for _ in range(partition.offsets):
            yield pa.record_batch({"body": [b"x" * body_bytes]})

    carrying.carry(one_task(100), read)
    assert not is_asked_for_rows(carrying)
    carrying.carry(one_task(100), read)
    assert (len(reads), is_asked_for_rows(carrying)) == (1, False), "what is known to be large is not read in vain"
    carrying.carry(one_task(2), read)
    assert (len(reads), is_asked_for_rows(carrying)) == (2, True), "two of them are not much"
    body_bytes = 10
    while len(reads) < 3:  # the guess grows old
        carrying.carry(one_task(100), read)
    assert is_asked_for_rows(carrying)
    assert sum(batch.num_rows for batch in carrying.getCache({}, {})) == 100


def test_what_cannot_be_read_now_is_left_to_a_task() -> None:
    carrying = CarriesRows(most_rows=1000)

    def read(partition: RangesPartition) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"body": [b"x"]})
        raise TransportError("the broker is away")

    carrying.carry(one_task(2), read)
    assert not is_asked_for_rows(carrying)


def test_a_reader_knows_from_those_before_it_how_large_messages_are(server: Server) -> None:
    send(server, "Sized", ["x" * 3000 for _ in range(300)], order_key="one queue")
    options = {"subscribe": "Sized", "startingOffsets": "earliest", "driverRows": "0"}
    reader = stream_reader(server, **options)
    start = reader.initialOffset()
    planned = reader.partitions(start, reader.latestOffset(start, ALL))
    first = rows_of(reader, planned)
    assert 3000 < link(reader.options.access).bytes_an_offset[("Sized", "", "")] < 3500
    assert rows_of(reader, planned) == first
    assert len(first) == 300


def test_spark_takes_the_rows_from_the_driver_and_from_a_task_alike(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    """The source notes in a file that a task has read; everything else is as it comes."""
    send(server, "Handed", [f"{number}" for number in range(30)], tag="even", keys=["a", "b"], properties={"n": "1"})
    send(server, "Handed", ["last"], tag="odd")  # without a key
    told = str(tmp_path / "a task has read")

    class NotingReader(StreamReader):
        def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
            Path(told).touch()
            return super().read(partition)

    class NotingSource(RocketMQSource):
        @classmethod
        def name(cls) -> str:
            return "rocketmq-noting"

        def streamReader(self, schema: Any) -> StreamReader:
            plain = super().streamReader(schema)
            assert isinstance(plain, StreamReader)
            return NotingReader(plain.options, plain.projection)

    spark.dataSource.register(NotingSource)

    def collected(name: str, schema: str = "", **options: str) -> tuple[list[Any], list[int], Any]:
        rows: list[Any] = []
        sizes: list[int] = []

        def take(frame: DataFrame, _batch: int) -> None:
            sizes.append(frame.count())
            rows.extend(frame.collect())

        reading = spark.readStream.format("rocketmq-noting").options(nameServer=server.address, subscribe="Handed")
        reading = reading.options(startingOffsets="earliest", maxOffsetsPerTrigger="20", **options)
        frame = (reading.schema(schema) if schema else reading).load()
        writing = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / name))
        query = writing.trigger(availableNow=True).start()
        query.awaitTermination()
        return sorted(rows, key=lambda row: (row.queueId, row.queueOffset)), sizes, query

    by_driver, sizes, query = collected("driver")
    assert not Path(told).exists()
    assert sizes == [20, 11]
    assert [lag_of(one).messages for one in query.recentProgress] == [11, 0]
    by_task, _, _ = collected("task", driverRows="0")
    assert Path(told).exists()
    assert by_driver == by_task
    assert len(by_driver) == 31
    Path(told).unlink()
    none, sizes, _ = collected("none", tags="neither")
    assert (none, sizes) == ([], [0, 0])
    narrow = "queueId INT COMMENT 'which', queueOffset BIGINT NOT NULL, properties MAP<STRING, STRING>, keys STRING"
    some, _, _ = collected("narrow", schema=narrow)
    wanted = [(row.queueId, row.queueOffset, row.properties, row.keys) for row in by_driver]
    assert [tuple(row) for row in some] == wanted
    assert not Path(told).exists()
