"""Writing rows as messages: columns, order, delays, ids of repeats, and rows that cannot be sent. On our broker."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from orbitmq.client.queue_choice import queue_for_key
from orbitmq.errors import ConfigError, MessageError, RequestFailed
from orbitmq.message.properties import DELAY, SHARDING_KEY, decode_properties
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command, answer
from orbitmq.protocol.headers.send import SendReceipt
from orbitmq.spark.property_texts import DEDUP_ID
from orbitmq.spark.sink import BatchWriter, RowWriter, TaskName, Written
from orbitmq.spark.sink_columns import sink_columns
from orbitmq.spark.sink_options import sink_options
from orbitmq.spark.sink_rows import cut, encode_rows
from orbitmq.spark.source import RocketMQSource
from orbitmq.sync import connect
from orbitmq.testing import Server
from tests.client.cluster_thread import cluster_in_a_thread
from tests.spark.direct import bodies, read, send, wait_for_topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from orbitmq.message import QueueRef
    from orbitmq.transport.connection import Connection
    from tests.client.scripted import Fault

BATCH, SINGLE = RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2
PROPERTIES = pa.map_(pa.string(), pa.string())
TASK = TaskName("query", "7", 3)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


def frame(**columns: Any) -> pa.RecordBatch:
    types = {"properties": PROPERTIES, "body": pa.binary()}
    arrays = [
        values if isinstance(values, pa.Array) else pa.array(values, types.get(name))
        for name, values in columns.items()
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def write(
    server: Server, *batches: pa.RecordBatch, task: TaskName = TASK, wait_for: str = "Good", **options: str
) -> Written:
    made = sink_options({"nameServer": server.address, **options})
    columns = {name: name for name in batches[0].schema.names}
    written = RowWriter(made, columns).write_rows(iter(batches), task)
    wait_for_topic(server, options.get("topic") or wait_for)
    return written


def queues_of(server: Server, topic: str) -> list[QueueRef]:
    with connect(server.address) as client, client.pull_consumer("checker") as reader:
        return reader.queues(topic)


def test_rows_arrive_with_everything_their_columns_said(server: Server) -> None:
    batch = frame(
        topic=["Sunk", "Sunk", "Sunk-too"],
        body=[b"one", b"two", b"three"],
        tags=["A", None, ""],
        keys=pa.array([["k1", "k2"], None, []], pa.list_(pa.string())),
        properties=[[("colour", "blå"), ("TAGS", "not this"), ("UNIQ_KEY", "nor this")], None, []],
    )
    written = write(server, batch, wait_for="Sunk-too")
    wait_for_topic(server, "Sunk")
    assert (written.sent, written.refused) == (3, {})
    rows = {row["body"]: row for row in read(server, subscribe="Sunk,Sunk-too")}
    one = rows[b"one"]
    assert (one["topic"], one["tags"], one["keys"]) == ("Sunk", "A", "k1 k2")
    assert dict(one["properties"])["colour"] == "blå"
    assert dict(one["properties"])[DEDUP_ID] == "query:7:3:0"
    assert one["msgId"] != "nor this"
    assert (rows[b"two"]["tags"], rows[b"two"]["keys"]) == (None, None)
    assert (rows[b"three"]["topic"], rows[b"three"]["tags"]) == ("Sunk-too", None)
    assert len({row["msgId"] for row in rows.values()}) == 3


def test_rows_are_born_when_they_say(server: Server) -> None:
    """A batch has one time for all its members: rows of an order key stay in their order all the same."""
    moments = [datetime(2026, 1, 1, 12, 0, 0, ms * 1000, tzinfo=UTC) for ms in (5, 5, 3, 3, 5, 4)]
    batch = frame(
        body=[b"%d" % number for number in range(7)],
        orderKey=["k"] * 7,
        bornAt=pa.array([*moments, None], pa.timestamp("us", "UTC")),
    )
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    assert write(server, batch, topic="Born").sent == 7
    rows = sorted(read(server, subscribe="Born"), key=lambda row: row["queueOffset"])
    assert [row["body"] for row in rows] == [b"%d" % number for number in range(7)]
    assert [row["bornTimestamp"] for row in rows[:6]] == moments
    assert rows[6]["bornTimestamp"] >= before
    write(server, batch.drop_columns(["orderKey"]), topic="Born-anywhere")
    anywhere = {row["body"]: row["bornTimestamp"] for row in read(server, subscribe="Born-anywhere")}
    assert [anywhere[b"%d" % number] for number in range(6)] == moments


def test_rows_with_times_that_cannot_be_are_refused(server: Server) -> None:
    times = pa.array([datetime(1969, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    written = write(server, frame(body=[b"a", b"b"], bornAt=times), topic="Born-early", badRows="drop")
    assert (written.sent, written.refused) == (1, {"it was born before 1970 (bornAt)": 1})
    fields = [
        StructField("body", BinaryType()),
        StructField("born_at", TimestampType()),
        StructField("delay", IntegerType()),
    ]
    with pytest.raises(ConfigError, match="columns bornAt and delay exclude each other"):
        sink_columns(StructType(fields), has_topic_option=True)


def test_the_option_topic_wins_over_the_column(server: Server) -> None:
    write(server, frame(body=[b"a", b"b"], topic=["Sunk-from", None]), topic="Sunk-to")
    assert bodies(read(server, subscribe="Sunk-to")) == ["a", "b"]


def test_many_rows_travel_in_few_requests_and_all_arrive_once(server: Server) -> None:
    batches = [frame(body=[b"%06d" % number for number in range(start, start + 9000)]) for start in (0, 9000)]
    written = write(server, *batches, topic="Many", batchBytes="64kb")
    assert written.sent == 18_000
    rows = read(server, subscribe="Many")
    assert sorted(row["body"] for row in rows) == [b"%06d" % number for number in range(18_000)]
    ids = {dict(row["properties"])[DEDUP_ID] for row in rows}
    assert ids == {f"query:7:3:{number}" for number in range(18_000)}


def test_rows_with_one_order_key_keep_their_order_in_one_queue(server: Server) -> None:
    keys = [None if number % 5 == 4 else f"user-{number % 5}" for number in range(3000)]
    batch = frame(body=[b"%d" % number for number in range(3000)], orderKey=pa.array(keys, pa.string()))
    write(server, batch, topic="Ordered", batchBytes="4kb")
    rows = sorted(read(server, subscribe="Ordered"), key=lambda row: (row["queueId"], row["queueOffset"]))
    assert len(rows) == 3000
    for key in ("user-0", "user-1", "user-2", "user-3"):
        mine = [row for row in rows if dict(row["properties"]).get(SHARDING_KEY) == key]
        assert len({row["queueId"] for row in mine}) == 1
        numbers = [int(row["body"]) for row in mine]
        assert numbers == sorted(numbers)
        assert len(numbers) == 600
    # The client's own ordered sends go where the sink's go.
    send(server, "Ordered", ["by hand"], order_key="user-2")
    by_hand = next(row for row in read(server, subscribe="Ordered") if row["body"] == b"by hand")
    sunk = next(row for row in rows if dict(row["properties"]).get(SHARDING_KEY) == "user-2")
    assert by_hand["queueId"] == sunk["queueId"]


def test_messages_that_were_read_with_an_order_key_are_written_to_its_queue_without_more_ado(server: Server) -> None:
    keys = [f"user-{number % 7}" if number % 8 else None for number in range(400)]
    maps = [[("colour", "red"), (SHARDING_KEY, key)] if key else [("colour", "red")] for key in keys]
    batch = frame(body=[b"%d" % number for number in range(400)], properties=maps)
    write(server, batch, topic="Reordered", batchBytes="1kb")
    write(server, batch.slice(100, 30), topic="Reordered")
    rows = sorted(read(server, subscribe="Reordered"), key=lambda row: (row["queueId"], row["queueOffset"]))
    assert len(rows) == 430
    queues = tuple(queues_of(server, "Reordered"))
    for key in set(keys) - {None}:
        assert key is not None
        mine = [row for row in rows if dict(row["properties"]).get(SHARDING_KEY) == key]
        assert {row["queueId"] for row in mine} == {queue_for_key(queues, key).queue_id}
        numbers = [int(row["body"]) for row in mine][: keys.count(key)]
        assert numbers == sorted(numbers)
    # A column says it all: a row that it gives no key has none, whatever it had.
    other = frame(body=[b"free"], properties=[[(SHARDING_KEY, "user-1")]], orderKey=pa.array([None], pa.string()))
    write(server, other, topic="Unkeyed")
    assert SHARDING_KEY not in dict(read(server, subscribe="Unkeyed")[0]["properties"])


@pytest.mark.parametrize(
    ("key", "queue_id"), [("a", 1), ("b", 2), ("user-7", 3), ("\U0001f600", 3), ("polygenelubricants", 0)]
)
def test_an_order_key_chooses_the_queue_that_javas_select_message_queue_by_hash_does(
    server: Server, key: str, queue_id: int
) -> None:
    """Of four queues, in the order of the route: |hashCode % 4|, computed by hand."""
    write(server, frame(body=[b"x"], orderKey=[key]), topic="Hashed")
    (row,) = [row for row in read(server, subscribe="Hashed") if dict(row["properties"])[SHARDING_KEY] == key]
    assert row["queueId"] == queue_id


def test_a_task_that_is_run_again_repeats_its_ids(server: Server) -> None:
    batch = frame(body=[b"a", b"b"])
    for _ in range(2):
        write(server, batch, topic="Repeated")
    rows = read(server, subscribe="Repeated")
    assert bodies(rows) == ["a", "a", "b", "b"]
    ids = {(row["body"], dict(row["properties"])[DEDUP_ID]) for row in rows}
    assert ids == {(b"a", "query:7:3:0"), (b"b", "query:7:3:1")}
    write(server, batch, topic="Unnamed", dedupIds="false")
    assert all(DEDUP_ID not in dict(row["properties"]) for row in read(server, subscribe="Unnamed"))


def test_a_row_may_bring_the_id_that_its_repeats_share(server: Server) -> None:
    batch = frame(body=[b"own", b"none", b"empty"], dedupId=["order-7", None, ""])
    write(server, batch, topic="Named")
    rows = read(server, subscribe="Named")
    ids = {row["body"]: dict(row["properties"])[DEDUP_ID] for row in rows}
    assert ids == {b"own": "order-7", b"none": "query:7:3:1", b"empty": "query:7:3:2"}
    alone = frame(body=[b"own", b"none"], dedupId=["order-8", None])
    write(server, alone, topic="NamedAlone", dedupIds="false")
    found = {row["body"]: dict(row["properties"]).get(DEDUP_ID) for row in read(server, subscribe="NamedAlone")}
    assert found == {b"own": "order-8", b"none": None}
    with pytest.raises(MessageError, match="its dedupId holds a character that separates"):
        write(server, frame(body=[b"x"], dedupId=["a\x01b"]), topic="Named")


AT = datetime(2030, 1, 1, tzinfo=UTC)
DELAYS: list[tuple[dict[str, pa.Array], list[Any]]] = [
    ({"delay": pa.array([10.0, 12.5, None, 0.0])}, [timedelta(seconds=10), timedelta(seconds=12.5), None, None]),
    ({"delay": pa.array([timedelta(days=2)], pa.duration("us"))}, [timedelta(days=2)]),
    ({"deliverAt": pa.array([AT, None], pa.timestamp("us", "UTC"))}, [AT, None]),
    ({"delayLevel": pa.array([2, 0, None, 40], pa.int32())}, ["2", None, None, "40"]),
]


@pytest.mark.parametrize(("columns", "wanted"), DELAYS)
def test_delays_are_left_to_the_client_which_knows_what_a_broker_can(
    columns: dict[str, pa.Array], wanted: list[Any]
) -> None:
    batch = frame(body=[b"x"] * len(wanted), **columns)
    options = sink_options({"nameServer": "n:1", "topic": "T"})
    ids = [f"id{number}" for number in range(len(wanted))]
    rows, refused = encode_rows(batch, {name: name for name in batch.schema.names}, options, ids, None)
    assert refused.reasons == []
    assert rows.properties is not None
    properties = [decode_properties(text.as_py()) for text in rows.properties]
    if rows.when is None:
        assert [row.get(DELAY) for row in properties] == wanted
    else:
        assert rows.when.to_pylist() == wanted
        assert all(row.keys() == {"UNIQ_KEY"} for row in properties), "no property says it: that is the client's"
    assert list(rows.travels_alone) == [one is not None for one in wanted]
    below = frame(body=[b"x"], delay=pa.array([-1.0]))
    assert encode_rows(below, {"body": "body", "delay": "delay"}, options, ids[:1], None)[1].reasons == [
        "its delay is negative"
    ]


def test_rows_for_one_group_go_to_its_retry_topic_as_messages_of_theirs(server: Server) -> None:
    batch = frame(topic=["%RETRY%one", "Plain"], body=[b"again", b"plain"], retryTopic=["Plain", None])
    write(server, batch, wait_for="Plain")
    wait_for_topic(server, "%RETRY%one")
    (again,) = read(server, subscribe="%RETRY%one")
    assert (again["body"], dict(again["properties"])["RETRY_TOPIC"]) == (b"again", "Plain")
    assert bodies(read(server, subscribe="Plain")) == ["plain"]


def arrived(server: Server, topic: str, count: int) -> list[str]:
    deadline = time.monotonic() + 60
    while len(found := bodies(read(server, subscribe=topic))) < count:
        assert time.monotonic() < deadline, f"only {found} came"
        time.sleep(0.02)
    return found


def test_delayed_rows_come_when_their_time_has_come() -> None:
    # Levels that mean something else than usual: ten seconds are asked of the timer, not of "the third level".
    with Server(settings={"messageDelayLevel": "1s 5s 2h 1h"}) as server:
        at = datetime.fromtimestamp(server.clock.now_ms() / 1000, UTC) + timedelta(minutes=30)
        level = pa.array([0, 4], pa.int32())
        write(server, frame(body=[b"now", b"an hour"], delayLevel=level), topic="Delayed")
        write(server, frame(body=[b"ten minutes"], delay=pa.array([600.0])), topic="Delayed")
        write(
            server, frame(body=[b"half an hour"], deliverAt=pa.array([at], pa.timestamp("us", "UTC"))), topic="Delayed"
        )
        assert arrived(server, "Delayed", 1) == ["now"]
        server.clock.advance(minutes=10, seconds=2)
        assert arrived(server, "Delayed", 2) == ["now", "ten minutes"]
        server.clock.advance(minutes=20)
        assert arrived(server, "Delayed", 3) == ["half an hour", "now", "ten minutes"]
        server.clock.advance(minutes=30)
        assert len(arrived(server, "Delayed", 4)) == 4


def test_a_broker_without_timers_is_asked_for_levels_or_for_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 4.x broker would ignore the property of a timer, and deliver at once."""

    async def no(*_: object) -> bool:
        return False

    monkeypatch.setattr("orbitmq.client.instance.Instance.all_are_5", no)
    with pytest.raises(MessageError, match=r"no delay level of a 4\.x broker is 12\.5 s long"):
        write(server, frame(body=[b"x"], delay=pa.array([12.5])), topic="Level")
    with pytest.raises(MessageError, match=r"a 4\.x broker delivers at no given moment"):
        write(server, frame(body=[b"x"], deliverAt=pa.array([AT], pa.timestamp("us", "UTC"))), topic="Level")
    write(server, frame(body=[b"now", b"waits"], delay=pa.array([None, 7200.0])), topic="Level")
    assert bodies(read(server, subscribe="Level")) == ["now"]


BAD = frame(
    topic=["Good", "Good", "Good", "bad topic", None, "Good", "Good", "Good", "Good"],
    body=[b"fine", None, b"", b"x", b"x", b"x", b"x", b"x" * 2000, b"fine too"],
    keys=pa.array([["k"], [], [], [], [], ["two words"], [], [], []], pa.list_(pa.string())),
    properties=[None, None, None, None, None, None, [("a", "")], None, None],
)
REASONS = [
    "body is null",
    "body is empty",
    "not a valid name",
    "topic is null",
    "keys is empty",
    "no value",
    "more than",
]


def test_a_bad_row_fails_the_task_with_its_number_and_reason(server: Server) -> None:
    with pytest.raises(MessageError, match=r"row 1 of task 3 cannot be sent: its body is null.*badRows=drop"):
        write(server, BAD, maxMessageBytes="1000")


def test_bad_rows_can_be_dropped_and_are_counted_by_reason(server: Server) -> None:
    written = write(server, BAD, badRows="drop", maxMessageBytes="1000")
    assert (written.sent, sum(written.refused.values())) == (2, 7)
    for reason in REASONS:
        assert any(reason in told for told in written.refused), (reason, written.refused)
    assert bodies(read(server, subscribe="Good")) == ["fine", "fine too"]


def test_bad_rows_can_be_kept_and_a_second_attempt_keeps_them_once(server: Server, tmp_path: Path) -> None:
    for _ in range(2):
        written = write(server, BAD, deadLetterPath=str(tmp_path / "bad"), maxMessageBytes="1000")
    assert written.dead_letters == str(tmp_path / "bad" / "query-7-00003.parquet")
    kept = pq.read_table(tmp_path / "bad").to_pylist()
    assert len(kept) == 7
    assert kept[2]["topic"] == "bad topic"
    assert "not a valid name" in kept[2]["error"]
    assert dict(kept[5]["properties"]) == {"a": ""}


def test_bad_rows_are_written_as_they_come_and_leave_nothing_when_their_task_fails(
    server: Server, tmp_path: Path
) -> None:
    held = pa.total_allocated_bytes()
    most = 0

    def too_large(count: int) -> Iterator[pa.RecordBatch]:
        nonlocal most
        for _ in range(count):
            yield pa.RecordBatch.from_pydict({"body": pa.array([bytes(5 << 20)], pa.binary())})
            most = max(most, pa.total_allocated_bytes() - held)

    def then_fails() -> Iterator[pa.RecordBatch]:
        yield from too_large(4)
        raise MessageError("the rows end here")

    writer = RowWriter(
        sink_options({"nameServer": server.address, "topic": "Good", "deadLetterPath": str(tmp_path)}), {"body": "body"}
    )
    with pytest.raises(MessageError, match="the rows end here"):
        writer.write_rows(then_fails(), TASK)
    assert list(tmp_path.iterdir()) == []
    written = writer.write_rows(too_large(30), TASK)
    assert sum(written.refused.values()) == pq.read_metadata(str(written.dead_letters)).num_rows == 30
    assert most < 60 << 20, f"{most >> 20} MB of 150 are held"


def test_a_topic_that_nobody_makes_is_an_error_that_says_so() -> None:
    told = r"topic 'Nowhere' does not exist.*create"
    with Server(settings={"autoCreateTopicEnable": "false"}) as strict, pytest.raises(RequestFailed, match=told):
        write(strict, frame(body=[b"x"]), topic="Nowhere")


def test_a_broker_that_is_busy_for_a_while_loses_nothing(server: Server) -> None:
    server.refuse_sends()
    timer = threading.Timer(0.5, server.accept_sends)
    timer.start()
    try:
        written = write(server, frame(body=[b"patient"]), topic="Busy", timeoutMs="2000")
    finally:
        timer.join()
    assert written.sent == 1
    assert bodies(read(server, subscribe="Busy")) == ["patient"]


UNCONFIRMED = [
    ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE,
]  # fmt: skip


def unconfirmed(code: ResponseCode) -> Fault:
    async def fault(command: Command, connection: Connection) -> Command:
        return answer(code, header=SendReceipt(msg_id="0" * 32, queue_id=0, queue_offset=5))

    return fault


def test_rows_that_are_stored_less_safely_than_promised_are_sent_again_or_fail_their_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orbitmq.spark.patience._COPY_PAUSE_SECONDS", 0.01)
    rows = {"together": (BATCH, frame(body=[b"a", b"b"])), "alone": (SINGLE, frame(body=[b"a"], delayLevel=[3]))}
    with cluster_in_a_thread({"T": 1}) as cluster:
        broker = cluster.broker

        def written(batch: pa.RecordBatch, **options: str) -> Written:
            made = sink_options({"nameServer": cluster.address, "topic": "T", **options})
            columns = {name: name for name in batch.schema.names}
            return RowWriter(made, columns).write_rows(iter([batch]), TASK)

        for code in UNCONFIRMED:
            for way, (request_code, batch) in rows.items():
                broker.requests.clear()
                broker.inject(request_code, unconfirmed(code), times=4)  # more than one send tries
                assert written(batch).sent == batch.num_rows
                sent = [one.fields.get("i", "") + str(one.body) for one in broker.received(request_code)]
                assert (len(sent), len(set(sent))) == (5, 1), f"{way} with {code.name}: the same ids each time"

                broker.inject(request_code, unconfirmed(code), times=10)
                with pytest.raises(RequestFailed, match="not as safe as its broker promises") as caught:
                    written(batch, retryTimeout="0ms")
                assert caught.value.code == code

                broker.requests.clear()
                assert written(batch, unconfirmed="accept").sent == batch.num_rows
                assert len(broker.received(request_code)) == 1
                broker.faults.clear()


def test_requests_are_cut_by_size_and_number() -> None:
    assert cut(np.array([10, 10, 10]), 20, 100) == [(0, 2), (2, 3)]
    assert cut(np.array([50, 1, 50]), 20, 100) == [(0, 1), (1, 2), (2, 3)]
    assert cut(np.array([1] * 5), 100, 2) == [(0, 2), (2, 4), (4, 5)]
    assert cut(np.array([], np.int64), 100, 2) == []


# ---- frames that cannot be written


def schema(**columns: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"topic": StringType()}, "no column body"),
        ({"body": BinaryType()}, "to which topic"),
        ({"topic": StringType(), "bodyy": BinaryType()}, "no column 'bodyy'.*did you mean body"),
        ({"topic": StringType(), "body": DoubleType()}, "body is double.*binary or string.*CAST"),
        ({"topic": IntegerType(), "body": BinaryType()}, "topic is int"),
        ({"topic": StringType(), "body": BinaryType(), "value": BinaryType()}, "are the same"),
        (
            {"topic": StringType(), "body": BinaryType(), "properties": MapType(StringType(), IntegerType())},
            "map<string",
        ),
        ({"topic": StringType(), "body": BinaryType(), "delay": DoubleType(), "delayLevel": IntegerType()}, "exclude"),
    ],
)
def test_a_frame_that_cannot_be_written_is_refused_before_anything_runs(columns: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        sink_columns(schema(**columns), has_topic_option=False)


def test_what_the_source_reads_the_sink_takes_as_it_is() -> None:
    source = RocketMQSource(CaseInsensitiveDict({"nameServer": "n:1", "subscribe": "T", "columns": "all"}))
    found = sink_columns(source.schema(), has_topic_option=False)
    assert found.keys() == {"topic", "body", "tags", "keys", "properties"}
    wanted = schema(value=StringType(), tag=StringType(), keys=ArrayType(StringType()), order_key=StringType())
    assert sink_columns(wanted, has_topic_option=True)["orderKey"] == "order_key"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"badRow": "drop"}, "did you mean badRows"),
        ({"badRows": "ignore"}, "one of fail, drop, deadLetter"),
        ({"unconfirmed": "ignore"}, "one of retry, accept"),
        ({"badRows": "deadLetter"}, "go together"),
        ({"topic": "no good"}, "not a valid name"),
    ],
)
def test_wrong_sink_options_are_named(options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        sink_options({"nameServer": "n:1", **options})


def test_a_topic_cannot_be_overwritten() -> None:
    source = RocketMQSource(CaseInsensitiveDict({"nameServer": "n:1", "topic": "T"}))
    with pytest.raises(ConfigError, match=r'mode\("append"\)'):
        source.writer(schema(body=BinaryType()), overwrite=True)
    assert isinstance(source.writer(schema(body=BinaryType()), overwrite=False), BatchWriter)
