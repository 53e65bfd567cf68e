"""A source's parts called as Spark calls them, in this process: what a session would add is only time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict

from orbitmq.errors import RequestFailed
from orbitmq.spark.batch_reader import BatchReader
from orbitmq.spark.source import RocketMQSource
from orbitmq.spark.stream_reader import StreamReader
from orbitmq.sync import connect

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orbitmq.testing.contents import Contents

Row = dict[str, Any]


def source(server: Contents, **options: str) -> RocketMQSource:
    return RocketMQSource(CaseInsensitiveDict({"nameServer": server.address, **options}))


def batch_reader(server: Contents, **options: str) -> BatchReader:
    made = source(server, **options)
    reader = made.reader(made.schema())
    assert isinstance(reader, BatchReader)
    return reader


def stream_reader(server: Contents, **options: str) -> StreamReader:
    made = source(server, discoveryInterval="0", **options)
    reader = made.streamReader(made.schema())
    assert isinstance(reader, StreamReader)
    return reader


def rows_of(reader: BatchReader | StreamReader, partitions: Iterable[Any]) -> list[Row]:
    rows: list[Row] = []
    for partition in partitions:
        for batch in reader.read(partition):
            assert batch.schema.equals(reader.projection.arrow)
            rows += pa.Table.from_batches([batch]).to_pylist()
    return rows


def read(server: Contents, **options: str) -> list[Row]:
    reader = batch_reader(server, **options)
    return rows_of(reader, reader.partitions())


def wait_for_topic(server: Contents, topic: str, seconds: float = 30) -> None:
    """A broker tells the name server of a topic that sending made a moment later."""
    deadline = time.monotonic() + seconds
    with connect(server.address) as client, client.pull_consumer("waiting") as consumer:
        while True:
            try:
                consumer.queues(topic)
            except RequestFailed:
                assert time.monotonic() < deadline, f"topic {topic} does not come"
                time.sleep(0.02)
            else:
                return


def bodies(rows: Iterable[Row]) -> list[str]:
    return sorted(row["body"].decode() for row in rows)


def send(server: Contents, topic: str, texts: Iterable[str], **more: Any) -> None:
    with connect(server.address) as client, client.producer(group="tests") as producer:
        for text in texts:
            producer.send(topic, text, **more)
    wait_for_topic(server, topic)
