"""Every message once: drivers and workers killed in mid-batch, the broker restarted, the checkpoint resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.functions import udf
from pyspark.sql.types import BinaryType

from orbitmq.spark.property_texts import DEDUP_ID
from orbitmq.sync import connect
from orbitmq.testing import Server
from tests.spark.direct import read, send, wait_for_topic
from tests.spark.ledger import dying_stage, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]  # a second session is started here

ROOT = Path(__file__).parent.parent.parent


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 240
    while not path.exists():
        assert process.poll() is None, "the driver ended by itself"
        assert time.monotonic() < deadline, f"{path} does not come"
        time.sleep(0.05)


def killed_driver(server: Server, folder: Path) -> None:
    """A driver that got through one micro-batch and was killed in the middle of the second, with everything it started."""
    command = [sys.executable, "-m", "tests.spark.ledger", server.address, "Ledger", str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    with (folder / "driver.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            wait_for(folder / "hanging", process)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_an_archive_holds_each_message_once_whatever_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Server(data=data) as server:
        send(server, "Ledger", [f"{number}" for number in range(200)])
        killed_driver(server, tmp_path)
    with Server(data=data) as server:  # the same store behind other ports
        wait_for_topic(server, "Ledger")
        send(server, "Ledger", [f"{number}" for number in range(200, 250)])
        (tmp_path / "die").touch()
        (tmp_path / "now").touch()
        with pytest.raises(PySparkException, match="Python worker"):
            start(spark, server.address, "Ledger", tmp_path, dying_stage(str(tmp_path), 30)).awaitTermination()
        assert not (tmp_path / "die").exists(), "a worker was killed"
        start(spark, server.address, "Ledger", tmp_path, dying_stage(str(tmp_path), 30)).awaitTermination()
        want = {
            (row["brokerName"], row["queueId"], row["queueOffset"]): row["body"]
            for row in read(server, subscribe="Ledger")
        }
    rows = spark.read.parquet(str(tmp_path / "lake")).select("brokerName", "queueId", "queueOffset", "body").collect()
    times = Counter((row.brokerName, row.queueId, row.queueOffset) for row in rows)
    assert set(times.values()) == {1}
    assert {(row.brokerName, row.queueId, row.queueOffset): bytes(row.body) for row in rows} == want
    assert len(want) == 250
    batches = sorted(int(path.name) for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    assert batches == list(range(len(batches)))


def touch_when_stored(server: Server, topic: str, path: Path) -> None:
    wait_for_topic(server, topic, seconds=240)
    path.touch()


def test_what_a_killed_sink_sends_again_carries_the_same_ids(spark: SparkSession, tmp_path: Path) -> None:
    rows_at_once = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")  # so that some are sent before the end

    def copy(server: Server) -> None:
        source = spark.readStream.format("rocketmq").options(nameServer=server.address, subscribe="From")
        stage = udf(dying_stage(str(tmp_path), 1000), BinaryType(), useArrow=False)
        frame = source.option("startingOffsets", "earliest").load().select(stage("body").alias("body"))
        sink = frame.writeStream.format("rocketmq")
        sink = sink.options(nameServer=server.address, topic="To", checkpointLocation=str(tmp_path / "checkpoint"))
        sink.trigger(availableNow=True).start().awaitTermination()

    try:
        with Server() as server:
            with connect(server.address) as client, client.producer(group="tests") as producer:
                producer.send_batch("From", [b"%06d" % number * 100 for number in range(1500)], order_key="one queue")
            wait_for_topic(server, "From")
            (tmp_path / "die").touch()
            watch = threading.Thread(target=touch_when_stored, args=(server, "To", tmp_path / "now"))
            watch.start()
            with pytest.raises(PySparkException):
                copy(server)
            watch.join()
            copy(server)
            wait_for_topic(server, "To")
            rows = read(server, subscribe="To")
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", rows_at_once or "10000")
    ids: dict[bytes, set[str]] = {}
    for row in rows:
        ids.setdefault(row["body"], set()).add(dict(row["properties"])[DEDUP_ID])
    assert len(ids) == 1500
    assert len(rows) > 1500, "the first attempt had sent some"
    assert all(len(of_body) == 1 for of_body in ids.values())
    assert len({one for of_body in ids.values() for one in of_body}) == 1500
