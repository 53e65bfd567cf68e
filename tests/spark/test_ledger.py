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
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.functions import udf
from pyspark.sql.types import BinaryType

from orbitmq.spark.lake import Lake
from orbitmq.spark.property_texts import DEDUP_ID
from orbitmq.spark.registration import register
from orbitmq.sync import connect
from orbitmq.testing import Server
from tests.spark.direct import read, send, wait_for_topic
from tests.spark.ledger import dying_stage, start
from tests.spark.table_ledger import ARCHIVES, KINDS, STREAMED, STREAMS, a_stream, an_archive
from tests.spark.tables import table_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(1500)]  # a second session is started here

ROOT = Path(__file__).parent.parent.parent


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 400
    while not path.exists():
        assert process.poll() is None, "the driver ended by itself"
        assert time.monotonic() < deadline, f"{path} does not come"
        time.sleep(0.05)


def killed_driver(program: list[str], folder: Path, signs: list[str]) -> None:
    """A driver that came as far as its signs tell, and was killed there with everything it started."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-m", *program]
    with (folder / "driver.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            for sign in signs:
                wait_for(folder / sign, process)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    for sign in signs:
        (folder / sign).unlink()


def test_an_archive_holds_each_message_once_whatever_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Server(data=data) as server:
        send(server, "Ledger", [f"{number}" for number in range(200)])
        killed_driver(["tests.spark.ledger", server.address, "Ledger", str(tmp_path)], tmp_path, ["hanging"])
    with Server(data=data) as server:  # the same store behind other ports
        wait_for_topic(server, "Ledger")
        send(server, "Ledger", [f"{number}" for number in range(200, 250)])
        (tmp_path / "die").touch()
        (tmp_path / "now").touch()
        # The driver that was killed had read the rows itself; a task reads them again, and after that the driver once more.
        with pytest.raises(PySparkException, match="Python worker"):
            start(spark, server.address, "Ledger", tmp_path, dying_stage(str(tmp_path), 30), 0).awaitTermination()
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


def place_of(row: Any) -> tuple[str, int, int]:
    return row["brokerName"], row["queueId"], row["queueOffset"]


def test_tables_hold_each_message_once_whenever_their_driver_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    pytest.importorskip("pyiceberg")
    register(spark)
    with Server() as server:
        send(server, "Tables", [f"{number}" for number in range(200)])
        for place, tables in (("writing", ARCHIVES), ("committed", ARCHIVES + STREAMS)):
            program = ["tests.spark.table_ledger", server.address, "Tables", str(tmp_path), place]
            killed_driver(program, tmp_path, [f"stopped-{table}" for table in tables])
        send(server, "Tables", [f"{number}" for number in range(200, 220)])
        for kind in KINDS:
            an_archive(spark, server.address, "Tables", tmp_path, kind).run_once()
        for kind in STREAMED:
            a_stream(spark, server.address, "Tables", tmp_path, kind).awaitTermination()
        want = {place_of(row): row["body"] for row in read(server, subscribe="Tables")}
    assert len(want) == 220
    for table in ARCHIVES + STREAMS:
        rows = table_rows(table.partition("-")[2], tmp_path / table).to_pylist()
        assert set(Counter(map(place_of, rows)).values()) == {1}, f"{table} has rows twice"
        assert {place_of(row): row["body"] for row in rows} == want, table
    for kind in KINDS:  # nothing that nobody names is left of the tries that died
        lake = Lake(str(tmp_path / f"archive-{kind}"))
        files = {str(path.relative_to(lake.root)) for path in Path(lake.root).rglob("*.parquet*")}
        assert files == set(lake.state().files)


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
