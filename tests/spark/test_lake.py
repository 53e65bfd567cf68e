"""Archives and exports: every message in the lake exactly once, whoever died when; small files made into few."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import dataset, parquet

from orbitmq.cli.entry import cli
from orbitmq.clock import ManualClock, SystemClock
from orbitmq.errors import ConfigError, StorageError
from orbitmq.spark import archive as archiving
from orbitmq.spark import discovery
from orbitmq.spark.archive import Archive
from orbitmq.spark.compaction import compact
from orbitmq.spark.frames import lake_frame
from orbitmq.spark.lake import DataFile, Lake, Manifest
from orbitmq.spark.lake_writer import LAYOUTS, LakeWriter
from orbitmq.spark.source_options import source_options, source_schema
from orbitmq.sync import connect
from orbitmq.testing import Server
from tests.golden_stores import unpack
from tests.spark.direct import wait_for_topic
from tests.spark.marks import SPARK
from tests.storage.store_kit import open_store, put

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = SPARK


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


def send(server: Server, topic: str, first: int, count: int) -> None:
    with connect(server.address) as client, client.producer(group="lake-tests") as producer:
        for number in range(first, first + count):
            producer.send(topic, b"%d" % number, tag="even" if number % 2 == 0 else "odd", keys=[f"k{number}"])


def an_archive(spark: SparkSession, server: Server, lake: Path, topic: str, **changes: str) -> Archive:
    options = {"nameServer": server.address, "subscribe": topic, "startingOffsets": "earliest", **changes}
    return Archive(
        spark,
        source_options(options, streaming=True),
        source_schema(options),
        str(lake),
        layout="hour",
        compression="snappy",
        clock=SystemClock(),
    )


def bodies(lake: Path) -> Counter[bytes]:
    """Of the files that count, read by their manifests."""
    paths = Lake(str(lake)).live_files()
    return Counter(body for path in paths for body in parquet.ParquetFile(path).read(["body"])["body"].to_pylist())


def numbers(count: int) -> Counter[bytes]:
    return Counter({b"%d" % number: 1 for number in range(count)})


def test_an_archive_holds_each_message_once_and_goes_on_where_it_was(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    send(server, "Grows", 0, 30)
    first = an_archive(spark, server, tmp_path, "Grows", maxOffsetsPerTrigger="12").run_once()
    assert (first.batches, first.rows) == (3, 30)
    send(server, "Grows", 30, 25)
    assert an_archive(spark, server, tmp_path, "Grows").run_once().rows == 25
    assert an_archive(spark, server, tmp_path, "Grows").run_once().batches == 0
    assert bodies(tmp_path) == numbers(55)
    rows = spark.read.parquet(*Lake(str(tmp_path)).live_files())
    places = rows.select("brokerName", "topic", "queueId", "queueOffset").collect()
    assert len(set(places)) == len(places) == 55
    assert all("topic=Grows/date=" in path and "/hour=" in path for path in Lake(str(tmp_path)).live_files())
    by_tag = spark.read.parquet(str(tmp_path)).groupBy("tags").count().collect()
    assert {row.tags: row["count"] for row in by_tag} == {"even": 28, "odd": 27}


def test_an_archive_from_the_latest_begins_when_it_is_made_and_reads_later_queues_whole(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    send(server, "Late1", 0, 5)
    options = {"nameServer": server.address, "subscribePattern": "Late.*", "startingOffsets": "latest"}
    made: Any = {"layout": "topic", "compression": "snappy", "clock": SystemClock()}

    def archive() -> Archive:
        return Archive(spark, source_options(options, streaming=True), source_schema(options), str(tmp_path), **made)

    continuous = archive()
    assert continuous.step(), "a batch of nothing notes the beginning"
    assert (continuous.summary.batches, continuous.summary.rows) == (0, 0)
    assert not continuous.step()
    send(server, "Late1", 5, 3)
    send(server, "Late2", 8, 2)
    wait_for_topic(server, "Late2")
    after_crash = archive()
    assert after_crash.run_once().rows == 5
    assert bodies(tmp_path) == numbers(10) - numbers(5)


def test_a_compaction_leaves_alone_what_an_archive_begins_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(str(tmp_path))
    state = lake.publish(Manifest(number=0, kind="archive", source="tests", written_at_ms=0), lake.state())
    (tmp_path / "00000000-00009.parquet").write_bytes(b"of a batch that never counted")
    look = Lake.has

    def has(self: Lake, path: str) -> bool:
        """Right behind the look for a plan, an archive makes one and its first file."""
        found = look(self, path)
        if path.endswith(".plan.json") and not found:
            lake.keep_text(path, "{}")
            (tmp_path / "00000001-00000.parquet").write_bytes(b"of a batch under way")
        return found

    monkeypatch.setattr(Lake, "has", has)
    assert lake.leftovers(state) == ["00000000-00009.parquet"]
    assert lake.leftovers(state) == [], "a batch is under way"


def test_topics_that_appear_while_an_archive_runs_are_for_the_next_run(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    send(server, "Appears1", 0, 8)
    options = {"nameServer": server.address, "subscribePattern": "Appears.*", "startingOffsets": "earliest"}
    newcomers = iter(["Appears2"])

    def archive(progress: Any = None) -> Archive:
        wanted = source_options({**options, "maxOffsetsPerTrigger": "4"}, streaming=True)
        schema = source_schema(options)
        made: Any = {"layout": "topic", "compression": "snappy", "clock": SystemClock(), "progress": progress}
        return Archive(spark, wanted, schema, str(tmp_path), **made)

    def on_progress(_text: str) -> None:
        for topic in newcomers:
            send(server, topic, 8, 3)

    assert archive(on_progress).run_once().topics == {"Appears1"}
    assert archive().run_once().topics == {"Appears2"}
    assert bodies(tmp_path) == numbers(11)


def test_a_batch_that_was_interrupted_is_run_again_and_nothing_is_there_twice(
    spark: SparkSession, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(server, "Broken", 0, 20)
    dying = an_archive(spark, server, tmp_path, "Broken")

    def die(_self: Lake, _manifest: Manifest, _state: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Lake, "publish", die)
        with pytest.raises(KeyboardInterrupt):
            dying.run_once()
    written = set(tmp_path.rglob("*.parquet"))
    assert written
    assert bodies(tmp_path) == Counter()
    send(server, "Broken", 20, 10)
    again = an_archive(spark, server, tmp_path, "Broken").run_once()
    assert (again.batches, again.rows) == (2, 30)
    assert bodies(tmp_path) == numbers(30)
    everything = dataset.dataset(str(tmp_path), format="parquet").to_table(columns=["body"])
    assert Counter(everything["body"].to_pylist()) == numbers(30)
    assert written <= set(tmp_path.rglob("*.parquet"))


def test_an_archive_killed_at_any_moment_holds_each_message_once(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    send(server, "Killed", 0, 200)
    command = ["spark", "archive", "Killed", "--to", str(tmp_path / "lake"), "-n", server.address, "--batch", "10"]
    manifests = tmp_path / "lake" / "_manifests"

    def done() -> int:
        return len([path for path in manifests.glob("*.json") if "plan" not in path.name]) if manifests.exists() else 0

    process = [sys.executable, "-m", "orbitmq", *command, "--master", "local[2]"]
    running = subprocess.Popen(process, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + 200
    while done() < 2 and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()
    assert done() >= 2
    finished = CliRunner().invoke(cli, [*command, "--compact"])
    assert "now holds 200 messages" in finished.output, finished.output
    assert bodies(tmp_path / "lake") == numbers(200)


def test_the_group_hears_how_far_an_archive_is(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    send(server, "Told", 0, 10)
    an_archive(spark, server, tmp_path, "Told", groupId="lake", commitOffsets="true").run_once()
    with connect(server.address) as client, client.pull_consumer(group="lake") as consumer:
        committed = [consumer.committed(queue) for queue in consumer.queues("Told")]
    assert sum(offset or 0 for offset in committed) == 10


def test_small_files_become_few_and_hold_the_same(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    send(server, "Small", 0, 24)
    an_archive(spark, server, tmp_path, "Small", maxOffsetsPerTrigger="4").run_once()
    before = Lake(str(tmp_path)).live_files()
    leftover = Path(before[0]).with_name("compacted-00000000-00000.parquet")
    leftover.write_bytes(b"of a compaction that died")
    os.utime(leftover, (0, 0))  # one of today may be at work
    leftover.with_name(".00000002-00001.parquet.tmp").write_bytes(b"of a task that died")
    stranger = leftover.with_name("somebody-elses.parquet")
    stranger.write_bytes(b"not ours to remove")
    done = compact(spark, str(tmp_path), compression="zstd", clock=ManualClock())
    assert done.files_before == len(before) == 6
    assert done.files_after == len({Path(path).parent for path in before})
    assert bodies(tmp_path) == numbers(24)
    stranger.unlink()
    assert len([path for path in tmp_path.rglob("*") if ".parquet" in path.name]) == done.files_after
    with pytest.raises(ConfigError, match="holds no archive"):
        compact(spark, str(tmp_path / "elsewhere"), compression="zstd", clock=ManualClock())
    assert compact(spark, str(tmp_path), compression="zstd", clock=ManualClock()).files_before == done.files_after
    send(server, "Small", 24, 6)
    an_archive(spark, server, tmp_path, "Small").run_once()
    assert bodies(tmp_path) == numbers(30)


def test_archives_with_other_columns_are_read_and_compacted_together(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    def counted() -> list[int]:
        row = lake_frame(spark, str(tmp_path)).selectExpr("count(*)", "count(body)", "count(properties)", "count(flag)")
        return list(row.collect()[0])

    send(server, "Columns", 0, 8)
    an_archive(spark, server, tmp_path, "Columns", includeBody="false", properties="none").run_once()
    send(server, "Columns", 8, 4)
    an_archive(spark, server, tmp_path, "Columns").run_once()
    assert counted() == [12, 4, 4, 12]
    done = compact(spark, str(tmp_path), compression="zstd", clock=ManualClock())
    assert done.files_after < done.files_before
    assert counted() == [12, 4, 4, 12]
    with pytest.raises(ConfigError, match="has columns of other types: properties string is map<"):
        an_archive(spark, server, tmp_path, "Columns", properties="raw")


def test_a_worker_that_was_given_up_spoils_no_file(tmp_path: Path) -> None:
    """Two tries at one task: the first one's driver is dead, the worker itself is not."""
    lake = Lake(str(tmp_path))
    schema = pa.schema([("id", pa.int64())])
    rows = pa.RecordBatch.from_pylist([{"id": number} for number in range(100)], schema)
    late, other = (LakeWriter(lake, "00000000-00000", schema, layout="none", compression="zstd") for _ in range(2))
    late.write(rows.slice(0, 50))
    other.write(rows)
    late.write(rows.slice(50))
    lake.intend(lake.state(), {})
    leftover = tmp_path / "00000000-00000-0123456789abcdef0123456789abcdef.parquet"  # as a try leaves it in a table
    leftover.touch()
    lake.remove(path for path in lake.abandoned(lake.state()) if path.endswith(".parquet"))
    assert not leftover.exists()
    assert other.close() == [
        DataFile(path="00000000-00000.parquet", rows=100, bytes=lake.sizes(["00000000-00000.parquet"])[0])
    ]
    lake.remove(lake.abandoned(lake.state()))
    with pytest.raises(StorageError, match="cannot write"):
        late.close()
    late.abandon()
    assert [path.name for path in tmp_path.glob("*parquet*")] == ["00000000-00000.parquet"]
    assert parquet.ParquetFile(tmp_path / "00000000-00000.parquet").read() == pa.Table.from_batches([rows])


def test_an_archive_does_not_finish_what_others_began(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    send(server, "Begun", 0, 3)
    dying = an_archive(spark, server, tmp_path, "Begun")
    start, end = dying._ask()
    assert dying._planned(start, end) is not None
    with pytest.raises(ConfigError, match="holds what came from topics Begun"):
        an_archive(spark, server, tmp_path, "Columns")
    assert an_archive(spark, server, tmp_path, "Begun").run_once().rows == 3


def test_a_lake_takes_one_source_and_one_writer(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    send(server, "One", 0, 3)
    an_archive(spark, server, tmp_path, "One").run_once()
    with pytest.raises(ConfigError, match="holds what came from topics One"):
        an_archive(spark, server, tmp_path, "Other")
    lake = Lake(str(tmp_path))
    state = lake.state()
    manifest = Manifest(number=state.next_number, kind="archive", source=state.source, written_at_ms=0)
    lake.publish(manifest, state)
    with pytest.raises(StorageError, match="from somebody else"):
        lake.publish(manifest, state)


def test_many_manifests_are_read_from_the_last_whole_one(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    state = lake.state()
    for number in range(103):
        removed = [f"{number - 1}.parquet"] if number % 10 == 5 else []
        manifest = Manifest(
            number=number,
            kind="archive",
            source="s",
            written_at_ms=0,
            offsets={"T": {"b": {"0": number}}},
            added=[DataFile(path=f"{number}.parquet", rows=2, bytes=1)],
            removed=removed,
        )
        state = lake.publish(manifest, state)
    for number in range(100):
        (tmp_path / "_manifests" / f"{number:08d}.json").unlink()
    assert lake.state() == state
    assert (state.rows, state.offsets["T"]["b"]["0"]) == (2 * (103 - 10), 102)


def test_expired_messages_fail_an_archive_unless_it_may_ignore_them(
    spark: SparkSession, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(server, "Expires", 0, 4)
    running = an_archive(spark, server, tmp_path, "Expires")
    running.run_once()
    real = discovery.extents

    async def expired(cluster: Any, queues: Any) -> Any:
        held = await real(cluster, queues)
        return {queue: extent._replace(low=extent.high + 5, high=extent.high + 5) for queue, extent in held.items()}

    monkeypatch.setattr(archiving, "extents", expired)
    with pytest.raises(ConfigError, match="the archive says"):
        running.step()
    assert an_archive(spark, server, tmp_path, "Expires", failOnDataLoss="false").step() is False


def test_rows_go_to_the_folder_of_their_topic_date_and_hour(tmp_path: Path) -> None:
    noon = 1_700_049_600_000  # 2023-11-15 12:00 UTC
    kinds = [("A", 0), ("A", 30), ("%DLQ%g|x", 0), ("A", 90), ("A", 60 * 24), ("%DLQ%g|x", 5)]
    rows = [{"topic": topic, "storeTimestamp": (noon + minutes * 60_000) * 1000} for topic, minutes in kinds]
    schema = pa.schema([("topic", pa.string()), ("storeTimestamp", pa.timestamp("us", "UTC"))])
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    wanted = {
        "none": {"f.parquet": 6},
        "topic": {"topic=A/f.parquet": 4, "topic=%25DLQ%25g%7Cx/f.parquet": 2},
        "date": {
            "topic=A/date=2023-11-15/f.parquet": 3,
            "topic=A/date=2023-11-16/f.parquet": 1,
            "topic=%25DLQ%25g%7Cx/date=2023-11-15/f.parquet": 2,
        },
        "hour": {
            "topic=A/date=2023-11-15/hour=12/f.parquet": 2,
            "topic=A/date=2023-11-15/hour=13/f.parquet": 1,
            "topic=A/date=2023-11-16/hour=12/f.parquet": 1,
            "topic=%25DLQ%25g%7Cx/date=2023-11-15/hour=12/f.parquet": 2,
        },
    }
    for layout in LAYOUTS:
        writer = LakeWriter(Lake(str(tmp_path / layout)), "f", schema, layout=layout, compression="zstd")
        writer.write(batch)
        files = writer.close()
        assert {file.path: file.rows for file in files} == wanted[layout]
        assert sum(parquet.ParquetFile(tmp_path / layout / file.path).metadata.num_rows for file in files) == 6
    gone = LakeWriter(Lake(str(tmp_path / "gone")), "f", schema, layout="hour", compression="zstd")
    gone.write(batch)
    gone.abandon()
    assert [path for path in (tmp_path / "gone").rglob("*") if path.is_file()] == []


# ---- exports


def test_the_command_exports_a_store_and_adds_what_came_since(spark: SparkSession, tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    for number in range(50):
        put(store, "Orders" if number % 2 else "Bills", number % 3, b"%d" % number, TAGS="A")
    to = ["--to", str(tmp_path / "lake")]
    run = CliRunner()
    first = run.invoke(cli, ["spark", "export-store", str(tmp_path / "store"), *to, "--broker-name", "b"])
    assert "exported 50 messages" in first.output, first.output
    for number in range(50, 60):
        put(store, "Orders", 0, b"%d" % number)
    store.close()
    second = run.invoke(cli, ["spark", "export-store", str(tmp_path / "store"), *to, "--broker-name", "b"])
    assert "exported 10 messages" in second.output, second.output
    assert bodies(tmp_path / "lake") == numbers(60)
    other = run.invoke(cli, ["spark", "export-store", str(tmp_path / "store"), *to, "--topic", "Bills"])
    assert other.exit_code == 1
    assert "holds what came from store" in other.output
    assert {path.parent.name for path in (tmp_path / "lake").rglob("*.parquet")} == {"topic=Orders", "topic=Bills"}


def test_an_export_lists_what_it_could_not_read(spark: SparkSession, tmp_path: Path) -> None:
    directory = unpack("4.9.7", tmp_path)
    log = directory / "commitlog" / "00000000000000000000"
    data = bytearray(log.read_bytes())
    data[4:8] = b"\0\0\0\0"
    log.write_bytes(data)
    run = CliRunner()
    command = ["spark", "export-store", str(directory), "--to", str(tmp_path / "lake")]
    failed = run.invoke(cli, command)
    assert failed.exit_code == 1
    assert "is damaged" in failed.output
    assert len(failed.output.strip().splitlines()) == 1
    done = run.invoke(cli, [*command, "--skip-corrupt"])
    assert done.exit_code == 0, done.output
    assert "could not be read: " in done.output
    assert "bytes 0 to" in Lake(str(tmp_path / "lake")).read("_manifests/00000000.json", Manifest).damage[0]
