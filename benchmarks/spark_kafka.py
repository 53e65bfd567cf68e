"""The yard-stick of the Spark benchmark: a Kafka broker of one node, and Spark's own source and sink for it, from Maven.

The class paths are those of benchmarks/kafka/pom.xml. Kafka gets what its guides recommend for such a machine: a heap of 1 GB,
8 partitions, one replica, no flush by hand, as our broker has none either.
"""

from __future__ import annotations

import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.interop.processes import Process, free_port, killed_on_failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

_PROJECT: Final = Path(__file__).parent / "kafka"
_TUNED: Final = {"kafka.fetch.max.wait.ms": "10"}
_HEADERS_AS_MAP: Final = (
    "map_from_entries(transform(headers, h -> struct(h.key, cast(h.value AS STRING)))) AS properties"
)


def class_path(part: str) -> list[str]:
    """Of "broker" or "connector"; fetched by Maven when it is not there yet."""
    listing = _PROJECT / "target" / part / "classpath.txt"
    if not listing.exists() or not all(Path(jar).exists() for jar in listing.read_text().strip().split(":")):
        command = ["mvn", "--quiet", "--batch-mode", f"-P{part}", "compile"]
        subprocess.run(command, cwd=_PROJECT, check=True)
    return listing.read_text().strip().split(":")


@dataclass(frozen=True, slots=True)
class Kafka:
    address: str
    process: Process


def start_kafka(folder: Path, partitions: int) -> Kafka:
    folder.mkdir(parents=True)
    port = free_port()
    controller = free_port()
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "log.dirs": str(folder / "log"),
        "num.partitions": str(partitions),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "file.delete.delay.ms": "1000",
    }
    file = folder / "server.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    java = [
        "java",
        "-Xmx1g",
        "-Xms1g",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-cp",
        ":".join(class_path("broker")),
    ]
    identity = ["--cluster-id", uuid.uuid4().hex[:22], "--config", str(file)]
    subprocess.run([*java, "kafka.tools.StorageTool", "format", *identity], check=True, capture_output=True)
    process = Process([*java, "kafka.Kafka", str(file)], folder / "kafka.out")
    with killed_on_failure(process):
        process.wait_for_line("Kafka Server started")
    return Kafka(f"127.0.0.1:{port}", process)


def create_topic(spark: SparkSession, kafka: Kafka, topic: str, partitions: int) -> None:
    """Beforehand: producers of a job that made it themselves would measure how they wait for it."""
    jvm: Any = spark.sparkContext._jvm
    settings = jvm.java.util.HashMap()
    settings["bootstrap.servers"] = kafka.address
    admin = jvm.org.apache.kafka.clients.admin.Admin.create(settings)
    new = jvm.org.apache.kafka.clients.admin.NewTopic(topic, _optional(jvm, partitions), jvm.java.util.Optional.empty())
    admin.createTopics(jvm.java.util.List.of(new)).all().get()
    admin.close()


def delete_topics(spark: SparkSession, kafka: Kafka, *topics: str) -> None:
    jvm: Any = spark.sparkContext._jvm
    settings = jvm.java.util.HashMap()
    settings["bootstrap.servers"] = kafka.address
    admin = jvm.org.apache.kafka.clients.admin.Admin.create(settings)
    names = jvm.java.util.ArrayList()
    for topic in topics:
        names.add(topic)
    admin.deleteTopics(names).all().get()
    admin.close()


def _optional(jvm: Any, value: int) -> Any:
    return jvm.java.util.Optional.of(value)


def kafka_rows(rows: DataFrame) -> DataFrame:
    """The rows of the generator as Kafka's sink takes them: what are properties with us are headers with Kafka."""
    headers = (
        "transform(map_entries(properties), p -> struct(p.key AS key, cast(p.value AS BINARY) AS value)) AS headers"
    )
    return rows.selectExpr("cast(keys AS BINARY) AS key", "body AS value", headers)


def write(rows: DataFrame, kafka: Kafka, topic: str) -> None:
    options = {"kafka.bootstrap.servers": kafka.address, "topic": topic, "includeHeaders": "true"}
    kafka_rows(rows).write.format("kafka").options(**options).mode("append").save()


def reading_options(kafka: Kafka, topic: str, *, tuned: bool) -> Mapping[str, str]:
    given = {
        "kafka.bootstrap.servers": kafka.address,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
    }
    return given | (_TUNED if tuned else {})


def source(spark: SparkSession, kafka: Kafka, topic: str, *, tuned: bool) -> DataFrame:
    return spark.read.format("kafka").options(**reading_options(kafka, topic, tuned=tuned)).load()


def with_map(frame: DataFrame) -> DataFrame:
    columns = ("key", "value", "topic", "partition", "offset", "timestamp")
    return frame.selectExpr(*columns, _HEADERS_AS_MAP)


class PacedProducer:
    """Kafka's own, in Spark's JVM."""

    def __init__(self, spark: SparkSession, kafka: Kafka) -> None:
        jvm: Any = spark.sparkContext._jvm
        settings = jvm.java.util.HashMap()
        settings["bootstrap.servers"] = kafka.address
        kind = "org.apache.kafka.common.serialization.ByteArraySerializer"
        settings["key.serializer"] = settings["value.serializer"] = kind
        self._jvm = jvm
        self._producer = jvm.org.apache.kafka.clients.producer.KafkaProducer(settings)

    def send(self, topic: str, body: bytes) -> None:
        self._producer.send(self._jvm.org.apache.kafka.clients.producer.ProducerRecord(topic, bytearray(body)))

    def close(self) -> None:
        self._producer.close()
