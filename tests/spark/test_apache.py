"""The same jobs on Apache's name server and broker, with messages that Apache's Java client sent and read."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.spark import commit_finished
from tests.interop import apache
from tests.interop.apache import BrokerPlan
from tests.interop.drivers import JavaClient
from tests.interop.java import RELEASES, build, missing_tools

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

RELEASE = RELEASES[0]

pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.interop,
    pytest.mark.timeout(900),  # Apache's servers start here, and a first Maven download may
    pytest.mark.skipif(missing_tools() is not None, reason=str(missing_tools())),
    pytest.mark.flaky(reruns=1),  # as the other interop tests: Apache's programs have time limits of their own
]


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("apache")
    java = build(RELEASE)
    with ExitStack() as stack:
        server = apache.start_name_server(java, folder / "namesrv")
        stack.callback(server.process.kill)
        settings: dict[str, str | int] = {"enablePropertyFilter": "true", "defaultTopicQueueNums": 4}
        plan = BrokerPlan(name="broker-a", cluster="c", name_servers=[server.address], settings=settings)
        broker = apache.start_broker(java, folder / "broker", plan)
        stack.callback(broker.process.kill)
        yield server.address


@pytest.fixture(scope="module")
def java_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    client = JavaClient(build(RELEASE), tmp_path_factory.mktemp("client") / "client")
    yield client
    client.close()


def test_java_messages_are_read_streamed_and_written_back_for_java(
    spark: SparkSession, name_server: str, java_client: JavaClient, tmp_path: Path
) -> None:
    messages: list[dict[str, Any]] = [
        {"text": f"message {number}", "tag": f"tag{number % 2}", "keys": f"k{number}", "properties": {"n": str(number)}}
        for number in range(60)
    ]
    messages.append({"text": "large " * 2000, "tag": "tag0"})  # Java compresses it
    java_client.open_producer("p", name_server)
    receipts = java_client.send("p", "FromJava", messages)
    options = {"nameServer": name_server, "subscribe": "FromJava"}

    # a batch: everything, then what the broker filters
    rows = spark.read.format("rocketmq").options(**options).load().collect()
    assert sorted(bytes(row.body).decode() for row in rows) == sorted(message["text"] for message in messages)
    assert {row.msgId for row in rows} == {receipt["id"] for receipt in receipts}
    one = next(row for row in rows if row["keys"] == "k7")
    assert (one.topic, one.tags, one.brokerName, one.properties["n"]) == ("FromJava", "tag1", "broker-a", "7")
    assert spark.read.format("rocketmq").options(**options, tags="tag1").load().count() == 30
    by_sql = spark.read.format("rocketmq").options(**options, filterSql="n BETWEEN 10 AND 19").load()
    assert sorted(int(row.properties["n"]) for row in by_sql.collect()) == list(range(10, 20))

    # a stream into another topic, its offsets committed to a group
    options = {**options, "groupId": "lake", "commitOffsets": "true", "maxOffsetsPerTrigger": "40"}
    source = spark.readStream.format("rocketmq").options(**options, startingOffsets="earliest").load()
    sink = source.select("body", "tags", "keys", "properties").writeStream.format("rocketmq")
    sink = sink.options(nameServer=name_server, topic="ForJava", checkpointLocation=str(tmp_path / "checkpoint"))
    query = sink.trigger(availableNow=True).start()
    query.awaitTermination()
    committed = commit_finished(query, options)
    assert sum(committed.values()) == len(messages)
    again = {"nameServer": name_server, "subscribe": "FromJava", "groupId": "lake", "startingOffsets": "group"}
    assert spark.read.format("rocketmq").options(**again).load().count() == 0, "Apache's broker has the group's offsets"

    # and Java reads what the sink wrote
    java_client.open_push_consumer("all", name_server, "ForJava")
    received = java_client.received("all", len(messages))
    assert sorted(message.body.decode() for message in received) == sorted(message["text"] for message in messages)
    seven = next(message for message in received if message.keys == "k7")
    assert (seven.tag, seven.properties["n"]) == ("tag1", "7")
    assert len({message.properties["ORBITMQ_DEDUP_ID"] for message in received}) == len(messages)
    assert len({message.id for message in received}) == len(messages)
