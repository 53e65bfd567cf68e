"""A program for spark-submit: a topic streamed into files while an executor is killed, written to another topic, and archived.

spark-submit ... tests/spark/cluster_job.py NAME_SERVER FOLDER    prints, as its last line, what it saw, as JSON
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner
from pyspark.sql.functions import udf
from pyspark.sql.types import BinaryType

from orbitmq.cli.entry import cli
from orbitmq.spark import register
from orbitmq.spark.session import start_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import SparkSession

EXECUTORS = 2


def executors(spark: SparkSession, driver_file: str) -> list[dict[str, str]]:
    """What every executor sees: one task on each, all at the same time."""

    def look(_: Iterable[int]) -> Iterator[dict[str, str]]:
        import orbitmq.spark.source

        try:
            Path(driver_file).read_text(encoding="utf-8")
            refused = ""
        except FileNotFoundError as error:
            refused = str(error)
        yield {"folder": os.getcwd(), "package": orbitmq.spark.source.__file__, "refused": refused}  # noqa: PTH109

    return spark.sparkContext.parallelize(range(EXECUTORS), EXECUTORS).barrier().mapPartitions(look).collect()


def killing_stage(order: str) -> Callable[[bytes], bytes]:
    """Gives bodies back; the first worker that finds the file `order` takes it away and kills its executor with -9."""

    def stage(body: bytes) -> bytes:
        import pathlib
        import signal
        import time

        path = pathlib.Path(order)
        if path.exists():
            path.unlink()
            daemon = pathlib.Path(f"/proc/{os.getppid()}/stat").read_text(encoding="utf-8")
            os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)
            time.sleep(600)  # until what is left of the executor is gone
        return body

    return stage


def stream_to_files(spark: SparkSession, name_server: str, checkpoint: Path, lake: Path, order: Path) -> None:
    order.touch()
    source = spark.readStream.format("rocketmq").options(nameServer=name_server, subscribe="Orders")
    rows = source.options(startingOffsets="earliest", minPartitions="4").load()
    rows = rows.withColumn("body", udf(killing_stage(str(order)), BinaryType(), useArrow=False)("body"))
    files = rows.writeStream.format("parquet").option("path", str(lake)).option("checkpointLocation", str(checkpoint))
    files.trigger(availableNow=True).start().awaitTermination()


def main() -> None:
    name_server, folder = sys.argv[1], Path(sys.argv[2])
    driver_only = folder / "driver"
    (driver_only / "secret.txt").write_text("here", encoding="utf-8")
    spark = start_session("cluster test")
    register(spark)
    saw: dict[str, Any] = {"master": spark.sparkContext.master}
    saw["executors"] = executors(spark, str(driver_only / "secret.txt"))
    stream_to_files(spark, name_server, driver_only / "checkpoint", folder / "streamed", folder / "die")
    streamed = spark.read.parquet(str(folder / "streamed"))
    saw["streamed"] = [tuple(row) for row in streamed.select("brokerName", "queueId", "queueOffset").collect()]
    to = {"nameServer": name_server, "topic": "Copies"}
    streamed.select("body", "tags").write.format("rocketmq").options(**to).mode("append").save()
    done = CliRunner().invoke(cli, ["spark", "archive", "Orders", "--to", str(folder / "lake"), "-n", name_server])
    assert done.exit_code == 0, done.output
    saw["archived"] = spark.read.parquet(str(folder / "lake")).count()
    spark.stop()
    print(json.dumps(saw))  # noqa: T201 - for the test that started it


if __name__ == "__main__":
    main()
