"""The data pipeline against Apache's name servers and brokers of both releases, with messages from and for Apache's Java client.

Its commands as programs: test_every_command.py.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from orbitmq.cli.entry import cli
from orbitmq.spark.access import close_links
from orbitmq.spark.frames import lake_frame
from orbitmq.spark.registration import register
from orbitmq.spark.session import start_session
from tests.interop.drivers import JavaClient
from tests.interop.marks import INTEROP
from tests.spark.direct import read

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.interop.world import World

pytestmark = INTEROP

TOPIC = "SparkInterop"
LARGE = "a body that Java compresses " * 400


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = start_session("orbitmq-interop", master="local[2]", conf={"spark.driver.memory": "600m"})
    register(session)
    yield session
    session.stop()
    close_links()  # tests of other rooms run in the same process and count connections


@pytest.fixture(scope="module")
def java(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    client = JavaClient(world.java["5.3.3"], tmp_path_factory.mktemp("spark-java") / "client")
    yield client
    client.close()


@pytest.fixture(scope="module")
def sent(world: World, java: JavaClient) -> dict[str, str]:
    """What Apache's producer sent to a topic on both brokers: id -> text."""
    for release, cluster in (("5.3.3", "cluster-5"), ("4.9.7", "cluster-4")):
        name_server = world.apache[release].address
        made = world.admins[release].run(
            "updateTopic", "-n", name_server, "-c", cluster, "-t", TOPIC, "-r", "2", "-w", "2"
        )
        assert "success" in str(made)
    java.open_producer("spark", world.apache["5.3.3"].address)
    messages: list[dict[str, object]] = [
        {"text": f"order {number}" if number % 5 else f"{LARGE}{number}", "tag": f"t{number % 2}", "keys": f"k{number} all",
         "properties": {"number": str(number), "where": "zürich"}}
        for number in range(40)
    ]  # fmt: skip
    receipts = java.send("spark", TOPIC, messages)
    return {receipt["id"]: str(message["text"]) for receipt, message in zip(receipts, messages, strict=True)}


def rows(frame: DataFrame) -> dict[str, Any]:
    found = frame.collect()
    by_id = {row.msgId: row for row in found}
    assert len(by_id) == len(found)
    return by_id


def check(found: dict[str, Any], sent: dict[str, str]) -> None:
    assert {message_id: bytes(row.body).decode() for message_id, row in found.items()} == sent
    for row in found.values():
        number = int(row.properties["number"])
        assert (row.topic, row.tags, row.keys) == (TOPIC, f"t{number % 2}", f"k{number} all")
        assert row.properties["where"] == "zürich"


@pytest.mark.parametrize("release", ["5.3.3", "4.9.7"])
def test_a_topic_on_both_releases_is_read_archived_and_found_in_the_live_stores(
    world: World, spark: SparkSession, sent: dict[str, str], tmp_path: Path, release: str
) -> None:
    name_server = world.apache[release].address
    topic = spark.read.format("rocketmq").options(nameServer=name_server, subscribe=TOPIC).load()
    by_topic = rows(topic)
    check(by_topic, sent)
    assert {row.brokerName for row in by_topic.values()} == {"broker-4", "broker-5"}
    command = ["spark", "archive", TOPIC, "--to", str(tmp_path / "lake"), "-n", name_server, "--batch", "25"]
    done = CliRunner().invoke(cli, command)
    assert "archived 40 messages of 1 topics in 2 batches" in done.output, done.output
    by_lake = rows(lake_frame(spark, str(tmp_path / "lake")))
    check(by_lake, sent)
    assert {message_id: row.queueOffset for message_id, row in by_lake.items()} == {
        message_id: row.queueOffset for message_id, row in by_topic.items()
    }
    by_store: dict[str, Any] = {}
    for broker in world.brokers.values():
        directory = str(broker.folder / "store")
        by_store |= rows(
            spark.read.format("rocketmq-store").options(topic=TOPIC, brokerName=broker.name).load(directory)
        )
    check(by_store, sent)
    places = {message_id: (row.brokerName, row.queueId, row.queueOffset) for message_id, row in by_store.items()}
    assert places == {
        message_id: (row.brokerName, row.queueId, row.queueOffset) for message_id, row in by_topic.items()
    }


@pytest.mark.parametrize(("release", "cluster"), [("5.3.3", "cluster-5"), ("4.9.7", "cluster-4")])
def test_every_range_of_time_has_its_rows(
    world: World, java: JavaClient, tmp_path: Path, release: str, cluster: str
) -> None:
    """4.9.7 answers the search by time with the nearest message, which may be one too early or too late."""
    server, topic = world.apache[release], f"Timed{cluster[-1]}"
    made = world.admins[release].run(
        "updateTopic", "-n", server.address, "-c", cluster, "-t", topic, "-r", "1", "-w", "1"
    )
    assert "success" in str(made)
    producer = f"timed-{tmp_path.name}"  # a new one for each attempt
    java.open_producer(producer, server.address)
    for number in range(8):
        java.send(producer, topic, [{"text": f"{number}-{part}"} for part in range(3)])
        time.sleep(0.03)  # so that there are times between
    contents: Any = server
    times = [round(row["storeTimestamp"].timestamp() * 1000) for row in read(contents, subscribe=topic)]
    assert len(times) >= 24
    for at in range(min(times) + 1, max(times), 5):
        before = read(contents, subscribe=topic, endingTimestamp=str(at))
        behind = read(contents, subscribe=topic, startingTimestamp=str(at))
        assert len(before) == sum(time_ms < at for time_ms in times)
        assert len(behind) == sum(time_ms >= at for time_ms in times)


def test_what_spark_writes_reaches_apaches_consumers(
    world: World, spark: SparkSession, java: JavaClient, sent: dict[str, str], tmp_path: Path
) -> None:
    name_server = world.apache["5.3.3"].address
    admin = world.admins["5.3.3"]
    made = admin.run("updateTopic", "-n", name_server, "-c", "cluster-5", "-t", "SparkInteropOut", "-r", "2", "-w", "2")
    assert "success" in str(made)
    frame = spark.read.format("rocketmq").options(nameServer=name_server, subscribe=TOPIC).load()
    writing = frame.where("tags = 't1'").drop("topic").write.format("rocketmq")
    writing.options(nameServer=name_server, topic="SparkInteropOut").mode("append").save()
    assert (
        spark.read.format("rocketmq").options(nameServer=name_server, subscribe="SparkInteropOut").load().count() >= 20
    )
    consumer = f"spark-out-{tmp_path.name}"  # a new one for each attempt
    java.open_push_consumer(consumer, name_server, "SparkInteropOut", consumeFromWhere="CONSUME_FROM_FIRST_OFFSET")
    received = java.received(consumer, 20, seconds=90)
    wanted = sorted(text for number, text in enumerate(sent.values()) if number % 2)
    assert sorted({message.body.decode() for message in received}) == wanted
    assert all(message.tag == "t1" and message.properties["where"] == "zürich" for message in received)
