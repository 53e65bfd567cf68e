"""Lakes that are Delta and Iceberg tables: read by their own readers, each message once, whoever died when."""

from __future__ import annotations

import errno
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from threading import Barrier
from traceback import extract_stack
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from pyarrow import fs
from pyspark.sql.types import ArrayType, IntegerType, MapType, StringType, StructType

from orbitmq.cli.entry import cli
from orbitmq.clock import SystemClock
from orbitmq.errors import ConfigError, StorageError
from orbitmq.spark import table_formats
from orbitmq.spark.archive import Archive, archived_source
from orbitmq.spark.compaction import CompactionSummary, compact
from orbitmq.spark.lake import DataFile, Lake, LakeState, Manifest
from orbitmq.spark.lake_writer import LakeWriter
from orbitmq.spark.source_options import source_options, source_schema
from orbitmq.spark.table_formats import TableChange, begun_table, open_table, publish_batch
from orbitmq.spark.table_sink import BatchTableWriter, StreamTableWriter, TableSinkSource, WrittenFiles, sink_table
from orbitmq.sync import connect
from orbitmq.testing import Server
from tests.spark.marks import SPARK
from tests.spark.tables import table_rows
from tests.storage.store_kit import open_store, put

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from orbitmq.spark.lake_writer import Layout

pytestmark = SPARK
FORMATS = ("delta", "iceberg")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture(params=FORMATS)
def kind(request: pytest.FixtureRequest) -> str:
    package = {"delta": "deltalake", "iceberg": "pyiceberg"}[request.param]
    pytest.importorskip(package, reason=f"{request.param} tables need {package}")
    return str(request.param)


def bodies(kind: str, where: Path) -> Counter[bytes]:
    return Counter(table_rows(kind, where)["body"].to_pylist())


def numbers(count: int) -> Counter[bytes]:
    return Counter({b"%d" % number: 1 for number in range(count)})


def send(server: Server, topic: str, first: int, count: int) -> None:
    with connect(server.address) as client, client.producer(group="tables") as producer:
        for number in range(first, first + count):
            producer.send(topic, b"%d" % number, tag="t", keys=[f"k{number}"])


def an_archive(spark: SparkSession, server: Server, lake: Path, topic: str, kind: Any) -> Archive:
    options = {"nameServer": server.address, "subscribe": topic, "startingOffsets": "earliest"}
    return Archive(
        spark,
        source_options(options, streaming=True),
        source_schema(options),
        str(lake),
        layout="hour",
        compression="snappy",
        clock=SystemClock(),
        table_format=kind,
    )


def test_an_archive_is_a_table_for_readers_of_its_format(
    spark: SparkSession, server: Server, tmp_path: Path, kind: str
) -> None:
    topic = f"Table-{kind}"
    send(server, topic, 0, 20)
    lake = tmp_path / "lake"
    command = ["spark", "archive", topic, "--to", str(lake), "--format", kind, "-n", server.address]
    first = CliRunner().invoke(cli, command)
    assert "archived 20 messages" in first.output, first.output
    send(server, topic, 20, 15)
    second = CliRunner().invoke(cli, [*command, "--compact"])
    assert "archived 15 messages" in second.output, second.output
    assert f"now holds 35 messages in {len(Lake(str(lake)).state().files)} files" in second.output
    assert bodies(kind, lake) == numbers(35)
    rows = table_rows(kind, lake)
    assert set(rows["topic"].to_pylist()) == {topic}
    assert {dict(one)["KEYS"] for one in rows["properties"].to_pylist()} == {f"k{number}" for number in range(35)}
    # Read by its manifests it is the same, and it keeps its format.
    query = f"SELECT count(*) AS held FROM lake WHERE topic = '{topic}'"
    assert "35" in CliRunner().invoke(cli, ["spark", "sql", query, "--lake", str(lake)]).output
    other = CliRunner().invoke(cli, [*command, "--format", "parquet"])
    assert other.exit_code == 1
    assert f"is a lake of format {kind}, not parquet" in other.output


def test_a_batch_that_died_around_its_commit_is_in_the_table_once(
    spark: SparkSession, server: Server, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"Dying-{kind}"
    send(server, topic, 0, 12)

    def die(*_: Any) -> Any:
        raise KeyboardInterrupt

    def interrupted(target: Any, name: str) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(target, name, die)
            with pytest.raises(KeyboardInterrupt):
                an_archive(spark, server, tmp_path, topic, kind).run_once()

    interrupted(table_formats, "commit_once")  # the files are there, the table does not know
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    interrupted(Lake, "publish")  # the table knows, the manifests do not
    assert bodies(kind, tmp_path) == numbers(12)
    assert an_archive(spark, server, tmp_path, topic, kind).run_once().batches == 0
    assert bodies(kind, tmp_path) == numbers(12)
    # Files that a table may name are not written again.
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("0*.parquet")} == written
    send(server, topic, 12, 3)
    assert an_archive(spark, server, tmp_path, topic, kind).run_once().rows == 3
    assert bodies(kind, tmp_path) == numbers(15)
    assert open_table(Lake(str(tmp_path)), kind).committed(table_formats.WRITER) == 1


def test_a_store_is_exported_into_a_table_topics_with_odd_names_too(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    store = open_store(tmp_path / "store")
    for number in range(30):
        put(store, "%DLQ%some_group" if number % 3 else "Orders", number % 2, b"%d" % number)
    store.close()
    lake = tmp_path / "lake"
    command = ["spark", "export-store", str(tmp_path / "store"), "--to", str(lake), "--format", kind]
    done = CliRunner().invoke(cli, [*command, "--topic", "%DLQ%some_group", "--topic", "Orders"])
    assert "exported 30 messages" in done.output, done.output
    assert bodies(kind, lake) == numbers(30)
    assert Counter(table_rows(kind, lake)["topic"].to_pylist()) == {"%DLQ%some_group": 20, "Orders": 10}
    assert Lake(str(lake)).read("_manifests/00000000.json", Manifest).format == kind


def test_a_table_that_somebody_else_changed_is_left_to_readers_of_its_format(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    delta = pytest.importorskip("deltalake")
    send(server, "Changed", 0, 5)
    an_archive(spark, server, tmp_path, "Changed", "delta").run_once()
    delta.DeltaTable(str(tmp_path)).delete("queueOffset = 0")
    for command in (["compact", str(tmp_path)], ["sql", "SELECT 1", "--lake", str(tmp_path)]):
        failed = CliRunner().invoke(cli, ["spark", *command])
        assert failed.exit_code == 1
        assert "has been changed by another program" in failed.output
        assert len(failed.output.strip().splitlines()) == 1


def test_a_batch_of_a_stream_counts_once_and_an_aggregate_replaces_what_was_there(tmp_path: Path, kind: str) -> None:
    """The sink's commits as Spark asks for them, again after a crash; no session is needed."""
    columns = (
        StructType()
        .add("name", "string")
        .add("seen", "long")
        .add("at", "timestamp")
        .add("of", MapType(StringType(), ArrayType(IntegerType())))
    )
    table = sink_table({"path": str(tmp_path), "tableFormat": kind, "checkpointLocation": "c", "queryName": "q"})
    appending = StreamTableWriter(table, columns, False)

    def written(name: str, seen: int, query: str = "q1") -> WrittenFiles:
        writer = LakeWriter(Lake(str(tmp_path)), f"{name}-{seen}", appending.schema, layout="none", compression="zstd")
        row = {"name": name, "seen": seen, "at": datetime(2026, 11, 15, tzinfo=UTC), "of": [("a", [1])]}
        writer.write(pa.RecordBatch.from_pylist([row], appending.schema))
        return WrittenFiles(query, writer.close())

    def held() -> list[tuple[str, int]]:
        return sorted((row["name"], row["seen"]) for row in table_rows(kind, tmp_path).to_pylist())

    appending.commit([written("a", 1), written("b", 1)], 0)
    appending.commit([written("a", 2), None], 1)
    again = written("a", 3)
    appending.commit([again], 1)  # rows that the table has got, written by another try
    assert held() == [("a", 1), ("a", 2), ("b", 1)]
    assert not (tmp_path / again.files[0].path).exists()
    appending.commit([written("c", 1, "q2")], 0)  # a stream that was begun anew
    assert len(held()) == 4
    replacing = StreamTableWriter(table, columns, True)
    for seen in (5, 6):
        replacing.commit([written("a", seen, "q3")], seen)
        assert held() == [("a", seen)]
    BatchTableWriter(table, columns, False).commit([written("d", 1, "")])
    BatchTableWriter(table, columns, False).commit([written("d", 2, "")])
    assert held() == [("a", 6), ("d", 1), ("d", 2)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "p", "tableFormat": "orc"}, "delta"),
        ({"path": "p", "tableFormat": "delta", "mergeSchema": "true"}, "no option 'mergeSchema'"),
        ({"path": "p", "tableFormat": "delta", "compression": "rar"}, "snappy"),
        ({"tableFormat": "delta"}, "needs a path"),
    ],
)
def test_what_is_wrong_with_a_table_sink_is_said(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sink_table(options)


def test_a_missing_package_is_named_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_formats, "find_spec", lambda _name: None)
    for kind, package in (("delta", "deltalake"), ("iceberg", "pyiceberg")):
        with pytest.raises(ConfigError, match=rf"{package}.*orbitmq\[{kind}\]"):
            open_table(Lake(str(tmp_path)), kind)


COLUMNS = pa.schema([("topic", pa.string()), ("storeTimestamp", pa.timestamp("us", "UTC")), ("id", pa.int64())])
STORED_AT = datetime(2026, 11, 15, 18, tzinfo=UTC)


def a_batch(where: Path, number: int, *, schema: pa.Schema = COLUMNS, layout: Any = "hour", name: str = "") -> Manifest:
    """Files as workers leave them, and what is said of them."""
    writer = LakeWriter(Lake(str(where)), name or f"{number:08d}-00000", schema, layout=layout, compression="zstd")
    row = {"topic": "Orders", "storeTimestamp": STORED_AT, "id": number}
    writer.write(pa.RecordBatch.from_pylist([row], schema))
    files = writer.close()
    return Manifest(number=number, kind="archive", source="tests", written_at_ms=number, added=files, format="")


def test_what_does_not_fit_into_a_table_is_said_before_it_is_written(tmp_path: Path, kind: str) -> None:
    lake = Lake(str(tmp_path))
    table, state = begun_table(lake, kind, COLUMNS, "hour")
    assert table is not None
    table.create(COLUMNS, "hour")
    publish_batch(lake, table, replace(a_batch(tmp_path, 0), format=kind), state)
    more = COLUMNS.append(pa.field("more", pa.string()))
    other = COLUMNS.set(2, pa.field("id", pa.string()))
    misfits: list[tuple[pa.Schema, Layout, str]] = [
        (COLUMNS, "topic", "is partitioned by .*topic.*hour.*, not by topic .write with the --by"),
        (more, "hour", "has other columns: more .*string is not there"),
        (other, "hour", "has other columns: id .*string is int64"),
    ]
    for schema, layout, said in misfits:
        for refusing in (table.create, partial(begun_table, lake, kind)):
            with pytest.raises(ConfigError, match=said):
                refusing(schema, layout)
    # Nothing was left behind: the table goes on, also with fewer columns.
    fewer = COLUMNS.remove(2)
    table, state = begun_table(lake, kind, fewer, "hour")
    assert state.next_number == 1
    publish_batch(lake, table, replace(a_batch(tmp_path, 1, schema=fewer), format=kind), state)
    assert table_rows(kind, tmp_path)["id"].to_pylist() in ([0, None], [None, 0])


def test_files_with_fewer_columns_are_compacted_with_the_others(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    lake = Lake(str(tmp_path))
    table, state = begun_table(lake, kind, COLUMNS, "hour")
    assert table is not None
    table.create(COLUMNS, "hour")
    for number, schema in enumerate((COLUMNS.remove(2), COLUMNS, COLUMNS.remove(2))):
        manifest = replace(a_batch(tmp_path, number, schema=schema), format=kind)
        state = publish_batch(lake, table, manifest, state)
    done = compact(spark, str(tmp_path), compression="zstd", clock=SystemClock())
    assert done == CompactionSummary(3, 1)
    assert Counter(table_rows(kind, tmp_path)["id"].to_pylist()) == {None: 2, 1: 1}


def test_where_a_name_cannot_be_taken_at_once_the_second_writer_is_still_refused(tmp_path: Path) -> None:
    """As on object stores, where Arrow moves a file over whatever has its name."""
    first, second = Lake("lake"), Lake("lake")
    for lake in (first, second):
        lake.files, lake.root = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "lake"
    manifest = Manifest(number=0, kind="archive", source="tests", written_at_ms=1)
    late = replace(manifest, written_at_ms=2)
    hint = "has got a batch 0 from somebody else .one archive or compaction at a time may write into a directory"
    first.intend(LakeState(), {})
    first.prepare(manifest)
    first.publish(manifest, LakeState())
    for refused in (partial(second.intend, LakeState(), {}), partial(second.prepare, late)):
        with pytest.raises(StorageError, match=hint):
            refused()
    with pytest.raises(StorageError, match=hint):
        second.publish(late, LakeState())
    assert second.read("_manifests/00000000.json", Manifest) == manifest


def test_a_sink_says_before_it_writes_what_does_not_fit(tmp_path: Path, kind: str) -> None:
    options = {"path": str(tmp_path), "tableFormat": kind}
    first = StructType().add("id", "long")
    BatchTableWriter(sink_table(options), first, False).commit([])
    for made in (TableSinkSource(options).writer, TableSinkSource(options).streamWriter):
        made(first, False)
        with pytest.raises(ConfigError, match=r"has other columns: id .*string is int64"):
            made(StructType().add("id", "string"), False)


def test_files_listed_by_another_layout_are_told_with_the_list_to_remove(tmp_path: Path) -> None:
    """As an older version left them: listed, and never to be committed."""
    pytest.importorskip("deltalake")
    lake = Lake(str(tmp_path))
    open_table(lake, "delta").create(COLUMNS, "hour")
    lake.prepare(replace(a_batch(tmp_path, 0, layout="topic"), format="delta"))
    with pytest.raises(StorageError, match=r"not in folders of topic, date, hour.*remove .*files\.json"):
        begun_table(lake, "delta", COLUMNS, "hour")


def test_a_batch_beside_another_of_its_number_is_refused_and_the_table_keeps_its_rows(
    tmp_path: Path, kind: str
) -> None:
    """An archive and a compaction, or two archives, that began with the same state."""
    lake = Lake(str(tmp_path))
    table, begun = begun_table(lake, kind, COLUMNS, "hour")
    assert table is not None
    table.create(COLUMNS, "hour")
    first = publish_batch(lake, table, replace(a_batch(tmp_path, 0), format=kind), begun)
    archived = replace(a_batch(tmp_path, 1), format=kind)
    compacted = a_batch(tmp_path, 1, name="compacted-00000001-00000", layout="hour")
    compacted = replace(compacted, kind="compaction", format=kind, removed=sorted(first.files))
    publish_batch(lake, table, archived, first)
    for late in (compacted, replace(archived, added=[])):
        with pytest.raises(StorageError, match="a batch 1 from somebody else"):
            publish_batch(lake, table, late, first)
    assert lake.read("_manifests/00000001.files.json", Manifest) == archived
    assert sorted(table_rows(kind, tmp_path)["id"].to_pylist()) == [0, 1]
    # Where the list is no help, the table knows whose files it has got.
    lake.remove(["_manifests/00000001.files.json", "_manifests/00000001.json"])
    with pytest.raises(StorageError, match="a batch 1 from somebody else"):
        publish_batch(lake, table, compacted, first)
    lake.remove(["_manifests/00000001.files.json"])
    assert sorted(publish_batch(lake, table, archived, first).files) == sorted(table.paths())


def test_of_several_who_take_a_number_at_once_one_has_it(tmp_path: Path) -> None:
    together = Barrier(8)

    def publish(number: int) -> bool:
        manifest = Manifest(number=0, kind="archive", source=f"{number}", written_at_ms=0)
        together.wait()
        try:
            Lake(str(tmp_path)).publish(manifest, LakeState())
        except StorageError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(publish, range(8))) == 1
    assert [path.name for path in (tmp_path / "_manifests").iterdir()] == ["00000000.json"]


def written_file(where: Path, text: str) -> tuple[pa.Schema, list[DataFile]]:
    """One file of one row, which no table names yet: its schema, and what a commit says of it."""
    schema = pa.schema([("body", pa.string())])
    writer = LakeWriter(Lake(str(where)), text, schema, layout="none", compression="none")
    writer.write(pa.RecordBatch.from_pylist([{"body": text}], schema=schema))
    return schema, writer.close()


def test_writers_of_one_delta_table_who_commit_at_one_moment_all_count(tmp_path: Path) -> None:
    """Streams of several queries into one table, which none of them finds there at first."""
    pytest.importorskip("deltalake")
    together = Barrier(4, timeout=60)

    def write(writer: str) -> list[StorageError]:
        refused = []
        for number in range(3):
            schema, files = written_file(tmp_path, f"{writer}{number}")
            change = TableChange(writer=writer, number=number, added=files, at_ms=0)
            table = open_table(Lake(str(tmp_path)), "delta")
            together.wait()
            table.create(schema, "none")
            together.wait()
            try:
                table.commit(change)
            except StorageError as error:
                refused.append(error)
        return refused

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(write, "abcd")) == [[], [], [], []]
    found = Counter(table_rows("delta", tmp_path)["body"].to_pylist())
    assert found == Counter(f"{writer}{number}" for writer in "abcd" for number in range(3))
    assert [open_table(Lake(str(tmp_path)), "delta").committed(writer) for writer in "abcd"] == [2, 2, 2, 2]


def test_of_two_drivers_of_one_query_who_commit_a_batch_at_one_moment_one_counts(tmp_path: Path) -> None:
    """The first was given up, and is not dead."""
    pytest.importorskip("deltalake")
    schema, first = written_file(tmp_path, "first")
    _, second = written_file(tmp_path, "second")
    open_table(Lake(str(tmp_path)), "delta").create(schema, "none")
    together = Barrier(2, timeout=60)

    def commit(files: Any) -> bool:
        table = open_table(Lake(str(tmp_path)), "delta")
        assert table.committed("query") < 0, "neither knows of the other"
        together.wait()
        try:
            table.commit(TableChange(writer="query", number=0, added=files, at_ms=0))
        except StorageError:
            return False
        return True

    with ThreadPoolExecutor(2) as threads:
        assert sum(threads.map(commit, (first, second))) == 1
    assert table_rows("delta", tmp_path).num_rows == 1


def test_a_file_system_without_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[int] = []

    def no_links(*_: Any) -> None:
        refused.append(1)
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    lake = Lake(str(tmp_path))
    manifest = Manifest(number=0, kind="archive", source="tests", written_at_ms=0)
    lake.publish(manifest, LakeState())
    with pytest.raises(StorageError, match="from somebody else"):
        lake.publish(manifest, LakeState())
    assert refused
    assert [path.name for path in (tmp_path / "_manifests").iterdir()] == ["00000000.json"]


def test_a_commit_of_iceberg_never_replaces_one_that_came_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyiceberg")
    from orbitmq.spark.iceberg_table import _DirectoryCatalog

    lake = Lake(str(tmp_path))
    ours, theirs = open_table(lake, "iceberg"), open_table(lake, "iceberg")
    ours.create(COLUMNS, "hour")

    def change(number: int, writer: str) -> TableChange:
        name = f"{writer}-{number}"
        return TableChange(writer=writer, number=number, added=a_batch(tmp_path, number, name=name).added, at_ms=0)

    ours.commit(change(0, "ours"))
    between = [change(1, "theirs")]
    version = _DirectoryCatalog.version

    def then_others(self: Any) -> int:
        """Somebody commits between the look of ours and what it does then."""
        seen = version(self)
        if between and "commit_table" in {frame.name for frame in extract_stack()}:
            theirs.commit(between.pop())
        return seen

    monkeypatch.setattr(_DirectoryCatalog, "version", then_others)
    ours.commit(change(2, "ours"))  # refused, and made again upon the other
    assert not between
    assert sorted(table_rows("iceberg", tmp_path)["id"].to_pylist()) == [0, 1, 2]
    assert (ours.committed("ours"), ours.committed("theirs")) == (2, 1)


def test_a_compaction_finishes_a_first_batch_of_which_only_the_commit_is_missing(tmp_path: Path, kind: str) -> None:
    lake = Lake(str(tmp_path))
    open_table(lake, kind).create(COLUMNS, "hour")
    lake.prepare(replace(a_batch(tmp_path, 0), format=kind))
    no_session: Any = None  # one file: there is nothing for workers to do
    assert compact(no_session, str(tmp_path), compression="zstd", clock=SystemClock()) == CompactionSummary(1, 1)
    assert table_rows(kind, tmp_path)["id"].to_pylist() == [0]
    assert lake.state().format == kind


def test_archives_of_two_namespaces_are_of_two_sources() -> None:
    def said(**options: str) -> str:
        return archived_source(source_options({"nameServer": "localhost:1", **options}, streaming=True))

    for chosen in ({"subscribe": "Orders"}, {"subscribePattern": "Or.*"}):
        assert len({said(**chosen), said(**chosen, namespace="shop"), said(**chosen, namespace="test")}) == 3
    assert said(subscribe="Orders") == "topics Orders tags *"
