"""A program for spark-submit: a topic copied by a stream and archived by the command, on whatever cluster it is submitted to.

spark-submit ... tests/spark/cluster_job.py NAME_SERVER FOLDER    prints, as its last line, what it saw, as JSON
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

from orbitmq.cli.entry import cli
from orbitmq.spark import register
from orbitmq.spark.session import start_session

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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


def copy(spark: SparkSession, name_server: str, checkpoint: Path) -> None:
    source = spark.readStream.format("rocketmq").options(nameServer=name_server, subscribe="Orders")
    rows = source.options(startingOffsets="earliest", minPartitions="4").load().select("body", "tags")
    sink = rows.writeStream.format("rocketmq").options(nameServer=name_server, topic="Copies")
    sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()


def main() -> None:
    name_server, folder = sys.argv[1], Path(sys.argv[2])
    driver_only = folder / "driver"
    (driver_only / "secret.txt").write_text("here", encoding="utf-8")
    spark = start_session("cluster test")
    register(spark)
    saw: dict[str, Any] = {"master": spark.sparkContext.master}
    saw["executors"] = executors(spark, str(driver_only / "secret.txt"))
    copy(spark, name_server, driver_only / "checkpoint")
    done = CliRunner().invoke(cli, ["spark", "archive", "Orders", "--to", str(folder / "lake"), "-n", name_server])
    assert done.exit_code == 0, done.output
    saw["archived"] = spark.read.parquet(str(folder / "lake")).count()
    spark.stop()
    print(json.dumps(saw))  # noqa: T201 - for the test that started it


if __name__ == "__main__":
    main()
