"""A query from a topic to Parquet that can be stopped dead at a chosen place. Run as a program, it is a driver to be killed.

python -m tests.spark.ledger NAME_SERVER TOPIC FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.functions import udf
from pyspark.sql.types import BinaryType

from orbitmq.spark.session import start_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    Stage = Callable[[bytes], bytes]


def hanging_stage(folder: str, from_batch: int) -> Stage:
    """Gives bodies back; in the middle of micro-batch `from_batch` it says so in a file and goes no further."""
    seen = {"rows": 0}  # in the worker: the function travels with it

    def stage(body: bytes) -> bytes:
        import pathlib
        import time

        from pyspark import TaskContext

        seen["rows"] += 1
        context = TaskContext.get()
        assert context is not None
        if int(context.getLocalProperty("streaming.sql.batchId") or 0) >= from_batch and seen["rows"] % 30 == 0:
            pathlib.Path(folder, "hanging").touch()
            time.sleep(600)
        return body

    return stage


def dying_stage(folder: str, after_rows: int) -> Stage:
    """Gives bodies back; when there is a file `die`, the worker is killed after so many of them, once there is one `now`."""
    seen = {"rows": 0}

    def stage(body: bytes) -> bytes:
        import os
        import pathlib
        import signal
        import time

        seen["rows"] += 1
        order = pathlib.Path(folder, "die")
        if seen["rows"] >= after_rows and order.exists():
            order.unlink()
            while not pathlib.Path(folder, "now").exists():
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)
        return body

    return stage


def start(
    spark: SparkSession, name_server: str, topic: str, folder: Path, stage: Stage, driver_rows: int = 1000
) -> StreamingQuery:
    source = spark.readStream.format("rocketmq").options(
        nameServer=name_server,
        subscribe=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger="100",
        driverRows=str(driver_rows),
    )
    return (
        source.load()
        .withColumn("body", udf(stage, BinaryType(), useArrow=False)("body"))
        .writeStream.format("parquet")
        .option("path", str(folder / "lake"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def main() -> None:
    name_server, topic, folder = sys.argv[1:]
    conf = {"spark.driver.memory": "600m", "spark.sql.shuffle.partitions": "2", "spark.local.dir": f"{folder}/local"}
    spark = start_session("ledger", master="local[2]", conf=conf)
    start(spark, name_server, topic, Path(folder), hanging_stage(folder, from_batch=1)).awaitTermination()


if __name__ == "__main__":
    main()
