"""Namespaces: `shop%Orders` on the servers, `Orders` to the job, for reading, writing and committing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo

from orbitmq.errors import ConfigError
from orbitmq.spark.pushdown import FilteringBatchReader
from orbitmq.spark.queue_offsets import from_json
from orbitmq.spark.sink import RowWriter, TaskName
from orbitmq.spark.sink_options import sink_options
from orbitmq.sync import connect
from orbitmq.testing import Server
from tests.spark.direct import batch_reader, bodies, read, rows_of, send, source, stream_reader, wait_for_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orbitmq.spark.planning import RangesPartition


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        send(running, "Orders", ["outside"])
        with connect(running.address, namespace="shop") as client, client.producer(group="tests") as producer:
            producer.send("Orders", "inside", order_key="k")
        wait_for_topic(running, "shop%Orders")
        yield running


def queue_with_messages(server: Server) -> tuple[str, int]:
    (row,) = read(server, subscribe="Orders", namespace="shop")
    return row["brokerName"], row["queueId"]


def test_a_job_reads_the_topics_of_its_namespace_under_their_plain_names(server: Server) -> None:
    broker, queue = queue_with_messages(server)
    ways: list[dict[str, str]] = [
        {"subscribe": "Orders"},
        {"subscribe": "shop%Orders"},
        {"subscribePattern": "Ord.*"},
        {"assign": json.dumps({"Orders": {broker: [queue]}})},
        {"subscribe": "Orders", "startingOffsets": json.dumps({"Orders": {broker: {str(queue): 0}}})},
    ]
    for way in ways:
        rows = read(server, namespace="shop", **way)
        assert [(row["topic"], row["body"]) for row in rows] == [("Orders", b"inside")], way
    assert {row["topic"] for row in read(server, subscribePattern=".*Orders")} == {"Orders", "shop%Orders"}
    past_it = json.dumps({"Orders": {broker: {str(queue): 1}}})
    assert read(server, namespace="shop", subscribe="Orders", startingOffsets=past_it) == []


def test_a_filter_on_the_topic_means_its_plain_name(server: Server) -> None:
    for topic, found in (("Orders", ["inside"]), ("shop%Orders", [])):
        reader = batch_reader(server, subscribe="Orders", namespace="shop", pushFilters="true")
        assert isinstance(reader, FilteringBatchReader)
        assert len(list(reader.pushFilters([EqualTo(("topic",), topic)]))) == 1, "Spark looks again"
        assert bodies(rows_of(reader, reader.partitions())) == found


def test_offsets_are_committed_for_the_group_of_the_namespace(server: Server) -> None:
    reader = stream_reader(
        server, subscribe="Orders", namespace="shop", groupId="lake", commitOffsets="true", startingOffsets="earliest"
    )
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert {found.topic for found in from_json(end)} == {"shop%Orders"}
    parts: list[RangesPartition] = reader.partitions(reader.initialOffset(), end)
    assert bodies(rows_of(reader, parts)) == ["inside"]
    reader.commit(end)
    with connect(server.address, namespace="shop") as client, client.pull_consumer("lake") as consumer:
        committed = [consumer.committed(one) or 0 for one in consumer.queues("Orders")]
    assert sum(committed) == 1


def write(server: Server, columns: dict[str, Any], **options: str) -> None:
    batch = pa.RecordBatch.from_pydict(columns)
    made = sink_options({"nameServer": server.address, **options})
    RowWriter(made, {name: name for name in columns}).write_rows(iter([batch]), TaskName("query", "0", 0))


def test_a_job_writes_into_its_namespace(server: Server) -> None:
    rows = {"body": [b"a", b"b", b"c"], "orderKey": ["k", "k", None], "delayLevel": [0, 0, 1]}
    write(server, rows, topic="Out", namespace="shop")
    wait_for_topic(server, "shop%Out")
    got: list[tuple[str, bytes]] = []
    with (
        connect(server.address, namespace="shop") as client,
        client.consumer("Out", group="reader", start="earliest") as consumer,
    ):
        for message in consumer:
            with message.process():
                got.append((message.topic, message.body))
            if len(got) == 3:
                break
    assert sorted(got) == [("Out", b"a"), ("Out", b"b"), ("Out", b"c")]


def test_what_is_no_namespace_is_said(server: Server) -> None:
    with pytest.raises(ConfigError, match="'a%b' is no namespace"):
        source(server, subscribe="Orders", namespace="a%b").schema()
