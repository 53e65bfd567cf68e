"""The source and the sink inside a Spark session, where only a session can show it: SQL, streams, progress, errors."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from orbitmq.spark import (
    DroppedRows,
    LagListener,
    commit_finished,
    drop_repeats,
    dropped_rows,
    lag_of,
    legacy_view,
    plain_reason,
    register,
)
from orbitmq.spark.legacy import COLUMNS as LEGACY_COLUMNS
from orbitmq.spark.legacy import FORMAT as LEGACY_FORMAT
from orbitmq.spark.property_texts import DEDUP_ID
from orbitmq.sync import connect
from orbitmq.testing import Server
from tests.spark.direct import bodies, read, send, wait_for_topic
from tests.spark.marks import SPARK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from orbitmq.spark import Lag

pytestmark = SPARK


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(settings={"enablePropertyFilter": "true"}) as running:
        yield running


def table(spark: SparkSession, server: Server, **options: str) -> DataFrame:
    return spark.read.format("rocketmq").options(nameServer=server.address, **options).load()


def stream(spark: SparkSession, server: Server, **options: str) -> DataFrame:
    options = {"nameServer": server.address, "startingOffsets": "earliest", **options}
    return spark.readStream.format("rocketmq").options(**options).load()


def forget_commit(checkpoint: Path) -> None:
    """A driver that died before it noted that its last micro-batch was done runs it again."""
    last = max(checkpoint.joinpath("commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    checkpoint.joinpath("commits", f".{last.name}.crc").unlink(missing_ok=True)


def test_topics_are_tables_in_sql_without_being_registered(spark: SparkSession, server: Server) -> None:
    send(server, "Sql", ["a", "b"], tag="one", properties={"n": "1"})
    send(server, "Sql", ["c"], tag="two")
    spark.sql(
        f"CREATE OR REPLACE TEMP VIEW orders USING rocketmq OPTIONS (nameServer '{server.address}', subscribe 'Sql')"
    )
    counted = spark.sql("SELECT tags, count(*) AS n, max(properties['n']) AS p FROM orders GROUP BY tags ORDER BY tags")
    assert [tuple(row) for row in counted.collect()] == [("one", 2, "1"), ("two", 1, None)]
    narrow = spark.read.format("rocketmq").schema("queueOffset BIGINT, body BINARY")
    rows = narrow.options(nameServer=server.address, subscribe="Sql").load().collect()
    assert sorted(bytes(row.body) for row in rows) == [b"a", b"b", b"c"]


def test_filters_are_pushed_down_for_one_question_a_frame(spark: SparkSession, server: Server) -> None:
    send(server, "Pushed", [f"{number}" for number in range(20)], tag="Aa", order_key="k")
    send(server, "Pushed", ["x"], tag="BB", order_key="k")
    pushed = table(spark, server, subscribe="Pushed", pushFilters="true")
    chosen = pushed.where("tags = 'Aa' AND queueOffset >= 5 AND queueOffset < 9")
    assert sorted(int(bytes(row.body)) for row in chosen.collect()) == [5, 6, 7, 8]
    plain = table(spark, server, subscribe="Pushed")
    both = plain.where("tags = 'BB'").union(plain.where("tags = 'Aa' AND queueOffset < 2"))
    assert [plain.where("tags = 'BB'").count(), plain.count(), both.count()] == [1, 21, 3], "unless it is asked for"


def test_a_stream_runs_to_its_end_reports_its_lag_and_commits_all_of_it(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    send(server, "Streamed", [f"{number}" for number in range(25)])
    options = {"nameServer": server.address, "subscribe": "Streamed", "groupId": "lake", "maxOffsetsPerTrigger": "10"}
    lags: list[Lag] = []
    heard = threading.Event()

    def hear(lag: Lag) -> None:
        lags.append(lag)
        if lag.messages == 0:
            heard.set()

    listener = LagListener(hear)
    spark.streams.addListener(listener)
    try:
        frame = stream(spark, server, **options, commitOffsets="true")
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "lake"))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
        assert heard.wait(60)
    finally:
        spark.streams.removeListener(listener)
    rows = spark.read.parquet(str(tmp_path / "lake"))
    assert sorted(int(bytes(row.body)) for row in rows.collect()) == list(range(25))
    assert [lag.messages for lag in lags] == [15, 5, 0]
    progress = query.lastProgress
    assert progress is not None
    assert lag_of(progress).messages == 0

    def committed() -> int:
        with connect(server.address) as client, client.pull_consumer("lake") as reader:
            return sum(reader.committed(queue) or 0 for queue in reader.queues("Streamed"))

    assert committed() == 20, "Spark tells a source of a batch when the next begins: the last is never told"
    assert sum(commit_finished(query, options).values()) == 25
    assert committed() == 25


def test_a_stream_from_the_latest_loses_nothing_when_its_first_micro_batch_runs_again(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    send(server, "Latest", ["old"])
    checkpoint, lake = tmp_path / "checkpoint", str(tmp_path / "lake")

    def writer() -> Any:
        frame = stream(spark, server, subscribe="Latest", startingOffsets="latest")
        return frame.writeStream.format("parquet").options(path=lake, checkpointLocation=str(checkpoint))

    query = writer().trigger(processingTime="100 milliseconds").start()
    deadline = time.monotonic() + 120
    while not checkpoint.joinpath("commits", "0").exists():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    query.stop()
    forget_commit(checkpoint)
    send(server, "Latest", ["between"])
    writer().trigger(availableNow=True).start().awaitTermination()
    assert [bytes(row.body) for row in spark.read.parquet(lake).collect()] == [b"between"]


def test_frames_are_written_repeats_dropped_and_streams_copied(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    frame = spark.sql("SELECT cast(id AS STRING) AS value, concat('k', id % 2) AS keys FROM range(40)")
    for _ in range(2):  # a job that is run again under its own name
        writer = frame.write.format("rocketmq").options(nameServer=server.address, topic="In", jobId="nightly")
        writer.mode("append").save()
    wait_for_topic(server, "In")
    rows = read(server, subscribe="In")
    assert Counter(int(row["body"]) for row in rows) == dict.fromkeys(range(40), 2)
    assert {row["keys"] for row in rows} == {"k0", "k1"}
    assert len({dict(row["properties"])[DEDUP_ID] for row in rows}) == 40
    once = drop_repeats(table(spark, server, subscribe="In"))
    assert sorted(int(bytes(row.body)) for row in once.collect()) == list(range(40))

    moved = drop_repeats(stream(spark, server, subscribe="In"), within="1 hour").drop("topic")
    copying = moved.writeStream.format("rocketmq").options(nameServer=server.address, topic="Out")
    query = copying.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    wait_for_topic(server, "Out")
    out = read(server, subscribe="Out")
    assert sorted(int(body) for body in bodies(out)) == list(range(40))
    run_ids = {dict(row["properties"])[DEDUP_ID].split(":")[0] for row in out}
    assert run_ids == {str(query.id)}, "ids are of the query that wrote last"


def test_rows_that_are_left_out_are_counted_where_the_program_can_read_it(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    checkpoint, notes = str(tmp_path / "checkpoint"), str(tmp_path / "notes")
    send(server, "Mixed", [f"{number}" for number in range(10)])
    rows = stream(spark, server, subscribe="Mixed").selectExpr("nullif(cast(body AS STRING), '7') AS value")
    sink = {"nameServer": server.address, "topic": "Sorted", "badRows": "drop"}
    writer = rows.writeStream.format("rocketmq").options(**sink, checkpointLocation=checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert dropped_rows(checkpoint) == [DroppedRows(str(query.id), 0, {"its body is null": 1})]
    frame = spark.sql("SELECT if(id < 3, '', 'x') AS value FROM range(8)")
    frame.write.format("rocketmq").options(**sink, droppedRowsPath=notes, jobId="nightly").mode("append").save()
    (counted,) = dropped_rows(notes)
    assert (counted.run, counted.rows) == ("nightly", 3)
    wait_for_topic(server, "Sorted")
    assert len(read(server, subscribe="Sorted")) == 9 + 5


def test_a_stream_without_repeats_keeps_what_was_stored_long_before_what_it_has_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A queue, a topic or a broker that is read later than others is no repeat."""
    with Server() as server:
        send(server, "Early", ["early"], properties={DEDUP_ID: "e"})
        server.clock.advance(hours=3)
        for number in range(2):
            send(server, "Late", [f"late {number}"])

        def copy(pattern: str) -> None:
            options = {"subscribePattern": pattern, "failOnDataLoss": "false"}
            frame = drop_repeats(stream(spark, server, **options), within="1 hour")
            writing = frame.writeStream.format("parquet").option("path", str(tmp_path / "out"))
            writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
            writing.start().awaitTermination()

        copy("Late")
        copy("Late|Early")
        found = spark.read.parquet(str(tmp_path / "out"))
    assert sorted(bytes(row.body) for row in found.collect()) == [b"early", b"late 0", b"late 1"]
    assert set(found.columns).isdisjoint({"__dedup_id", "__dedup_seen"})


def test_frames_that_one_micro_batch_writes_have_ids_of_their_own(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    send(server, "Forked", [f"{number}" for number in range(6)])

    def write(frame: DataFrame, _batch: int) -> None:
        for topic, job in (("ForkA", ""), ("ForkB", ""), ("ForkB", "second")):
            options = {"nameServer": server.address, "topic": topic, "jobId": job}
            frame.select("body").write.format("rocketmq").options(**options).mode("append").save()

    writing = stream(spark, server, subscribe="Forked").writeStream.foreachBatch(write)
    query = writing.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    query.awaitTermination()
    for topic in ("ForkA", "ForkB"):
        wait_for_topic(server, topic)
    rows = [row for topic in ("ForkA", "ForkB") for row in read(server, subscribe=topic)]
    ids = {dict(row["properties"])[DEDUP_ID] for row in rows}
    assert len(ids) == len(rows) == 18
    assert {one.split(":")[0] for one in ids} == {f"{query.id}-{name}" for name in ("ForkA", "ForkB", "second")}


def test_old_jobs_move_over(spark: SparkSession, server: Server) -> None:
    send(server, "Old", ["x"], tag="t", properties={"colour": "blå"})
    register(spark)
    old_options = {"nameServer": server.address, "topic": "Old", "pullBatchSize": "32", "startingOffsets": "earliest"}
    old = spark.read.format(LEGACY_FORMAT).options(**old_options).load()
    viewed = legacy_view(spark.read.format("rocketmq").options(**old_options).load())
    assert old.schema == viewed.schema
    assert old.columns == list(LEGACY_COLUMNS)
    (one,), (other,) = old.collect(), viewed.collect()
    assert json.loads(one.properties)["colour"] == "blå"
    assert json.loads(one.properties) == json.loads(other.properties)
    assert (one.topic, bytes(one.body), one.queueId) == (other.topic, bytes(other.body), other.queueId)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"subscribbe": "T"}, "the rocketmq source has no option 'subscribbe' (did you mean subscribe?)"),
        ({"subscribe": "Missing"}, "topic 'Missing' does not exist"),
        ({"subscribe": "Sql", "startingOffsets": '{"Sql":{"test":{"0":999}}}'}, "startingOffsets says 999 for queue 0"),
    ],
)
def test_errors_say_what_to_do_once(spark: SparkSession, server: Server, options: dict[str, str], told: str) -> None:
    with pytest.raises(PySparkException) as raised:
        table(spark, server, **options).count()
    shown = str(raised.value)
    assert shown.count(told) == 1
    assert "JVM stacktrace" not in shown
    assert len(shown.splitlines()) <= 8
    assert (plain_reason(raised.value) or "").startswith(told)


def test_a_frame_that_cannot_be_written_says_why_once(spark: SparkSession, server: Server) -> None:
    def write(frame: Any, **options: str) -> None:
        frame.write.format("rocketmq").options(nameServer=server.address, **options).mode("append").save()

    with pytest.raises(PySparkException) as wrong_type:
        write(spark.sql("SELECT 1.5D AS body"), topic="T")
    assert (plain_reason(wrong_type.value) or "").startswith("column body is double; the rocketmq sink takes binary")
    with pytest.raises(PySparkException) as bad_row:
        write(spark.sql("SELECT cast(NULL AS STRING) AS body"), topic="T")
    assert (plain_reason(bad_row.value) or "").startswith("row 0 of task 0 cannot be sent: its body is null")
