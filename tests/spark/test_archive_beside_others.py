"""Archives, compactions and executors that get in each other's way. Spark's workers are this process: no session is needed."""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import dataset, parquet

from orbitmq.cli.entry import cli
from orbitmq.cli.spark_archive import compacting_every
from orbitmq.cli.spark_replay import _source_settings
from orbitmq.clock import ManualClock, SystemClock
from orbitmq.errors import ConfigError, StorageError
from orbitmq.message.sysflags import COMPRESSED
from orbitmq.spark import archive as archiving
from orbitmq.spark import compaction, replay, store_export, whole_files
from orbitmq.spark.archive import Archive
from orbitmq.spark.compaction import compact
from orbitmq.spark.lake import Lake, Manifest
from orbitmq.spark.replay import ReplayTask, Unit, Wishes
from orbitmq.spark.sink_options import sink_options
from orbitmq.spark.source_options import source_options, source_schema
from orbitmq.spark.store_options import parse_options
from orbitmq.testing import Server
from tests.spark.direct import batch_reader, bodies, read, send
from tests.spark.tables import table_rows
from tests.storage.store_kit import open_store, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NO_SESSION: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture(autouse=True)
def workers(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Run in this process; what is put into the list happens once, when the files of the next batch are there."""
    happens: list[Callable[[], None]] = []

    def run(_spark: Any, name: str, tasks: Any, work: Any, _progress: Any = None) -> list[Any]:
        done = [work(task) for task in tasks]
        while happens and not name.startswith("compact"):
            happens.pop()()
        return done

    for module in (archiving, compaction, store_export):
        monkeypatch.setattr(module, "run_tasks", run)
    return happens


def an_archive(
    server: Server, lake: Path, topics: str, kind: Any = "parquet", layout: Any = "topic", **more: str
) -> Archive:
    options = {"nameServer": server.address, "subscribe": topics, "startingOffsets": "earliest", **more}
    made: dict[str, Any] = {"layout": layout, "compression": "zstd", "clock": SystemClock(), "table_format": kind}
    return Archive(NO_SESSION, source_options(options, streaming=True), source_schema(options), str(lake), **made)


def in_the_files_that_count(lake: Path) -> Counter[bytes]:
    files = Lake(str(lake)).live_files()
    return Counter(body for path in files for body in parquet.ParquetFile(path).read(["body"])["body"].to_pylist())


def in_the_directory(lake: Path) -> Counter[bytes]:
    """As a program sees it that reads all files there are."""
    return Counter(dataset.dataset(str(lake), format="parquet").to_table(columns=["body"])["body"].to_pylist())


def once(*texts: str) -> Counter[bytes]:
    return Counter(text.encode() for text in texts)


def shrink(lake: Path) -> None:
    compact(NO_SESSION, str(lake), compression="zstd", clock=ManualClock())


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_an_archive_goes_on_beside_compactions(
    server: Server, tmp_path: Path, workers: list[Callable[[], None]], kind: str
) -> None:
    if kind == "delta":
        pytest.importorskip("deltalake")
    topic = f"Beside-{kind}"
    running = an_archive(server, tmp_path, topic, kind)
    for text in ("1", "2"):
        send(server, topic, [text])
        assert running.step()
    shrink(tmp_path)  # between two batches
    send(server, topic, ["3"])
    assert running.step()
    workers.append(lambda: shrink(tmp_path))  # it takes the number of the batch whose files were just written
    workers.append(lambda: shrink(tmp_path))  # and removes no file of that batch
    send(server, topic, ["4"])
    assert running.step()
    send(server, topic, ["5"])
    assert running.step()
    assert not running.step()
    assert in_the_files_that_count(tmp_path) == once("1", "2", "3", "4", "5")
    if kind == "delta":
        assert Counter(table_rows(kind, tmp_path)["body"].to_pylist()) == once("1", "2", "3", "4", "5")
    else:
        assert in_the_directory(tmp_path) == once("1", "2", "3", "4", "5")
    assert running.summary.rows == 5
    assert Lake(str(tmp_path)).state() == running.state


def test_a_compaction_goes_on_beside_an_archive(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = an_archive(server, tmp_path, "Quick")
    for text in ("1", "2"):
        send(server, "Quick", [text])
        assert running.step()
    send(server, "Quick", ["3"])

    def then_a_batch(_spark: Any, _name: str, tasks: Any, work: Any, _progress: Any) -> Any:
        done = [work(task) for task in tasks]
        assert running.step()
        return done

    monkeypatch.setattr(compaction, "run_tasks", then_a_batch)
    shrink(tmp_path)
    assert in_the_files_that_count(tmp_path) == in_the_directory(tmp_path) == once("1", "2", "3")
    kinds = [Lake(str(tmp_path)).read(f"_manifests/{number:08d}.json", Manifest).kind for number in range(4)]
    assert kinds == ["archive", "archive", "archive", "compaction"]


def test_what_a_topic_that_is_made_anew_gets_while_a_batch_is_under_way_is_read(
    server: Server, tmp_path: Path, workers: list[Callable[[], None]]
) -> None:
    send(server, "Steady", ["a1"])
    send(server, "Remade", ["old 1", "old 2", "old 3"], order_key="k")
    running = an_archive(server, tmp_path, "Steady,Remade", failOnDataLoss="false")
    running.run_once()

    def made_anew() -> None:
        removal = ["topic", "rm", "Remade", "--yes", "--namesrv", server.address]
        CliRunner().invoke(cli, removal, catch_exceptions=False)
        send(server, "Remade", ["new 1"], order_key="k")

    workers.append(made_anew)
    send(server, "Steady", ["a2"])
    running.run_once()
    running.run_once()
    send(server, "Remade", ["new 2"], order_key="k")
    running.run_once()
    assert in_the_files_that_count(tmp_path) == once("a1", "a2", "old 1", "old 2", "old 3", "new 1", "new 2")


def three_batches(server: Server, lake: Path, topic: str, kind: str = "parquet") -> Archive:
    running = an_archive(server, lake, topic, kind)
    for text in ("1", "2", "3"):
        send(server, topic, [text])
        assert running.step()
    return running


def when_files_are_there(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], Any]) -> None:
    """Once, when a driver has found the files of its workers and has not yet made them count."""
    look = Lake.check_written

    def looked(self: Lake, files: Any) -> None:
        look(self, files)
        monkeypatch.setattr(Lake, "check_written", look)
        happens()

    monkeypatch.setattr(Lake, "check_written", looked)


def test_a_compaction_takes_no_file_of_another_that_writes(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_batches(server, tmp_path, "TwoWriting")
    others: list[str] = []

    def then_another(_spark: Any, _name: str, tasks: Any, work: Any, _progress: Any) -> Any:
        done = [work(task) for task in tasks]
        if not others:
            others.append("is at work")
            shrink(tmp_path)
        return done

    monkeypatch.setattr(compaction, "run_tasks", then_another)
    with pytest.raises(StorageError, match="somebody else"):
        shrink(tmp_path)
    assert in_the_files_that_count(tmp_path) == in_the_directory(tmp_path) == once("1", "2", "3")


def test_a_compaction_takes_no_file_of_another_that_is_about_to_count(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_batches(server, tmp_path, "TwoCounting")
    lake = Lake(str(tmp_path))
    when_files_are_there(monkeypatch, lambda: lake.remove(lake.leftovers(lake.state())))  # how the other begins
    shrink(tmp_path)
    assert in_the_files_that_count(tmp_path) == in_the_directory(tmp_path) == once("1", "2", "3")


@pytest.mark.parametrize(("kind", "package"), [("delta", "deltalake"), ("iceberg", "pyiceberg")])
def test_an_archive_that_is_started_again_takes_no_file_of_a_compaction(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers: list[Callable[[], None]],
    kind: str,
    package: str,
) -> None:
    pytest.importorskip(package)
    topic = f"Resumed-{kind}"
    running = three_batches(server, tmp_path, topic, kind)

    def die() -> None:
        raise KeyboardInterrupt

    workers.append(die)
    send(server, topic, ["4"])
    with pytest.raises(KeyboardInterrupt):
        running.step()
    when_files_are_there(monkeypatch, lambda: an_archive(server, tmp_path, topic, kind))
    shrink(tmp_path)
    assert in_the_files_that_count(tmp_path) == once("1", "2", "3")
    an_archive(server, tmp_path, topic, kind).run_once()
    assert in_the_files_that_count(tmp_path) == once("1", "2", "3", "4")
    assert Counter(table_rows(kind, tmp_path)["body"].to_pylist()) == once("1", "2", "3", "4")


def test_a_compaction_takes_no_plan_that_is_being_written(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = three_batches(server, tmp_path, "Planning")
    sync = whole_files._sync

    def synced(path: str) -> None:
        sync(path)
        if ".plan.json." in path:  # its bytes are on the device, its name is not there yet
            monkeypatch.setattr(whole_files, "_sync", sync)
            shrink(tmp_path)

    monkeypatch.setattr(whole_files, "_sync", synced)
    send(server, "Planning", ["4"])
    assert running.step()
    assert whole_files._sync is sync
    assert in_the_files_that_count(tmp_path) == once("1", "2", "3", "4")


def test_a_batch_that_died_and_whose_number_a_compaction_took_is_run_again_as_it_was(
    server: Server, tmp_path: Path, workers: list[Callable[[], None]]
) -> None:
    dying = an_archive(server, tmp_path, "Outlived")
    for text in ("1", "2"):
        send(server, "Outlived", [text])
        assert dying.step()

    def die() -> None:
        raise KeyboardInterrupt

    workers.append(die)
    send(server, "Outlived", ["3"])
    with pytest.raises(KeyboardInterrupt):
        dying.step()
    shrink(tmp_path)
    assert in_the_files_that_count(tmp_path) == once("1", "2")
    send(server, "Outlived", ["4"])
    an_archive(server, tmp_path, "Outlived").run_once()
    assert in_the_files_that_count(tmp_path) == in_the_directory(tmp_path) == once("1", "2", "3", "4")


def test_nothing_counts_and_no_offset_is_kept_when_executors_write_elsewhere(
    server: Server, tmp_path: Path, workers: list[Callable[[], None]]
) -> None:
    send(server, "Elsewhere", ["1"])
    running = an_archive(server, tmp_path, "Elsewhere")

    def on_another_machine() -> None:
        for path in tmp_path.rglob("*.parquet"):
            path.unlink()

    workers.append(on_another_machine)
    with pytest.raises(StorageError, match="the driver does not find 1 of them there, such as topic=Elsewhere/"):
        running.step()
    assert Lake(str(tmp_path)).state().next_number == 0
    with pytest.raises(ConfigError, match=r"the batch under way in .* is partitioned by topic, not by nothing"):
        an_archive(server, tmp_path, "Elsewhere", layout="none")
    assert an_archive(server, tmp_path, "Elsewhere").run_once().rows == 1


def test_an_export_counts_when_the_driver_sees_its_files_and_leaves_out_what_it_calls_damage(
    tmp_path: Path, workers: list[Callable[[], None]]
) -> None:
    store = open_store(tmp_path / "store")
    put(store, "Orders", body=b"sound")
    host = b"\x7f\x00\x00\x01\x00\x00\x00\x01"
    store.append("Orders", 0, b"no zlib", b"", 1, host, sys_flag=COMPRESSED)
    store.close()
    scan, _, schema = parse_options({"path": str(tmp_path / "store"), "onCorrupt": "skip"})

    def export() -> store_export.ExportSummary:
        made: dict[str, Any] = {"layout": "topic", "compression": "zstd", "clock": ManualClock()}
        return store_export.export_store(NO_SESSION, scan, schema, str(tmp_path / "lake"), **made)

    def on_another_machine() -> None:
        for path in (tmp_path / "lake").rglob("*.parquet"):
            path.write_bytes(b"cut short")

    workers.append(on_another_machine)
    with pytest.raises(StorageError, match="the driver does not find 1 of them there, such as topic=Orders/"):
        export()
    done = export()
    assert (done.rows, len(done.damage)) == (1, 1)
    assert in_the_files_that_count(tmp_path / "lake") == in_the_directory(tmp_path / "lake") == once("sound")


def exported(store: Path, lake: Path, **options: str) -> store_export.ExportSummary:
    scan, _, schema = parse_options({"path": str(store), **options})
    made: dict[str, Any] = {"layout": "topic", "compression": "zstd", "clock": ManualClock()}
    return store_export.export_store(NO_SESSION, scan, schema, str(lake), **made)


def test_an_export_tells_what_the_broker_removed_since_the_one_before(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    for number in range(20):
        put(store, "Orders", body=b"%d" % number)
    before = exported(tmp_path / "store", tmp_path / "lake").log_end
    for number in range(20, 100):
        put(store, "Orders", body=b"%d" % number)
    store.close()
    for file in sorted((tmp_path / "store" / "commitlog").iterdir())[:2]:
        file.unlink()  # as the broker does when messages are too old
    lost = f"log, bytes {before} to 8192: the broker removed this since the last time it was read"
    with pytest.raises(StorageError, match=lost):
        exported(tmp_path / "store", tmp_path / "lake")
    rest = exported(tmp_path / "store", tmp_path / "lake", onCorrupt="skip")
    assert rest.damage == [lost]
    assert 0 < rest.rows < 80
    assert Lake(str(tmp_path / "lake")).read("_manifests/00000001.json", Manifest).damage == [lost]
    assert exported(tmp_path / "store", tmp_path / "lake").rows == 0, "it is told once"


@pytest.mark.parametrize(
    ("messages", "body", "is_marked", "when_corrupt", "told"),
    [
        (5, b"other", True, "fail", "ends at"),
        (60, b"a body", True, "fail", "holds other messages before"),  # of the same size, a minute later
        (60, b"a body", True, "skip", "holds other messages before"),
        (60, b"other", False, "fail", "no record of the log of .* begins at"),  # as older versions know it
    ],
)
def test_an_export_does_not_go_on_in_a_log_that_was_made_anew(
    tmp_path: Path, messages: int, body: bytes, is_marked: bool, when_corrupt: str, told: str
) -> None:
    clock = ManualClock()
    for directory, count, text in (("first", 40, b"a body"), ("second", messages, body)):
        store = open_store(tmp_path / directory, clock=clock)
        for _ in range(count):
            put(store, "Orders", body=text)
        store.close()
        clock.advance(seconds=60)
    (tmp_path / "first").rename(tmp_path / "store")
    assert exported(tmp_path / "store", tmp_path / "lake").rows == 40
    if not is_marked:
        lake = Lake(str(tmp_path / "lake"))
        known = lake.read("_manifests/00000000.json", Manifest)
        lake.write("_manifests/00000000.json", msgspec.structs.replace(known, log_mark=None))
    (tmp_path / "store").rename(tmp_path / "gone")
    (tmp_path / "second").rename(tmp_path / "store")
    with pytest.raises(StorageError, match=rf"{told}.*, but it was read up to \d+ before: it was made anew"):
        exported(tmp_path / "store", tmp_path / "lake", onCorrupt=when_corrupt)
    assert exported(tmp_path / "store", tmp_path / "other").rows == messages


def test_an_archive_that_ignores_loss_reads_a_topic_that_was_made_anew(server: Server, tmp_path: Path) -> None:
    for texts in (["1", "2"], ["3"]):
        send(server, "Anew", texts, order_key="k")
        assert an_archive(server, tmp_path, "Anew").run_once().rows == len(texts)
    CliRunner().invoke(cli, ["topic", "rm", "Anew", "--yes", "--namesrv", server.address], catch_exceptions=False)
    send(server, "Anew", ["4", "5"], order_key="k")
    shrink(tmp_path)  # later than those were stored, and no batch
    with pytest.raises(ConfigError, match=r"the archive says 3 for queue .* which holds 0 to 2"):
        an_archive(server, tmp_path, "Anew").run_once()
    careless = an_archive(server, tmp_path, "Anew", failOnDataLoss="false")
    assert careless.run_once().rows == 2
    assert careless.run_once().rows == 2, "nothing comes twice"
    assert in_the_files_that_count(tmp_path) == once("1", "2", "3", "4", "5")


def test_the_group_hears_of_a_batch_whose_archive_died_before_it_told(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(*_: Any) -> None:
        raise StorageError("the power went")

    send(server, "Untold", ["1", "2"], order_key="k")
    telling = {"groupId": "lake-untold", "commitOffsets": "true"}
    with monkeypatch.context() as patched:
        patched.setattr(archiving, "commit_offsets", dies)
        with pytest.raises(StorageError, match="the power went"):
            an_archive(server, tmp_path, "Untold", **telling).run_once()
    assert an_archive(server, tmp_path, "Untold", **telling).run_once().rows == 0
    assert read(server, subscribe="Untold", startingOffsets="group", groupId="lake-untold") == []


def test_a_topic_that_was_deleted_does_not_end_an_archive_that_tells_its_group(server: Server, tmp_path: Path) -> None:
    for topic in ("Of-two", "Of-three"):
        send(server, topic, ["1"], order_key="k")
    telling = {"subscribe": "", "subscribePattern": "Of-.*", "groupId": "lake-of", "commitOffsets": "true"}
    assert an_archive(server, tmp_path, "", **telling).run_once().rows == 2
    CliRunner().invoke(cli, ["topic", "rm", "Of-three", "--yes", "--namesrv", server.address], catch_exceptions=False)
    send(server, "Of-two", ["2"], order_key="k")
    assert an_archive(server, tmp_path, "", **telling).run_once().rows == 1
    assert read(server, subscribe="Of-two", startingOffsets="group", groupId="lake-of") == []


def test_an_archive_tells_once_which_queues_it_does_not_read(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    send(server, "Partly", ["1"])
    an_archive(server, tmp_path, "Partly").run_once()
    manifest = tmp_path / "_manifests" / "00000000.json"
    said = json.loads(manifest.read_text())
    said["offsets"]["Partly"]["broker-z"] = {"0": 5}  # as if it had been there then
    said["offsets"]["Deleted"] = {"broker-z": {"0": 5}}
    manifest.write_text(json.dumps(said))
    running = an_archive(server, tmp_path, "Partly")
    send(server, "Partly", ["2"])
    running.step()
    running.step()
    told = [record.message for record in caplog.records if "not read" in record.message]
    assert told == ["not read, because they are in no route now: queue 0 of Partly on broker-z"]
    assert Lake(str(tmp_path)).state().offsets["Partly"]["broker-z"] == {"0": 5}


def test_topics_may_be_named_in_any_order(server: Server, tmp_path: Path) -> None:
    for topic in ("First", "Second", "Third"):
        send(server, topic, [topic])
    assert an_archive(server, tmp_path, "First,Second").run_once().rows == 2
    assert an_archive(server, tmp_path, "Second,First").run_once().rows == 0
    with pytest.raises(ConfigError, match="holds what came from topics First,Second"):
        an_archive(server, tmp_path, "First,Third")
    # As a version kept it that did not sort them.
    manifest = tmp_path / "_manifests" / "00000000.json"
    manifest.write_text(manifest.read_text().replace("First,Second", "Second,First"))
    assert an_archive(server, tmp_path, "First,Second").run_once().rows == 0


def test_a_worker_that_lacks_the_archive_says_so_and_speaks_of_no_compaction(tmp_path: Path) -> None:
    def read(lake: Path) -> Any:
        sink = sink_options({"nameServer": "127.0.0.1:1", "producerGroup": "g"})
        task: Any = {"number": 0, "job": "j", "source": None, "sink": sink, "wishes": Wishes()}
        return list(replay._batches(ReplayTask(unit=Unit(path="00000000-00000.parquet"), lake=str(lake), **task)))

    with pytest.raises(StorageError, match=r"a worker does not find the archive .*every executor must reach it"):
        read(tmp_path / "not-mounted")
    (tmp_path / "_manifests").mkdir()
    with pytest.raises(StorageError, match="is gone: the archive was compacted since"):
        read(tmp_path)


def test_a_replay_keeps_to_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)

    def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(replay, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    batches = [pa.RecordBatch.from_pydict({"n": list(range(first, first + 50))}) for first in (0, 50)]
    sent = [(clock.now - 100.0, piece.column("n").to_pylist()) for piece in replay._paced(iter(batches), 10.0)]
    assert [number for _, numbers in sent for number in numbers] == list(range(100))
    assert all(at >= numbers[0] / 10 - 1e-6 for at, numbers in sent), "none before its time"
    assert clock.now - 100.0 == pytest.approx(9.8), "and no later than it must"


def test_a_replay_of_many_short_files_keeps_to_its_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    at: list[float] = []

    def sleep(seconds: float) -> None:
        clock.now += seconds

    def sends_two_each(_spark: Any, _name: str, tasks: Any, _work: Any) -> list[tuple[int, int]]:
        at.append(clock.now - 100.0)
        return [(2, 0) for _ in tasks]

    monkeypatch.setattr(replay, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    monkeypatch.setattr(replay, "run_tasks", sends_two_each)
    monkeypatch.setattr(replay, "live_paths", lambda *_: [f"{number}.parquet" for number in range(6)])
    sink = sink_options({"nameServer": "127.0.0.1:1", "producerGroup": "g"})
    wishes = Wishes(to_topic="T", rate=10.0)
    assert replay.Replay(NO_SESSION, sink, wishes, lake=str(tmp_path), job="j").run() == 12
    assert at == pytest.approx([0.0, 0.4, 0.8])
    at.clear()
    assert replay.Replay(NO_SESSION, sink, Wishes(to_topic="T"), lake=str(tmp_path), job="j").run() == 12
    assert at == pytest.approx([0.8, 0.8, 0.8])


def test_a_topic_is_replayed_from_where_its_time_begins(server: Server) -> None:
    send(server, "Timed", [f"old {number}" for number in range(8)])
    last = max(row["storeTimestamp"] for row in read(server, subscribe="Timed"))
    server.clock.advance(hours=3)
    send(server, "Timed", ["new"])
    server.clock.advance(hours=3)
    send(server, "Timed", ["newest"])
    begin_ms = int(last.timestamp() * 1000) + 3_600_000

    def asked_for(**times: Any) -> dict[str, str]:
        return _source_settings({}, ("Timed",), "", Wishes(**times))

    units = batch_reader(server, **asked_for(begin_ms=begin_ms)).partitions()
    assert sum(one.until - one.start for unit in units for one in unit.ranges) == 2, "no more than that is pulled"
    assert bodies(read(server, **asked_for(begin_ms=begin_ms, end_ms=begin_ms + 4 * 3_600_000))) == ["new"]


def test_an_archive_that_goes_on_is_compacted_every_so_many_batches() -> None:
    done: list[str] = []
    batches = iter([True, False, True, True, True, False, True])

    def step() -> bool:
        moved = next(batches)
        done.append("batch" if moved else "nothing")
        return moved

    move = compacting_every(2, step, lambda: done.append("compacted"))
    for _ in range(7):
        move()
    assert done == ["batch", "nothing", "batch", "compacted", "batch", "batch", "compacted", "nothing", "batch"]
