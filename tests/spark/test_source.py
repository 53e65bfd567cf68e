"""Reading topics: which queues, which messages, from where to where. On our broker, through the parts that Spark calls."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import threading
import time
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from orbitmq.admin.session import open_session
from orbitmq.admin.topics import TopicPlan, update_topic
from orbitmq.client import questions
from orbitmq.errors import ConfigError, MessageError, RequestFailed, StorageError, TransportError
from orbitmq.protocol.codes import ResponseCode
from orbitmq.spark.access import link
from orbitmq.spark.bounds import within
from orbitmq.spark.discovery import Extent
from orbitmq.spark.planning import QueueRange, RangesPartition
from orbitmq.spark.queue_offsets import from_json, to_json
from orbitmq.spark.range_reading import RangeReader, Segment
from orbitmq.spark.schema import COLUMNS
from orbitmq.sync import connect
from orbitmq.testing import Server
from tests.spark.direct import batch_reader, bodies, read, rows_of, send, source, stream_reader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from orbitmq.message import QueueRef, StoredMessage

ALL = ReadAllAvailable()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(settings={"enablePropertyFilter": "true"}) as running:
        yield running


def stored(server: Server, topic: str) -> dict[tuple[int, int], StoredMessage]:
    """What the broker holds, by queue and offset, as the client's own reader sees it."""
    found = {}
    with connect(server.address) as client, client.pull_consumer("checker") as reader:
        for queue in reader.queues(topic):
            for message in reader.fetch(queue, offset=0, max=100_000):
                found[queue.queue_id, message.queue_offset] = message.stored
    return found


def queues_of(server: Server, topic: str) -> list[QueueRef]:
    with connect(server.address) as client, client.pull_consumer("checker") as reader:
        return reader.queues(topic)


# ---- rows


def test_every_column_says_what_the_broker_holds(server: Server) -> None:
    with connect(server.address) as client, client.producer(group="tests", compress_over_bytes=500) as producer:
        producer.send("Columns", "plain", tag="A", keys=["k1", "k2"], properties={"colour": "blå"}, flag=7)
        producer.send("Columns", "x" * 5000)
        producer.send_batch("Columns", [f"batch {number}" for number in range(300)], tag="B")
    want = stored(server, "Columns")
    got = read(server, subscribe="Columns", columns="all")
    assert list(got[0]) == list(COLUMNS)
    assert {(row["queueId"], row["queueOffset"]) for row in got} == want.keys()
    assert len(got) == len(want) == 302
    for row in got:
        message = want[row["queueId"], row["queueOffset"]]
        assert row["topic"] == "Columns"
        assert row["brokerName"] == "test"
        assert row["body"] == (b"x" * 5000 if len(row["body"]) == 5000 else message.body)
        assert dict(row["properties"]) == message.properties
        assert (row["tags"] or "") == message.tags
        assert (row["keys"] or "") == " ".join(message.keys)
        assert (row["msgId"], row["offsetMsgId"]) == (message.message_id, message.offset_id)
        assert round(row["bornTimestamp"].timestamp() * 1000) == message.born_at_ms
        assert round(row["storeTimestamp"].timestamp() * 1000) == message.stored_at_ms
        assert (row["bornHost"], row["storeHost"]) == (message.born_address, message.store_address)
        assert (row["flag"], row["sysFlag"], row["storeSize"]) == (message.flag, message.sys_flag, message.size)
        assert row["commitLogOffset"] == message.commit_log_offset


def test_queues_keep_their_order_inside_a_task_and_large_messages_their_bytes(server: Server) -> None:
    with connect(server.address) as client, client.producer(group="tests", compression=None) as producer:
        for number in range(30):
            producer.send("Large", bytes([number]) * 1_000_000, order_key="one")
    rows = read(server, subscribe="Large")
    assert [row["queueOffset"] for row in rows] == list(range(30))
    assert all(row["body"] == bytes([number]) * 1_000_000 for number, row in enumerate(rows))


# ---- which messages


def test_filters_work_in_the_broker_and_again_by_the_tags_themselves(server: Server) -> None:
    send(server, "Filtered", ["one"], tag="Aa", properties={"n": "1"})
    send(server, "Filtered", ["two"], tag="BB", properties={"n": "2"})  # the same hash as Aa
    send(server, "Filtered", ["three"], tag="C", properties={"n": "3"})
    assert bodies(read(server, subscribe="Filtered", tags="Aa || C")) == ["one", "three"]
    assert bodies(read(server, subscribe="Filtered", tags="Aa", columns="body")) == ["one"]
    assert bodies(read(server, subscribe="Filtered", filterSql="n > 1 AND n IS NOT NULL")) == ["three", "two"]
    assert read(server, subscribe="Filtered", tags="nobody") == []


def test_topics_come_from_a_list_a_pattern_or_queue_by_queue(server: Server) -> None:
    send(server, "Way-one", ["1"], order_key="a")
    send(server, "Way-two", ["2"], order_key="a")
    assert bodies(read(server, subscribe="Way-one, Way-two")) == ["1", "2"]
    assert bodies(read(server, subscribePattern="Way-.*")) == ["1", "2"]
    assert {row["topic"] for row in read(server, subscribePattern=".*")} >= {"Way-one", "Way-two"}
    row = read(server, subscribe="Way-one")[0]
    there = json.dumps({"Way-one": {"test": [row["queueId"]]}})
    elsewhere = json.dumps({"Way-one": {"test": [(row["queueId"] + 1) % 4]}})
    assert bodies(read(server, assign=there)) == ["1"]
    assert read(server, assign=elsewhere) == []


# ---- from where to where


def test_offsets_and_times_bound_a_batch(server: Server) -> None:
    send(server, "Bounds", [f"{number}" for number in range(5)], order_key="k")
    time.sleep(0.05)  # so that what follows is stored later
    send(server, "Bounds", [f"{number}" for number in range(5, 10)], order_key="k")
    rows = read(server, subscribe="Bounds")
    queue_id, later = rows[0]["queueId"], rows[5]["storeTimestamp"]
    others = {str(number): -2 for number in range(4) if number != queue_id}

    def at(offset: Any) -> str:
        return json.dumps({"Bounds": {"test": {str(queue_id): offset}}})

    def numbers(**options: str) -> list[int]:
        return [int(text) for text in bodies(read(server, subscribe="Bounds", **options))]

    assert numbers(startingOffsets=at(3)) == list(range(3, 10))
    assert numbers(startingOffsets=at(3), endingOffsets=at(6)) == [3, 4, 5]
    assert numbers(startingOffsets=json.dumps({"Bounds": {"test": {str(queue_id): 9, **others}}})) == [9]
    assert numbers(endingOffsets=at(-1)) == list(range(10))
    assert numbers(startingTimestamp=later.isoformat()) == list(range(5, 10))
    assert numbers(endingTimestamp=str(round(later.timestamp() * 1000))) == list(range(5))
    assert numbers(startingOffsetsByTimestamp=at(later.isoformat()), endingOffsets=at(7)) == [5, 6]
    too_late = str(round(later.timestamp() * 1000) + 3_600_000)
    with pytest.raises(ConfigError, match=f"no message was stored at.*queue {queue_id} of Bounds"):
        numbers(startingTimestamp=too_late)
    assert numbers(startingTimestamp=too_late, startingOffsetsByTimestampStrategy="latest") == []


@pytest.mark.parametrize("astray", [-40, -7, -2, -1, 0, 1, 2, 7, 40])
def test_a_broker_that_finds_a_time_only_nearly_costs_no_row(
    server: Server, monkeypatch: pytest.MonkeyPatch, astray: int
) -> None:
    """Apache's 4.9.7 answers with the message whose time is nearest."""
    topic = f"Nearly{astray}".replace("-", "_")
    for number in range(10):
        send(server, topic, [f"{number}"] * 2, order_key="k")
        time.sleep(0.002)  # so that there are several times
    times = [round(row["storeTimestamp"].timestamp() * 1000) for row in read(server, subscribe=topic)]
    exactly = questions.offset_at

    async def nearly(cluster: Any, queue: Any, time_ms: int) -> int:
        return await exactly(cluster, queue, time_ms) + astray

    monkeypatch.setattr(questions, "offset_at", nearly)
    for at in range(times[0] - 1, times[-1] + 2):
        before = read(server, subscribe=topic, endingTimestamp=str(at))
        behind = read(server, subscribe=topic, startingTimestamp=str(at), startingOffsetsByTimestampStrategy="latest")
        assert len(before) == sum(time_ms < at for time_ms in times)
        assert len(behind) == sum(time_ms >= at for time_ms in times)


def test_offsets_that_a_queue_does_not_have_are_an_error_or_moved(server: Server) -> None:
    send(server, "Outside", ["only"], order_key="k")
    queue_id = read(server, subscribe="Outside")[0]["queueId"]
    beyond = json.dumps({"Outside": {"test": {str(queue_id): 900}}})
    with pytest.raises(ConfigError, match=r"startingOffsets says 900 for queue .* holds 0 to 1"):
        read(server, subscribe="Outside", startingOffsets=beyond)
    with pytest.raises(ConfigError, match=r"endingOffsets says 900"):
        read(server, subscribe="Outside", endingOffsets=beyond)
    assert bodies(read(server, subscribe="Outside", endingOffsets=beyond, failOnDataLoss="false")) == ["only"]
    unknown = '{"Outside":{"elsewhere":{"0":1}}}'
    with pytest.raises(ConfigError, match="queue 0 of Outside on elsewhere"):
        read(server, subscribe="Outside", startingOffsets=unknown)


def test_a_missing_topic_or_cluster_is_named(server: Server) -> None:
    with pytest.raises(RequestFailed, match="topic 'Nowhere' does not exist"):
        read(server, subscribe="Nowhere")
    with pytest.raises(ConfigError, match="no topic matches"):
        read(server, subscribePattern="Nowhere.*")
    send(server, "Small", ["only"])
    with pytest.raises(ConfigError, match="queue 9 of Small on test"):
        read(server, assign='{"Small":{"test":[9]}}')
    with pytest.raises(TransportError, match=r"no name server answers: nothing listens on 127\.0\.0\.1:1"):
        source(server, subscribe="X", nameServer="127.0.0.1:1", timeoutMs="300").reader(
            source(server, subscribe="X").schema()
        ).partitions()


def test_queues_are_split_and_packed_into_the_tasks_asked_for(server: Server) -> None:
    send(server, "Tasks", [f"{number}" for number in range(12)])
    want = sorted(str(number) for number in range(12))
    for options, tasks in (
        ({}, 1),
        ({"minPartitions": "3"}, 3),
        ({"minPartitions": "8"}, 8),
        ({"maxPartitions": "2"}, 1),
    ):
        reader = batch_reader(server, subscribe="Tasks", **options)
        partitions = reader.partitions()
        assert len(partitions) == tasks
        assert bodies(rows_of(reader, partitions)) == want


def test_an_empty_topic_is_an_empty_table(server: Server) -> None:
    send(server, "Emptied", ["x"], order_key="k")
    row = read(server, subscribe="Emptied")[0]
    end = json.dumps({"Emptied": {"test": {str(row["queueId"]): 0}}})
    reader = batch_reader(server, subscribe="Emptied", endingOffsets=end)
    partitions = reader.partitions()
    assert [type(partition) for partition in partitions] == [RangesPartition], "Spark needs one"
    assert rows_of(reader, partitions) == []


# ---- filters that Spark hands over


@pytest.fixture(scope="module")
def pushed(server: Server) -> None:
    send(server, "Pushed", ["0", "1", "2", "3"], tag="Aa", order_key="k")
    time.sleep(0.05)  # so that what follows is stored later
    send(server, "Pushed", ["x"], tag="BB", order_key="k")


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ([EqualTo(("tags",), "Aa")], ["0", "1", "2", "3"]),
        ([In(("tags",), ("BB", "C")), IsNotNull(("queueOffset",))], ["x"]),
        ([GreaterThan(("queueOffset",), 1), LessThanOrEqual(("queueOffset",), 3)], ["2", "3"]),
        ([GreaterThanOrEqual(("queueOffset",), 3), LessThan(("queueOffset",), 4)], ["3"]),
        ([EqualTo(("queueOffset",), 4)], ["x"]),
        ([EqualTo(("topic",), "Pushed"), EqualTo(("brokerName",), "elsewhere")], []),
        ([EqualTo(("queueId",), 99)], []),
        ([EqualTo(("keys",), "k"), IsNotNull(("tags",))], ["0", "1", "2", "3", "x"]),
        ([EqualTo(("tags",), "a||b")], ["0", "1", "2", "3", "x"]),
        ([EqualTo(("tags",), "*")], ["0", "1", "2", "3", "x"]),
        ([In(("tags",), ("*", "Aa"))], ["0", "1", "2", "3", "x"]),
        ("later", ["x"]),
        ("before", ["0", "1", "2", "3"]),
    ],
)
def test_a_pushed_filter_narrows_what_is_read_and_is_given_back(
    server: Server, pushed: None, filters: Any, found: list[str]
) -> None:
    if isinstance(filters, str):
        moment = read(server, subscribe="Pushed", tags="BB")[0]["storeTimestamp"]
        kind = GreaterThanOrEqual if filters == "later" else LessThan
        filters = [kind(("storeTimestamp",), moment)]
        found = found if filters[0].__class__ is GreaterThanOrEqual else [*found, "x"]  # Spark takes off the last
    reader = batch_reader(server, subscribe="Pushed", pushFilters="true")
    kept = list(reader.pushFilters(filters))
    assert [id(one) for one in kept] == [id(one) for one in filters], "Spark wants its own objects back"
    assert bodies(rows_of(reader, reader.partitions())) == found


def test_a_reader_takes_no_filters_unless_it_is_asked_to(server: Server) -> None:
    reader = batch_reader(server, subscribe="Pushed")
    assert type(reader).pushFilters is DataSourceReader.pushFilters


# ---- streams


def step(reader: Any, start: Any, limit: Any = ALL) -> tuple[Any, list[str]]:
    """One micro-batch, as Spark runs it: the offsets it ends at, and the bodies read."""
    end = json.loads(json.dumps(reader.latestOffset(start, limit)))
    return end, bodies(rows_of(reader, reader.partitions(start, end)))


def test_a_stream_reads_what_comes_and_finds_new_queues_and_topics(server: Server) -> None:
    send(server, "Live-one", ["old"])
    reader = stream_reader(server, subscribePattern="Live-.*")
    start = reader.initialOffset()
    send(server, "Live-one", ["new"])
    assert start == reader.initialOffset(), "Spark asks twice"
    end, got = step(reader, start)
    assert (end, got) == (start, []), "the beginning is noted by an empty micro-batch"
    end, got = step(reader, end)
    assert got == ["new"]
    send(server, "Live-two", ["first", "second"])
    end, got = step(reader, end)
    assert got == ["first", "second"], "a topic that comes later is read from its beginning"
    assert step(reader, end) == (end, [])
    assert {queue.topic for queue in from_json(reader.reportLatestOffset() or {})} == {"Live-one", "Live-two"}


def test_a_first_micro_batch_that_is_run_again_begins_where_it_began(server: Server) -> None:
    """Spark notes ends only; a driver that died before its first commit asks for the beginning again."""
    send(server, "Crashed", ["before"], order_key="k")
    reader = stream_reader(server, subscribe="Crashed")
    first = reader.initialOffset()
    noted, got = step(reader, first)
    assert (noted, got) == (first, [])
    send(server, "Crashed", ["between"], order_key="k")
    after_crash = stream_reader(server, subscribe="Crashed")
    moved = after_crash.initialOffset()
    assert moved != noted
    assert rows_of(after_crash, after_crash.partitions(moved, noted)) == []
    _, got = step(after_crash, noted)
    assert got == ["between"], "nothing is skipped"


def test_a_stream_from_a_time_that_is_not_yet_notes_where_it_began(server: Server) -> None:
    send(server, "Future", ["before"], order_key="k")
    options = {"startingTimestamp": "2099-01-01", "startingOffsetsByTimestampStrategy": "latest"}
    reader = stream_reader(server, subscribe="Future", **options)
    first = reader.initialOffset()
    send(server, "Future", ["between"], order_key="k")
    noted, got = step(reader, first)
    assert (noted, got) == (first, []), "an empty micro-batch, as from the latest"
    after_crash = stream_reader(server, subscribe="Future", **options)
    assert after_crash.initialOffset() != noted
    assert step(after_crash, noted)[1] == ["between"]


def test_a_checkpoint_of_other_topics_is_told(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    for topic in ("Former", "Present"):
        send(server, topic, [topic], order_key="k")
    reader = stream_reader(server, subscribe="Former", startingOffsets="earliest")
    end, _ = step(reader, reader.initialOffset())
    for wanted in ({"subscribe": "Present"}, {"subscribePattern": "Pres.*"}, {"assign": '{"Present":{"test":[0]}}'}):
        with pytest.raises(StorageError, match=r"also of queue 0 of Former.*no longer name.*checkpoint of its own"):
            stream_reader(server, **wanted).latestOffset(end, ALL)
    lenient = stream_reader(server, subscribe="Present", failOnDataLoss="false")
    after, got = step(lenient, end)
    assert got == ["Present"], "a topic that the checkpoint does not know is new, and read from its beginning"
    assert after["Former"] == end["Former"]
    assert "no longer name" in caplog.text


def test_a_name_server_that_does_not_know_the_topic_yet_is_no_reason_to_fail(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that has just been started hears of topics when brokers next register."""
    send(server, "Unheard", ["1"])
    reader = stream_reader(server, subscribe="Unheard", startingOffsets="earliest")
    end, _ = step(reader, reader.initialOffset())
    send(server, "Unheard", ["2"])

    async def unknown(*_: object, **__: object) -> None:
        raise RequestFailed(ResponseCode.TOPIC_NOT_EXIST, "topic 'Unheard' does not exist")

    monkeypatch.setattr("orbitmq.spark.stream_reader.find_queues", unknown)
    assert step(reader, end)[1] == ["2"]
    assert "no look for new queues: topic 'Unheard' does not exist" in caplog.text
    with pytest.raises(RequestFailed, match="does not exist"):
        stream_reader(server, subscribe="Unheard").initialOffset()


def change_queues(server: Server, topic: str, count: int) -> None:
    async def change() -> None:
        async with open_session(server.address) as session:
            await update_topic(session, TopicPlan(topic=topic, read_queues=count, write_queues=count))

    asyncio.run(change())
    deadline = time.monotonic() + 30
    while len(queues_of(server, topic)) != count:
        assert time.monotonic() < deadline, "the name server does not hear of it"
        time.sleep(0.02)


def test_queues_that_are_added_are_read_and_queues_that_go_are_a_loss(server: Server) -> None:
    send(server, "Growing", ["1"])
    options = {"subscribe": "Growing", "startingOffsets": "earliest"}
    reader = stream_reader(server, **options)
    end, _ = step(reader, reader.initialOffset())
    change_queues(server, "Growing", 6)
    send(server, "Growing", [f"{number}" for number in range(12)])
    end, got = step(reader, end)
    assert len(got) == 12
    assert {queue.queue_id for queue in from_json(end)} == set(range(6))
    change_queues(server, "Growing", 4)
    with pytest.raises(StorageError, match=r"queue [45] of Growing on test is no longer there"):
        reader.latestOffset(end, ALL)
    lenient = stream_reader(server, **options, failOnDataLoss="false")
    kept = lenient.latestOffset(end, ALL)
    assert kept == end, "a queue that comes back goes on where it was"
    assert lenient.partitions(end, kept) == []


def test_a_broker_that_is_away_holds_up_its_own_queues_only(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    send(server, "Half", ["1"])
    reader = stream_reader(server, subscribe="Half", startingOffsets="earliest")
    end, _ = step(reader, reader.initialOffset())
    with_gone = {"Half": {**end["Half"], "gone": {"0": 17}}}
    send(server, "Half", ["2"])
    after, got = step(reader, with_gone)
    assert got == ["2"]
    assert after["Half"]["gone"] == {"0": 17}
    assert "not read for now: queue 0 of Half on gone" in caplog.text


def test_a_slave_is_read_when_there_is_no_master(server: Server) -> None:
    send(server, "Replicated", ["x"])
    for from_slaves in ("true", "false"):
        reader = batch_reader(server, subscribe="Replicated", readFromSlaves=from_slaves, retryTimeout="0ms")
        partitions = reader.partitions()
        brokers = link(reader.options.access).cluster.brokers
        brokers["test"] = {1: brokers["test"][0]}  # what a route says while the master is away
        try:
            if from_slaves == "true":
                assert bodies(rows_of(reader, partitions)) == ["x"]
            else:
                with pytest.raises(TransportError, match="broker 'test'"):
                    rows_of(reader, partitions)
        finally:
            brokers["test"] = {0: brokers["test"][1]}


@contextlib.contextmanager
def without_master(server: Server) -> Iterator[None]:
    """What a route says while the master is away: who answers is a slave."""
    cluster = link(batch_reader(server, subscribe="any").options.access).cluster
    address = cluster.brokers["test"][0]
    with mock.patch.object(cluster, "_learn_brokers"):
        cluster.brokers["test"] = {1: address}
        try:
            yield
        finally:
            cluster.brokers["test"] = {0: address}


def ahead_of(server: Server, topic: str) -> dict[str, Any]:
    """A checkpoint that has read three messages more than there are, in each queue."""
    ends = from_json(stream_reader(server, subscribe=topic).initialOffset())
    return to_json({queue: offset + 3 for queue, offset in ends.items()})


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_slave_that_is_behind_its_dead_master_is_no_loss_and_nothing_is_read_again(
    server: Server, caplog: pytest.LogCaptureFixture, strict: str
) -> None:
    topic = f"Behind-{strict}"
    send(server, topic, ["1", "2"])
    ahead = ahead_of(server, topic)
    for pick in ({"subscribe": topic}, {"subscribePattern": topic}):
        reader = stream_reader(server, **pick, failOnDataLoss=strict)
        in_one_go = stream_reader(server, **pick, failOnDataLoss=strict)
        with without_master(server):
            assert step(reader, ahead) == (ahead, []), "its queues wait where they are"
            in_one_go.prepareForTriggerAvailableNow()
            assert step(in_one_go, ahead) == (ahead, [])
        assert "not read until its master is back" in caplog.text
    held = {queue: Extent(0, 1, is_whole=False) for queue in from_json(ahead)}
    for queue, offset in from_json(ahead).items():
        assert within(reader.options, queue, offset, held[queue], "the archive") == offset
    with without_master(server):
        only_masters = stream_reader(server, subscribe=topic, readFromSlaves="false", retryTimeout="0ms")
        with pytest.raises(TransportError, match="has no master now"):
            only_masters.latestOffset(ahead, ALL)


@pytest.mark.parametrize("strict", ["true", "false"])
def test_what_a_slave_has_not_got_yet_is_asked_for_again_until_its_master_is_back(server: Server, strict: str) -> None:
    topic = f"NotYet-{strict}"
    send(server, topic, ["1", "2"], order_key="k")
    (queue,) = [one for one, end in from_json(stream_reader(server, subscribe=topic).initialOffset()).items() if end]
    beyond = RangesPartition([QueueRange(queue, 0, 3)])
    hasty = batch_reader(server, subscribe=topic, failOnDataLoss=strict, retryTimeout="0ms")
    patient = batch_reader(server, subscribe=topic, failOnDataLoss=strict, retryTimeout="60s")
    with without_master(server), pytest.raises(TransportError, match=r"a slave of test has not got message 2 of"):
        rows_of(hasty, [beyond])
    with contextlib.ExitStack() as away:
        away.enter_context(without_master(server))

        def come_back() -> None:
            send(server, topic, ["3"], order_key="k")
            away.close()

        back = threading.Thread(target=come_back)
        back.start()
        try:
            assert bodies(rows_of(patient, [beyond])) == ["1", "2", "3"], "nothing is skipped"
        finally:
            back.join()


def test_offsets_are_committed_to_masters_alone(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    send(server, "Masterless", ["1"], order_key="k")
    options = {"subscribe": "Masterless", "groupId": "masterless", "commitOffsets": "true"}
    reader = stream_reader(server, **options, startingOffsets="earliest")
    end, _ = step(reader, reader.initialOffset())
    with without_master(server):
        reader.commit(end)
    assert "not committed while there is no master: queue 0 of Masterless" in caplog.text
    with connect(server.address) as client, client.pull_consumer("masterless") as checker:
        assert [checker.committed(queue) for queue in checker.queues("Masterless")] == [None] * 4
        reader.commit(end)  # as Spark does after the next micro-batch
        assert sum(checker.committed(queue) or 0 for queue in checker.queues("Masterless")) == 1


def test_a_micro_batch_that_is_run_again_reads_the_same(server: Server) -> None:
    send(server, "Again", [f"{number}" for number in range(9)])
    reader = stream_reader(server, subscribe="Again", startingOffsets="earliest", minPartitions="3")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    planned = [partition.ranges for partition in reader.partitions(start, end)]
    send(server, "Again", ["later"])
    after_restart = stream_reader(server, subscribe="Again", startingOffsets="earliest", minPartitions="3")
    again = after_restart.partitions(start, end)
    assert [partition.ranges for partition in again] == planned
    assert len(rows_of(after_restart, again)) == 9


def test_limits_hold_and_available_now_ends_where_it_began(server: Server) -> None:
    send(server, "Limited", [f"{number}" for number in range(20)])
    reader = stream_reader(server, subscribe="Limited", startingOffsets="earliest", maxOffsetsPerTrigger="8")
    limit = reader.getDefaultReadLimit()
    reader.prepareForTriggerAvailableNow()
    send(server, "Limited", ["too late"])
    position, sizes = reader.initialOffset(), []
    while True:
        end, got = step(reader, position, limit)
        if end == position:
            break
        assert "too late" not in got
        sizes.append(len(got))
        position = end
    assert sizes == [8, 8, 4]


def test_bytes_limit_a_micro_batch_about(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = random.Random(1)
    send(server, "Heavy", [noise.randbytes(5_000).hex() for _ in range(40)], order_key="k")
    reader = stream_reader(server, subscribe="Heavy", startingOffsets="earliest", maxBytesPerTrigger="60kb")
    _, got = step(reader, reader.initialOffset(), reader.getDefaultReadLimit())
    assert 5 <= len(got) <= 15
    _, everything = step(reader, reader.initialOffset(), ALL)
    assert len(everything) == 40, "a trigger that ignores limits says so"

    async def busy(*_: object) -> None:
        raise RequestFailed(ResponseCode.SYSTEM_BUSY, "too much to do")

    monkeypatch.setattr("orbitmq.spark.stream_reader.pull_once", busy)
    _, got = step(reader, reader.initialOffset(), reader.getDefaultReadLimit())
    assert len(got) == 40, "without a sample there is no limit, and no failure"


def test_too_little_waits_for_more(server: Server) -> None:
    send(server, "Patient", ["1"])
    options = {"subscribe": "Patient", "startingOffsets": "earliest", "minOffsetsPerTrigger": "3"}
    reader = stream_reader(server, **options)
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    assert step(reader, start, limit) == (start, [])
    send(server, "Patient", ["2", "3"])
    assert step(reader, start, limit)[1] == ["1", "2", "3"]
    hasty = stream_reader(server, maxTriggerDelay="0ms", **{**options, "minOffsetsPerTrigger": "99"})
    assert step(hasty, start, limit)[1] == ["1", "2", "3"]


def test_offsets_of_a_group_move_only_on_commit_and_are_a_place_to_begin(server: Server) -> None:
    send(server, "Grouped", ["1", "2"], order_key="k")
    options = {"subscribe": "Grouped", "groupId": "lake", "commitOffsets": "true", "startingOffsets": "group"}
    reader = stream_reader(server, **options)
    start = reader.initialOffset()
    assert step(reader, start) == (start, []), "the beginning is noted by an empty micro-batch"
    end, got = step(reader, start)
    assert got == ["1", "2"], "a new group begins with the earliest"
    with pytest.raises(ConfigError, match="has committed no offset"):
        stream_reader(server, **options, newGroupOffsets="error").initialOffset()
    reader.commit(end)
    send(server, "Grouped", ["3"], order_key="k")
    after_restart = stream_reader(server, **options)
    assert after_restart.initialOffset() == end
    assert step(after_restart, end)[1] == []
    assert step(after_restart, end)[1] == ["3"]
    assert bodies(read(server, subscribe="Grouped", groupId="lake", startingOffsets="group")) == ["3"]


def test_without_being_asked_nothing_is_committed(server: Server) -> None:
    send(server, "Quiet", ["1"], order_key="k")
    reader = stream_reader(server, subscribe="Quiet", groupId="quiet", startingOffsets="earliest")
    end, _ = step(reader, reader.initialOffset())
    reader.commit(end)
    with connect(server.address) as client, client.pull_consumer("quiet") as checker:
        assert [checker.committed(queue) for queue in checker.queues("Quiet")] == [None] * 4


# ---- a cluster in trouble


def test_reading_goes_on_over_cut_connections_and_through_a_broker_that_hangs(server: Server) -> None:
    send(server, "Troubled", [f"{number}" for number in range(10)])
    reader = batch_reader(server, subscribe="Troubled", timeoutMs="300")
    partitions = reader.partitions()
    server.drop_connections()
    assert len(rows_of(reader, partitions)) == 10
    server.pause()
    timer = threading.Timer(0.7, server.resume)
    timer.start()
    try:
        assert len(rows_of(reader, partitions)) == 10
    finally:
        timer.join()
    server.pause()
    try:
        hasty = batch_reader(server, subscribe="Troubled", timeoutMs="100", retryTimeout="200ms")
        with pytest.raises(TransportError):
            rows_of(hasty, partitions)
    finally:
        server.resume()


# ---- loss


def test_a_topic_that_was_made_anew_fails_or_is_read_from_its_beginning(server: Server) -> None:
    send(server, "Anew", ["1", "2"], order_key="k")
    options = {"subscribe": "Anew", "startingOffsets": "earliest"}
    end, _ = step(stream_reader(server, **options), stream_reader(server, **options).initialOffset())
    ahead = json.loads(json.dumps(end).replace(": 2", ": 50"))
    with pytest.raises(StorageError, match=r"ends at 2, but the query has read it up to 50.*failOnDataLoss"):
        stream_reader(server, **options).latestOffset(ahead, ALL)
    reader = stream_reader(server, **options, failOnDataLoss="false")
    assert step(reader, ahead) == (end, ["1", "2"])
    in_one_go = stream_reader(server, **options, failOnDataLoss="false")
    in_one_go.prepareForTriggerAvailableNow()
    assert step(in_one_go, ahead) == (end, ["1", "2"]), "with availableNow, too"
    assert step(in_one_go, end) == (end, [])


def test_a_broken_record_is_an_error_or_left_out(server: Server) -> None:
    send(server, "Broken", ["fine"], order_key="k")
    reader = batch_reader(server, subscribe="Broken")
    (partition,) = reader.partitions()
    assert isinstance(partition, RangesPartition)
    for fail, outcome in ((True, MessageError), (False, None)):
        options = batch_reader(server, subscribe="Broken", failOnDataLoss=str(fail)).options
        ranges = RangeReader(link(options.access), options, reader.projection)
        segment = Segment(partition.ranges[0], b"\x00\x00\x00\x60 this is no record", None)
        if outcome is not None:
            with pytest.raises(outcome, match=r"a record between 0 and 1 of queue \d of Broken"):
                ranges._batch(segment)
        else:
            assert ranges._batch(segment).num_rows == 0


def test_a_schema_of_the_user_is_what_is_read(server: Server) -> None:
    send(server, "Projected", ["x"])
    wanted = StructType([StructField("queueOffset", LongType()), StructField("body", BinaryType(), nullable=False)])
    reader = source(server, subscribe="Projected").reader(wanted)
    (partition,) = reader.partitions()
    (batch,) = reader.read(partition)
    assert isinstance(batch, pa.RecordBatch)
    assert batch.to_pylist() == [{"queueOffset": 0, "body": b"x"}]
    with pytest.raises(ConfigError, match="did you mean body"):
        source(server, subscribe="Projected").reader(StructType([StructField("boddy", BinaryType())]))


def test_retention_that_overtakes_a_query_fails_it_or_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    small = {"mappedFileSizeCommitLog": "65536", "mappedFileSizeConsumeQueue": "2000"}
    every_hour = ";".join(f"{hour:02d}" for hour in range(24))
    quick = {"fileReservedTime": "1", "cleanResourceInterval": "100", "deleteWhen": every_hour}
    with Server(data=tmp_path, settings={**small, **quick, "deleteCommitLogFilesInterval": "1"}) as server:
        options = {"subscribe": "Fleeting", "startingOffsets": "earliest"}
        noise = random.Random(1)
        send(server, "Fleeting", [noise.randbytes(2500).hex() for _ in range(60)], order_key="k")
        reader = stream_reader(server, **options)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        partitions = reader.partitions(start, end)
        two_hours_ago = time.time() - 7200
        for file in (tmp_path / "store" / "commitlog").iterdir():
            os.utime(file, (two_hours_ago, two_hours_ago))
        deadline = time.monotonic() + 60
        while not any(from_json(stream_reader(server, **options).initialOffset()).values()):
            assert time.monotonic() < deadline, "the broker deletes nothing"
            time.sleep(0.05)
        with pytest.raises(StorageError, match=r"messages 0 to \d+ of queue \d of Fleeting.*failOnDataLoss=false"):
            rows_of(reader, partitions)
        lenient = stream_reader(server, **options, failOnDataLoss="false")
        left = rows_of(lenient, lenient.partitions(start, end))
        assert 0 < len(left) < 60
        assert [row["queueOffset"] for row in left] == list(range(60 - len(left), 60))
        assert "going on without them" in caplog.text
