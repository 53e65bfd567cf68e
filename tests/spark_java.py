"""The JVMs that Spark starts in tests, many of them for seconds: with the quick compiler alone, and their classes from an archive.

    python -m tests.spark_java     makes the archive, unless it is there

On two cores `orbitmq spark sql 'SELECT 1'` takes 31 s of processor time as it is, 20 s without the thorough compiler, 12 s with both.
"""

from __future__ import annotations

import os
import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

_QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SUBMITTED_WITH: Final = "PYSPARK_SUBMIT_ARGS"  # for every driver that this process and its children start
_ARCHIVE: Final = Path(sys.prefix) / f"spark-{version('pyspark')}.jsa"


def start_quickly() -> None:
    """From now on. An archive of another Java, or of other jars, is left alone by the JVM, without a word."""
    archived = f" -XX:SharedArchiveFile={_ARCHIVE} -Xlog:disable -Xlog:all=error:stderr" if _ARCHIVE.exists() else ""
    _give(_QUICK + archived)


def make_archive() -> None:
    """Of the classes that a session has loaded when it has sorted a little, written a table and streamed it."""
    from pyspark import SparkContext

    from orbitmq.spark.session import start_session

    unfinished = _ARCHIVE.with_suffix(".unfinished")
    _give(f"{_QUICK} -XX:ArchiveClassesAtExit={unfinished} -Xlog:disable")
    session = start_session("orbitmq-archive")
    with TemporaryDirectory() as folder:
        table = f"{folder}/table"
        counts = session.sql("SELECT id % 10 AS tens, count(*) AS held FROM range(1000) GROUP BY tens ORDER BY tens")
        counts.write.parquet(table)
        stream = session.readStream.schema(counts.schema).parquet(table).writeStream.format("noop")
        stream = stream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
        stream.start().awaitTermination()
        session.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()  # it writes the archive when it ends
    if unfinished.exists():  # not every Java makes one
        unfinished.replace(_ARCHIVE)


def _give(options: str) -> None:
    setting = f"spark.driver.defaultJavaOptions={options}"
    os.environ[_SUBMITTED_WITH] = f"--conf {shlex.quote(setting)} pyspark-shell"


if __name__ == "__main__" and not _ARCHIVE.exists():
    make_archive()
