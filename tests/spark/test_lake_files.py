"""The files of a lake: where they may be, how many are open, and what a power cut leaves of them. No session is needed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from msgspec import structs
from pyarrow import parquet

from orbitmq.clock import ManualClock
from orbitmq.errors import ConfigError, StorageError
from orbitmq.spark import compaction, lake_writer
from orbitmq.spark.compaction import CompactionSummary, compact
from orbitmq.spark.lake import DataFile, Lake, LakeState, Manifest, is_uri
from orbitmq.spark.lake_writer import LakeWriter
from orbitmq.spark.pipeline import RunningPipeline
from orbitmq.spark.pipeline_file import Pipeline
from orbitmq.spark.table_formats import begun_table, publish_batch
from orbitmq.spark.table_sink import BatchTableWriter, WrittenFiles, sink_table
from tests.spark.power_cut import Synced

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.spark.lake_writer import Layout

NO_SESSION: Any = None
COLUMNS = pa.schema([("topic", pa.string()), ("storeTimestamp", pa.timestamp("us", "UTC")), ("id", pa.int64())])
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def rows(ids: range, hours: int = 1, topic: str = "Orders") -> pa.RecordBatch:
    """Spread over so many hours."""
    made = [{"topic": topic, "storeTimestamp": NOON + timedelta(hours=number % hours), "id": number} for number in ids]
    return pa.RecordBatch.from_pylist(made, COLUMNS)


def written(where: Path, name: str, ids: range, layout: Layout = "topic") -> list[DataFile]:
    writer = LakeWriter(Lake(str(where)), name, COLUMNS, layout=layout, compression="zstd")
    writer.write(rows(ids))
    return writer.close()


def a_batch(number: int, files: list[DataFile], kind: str = "parquet") -> Manifest:
    return Manifest(number=number, kind="archive", source="tests", written_at_ms=0, added=files, format=kind)


def in_this_process(_spark: Any, _name: str, tasks: Any, work: Any, _progress: Any = None) -> list[Any]:
    """In place of Spark's workers."""
    return [work(task) for task in tasks]


def test_a_lake_below_another_is_no_leftover_of_it(tmp_path: Path) -> None:
    outer, inner = Lake(str(tmp_path)), Lake(str(tmp_path / "payments"))
    inner.publish(a_batch(0, written(tmp_path / "payments", "00000000-00000", range(3))), LakeState())
    state = outer.publish(a_batch(0, written(tmp_path, "00000000-00000", range(3))), LakeState())
    ours = tmp_path / "topic=Orders" / "00000007-00000.parquet"
    ours.write_bytes(b"of a batch that never counted")
    writing = inner.creating("topic=Payments/00000001-00000.parquet")
    assert outer.leftovers(state) == ["topic=Orders/00000007-00000.parquet"]
    assert outer.abandoned(state) == []
    writing.keep()
    inner.check_written(list(inner.state().files.values()))


@pytest.mark.parametrize("address", ["s3:/bucket/orders", "nowhere:/orders"])
def test_an_address_of_another_file_system_makes_no_folder_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="is no place for files"):
        Lake(address).make()
    assert list(tmp_path.iterdir()) == []
    assert [is_uri(given) for given in (address, "hdfs:/orders", "C:/orders", "a:b/c")] == [True, True, False, False]
    pipeline = Pipeline(name="orders", checkpoint=address, sources=[], sinks=[])
    assert RunningPipeline(NO_SESSION, pipeline, tmp_path)._path(address) == address


def test_no_lake_is_begun_inside_of_another(tmp_path: Path) -> None:
    outer = Lake(str(tmp_path / "lake"))
    outer.publish(a_batch(0, []), LakeState())
    begun_table(outer, "parquet", COLUMNS, "hour")
    begun_table(Lake(str(tmp_path / "beside")), "parquet", COLUMNS, "hour")
    with pytest.raises(ConfigError, match=r"is inside of another archive or export, .*/lake"):
        begun_table(Lake(str(tmp_path / "lake" / "of" / "payments")), "parquet", COLUMNS, "hour")


def test_a_compaction_that_looks_while_another_ends_removes_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "run_tasks", in_this_process)
    lake = Lake(str(tmp_path))
    state = LakeState()
    for number in range(2):
        state = lake.publish(a_batch(number, written(tmp_path, f"{number:08d}-00000", range(3))), state)
    compact(NO_SESSION, str(tmp_path), compression="zstd", clock=ManualClock())
    lake.remove(lake.leftovers(state))  # by the state of before
    lake.check_written(list(lake.state().files.values()))
    assert lake.state().rows == 6


@pytest.mark.parametrize(("kind", "package"), [("delta", "deltalake"), ("iceberg", "pyiceberg")])
def test_an_archive_that_takes_a_batch_over_removes_nothing_of_a_compaction_that_ended_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, package: str
) -> None:
    pytest.importorskip(package)
    monkeypatch.setattr(compaction, "run_tasks", in_this_process)
    lake = Lake(str(tmp_path))
    table, state = begun_table(lake, kind, COLUMNS, "topic")
    assert table is not None
    table.create(COLUMNS, "topic")
    for number in range(2):
        files = written(tmp_path, f"{number:08d}-00000", range(3))
        state = publish_batch(lake, table, a_batch(number, files, kind), state)
    lake.intend(state, {})
    compact(NO_SESSION, str(tmp_path), compression="zstd", clock=ManualClock())
    lake.remove(lake.abandoned(state))
    lake.check_written(list(lake.state().files.values()))
    assert table.paths() == lake.state().files.keys()


def test_of_two_compactions_at_once_one_counts_and_the_other_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(str(tmp_path))
    state = LakeState()
    for number in range(3):
        state = lake.publish(
            a_batch(number, written(tmp_path, f"{number:08d}-00000", range(number, number + 1))), state
        )

    def beside_another(_spark: Any, _name: str, tasks: Any, work: Any, _progress: Any = None) -> list[Any]:
        """One that was told another target size: it puts two of the files into one, and is done first."""
        (task,) = tasks
        two = task.paths[:2]
        files = work(replace(task, paths=two))
        lake.publish(structs.replace(a_batch(3, files), kind="compaction", removed=list(two)), state)
        return [work(task)]

    monkeypatch.setattr(compaction, "run_tasks", beside_another)
    with pytest.raises(StorageError, match="has got a batch 3 from somebody else"):
        compact(NO_SESSION, str(tmp_path), compression="zstd", clock=ManualClock())
    now = lake.state()
    lake.check_written(list(now.files.values()))
    found = [parquet.ParquetFile(path).read(["id"])["id"].to_pylist() for path in lake.live_files()]
    assert sorted(number for ids in found for number in ids) == [0, 1, 2]
    assert sorted(lake.leftovers(now)) == [f"topic=Orders/0000000{number}-00000.parquet" for number in range(2)]


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_folders_need_the_columns_they_are_made_of(tmp_path: Path, kind: str) -> None:
    if kind == "delta":
        pytest.importorskip("deltalake")
    fewer = pa.schema([("id", pa.int64())])
    with pytest.raises(ConfigError, match=r"folders by hour .* not written: topic, storeTimestamp .*or --by none"):
        begun_table(Lake(str(tmp_path)), kind, fewer, "hour")
    begun_table(Lake(str(tmp_path)), kind, fewer, "none")


def test_a_lake_keeps_its_folders(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    lake.publish(a_batch(0, written(tmp_path, "00000000-00000", range(3), "hour")), LakeState())
    begun_table(lake, "parquet", COLUMNS, "hour")
    for other, said in (("topic", "topic"), ("none", "nothing")):
        with pytest.raises(
            ConfigError, match=f"is partitioned by topic, date, hour, not by {said} .write with the --by"
        ):
            begun_table(lake, "parquet", COLUMNS, other)  # type: ignore[arg-type]


def test_an_address_is_the_same_place_for_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for address in ("lake", "./lake/", f"{tmp_path}/lake"):
        assert (Lake(address).address, Lake(address).root) == (f"{tmp_path}/lake", f"{tmp_path}/lake")
    for address in (f"file:{tmp_path}/lake", f"file://{tmp_path}/lake"):
        assert (Lake(address).address, Lake(address).root) == (f"file://{tmp_path}/lake", f"{tmp_path}/lake")
    assert sink_table({"path": "lake", "tableFormat": "delta"}).address == f"{tmp_path}/lake"
    with pytest.raises(ConfigError, match="calls it s3://"):
        Lake("s3a://bucket/lake")


def test_what_executors_wrote_where_the_driver_does_not_see_it_never_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    state = LakeState()
    for number in range(2):
        state = lake.publish(a_batch(number, written(tmp_path / "lake", f"{number:08d}-00000", range(3))), state)

    def elsewhere(_spark: Any, _name: str, tasks: Any, work: Any, _progress: Any = None) -> list[Any]:
        """As on another machine, which has files of its own under the same name."""
        done = in_this_process(_spark, _name, tasks, work)
        lake.remove(file.path for files in done for file in files)
        return done

    monkeypatch.setattr(compaction, "run_tasks", elsewhere)
    told = (
        r"executors wrote 1 files to .*/lake, and the driver does not find 1 of them .*one and the same for the driver"
    )
    with pytest.raises(StorageError, match=told):
        compact(NO_SESSION, str(tmp_path / "lake"), compression="zstd", clock=ManualClock())
    assert lake.state() == state
    lake.check_written(list(state.files.values()))
    monkeypatch.setattr(compaction, "run_tasks", in_this_process)
    assert compact(NO_SESSION, str(lake.root), compression="zstd", clock=ManualClock()) == CompactionSummary(2, 1)


def test_a_table_takes_no_files_that_the_driver_does_not_see(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    from pyspark.sql.types import StructType

    writer = BatchTableWriter(
        sink_table({"path": str(tmp_path), "tableFormat": "delta"}), StructType().add("id", "long"), False
    )
    with pytest.raises(StorageError, match="does not find 1 of them"):
        writer.commit([WrittenFiles("", [DataFile(path="part-0.parquet", rows=1, bytes=100)])])


def test_however_many_hours_there_are_few_files_are_open_and_little_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []
    create = Lake.creating

    def creating(self: Lake, path: str) -> Any:
        begun.append(create(self, path))
        return begun[-1]

    def write(where: str, sizes: list[int]) -> dict[str, list[int]]:
        lake = Lake(str(tmp_path / where))
        writer = LakeWriter(lake, "00000000-00000", COLUMNS, layout="hour", compression="zstd")
        first = 0
        for size in sizes:
            writer.write(rows(range(first, first + size), hours=30))
            first += size
            assert sum(not new.stream.closed for new in begun) <= 5
            assert writer._waiting_bytes <= 2000
        files = writer.close()
        assert list(tmp_path.rglob("*.tmp")) == []
        found = {file.path: parquet.ParquetFile(tmp_path / where / file.path).read() for file in files}
        assert all(table.schema.equals(COLUMNS) for table in found.values())
        assert {file.path: file.rows for file in files} == {path: table.num_rows for path, table in found.items()}
        return {path: table["id"].to_pylist() for path, table in found.items()}

    monkeypatch.setattr(Lake, "creating", creating)
    monkeypatch.setattr(lake_writer, "_OPEN_FILES", 5)
    monkeypatch.setattr(lake_writer, "_WAITING_BYTES", 2000)
    one_way = write("a", [40] * 30)
    assert len(one_way) == 30
    assert len(begun) > 60, "files went on in other pieces, or this shows nothing"
    assert sorted(number for ids in one_way.values() for number in ids) == list(range(1200))
    assert all(ids == sorted(ids) for ids in one_way.values())
    assert write("b", [7, 500, 93, 600]) == one_way, "a task that is run again makes the same files of the same rows"


def test_what_fails_half_way_leaves_no_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_writer, "_OPEN_FILES", 2)
    monkeypatch.setattr(lake_writer, "_WAITING_BYTES", 200)
    writer = LakeWriter(Lake(str(tmp_path)), "00000000-00000", COLUMNS, layout="hour", compression="zstd")
    for first in range(0, 200, 20):
        writer.write(rows(range(first, first + 20), hours=6))
    assert [path for path in tmp_path.rglob("*") if path.is_file()]
    writer.abandon()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_large_messages_are_read_again_a_row_group_at_a_time(tmp_path: Path) -> None:
    table = pa.table({"body": [b"x" * 100_000] * 40})
    parquet.write_table(table, tmp_path / "large.parquet", row_group_size=5)
    batches = list(lake_writer.file_batches(parquet.ParquetFile(tmp_path / "large.parquet")))
    assert sum(batch.num_rows for batch in batches) == 40
    assert max(batch.nbytes for batch in batches) < 1_000_000


def test_a_power_cut_takes_nothing_of_a_batch_that_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = Synced(monkeypatch)
    lake = Lake(str(tmp_path / "new" / "lake"))
    state = LakeState()
    for number in range(2):
        lake.intend(state, {"plan": number})
        writer = LakeWriter(lake, f"{number:08d}-00000", COLUMNS, layout="hour", compression="zstd")
        writer.write(rows(range(9), hours=3))
        files = writer.close()
        assert len(files) == 3
        assert synced.lost(tmp_path / "new") == [], "before the manifest says so"
        state = lake.publish(a_batch(number, files), state)
        assert synced.lost(tmp_path / "new") == []
    lake.keep_text("replay.json", "kept")
    assert synced.lost(tmp_path / "new") == []
    (tmp_path / "new" / "lake" / "stranger").write_bytes(b"nobody synced it")
    assert synced.lost(tmp_path / "new") == ["lake/stranger"]


@pytest.mark.parametrize(("kind", "package"), [("delta", "deltalake"), ("iceberg", "pyiceberg")])
def test_a_power_cut_takes_nothing_of_a_table_that_was_committed_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, package: str
) -> None:
    pytest.importorskip(package)
    synced = Synced(monkeypatch)
    lake = Lake(str(tmp_path / "lake"))
    table, state = begun_table(lake, kind, COLUMNS, "hour")
    assert table is not None
    table.create(COLUMNS, "hour")
    for number in range(2):
        files = written(tmp_path / "lake", f"{number:08d}-00000", range(3), "hour")
        state = publish_batch(lake, table, a_batch(number, files, kind), state)
    assert synced.lost(tmp_path / "lake") == []
