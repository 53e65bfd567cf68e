"""The pipeline on Spark: `python -m benchmarks spark [--quick] [--messages N] [--bodies 1024,100]`.

    generator           rows made inside the JVM, with the same columns: the ceiling, -> noop and -> Parquet
    source              format("rocketmq") from our broker, -> noop and -> Parquet through the JVM
    availableNow        the same as a stream, in micro-batches of a quarter, -> noop
    archive             topics into Parquet, written in the workers
    sink                rows of the generator into a topic
    store scan          format("rocketmq-store") over the broker's directory, -> noop
    export-store        the same into Parquet, written in the workers

Rows a second by the clock; 8 queues, 5 properties a message, `local[2]`; broker, Spark and its workers share the machine. Each
figure is the best of the runs: a busy machine only makes it smaller. Results: benchmarks/results/spark.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.interop import orbit

import orbitmq as mq
from orbitmq.clock import SystemClock
from orbitmq.spark.archive import Archive
from orbitmq.spark.registration import register
from orbitmq.spark.session import start_session
from orbitmq.spark.source_options import source_options, source_schema
from orbitmq.spark.store_export import export_store
from orbitmq.spark.store_options import parse_options
from orbitmq.transport.loop import run as run_loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

RESULTS: Final = Path(__file__).parent / "results" / "spark.json"
QUEUES: Final = 8
BATCH: Final = 200
PROPERTIES: Final = {"region": "eu-central-1", "shop": "berlin-mitte", "version": "17"}


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


class Bench:
    def __init__(self, spark: SparkSession, folder: Path, count: int, runs: int) -> None:
        self.spark = spark
        self.folder = folder
        self.count = count
        self.runs = runs
        self.figures: dict[str, float] = {}

    def measure(self, name: str, work: Callable[[Path], None]) -> None:
        best = 0.0
        for run in range(self.runs):
            scratch = self.folder / f"run-{run}"
            started = time.perf_counter()
            work(scratch)
            best = max(best, self.count / (time.perf_counter() - started))
            shutil.rmtree(scratch, ignore_errors=True)
        self.figures[name] = best
        print(f"  {name:32} {best:>12,.0f} rows/s", flush=True)


def measure_body(bench: Bench, name_server: str, store: Path, topic: str, body_bytes: int) -> None:
    spark = bench.spark
    options = {"nameServer": name_server, "subscribe": topic, "startingOffsets": "earliest", "minPartitions": "8"}

    def noop(frame: DataFrame) -> Callable[[Path], None]:
        return lambda _: frame.write.format("noop").mode("overwrite").save()

    def to_parquet(frame: DataFrame) -> Callable[[Path], None]:
        return lambda scratch: frame.write.parquet(str(scratch))

    def source() -> DataFrame:
        return spark.read.format("rocketmq").options(**options).load()

    def stream(scratch: Path) -> None:
        limit = str(max(1, bench.count // 4))
        reading = spark.readStream.format("rocketmq").options(**options, maxOffsetsPerTrigger=limit).load()
        writing = reading.writeStream.format("noop").option("checkpointLocation", str(scratch))
        writing.trigger(availableNow=True).start().awaitTermination()

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
        rows = generated(spark, bench.count, body_bytes)
        rows.drop("topic").write.format("rocketmq").options(nameServer=name_server, topic=f"{topic}Sink").mode(
            "append"
        ).save()

    def export(scratch: Path) -> None:
        scan, _, schema = parse_options({"path": str(store), "subscribe": topic})
        done = export_store(
            spark, scan, schema, str(scratch), layout="topic", compression="snappy", clock=SystemClock()
        )
        assert done.rows == bench.count, f"{done.rows} rows exported of {bench.count}"

    scan = spark.read.format("rocketmq-store").options(subscribe=topic).load(str(store))
    assert source().count() == scan.count() == bench.count
    bench.measure(f"{body_bytes} B generator -> noop", noop(generated(spark, bench.count, body_bytes)))
    bench.measure(f"{body_bytes} B generator -> parquet", to_parquet(generated(spark, bench.count, body_bytes)))
    bench.measure(f"{body_bytes} B source -> noop", noop(source()))
    bench.measure(f"{body_bytes} B source -> parquet", to_parquet(source()))
    bench.measure(f"{body_bytes} B availableNow -> noop", stream)
    bench.measure(f"{body_bytes} B archive", archive)
    bench.measure(f"{body_bytes} B store scan -> noop", noop(scan))
    bench.measure(f"{body_bytes} B store scan -> parquet", to_parquet(scan))
    bench.measure(f"{body_bytes} B export-store", export)
    bench.measure(f"{body_bytes} B sink", sink)


def run(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks spark", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="20,000 messages, one run: only to see that all works")
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--bodies", default="1024,100", help="sizes of bodies, separated by commas")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    wanted = parser.parse_args(argv)
    count, runs = (20_000, 1) if wanted.quick else (wanted.messages, wanted.runs)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="orbitmq-bench-spark-") as scratch:
        folder = Path(scratch)
        name_server = orbit.start_name_server(folder / "namesrv")
        settings: dict[str, str | int] = {"mappedFileSizeCommitLog": 256 << 20, "defaultTopicQueueNums": QUEUES}
        broker = orbit.start_broker(folder / "broker", name_server.address, settings=settings)
        spark = start_session("orbitmq bench", master=wanted.master, conf={"spark.driver.memory": "2g"})
        register(spark)
        try:
            for body_bytes in map(int, wanted.bodies.split(",")):
                topic = f"Bench{body_bytes}"
                print(f"{count:,} messages of {body_bytes} bytes", flush=True)
                run_loop(fill(name_server.address, topic, count, b"x" * body_bytes))
                bench = Bench(spark, folder, count, runs)
                measure_body(bench, name_server.address, folder / "broker" / "store", topic, body_bytes)
                figures |= bench.figures
        finally:
            spark.stop()
            broker.process.stop()
            name_server.process.stop()
    if not wanted.quick:
        RESULTS.write_text(json.dumps(_report(count, figures), indent=2) + "\n")


def _report(count: int, figures: dict[str, float]) -> dict[str, Any]:
    return {
        "messages": count,
        "queues": QUEUES,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
        "rows a second": {name: round(value) for name, value in figures.items()},
    }
