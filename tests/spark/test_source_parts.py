"""The parts of the source that need neither Spark nor a broker: options, offsets, plans, limits, errors."""

from __future__ import annotations

import json
import re
import traceback
from pathlib import Path
from typing import Any

import pytest

from orbitmq.errors import CallTimeout, ConfigError, ConnectFailed, OrbitError, RequestFailed
from orbitmq.message import QueueRef
from orbitmq.spark import sink_options as sink_options_module
from orbitmq.spark import source_options as source_options_module
from orbitmq.spark import store_options as store_options_module
from orbitmq.spark.failures import own_error, plain_errors, plain_reason
from orbitmq.spark.planning import QueueRange, plan, ranges_between
from orbitmq.spark.queue_offsets import from_json, parse_queues, to_json
from orbitmq.spark.rate_limits import TriggerPace
from orbitmq.spark.schema import COLUMNS
from orbitmq.spark.source_options import TriggerLimits, source_options, source_schema
from orbitmq.spark.store_options import parse_options

NEEDED = {"nameServer": "127.0.0.1:9876", "subscribe": "Orders"}
QUEUES = [QueueRef("Orders", "a", number) for number in range(4)]


def options(**more: str) -> Any:
    return source_options({**NEEDED, **more}, streaming=True)


# ---- options


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"subscribbe": "Orders"}, "no option 'subscribbe'.*did you mean subscribe"),
        ({"maxOffsetPerTrigger": "5"}, "did you mean maxOffsetsPerTrigger"),
        ({"subscribePattern": "O.*"}, "subscribe and subscribePattern are all given"),
        ({"topic": "Other"}, "topic.*mean the same and say different things|mean the same"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss is 'maybe'.*true or false"),
        ({"maxOffsetsPerTrigger": "0"}, "at least 1"),
        ({"maxOffsetsPerTrigger": "--5"}, "maxOffsetsPerTrigger is '--5'.*at least 1"),
        ({"maxOffsetsPerTrigger": "²"}, "at least 1"),
        ({"maxTriggerDelay": "soon"}, "a duration such as"),
        ({"startingOffsets": '{"Orders":{"a":{"²":1}}}'}, "startingOffsets is"),
        ({"startingTimestamp": "²"}, "which is no time"),
        ({"maxBytesPerTrigger": "lots"}, "a size such as"),
        ({"startingOffsets": "middle"}, r"startingOffsets is 'middle'.*-1 is the latest"),
        ({"startingOffsets": '{"Orders":{"a":{"0":-3}}}'}, "startingOffsets is"),
        ({"startingTimestamp": "yesterday"}, "which is no time"),
        ({"startingTimestamp": "1", "startingOffsets": "earliest"}, "say the same thing twice"),
        ({"endingOffsets": "latest"}, "a streaming read has no end"),
        ({"commitOffsets": "true"}, "need a group"),
        ({"tags": "a", "filterSql": "x > 1"}, "both given"),
        ({"tags": "||"}, "names no tag"),
        ({"accessKey": "me"}, "accessKey is given without secretKey"),
        ({"minPartitions": "9", "maxPartitions": "3"}, "minPartitions is above"),
    ],
)
def test_wrong_options_are_named_with_what_is_right(given: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        options(**given)


def test_old_names_of_options_are_understood() -> None:
    old = {
        "nameserver.addr": "n:1",
        "consumer.topic": "T",
        "subExpression": "a || b",
        "group": "g",
        "pullBatchSize": "64",
    }
    made = source_options(old, streaming=True)
    assert (made.access.name_servers, made.topics, made.tags, made.group) == ("n:1", ("T",), "a || b", "g")
    assert made.pull_batch == 64


def test_a_stream_may_begin_at_the_latest_of_one_queue_and_a_batch_may_not() -> None:
    given = {**NEEDED, "startingOffsets": '{"Orders":{"a":{"0":-1}}}'}
    assert source_schema(given).fieldNames()[0] == "topic", "it is asked for before Spark knows which of the two it is"
    assert source_options(given, streaming=True).starting.moves
    with pytest.raises(ConfigError, match="cannot start at the latest"):
        source_options(given, streaming=False)


@pytest.mark.parametrize(
    ("given", "moves"),
    [
        ({"startingOffsets": "earliest"}, False),
        ({"startingOffsets": "latest"}, True),
        ({"startingOffsets": '{"Orders":{"a":{"0":5,"1":-2}}}'}, False),
        ({"startingTimestamp": "2026-01-01"}, False),
        ({"startingTimestamp": "2026-01-01", "startingOffsetsByTimestampStrategy": "latest"}, True),
    ],
)
def test_a_beginning_that_lies_elsewhere_when_it_is_sought_again_is_known(given: dict[str, str], moves: bool) -> None:
    assert options(**given).starting.moves is moves


def test_a_stream_begins_with_the_latest_and_a_batch_with_the_earliest() -> None:
    assert options().starting.anchor == "latest"
    assert source_options(NEEDED, streaming=False).starting.anchor == "earliest"
    with pytest.raises(ConfigError, match="reads nothing"):
        source_options({**NEEDED, "startingOffsets": "latest"}, streaming=False)


def test_units_and_times_are_read_as_people_write_them() -> None:
    made = options(maxTriggerDelay="2 m", maxBytesPerTrigger="64MB", startingTimestamp="1970-01-01T00:00:01Z")
    assert made.limits.max_delay_ms == 120_000
    assert made.limits.max_bytes == 64 << 20
    assert made.starting.time_ms == 1000


def test_ranges_of_time_have_the_same_names_for_topics_and_for_stores() -> None:
    for given in (
        "1767225600500",
        "2026-01-01T00:00:00.500Z",
        "2026-01-01T00:00:00.5",
        "2026-01-01 01:00:00.500+01:00",
    ):
        topics = source_options({**NEEDED, "STARTINGTIMESTAMP": given, "endingTimestamp": given}, streaming=False)
        store, _, _ = parse_options({"path": "/store", "startingTimestamp": given, "ENDINGTIMESTAMP": given})
        assert topics.starting.time_ms == topics.ending.time_ms == 1767225600500
        assert store.begin_ms == store.end_ms == 1767225600500
    for known in (source_options_module.OPTIONS, store_options_module.OPTIONS):
        assert {name for name in known if name.endswith("Timestamp") and "Offsets" not in name} == {
            "startingTimestamp",
            "endingTimestamp",
        }


def test_a_schema_is_refused_for_wrong_options_before_any_query_runs() -> None:
    with pytest.raises(ConfigError, match="nothing says which topics"):
        source_schema({"nameServer": "127.0.0.1:9876"})
    with pytest.raises(ConfigError, match="no name server"):
        source_schema({"subscribe": "Orders"})


# ---- offsets


def test_offsets_survive_json_and_are_equal_texts_when_they_are_equal() -> None:
    offsets = {queue: queue.queue_id * 10 for queue in reversed(QUEUES)}
    text = json.dumps(to_json(offsets))
    assert text == '{"Orders": {"a": {"0": 0, "1": 10, "2": 20, "3": 30}}}'
    assert from_json(json.loads(text)) == offsets


def test_assigned_queues_are_read_and_nonsense_is_shown_the_form() -> None:
    assert parse_queues('{"Orders":{"a":[1,0]}}', "assign") == QUEUES[:2]
    for nonsense in ("Orders", '{"Orders":[0]}', '{"Orders":{"a":["0"]}}', "[]", '{"Orders":{"a":[true]}}'):
        with pytest.raises(ConfigError, match=r'assign is .*write \{"topicA"'):
            parse_queues(nonsense, "assign")


# ---- plans


def ranges(*sizes: int) -> list[QueueRange]:
    return [QueueRange(queue, 100, 100 + size) for queue, size in zip(QUEUES, sizes, strict=False)]


def covered(made: list[Any]) -> list[tuple[QueueRef, int]]:
    return sorted((one.queue, n) for part in made for one in part.ranges for n in range(one.start, one.until))


@pytest.mark.parametrize(
    ("sizes", "least", "most", "tasks"),
    [
        ((5, 5, 5, 5), None, None, 1),  # short queues share a task
        ((90_000, 90_000, 10, 10), None, None, 2),
        ((90_000, 90_000, 90_000, 90_000), None, None, 4),
        ((60_000, 60_000, 60_000, 60_000), None, None, 2),  # three would take as long: one of them has two queues
        ((60_000, 60_000, 60_000, 60_000), 3, None, 3),
        ((90_000, 90_000, 90_000, 90_000), None, 2, 2),
        ((10, 10), 4, None, 4),
        ((1, 1), 8, None, 2),  # nothing is cut below one message
        ((30, 10), 4, None, 4),
    ],
)
def test_a_plan_covers_every_offset_once(
    sizes: tuple[int, ...], least: int | None, most: int | None, tasks: int
) -> None:
    wanted = ranges(*sizes)
    made = plan(wanted, least, most)
    assert len(made) == tasks
    assert covered(made) == sorted((one.queue, n) for one in wanted for n in range(one.start, one.until))
    assert [part.ranges for part in plan(wanted, least, most)] == [part.ranges for part in made], "the same again"


def test_nothing_to_read_needs_no_task() -> None:
    assert plan(ranges_between({QUEUES[0]: 5}, {QUEUES[0]: 5})) == []


# ---- limits


def test_a_limit_is_shared_out_by_lag_and_kept_exactly() -> None:
    pace = TriggerPace(TriggerLimits(max_offsets=10))
    start = dict.fromkeys(QUEUES, 0)
    end = pace.end(start, dict(zip(QUEUES, (60, 30, 9, 1), strict=True)), 0, 0)
    assert end is not None
    assert sum(end.values()) == 10
    assert [end[queue] for queue in QUEUES] == [6, 3, 1, 0]


def test_bytes_limit_offsets_through_the_size_of_a_message() -> None:
    pace = TriggerPace(TriggerLimits(max_bytes=1000))
    end = pace.end({QUEUES[0]: 0}, {QUEUES[0]: 100}, 0, bytes_each=250.0)
    assert end == {QUEUES[0]: 4}
    assert pace.end({QUEUES[0]: 0}, {QUEUES[0]: 100}, 0, bytes_each=5000.0) == {QUEUES[0]: 1}, "it must go on"


def test_too_little_waits_until_the_delay_is_over() -> None:
    pace = TriggerPace(TriggerLimits(min_offsets=10, max_delay_ms=1000))
    start, latest = {QUEUES[0]: 0}, {QUEUES[0]: 3}
    assert pace.end(start, latest, 5000, 0) is None
    assert pace.end(start, latest, 5999, 0) is None
    assert pace.end(start, latest, 6000, 0) == latest
    pace.triggered(6000)
    assert pace.end(start, latest, 6500, 0) is None
    assert pace.end(start, {QUEUES[0]: 10}, 6500, 0) == {QUEUES[0]: 10}


def test_a_queue_that_was_made_anew_goes_to_its_end_even_under_a_limit() -> None:
    pace = TriggerPace(TriggerLimits(max_offsets=1))
    end = pace.end({QUEUES[0]: 50, QUEUES[1]: 0}, {QUEUES[0]: 7, QUEUES[1]: 9}, 0, 0)
    assert end == {QUEUES[0]: 7, QUEUES[1]: 1}


# ---- errors


def test_the_sentence_is_found_inside_what_spark_makes_of_it() -> None:
    spark_says = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed to create: Traceback (most recent call last):\n"
        '  File "x.py", line 1, in schema\n'
        "orbitmq.errors.ConfigError: no name server is given (set NAMESRV_ADDR)\n SQLSTATE: 38000"
    )
    assert plain_reason(RuntimeError(spark_says)) == "no name server is given (set NAMESRV_ADDR)"
    assert plain_reason(ConfigError("a", hint="b")) == "a (b)"
    assert plain_reason(RuntimeError("something else")) is None


def test_an_error_comes_out_of_spark_as_what_it_was() -> None:
    @plain_errors
    def fails(error: OrbitError) -> None:
        raise error

    for raised in (RequestFailed(17, "no such topic", hint="make it"), ConnectFailed("nobody there"), CallTimeout("?")):
        with pytest.raises(OrbitError) as caught:
            fails(raised)
        text = "".join(traceback.format_exception_only(caught.value))
        found = own_error(RuntimeError(f"[PYTHON_DATA_SOURCE_ERROR] Failed: Traceback:\n{text} SQLSTATE: 38000"))
        assert (type(found), str(found), found and found.code) == (type(raised), str(raised), raised.code)
    assert own_error(RuntimeError("orbitmq.errors.Unheard: of")).__class__ is OrbitError


# ---- the page


def test_the_pages_name_every_option_and_every_column() -> None:
    docs = Path(__file__).parent.parent.parent / "docs"
    of_stores = set(re.findall(r"`([A-Za-z._]+)`", (docs / "spark-commands.md").read_text()))
    assert set(store_options_module.OPTIONS) - of_stores == set()
    page = (docs / "spark.md").read_text()
    named = set(re.findall(r"`([A-Za-z._]+)`", page))
    for options in (source_options_module.OPTIONS, sink_options_module.OPTIONS):
        assert set(options) - named == set()
    assert set(COLUMNS) - named == set()
