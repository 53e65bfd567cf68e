"""`format("rocketmq-store")`: what a store directory holds, as a table, without a broker."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.functions import col, lit

from orbitmq.client.names import is_system_topic
from orbitmq.clock import ManualClock
from orbitmq.errors import ConfigError, StoreCorrupt
from orbitmq.message.batch import BatchMember, encode_batch
from orbitmq.message.compression import compress
from orbitmq.message.record import decode_record
from orbitmq.message.sysflags import COMPRESSED, INNER_BATCH, NEED_UNWRAP
from orbitmq.spark.frames import Tables, make_views
from orbitmq.spark.schema import projection
from orbitmq.spark.store_options import parse_options
from orbitmq.spark.store_scan import plan, read_range
from orbitmq.spark.store_source import StoreSource
from orbitmq.storage.reader import StoreReader
from tests.golden_stores import VERSIONS, manifest, unpack
from tests.spark.marks import SPARK
from tests.storage.store_kit import open_store, put

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import Filter

pytestmark = SPARK

HOST = b"\x7f\x00\x00\x01\x00\x00\x00\x01"


def table(spark: SparkSession, directory: Path, **options: Any) -> DataFrame:
    return spark.read.format("rocketmq-store").options(**options).load(str(directory))


def rows(directory: Path, columns: str = "all", **options: str) -> list[dict[str, Any]]:
    """The same by the pieces themselves, without Spark: for what has many cases."""
    scan, _, schema = parse_options({"path": str(directory), "columns": columns, **options})
    ranges, _ = plan(scan)
    wanted = projection(schema)
    return [
        row
        for log_range in ranges
        for piece in read_range(scan, log_range, wanted)
        for row in piece.batch.to_pylist(maps_as_pydicts="strict")
    ]


def places(found: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return [(row["topic"], row["queueId"], row["queueOffset"]) for row in found]


@pytest.fixture
def store_directory(tmp_path: Path) -> Path:
    """120 messages of two topics, one a second, over many small files."""
    clock = ManualClock()
    store = open_store(tmp_path / "store", clock=clock)
    for number in range(120):
        tag = "odd" if number % 2 else "even"
        put(
            store,
            "Orders" if number % 3 else "Bills",
            number % 4,
            f"body {number}".encode(),
            TAGS=tag,
            KEYS=f"k{number}",
        )
        clock.advance(seconds=1)
    store.close()
    return tmp_path / "store"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_store_that_apache_wrote_is_read_whole(spark: SparkSession, tmp_path: Path, version: str) -> None:
    directory = unpack(version, tmp_path)
    with StoreReader(directory) as reader:
        queues = [queue for queue in reader.queues() if not is_system_topic(queue.topic)]
        wanted = {
            (message.topic, message.queue_id, message.queue_offset): message
            for queue in queues
            for message in reader.messages(queue.topic, queue.queue_id)
            if not message.sys_flag & INNER_BATCH
        }
    found = {
        (row.topic, row.queueId, row.queueOffset): row
        for row in table(spark, directory, columns="all", partitionBytes="20000", brokerName="b").collect()
        if not row.sysFlag & INNER_BATCH
    }
    assert manifest(version)
    assert len(wanted) > 20
    assert wanted.keys() <= found.keys()
    for place, message in wanted.items():
        row = found[place]
        assert row.properties == message.properties
        assert row.msgId == message.message_id
        assert row.commitLogOffset == message.commit_log_offset
        assert bytes(row.body) == message.body or message.sys_flag & COMPRESSED
        assert row.brokerName == "b"


def test_topic_queue_time_and_tags_choose_rows_before_they_are_decoded(store_directory: Path) -> None:
    everything = rows(store_directory)
    assert len(everything) == 120
    assert [row["commitLogOffset"] for row in everything] == sorted(row["commitLogOffset"] for row in everything)
    assert rows(store_directory, topic="Bills") == [row for row in everything if row["topic"] == "Bills"]
    assert rows(store_directory, subscribePattern="O.*") == [row for row in everything if row["topic"] == "Orders"]
    assert rows(store_directory, queueIds="1, 3") == [row for row in everything if row["queueId"] in (1, 3)]
    assert rows(store_directory, tags="odd || other") == [row for row in everything if row["tags"] == "odd"]
    first = everything[0]["storeTimestamp"].timestamp()
    window = {"startingTimestamp": str(int(first + 20) * 1000), "endingTimestamp": str(int(first + 50) * 1000)}
    by_time = rows(store_directory, **window)
    assert len(by_time) == 30
    assert [row["body"] for row in by_time] == [f"body {number}".encode() for number in range(20, 50)]
    assert rows(store_directory, "body,queueId", tags="even", topic="Orders")[0] == {"body": b"body 2", "queueId": 2}


def test_tags_with_one_hash_are_told_apart(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, body=b"wanted", TAGS="Aa")
    put(store, body=b"other", TAGS="BB")
    store.close()
    assert [row["body"] for row in rows(tmp_path, tags="Aa")] == [b"wanted"]


def test_a_store_in_use_and_one_that_was_killed_show_their_newest_messages(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for number in range(5):
        put(store, body=b"%d" % number, TAGS="A")
    assert [row["body"] for row in rows(tmp_path, tags="A")] == [b"0", b"1", b"2", b"3", b"4"]
    put(store, body=b"5", TAGS="A")
    assert len(rows(tmp_path)) == 6
    store.close()
    assert len(rows(tmp_path)) == 6


def test_compressed_bodies_and_inner_batches_come_as_single_messages(tmp_path: Path) -> None:
    store = open_store(tmp_path, is_batch_topic=lambda topic: topic == "Batches")
    put(store, body=b"plain")
    store.append("T", 0, compress(b"x" * 999), b"", 1, HOST, sys_flag=COMPRESSED)
    members = encode_batch([BatchMember(b"one", b""), BatchMember(b"two", b"TAGS\x01A\x02")])
    flags = NEED_UNWRAP | INNER_BATCH
    properties = b"INNER_NUM\x012\x02"
    for _ in range(2):
        store.append("Batches", 0, members, properties, 1, HOST, sys_flag=flags)
    store.close()
    assert [row["body"] for row in rows(tmp_path, topic="T")] == [b"plain", b"x" * 999]
    batches = rows(tmp_path, topic="Batches")
    assert [(row["queueOffset"], row["body"]) for row in batches] == [
        (0, b"one"),
        (1, b"two"),
        (2, b"one"),
        (3, b"two"),
    ]


def test_a_body_that_cannot_be_inflated_is_damage_and_its_message_is_no_row(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, body=b"before")
    spoilt = store.append("T", 0, b"no zlib", b"", 1, HOST, sys_flag=COMPRESSED)
    put(store, body=b"behind")
    store.close()
    with pytest.raises(StoreCorrupt, match=r"T queue 0 offset 1, bytes .*: the body is not zlib data"):
        rows(tmp_path)
    assert [row["body"] for row in rows(tmp_path, onCorrupt="skip")] == [b"before", b"behind"]
    scan, _, schema = parse_options({"path": str(tmp_path), "onCorrupt": "skip"})
    ranges, _ = plan(scan)
    damage = [
        one for log_range in ranges for piece in read_range(scan, log_range, projection(schema)) for one in piece.damage
    ]
    assert [one.queue_offset for one in damage] == [spoilt.queue_offset] == [1]


def damage_record(directory: Path, number: int) -> tuple[int, bytes]:
    """Spoil the magic of the record of the `number`-th message of queue 1 of Orders; its place in the log and its body."""
    with StoreReader(directory) as reader:
        record = list(reader.slices("Orders", 1))[number]
        body = decode_record(record.data).body
        segment = reader.log.segment_of(record.commit_log_offset)
        assert segment is not None
        path, offset = segment.file.path, record.commit_log_offset
        position = offset - segment.start
    with path.open("r+b") as file:
        file.seek(position + 4)
        file.write(b"\0\0\0\0")
    return offset, body


def test_damage_fails_the_scan_or_is_left_out_and_listed(spark: SparkSession, store_directory: Path) -> None:
    offset, body = damage_record(store_directory, 3)
    with pytest.raises(StoreCorrupt, match=rf"Orders queue 1 offset 3, bytes {offset} to .*onCorrupt"):
        rows(store_directory)
    left = rows(store_directory, onCorrupt="skip")
    assert len(left) == 119
    assert body not in [row["body"] for row in left]
    listed = table(spark, store_directory, read="damage").collect()
    assert [(row.topic, row.queueId, row.queueOffset, row.commitLogOffset) for row in listed] == [
        ("Orders", 1, 3, offset)
    ]
    assert "no record starts here" in listed[0].reason
    with pytest.raises(Exception, match="is damaged: Orders queue 1 offset 3"):
        table(spark, store_directory).collect()


def test_a_missing_file_of_the_log_is_damage(spark: SparkSession, store_directory: Path) -> None:
    files = sorted((store_directory / "commitlog").iterdir())
    files[1].unlink()
    with pytest.raises(Exception, match="no file of the log holds this"):
        table(spark, store_directory).count()
    listed = table(spark, store_directory, read="damage").collect()
    assert [(row.topic, row.commitLogOffset, row.storeSize) for row in listed] == [(None, 4096, 4096)]
    kept = rows(store_directory, onCorrupt="skip")
    assert 0 < len(kept) < 120
    assert len(set(places(kept))) == len(kept)


def test_tags_choose_rows_of_a_store_whose_queues_have_extensions(tmp_path: Path) -> None:
    store = open_store(tmp_path, queue_extensions=True)  # enableConsumeQueueExt
    put(store, "Orders", 0, b"paid", TAGS="paid")
    put(store, "Orders", 0, b"new", TAGS="new")
    store.close()
    assert [row["body"] for row in rows(tmp_path, tags="paid")] == [b"paid"]


# ---- filters that Spark hands over


def where(directory: Path, *filters: Filter, **options: str) -> tuple[list[dict[str, Any]], int]:
    """Rows read, and pieces of the log that were planned for them."""
    given = {"path": str(directory), "columns": "all", "pushFilters": "true", "partitionBytes": "4096", **options}
    source = StoreSource(given)
    reader = source.reader(source.schema())
    left = list(reader.pushFilters(list(filters)))
    assert [id(one) for one in left] == [id(one) for one in filters], (
        "Spark looks again, and wants its own objects back"
    )
    partitions = reader.partitions()
    batches: list[Any] = [batch for part in partitions for batch in reader.read(part)]
    return [row for batch in batches for row in batch.to_pylist()], len(partitions)


def test_a_filter_on_topic_queue_tags_or_time_chooses_rows_before_they_are_decoded(store_directory: Path) -> None:
    everything = where(store_directory)[0]
    assert len(everything) == 120
    moment = everything[60]["storeTimestamp"]
    between = moment + timedelta(microseconds=1)
    cases: list[tuple[Filter, Callable[[dict[str, Any]], bool]]] = [
        (EqualTo(("topic",), "Bills"), lambda row: row["topic"] == "Bills"),
        (EqualTo(("topic",), "Nowhere"), lambda row: False),
        (In(("queueId",), (1, 3, None)), lambda row: row["queueId"] in (1, 3)),
        (EqualTo(("brokerName",), "b"), lambda row: True),
        (EqualTo(("brokerName",), "c"), lambda row: False),
        (EqualTo(("tags",), "odd"), lambda row: row["tags"] == "odd"),
        (In(("tags",), ("a || odd", "*")), lambda row: False),
        (GreaterThan(("storeTimestamp",), moment), lambda row: row["storeTimestamp"] > moment),
        (GreaterThanOrEqual(("storeTimestamp",), moment), lambda row: row["storeTimestamp"] >= moment),
        (LessThan(("storeTimestamp",), moment), lambda row: row["storeTimestamp"] < moment),
        (LessThanOrEqual(("storeTimestamp",), moment), lambda row: row["storeTimestamp"] <= moment),
        (GreaterThanOrEqual(("storeTimestamp",), between), lambda row: row["storeTimestamp"] >= between),
        (LessThan(("storeTimestamp",), between), lambda row: row["storeTimestamp"] < between),
    ]
    for one, holds in cases:
        wanted = [dict(row, brokerName="b") for row in everything if holds(row)]
        assert where(store_directory, one, brokerName="b")[0] == wanted, one
    for one, holds in (
        (EqualTo(("queueOffset",), 4), lambda row: row["queueOffset"] == 4),
        (GreaterThan(("queueOffset",), 4), lambda row: row["queueOffset"] > 4),
        (LessThanOrEqual(("queueOffset",), 4), lambda row: row["queueOffset"] <= 4),
        (EqualTo(("storeTimestamp",), moment), lambda row: row["storeTimestamp"] == moment),
    ):
        assert where(store_directory, one)[0] == [row for row in everything if holds(row)], one
    other = [EqualTo(("keys",), "k1"), Not(EqualTo(("topic",), "Bills")), IsNotNull(("keys",))]
    assert where(store_directory, *other, IsNotNull(("topic",)))[0] == everything
    narrow = EqualTo(("tags",), "odd"), IsNotNull(("tags",)), EqualTo(("topic",), "Bills")
    assert where(store_directory, *narrow, tags="odd || even")[0] == [
        row for row in everything if row["tags"] == "odd" and row["topic"] == "Bills"
    ]
    assert where(store_directory, EqualTo(("tags",), "odd"), tags="even")[0] == []


def test_pieces_of_the_log_without_a_wanted_message_are_not_planned_nor_read(store_directory: Path) -> None:
    store = open_store(store_directory)
    put(store, "Late", 0, b"late")
    store.close()
    pieces = where(store_directory)[1]
    late = where(store_directory, EqualTo(("topic",), "Late"))
    assert ([row["body"] for row in late[0]], late[1]) == ([b"late"], 1)
    assert where(store_directory, LessThan(("queueOffset",), 2))[1] < pieces
    assert where(store_directory, EqualTo(("topic",), "Nowhere"))[1] == 1, "Spark needs one, and it is empty"
    damage_record(store_directory, 3)
    with pytest.raises(StoreCorrupt):
        where(store_directory)
    assert len(where(store_directory, EqualTo(("topic",), "Bills"))[0]) == 40, "what is wrong elsewhere is not met"


def test_batches_of_messages_are_not_lost_to_a_filter_on_offsets(tmp_path: Path) -> None:
    store = open_store(tmp_path, is_batch_topic=lambda topic: topic == "Batches")
    members = encode_batch([BatchMember(b"one", b""), BatchMember(b"two", b"")])
    flags = NEED_UNWRAP | INNER_BATCH
    for _ in range(2):
        store.append("Batches", 0, members, b"INNER_NUM\x012\x02", 1, HOST, sys_flag=flags)
    store.close()
    found = where(tmp_path, EqualTo(("queueOffset",), 3))[0]
    assert (3, b"two") in [(row["queueOffset"], row["body"]) for row in found]


def test_filters_over_a_store_narrow_the_one_question_of_a_frame(spark: SparkSession, store_directory: Path) -> None:
    moment = sorted(row.storeTimestamp for row in table(spark, store_directory).collect())[60]
    pushed = table(spark, store_directory, pushFilters="true")
    chosen = pushed.where((col("topic") == "Bills") & (col("queueId") == 2) & (col("tags") == "even"))
    chosen = chosen.where(col("storeTimestamp") < lit(moment))
    assert [bytes(row.body) for row in chosen.collect()] == [b"body 6", b"body 18", b"body 30", b"body 42", b"body 54"]


def test_every_question_to_a_view_of_a_store_gets_its_own_rows(spark: SparkSession, store_directory: Path) -> None:
    """Spark keeps one read for a loaded relation: a filter that was pushed for one scan would count for all of them."""
    make_views(spark, Tables(stores=(f"held={store_directory}",)))  # as `orbitmq spark sql --store` does
    one = "SELECT '{0}' AS topic, count(*) AS n FROM held WHERE topic = '{0}'"
    query = f"{one.format('Orders')} UNION ALL {one.format('Bills')} UNION ALL SELECT 'all', count(*) FROM held"
    assert {row.topic: row.n for row in spark.sql(query).collect()} == {"Orders": 80, "Bills": 40, "all": 120}
    assert spark.sql("SELECT * FROM held WHERE topic = 'Bills' AND queueId = 2").count() == 10
    assert spark.sql("SELECT * FROM held").count() == 120


def test_sql_over_a_store_and_a_schema_of_ones_own(spark: SparkSession, store_directory: Path) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMP VIEW held USING `rocketmq-store` OPTIONS (path '{store_directory}', topic 'Orders')"
    )
    counted = spark.sql("SELECT tags, count(*) AS messages FROM held GROUP BY tags ORDER BY tags").collect()
    assert [tuple(row) for row in counted] == [("even", 40), ("odd", 40)]
    narrow = spark.read.format("rocketmq-store").schema("body BINARY, properties STRING").load(str(store_directory))
    assert narrow.columns == ["body", "properties"]
    assert narrow.count() == 120


def test_what_is_wrong_with_the_options_is_said(tmp_path: Path, store_directory: Path) -> None:
    cases: list[tuple[dict[str, str], str]] = [
        ({"path": ""}, "no store is named"),
        ({"subscrib": "T"}, "did you mean subscribe"),
        ({"queueIds": "one"}, "numbers separated by commas"),
        ({"path": "s3://bucket/store"}, "local disk"),
        ({"onCorrupt": "ignore"}, "fail, skip"),
        ({"subscribePattern": "("}, "subscribePattern"),
        ({"columns": "boddy"}, "did you mean body"),
    ]
    for changes, message in cases:
        with pytest.raises(ConfigError, match=message):
            parse_options({"path": str(store_directory), **changes})
    with pytest.raises(ConfigError, match="did you mean Orders"):
        rows(store_directory, topic="Order")
    with pytest.raises(Exception, match="there is no store"):
        rows(tmp_path / "nowhere")
