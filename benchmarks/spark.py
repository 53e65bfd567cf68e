"""The pipeline on Spark: `python -m benchmarks spark [--quick] [--messages N] [--bodies 1024,100] [--without-kafka] [--only TEXT]`.

    make setup && .venv/bin/python -m benchmarks spark      the whole: about 20 minutes on two quiet cores, 13 GB below $TMPDIR

    generator           rows made inside the JVM, with the same columns: the ceiling, -> noop and -> Parquet
    source              format("rocketmq") from our broker, -> noop and -> Parquet through the JVM
    availableNow        the same as a stream, in micro-batches of a quarter, a task for each core (maxPartitions), -> noop
    archive             topics into Parquet, written in the workers
    store scan          format("rocketmq-store") over the broker's directory, -> noop and -> Parquet through the JVM
    export-store        the same into Parquet, written in the workers
    sink                rows of the generator into a topic, half as many: what is written stays on the disk
    Kafka ...           the same jobs with Spark's own Kafka source and sink, with a short fetch.max.wait.ms (one also as it comes)
    latency             micro-batches at 200 messages a second, ours and Kafka's

8 queues, 5 properties a message, `local[2]`; brokers, Spark and its workers share the machine. Each figure is the best of the
runs: a busy machine only makes it smaller; processor time a row, by part, stands beside it. Results: benchmarks/results/spark.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.interop import orbit

import orbitmq as mq
from benchmarks import spark_kafka
from benchmarks.machine import about
from benchmarks.spark_latency import micro_batches
from benchmarks.spark_measure import Bench
from benchmarks.spark_table import LATENCY, table
from orbitmq.admin.session import open_session
from orbitmq.admin.topics import TopicPlan, create_topic
from orbitmq.clock import SystemClock
from orbitmq.spark.access import close_links
from orbitmq.spark.archive import Archive
from orbitmq.spark.registration import register
from orbitmq.spark.session import parse_conf, start_session
from orbitmq.spark.source_options import source_options, source_schema
from orbitmq.spark.store_export import export_store
from orbitmq.spark.store_options import parse_options
from orbitmq.sync import connect
from orbitmq.transport.loop import run as run_loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.spark_kafka import Kafka

RESULTS: Final = Path(__file__).parent / "results" / "spark.json"
QUEUES: Final = 8
BATCH: Final = 200
MESSAGES: Final = 2_000_000
QUICK_MESSAGES: Final = 200_000
PROPERTIES: Final = {"region": "eu-central-1", "shop": "berlin-mitte"}


async def create_topics(name_server: str, *topics: str) -> None:
    """Beforehand: one that sending makes has four queues."""
    async with open_session(name_server) as session:
        for topic in topics:
            await create_topic(
                session, TopicPlan(topic=topic, read_queues=QUEUES, write_queues=QUEUES), broker="orbit-a"
            )


async def fill(name_server: str, topic: str, count: int, body: bytes) -> None:
    """Messages with a key and a tag: five properties with the id that the client gives."""
    async with mq.connect(name_server) as client, client.producer("bench-fill", timeout=60) as producer:

        async def send(first: int) -> None:
            messages = [
                mq.Message(topic, body, tag="paid", keys=f"order-{number}", properties=PROPERTIES)
                for number in range(first, min(first + BATCH, count))
            ]
            await producer.send_batch(topic, messages)

        for start in range(0, count, 8 * BATCH):
            await asyncio.gather(*(send(first) for first in range(start, min(start + 8 * BATCH, count), BATCH)))


def generated(spark: SparkSession, count: int, body_bytes: int) -> DataFrame:
    """Rows like those of the source, made by the JVM."""
    return spark.range(0, count, 1, QUEUES).selectExpr(
        "'Bench' AS topic", "'paid' AS tags", "concat('order-', id) AS keys",
        f"cast(repeat('x', {body_bytes}) AS BINARY) AS body",
        "map('UNIQ_KEY', hex(id), 'TAGS', 'paid', 'KEYS', concat('order-', id), 'region', 'eu', 'shop', 'b') AS properties",
    )  # fmt: skip


def noop(frame: DataFrame) -> Callable[[Path], None]:
    return lambda _: frame.write.format("noop").mode("overwrite").save()


def to_parquet(frame: DataFrame) -> Callable[[Path], None]:
    return lambda scratch: frame.write.parquet(str(scratch))


def available_now(reading: DataFrame) -> Callable[[Path], None]:
    def run(scratch: Path) -> None:
        writing = reading.writeStream.format("noop").option("checkpointLocation", str(scratch))
        writing.trigger(availableNow=True).start().awaitTermination()

    return run


def measure_generator(bench: Bench, spark: SparkSession, body_bytes: int) -> None:
    rows = generated(spark, bench.count, body_bytes)
    bench.measure(f"{body_bytes} B generator -> noop", noop(rows))
    bench.measure(f"{body_bytes} B generator -> parquet", to_parquet(rows))


def measure_ours(bench: Bench, spark: SparkSession, name_server: str, store: Path, body_bytes: int) -> None:
    topic = f"Bench{body_bytes}"
    options = {"nameServer": name_server, "subscribe": topic, "startingOffsets": "earliest"}
    # Kafka's are tuned as well: no more tasks than run at once, since each costs a Python worker some 50 ms.
    in_quarters = {
        "maxOffsetsPerTrigger": str(max(1, bench.count // 4)),
        "maxPartitions": str(spark.sparkContext.defaultParallelism),
    }
    source = spark.read.format("rocketmq").options(**options).load()
    stream = spark.readStream.format("rocketmq").options(**options, **in_quarters).load()
    scan = spark.read.format("rocketmq-store").options(subscribe=topic).load(str(store))

    def archive(scratch: Path) -> None:
        Archive(
            spark,
            source_options(options, streaming=True),
            source_schema(options),
            str(scratch),
            layout="topic",
            compression="snappy",
            clock=SystemClock(),
        ).run_once()

    def sink(_: Path) -> None:
        to = {"nameServer": name_server, "topic": f"{topic}Sink"}
        rows = generated(spark, bench.count // 2, body_bytes).drop("topic")
        rows.write.format("rocketmq").options(**to).mode("append").save()

    def export(scratch: Path) -> None:
        wanted, _, schema = parse_options({"path": str(store), "subscribe": topic})
        done = export_store(
            spark, wanted, schema, str(scratch), layout="topic", compression="snappy", clock=SystemClock()
        )
        assert done.rows == bench.count, f"{done.rows} rows exported of {bench.count}"

    assert source.count() == scan.count() == bench.count
    bench.measure(f"{body_bytes} B source -> noop", noop(source))
    bench.measure(f"{body_bytes} B source -> parquet", to_parquet(source))
    bench.measure(f"{body_bytes} B availableNow -> noop", available_now(stream))
    bench.measure(f"{body_bytes} B archive", archive)
    bench.measure(f"{body_bytes} B store scan -> noop", noop(scan))
    bench.measure(f"{body_bytes} B store scan -> parquet", to_parquet(scan))
    bench.measure(f"{body_bytes} B export-store", export)
    bench.measure(f"{body_bytes} B sink", sink, bench.count // 2)


def measure_kafka(bench: Bench, spark: SparkSession, kafka: Kafka, body_bytes: int) -> None:
    topic = f"Bench{body_bytes}"
    rows = generated(spark, bench.count, body_bytes)
    for one in (topic, f"{topic}Sink"):
        spark_kafka.create_topic(spark, kafka, one, QUEUES)
    spark_kafka.write(rows, kafka, topic)
    for tuned in (False, True):
        how = "Kafka, tuned:" if tuned else "Kafka:"
        source = spark_kafka.source(spark, kafka, topic, tuned=tuned)
        if tuned:
            assert source.count() == bench.count
        options = spark_kafka.reading_options(kafka, topic, tuned=tuned)
        in_quarters = {"maxOffsetsPerTrigger": str(max(1, bench.count // 4))}
        stream = spark.readStream.format("kafka").options(**options, **in_quarters).load()
        bench.measure(f"{body_bytes} B {how} source -> noop", noop(source))
        if not tuned:
            continue
        bench.measure(f"{body_bytes} B {how} source, map -> parquet", to_parquet(spark_kafka.with_map(source)))
        bench.measure(f"{body_bytes} B {how} availableNow -> noop", available_now(stream))
    half = generated(spark, bench.count // 2, body_bytes)
    bench.measure(
        f"{body_bytes} B Kafka: sink", lambda _: spark_kafka.write(half, kafka, f"{topic}Sink"), bench.count // 2
    )
    spark_kafka.delete_topics(spark, kafka, topic, f"{topic}Sink")


def measure_latency(
    spark: SparkSession, name_server: str, kafka: Kafka | None, folder: Path, seconds: float
) -> dict[str, Any]:
    topic, body = "Latency", b"x" * 1024
    found: dict[str, Any] = {}
    with connect(name_server) as client, client.producer("bench-latency") as producer:
        run_loop(create_topics(name_server, topic))
        producer.send(topic, body)
        options = {"nameServer": name_server, "subscribe": topic, "startingOffsets": "latest"}
        frame = spark.readStream.format("rocketmq").options(**options).load()
        found["ours"] = micro_batches(
            frame, "bornTimestamp", lambda: producer.send(topic, body), folder / "latency", seconds
        )
    if kafka is not None:
        spark_kafka.create_topic(spark, kafka, topic, QUEUES)
        kafka_producer = spark_kafka.PacedProducer(spark, kafka)
        kafka_producer.send(topic, body)
        options = {**spark_kafka.reading_options(kafka, topic, tuned=True), "startingOffsets": "latest"}
        frame = spark.readStream.format("kafka").options(**options).load()
        found["Kafka, tuned"] = micro_batches(
            frame, "timestamp", lambda: kafka_producer.send(topic, body), folder / "latency-kafka", seconds
        )
        kafka_producer.close()
    for whose, figures in found.items():
        print(f"  latency, {whose}: " + ", ".join(f"{name} {value}" for name, value in figures.items()), flush=True)
    return found


def measure_bodies(
    spark: SparkSession,
    name_server: str,
    kafka: Kafka | None,
    folder: Path,
    wanted: argparse.Namespace,
    body_bytes: int,
) -> dict[str, Any]:
    """All jobs with bodies of one size, on a broker of their own: its files go when they are done."""
    jvm: Any = spark.sparkContext._gateway
    settings: dict[str, str | int] = {"mappedFileSizeCommitLog": 256 << 20}
    broker = orbit.start_broker(folder / f"broker-{body_bytes}", name_server, settings=settings)
    try:
        brokers = {"broker": broker.process.pid} | ({"Kafka": kafka.process.pid} if kafka is not None else {})
        bench = Bench(folder, wanted.messages, wanted.runs, wanted.only, jvm.proc.pid, brokers)
        topic = f"Bench{body_bytes}"
        print(f"{bench.count:,} messages of {body_bytes} bytes", flush=True)
        measure_generator(bench, spark, body_bytes)
        run_loop(create_topics(name_server, topic, f"{topic}Sink"))
        run_loop(fill(name_server, topic, bench.count, b"x" * body_bytes))
        measure_ours(bench, spark, name_server, folder / f"broker-{body_bytes}" / "store", body_bytes)
        if kafka is not None:
            measure_kafka(bench, spark, kafka, body_bytes)
        return bench.figures
    finally:
        close_links()
        broker.process.stop()
        shutil.rmtree(folder / f"broker-{body_bytes}", ignore_errors=True)


def run(argv: list[str]) -> None:
    wanted = _arguments(argv)
    wanted.messages = wanted.messages or (QUICK_MESSAGES if wanted.quick else MESSAGES)
    wanted.runs = wanted.runs or (2 if wanted.quick else 3)
    bodies = [int(size) for size in wanted.bodies.split(",") if size]
    head = about(messages=wanted.messages, queues=QUEUES, runs=wanted.runs)
    figures: dict[str, Any] = {}
    conf = {"spark.driver.memory": "2g", "spark.sql.streaming.numRecentProgressUpdates": "10000"}
    if not wanted.without_kafka:
        conf["spark.jars"] = ",".join(spark_kafka.class_path("connector"))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="orbitmq-bench-spark-")))
        name_server = orbit.start_name_server(folder / "namesrv")
        stack.callback(name_server.process.stop)
        kafka: Kafka | None = None
        if not wanted.without_kafka:
            kafka = spark_kafka.start_kafka(folder / "kafka", QUEUES)
            stack.callback(kafka.process.stop)
        spark = start_session("orbitmq bench", master=wanted.master, conf=conf | parse_conf(tuple(wanted.conf)))
        stack.callback(spark.stop)
        register(spark)
        for body_bytes in bodies:
            figures |= measure_bodies(spark, name_server.address, kafka, folder, wanted, body_bytes)
        if wanted.latency_seconds:
            broker = orbit.start_broker(folder / "broker-latency", name_server.address)
            stack.callback(broker.process.stop)
            figures[LATENCY] = measure_latency(spark, name_server.address, kafka, folder, wanted.latency_seconds)
    print("\n".join(["", *table(figures, bodies)]), flush=True)
    if not wanted.quick and not wanted.only:
        RESULTS.write_text(json.dumps({**head, "figures": figures}, indent=2) + "\n")


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks spark", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_MESSAGES:,} messages, two runs; nothing is kept")
    parser.add_argument("--messages", type=int, help=f"{MESSAGES:,} unless --quick")
    parser.add_argument("--bodies", default="1024,100", help="sizes of bodies, separated by commas; empty for none")
    parser.add_argument("--runs", type=int, help="3 unless --quick; the best counts")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting for Spark")
    parser.add_argument("--without-kafka", action="store_true", help="no Maven, no Kafka")
    parser.add_argument("--only", default="", help="only jobs whose name holds this text; nothing is kept")
    parser.add_argument("--latency-seconds", type=float, default=30.0, help="0: no measurement of latency")
    return parser.parse_args(argv)
