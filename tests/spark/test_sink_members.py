"""Rows of the sink as members of batches: by Arrow's functions and by the compiled loop, held against one row at a time in plain Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.accelerated import compiled
from orbitmq.message.batch import BatchMember, encode_batch
from orbitmq.spark.property_texts import DEDUP_ID, LEFT_OUT
from orbitmq.spark.sink import _sized
from orbitmq.spark.sink_members import compiled_members
from orbitmq.spark.sink_options import sink_options
from orbitmq.spark.sink_rows import encode_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.usefixtures("loops")

PROPERTIES = pa.map_(pa.string(), pa.string())
NEVER_NULL = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))  # what Spark makes of `map(...)`
MOST = 400  # bytes of a message
SEPARATORS = {"\x01", "\x02"}

TEXTS = st.none() | st.sampled_from(["", "a", "paid", "ä€", "x\x01y", "z\x02"])
USUAL_TEXTS = st.none() | st.sampled_from(["", "a", "paid", "ä€"])
TOO_MUCH = st.sampled_from([b"x" * (MOST + 1), b"x" * (MOST - 30)])  # by itself, and with its head and properties
NAMES = st.sampled_from(["region", "shop", "TAGS", "KEYS", "UNIQ_KEY", "__SHARDINGKEY", DEDUP_ID, "ö"])


def rows(texts: st.SearchStrategy[str | None], names: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    values = texts if texts is TEXTS else st.sampled_from(["eu", "a\x01b", "ü"])
    return st.fixed_dictionaries({
        "body": st.binary(min_size=1, max_size=12) if texts is not TEXTS else st.none() | st.binary(max_size=14) | TOO_MUCH,
        "tags": texts,
        "keys": texts,
        "orderKey": texts,
        "properties": st.none() | st.dictionaries(names, values, max_size=4).map(lambda found: list(found.items())),
    })  # fmt: skip


ROWS = st.lists(rows(USUAL_TEXTS, NAMES) | rows(TEXTS, NAMES | st.sampled_from(["", "a\x01b", "c\x02"])), max_size=6)
USUAL_ROWS = st.lists(rows(USUAL_TEXTS, NAMES), min_size=1, max_size=6)


def frame(chosen: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    kinds = {"body": pa.binary(), "properties": PROPERTIES}
    names = ["body", "tags", "keys", "orderKey", "properties"]
    return pa.RecordBatch.from_arrays(
        [pa.array([row[name] for row in chosen], kinds.get(name, pa.string())) for name in names], names=names
    )


def plainly(row: dict[str, Any], number: int, most: int = MOST) -> bytes | None:
    """The member, or None for a row that cannot be sent."""
    body = row["body"]
    texts = [("UNIQ_KEY", f"id{number}"), (DEDUP_ID, f"repeat-{number}")]
    texts += [("TAGS", row["tags"]), ("__SHARDINGKEY", row["orderKey"]), ("KEYS", row["keys"])]
    if not body or any(SEPARATORS & set(text or "") for _, text in texts):
        return None
    left_out = LEFT_OUT | {"__SHARDINGKEY"}  # the column says it
    entries = [(name, value) for name, value in row["properties"] or () if name not in left_out]
    if any(not name or SEPARATORS & set(name) or not value or "\x02" in value for name, value in entries):
        return None
    written = [(name, text) for name, text in texts if text] + entries
    properties = "".join(f"{name}\x01{value}\x02" for name, value in written).encode()
    member = encode_batch([BatchMember(body, properties)])
    return member if len(member) <= most else None


def encoded(batch: pa.RecordBatch, most: int = MOST) -> tuple[list[bytes], list[int]]:
    """The members, and the numbers of the rows that were refused."""
    options = sink_options({"nameServer": "n:1", "topic": "T", "maxMessageBytes": str(most)})
    ids = [f"id{number}" for number in range(batch.num_rows)]
    repeats = pa.array([f"repeat-{number}" for number in range(batch.num_rows)], pa.string())
    found, refused = encode_rows(batch, {name: name for name in batch.schema.names}, options, ids, repeats)
    return found.members.to_pylist(), refused.rows.tolist()


@given(ROWS)
def test_each_row_becomes_the_member_that_it_is_alone_or_is_refused(chosen: list[dict[str, Any]]) -> None:
    wanted = [plainly(row, number) for number, row in enumerate(chosen)]
    members, refused = encoded(frame(chosen))
    assert members == [member for member in wanted if member is not None]
    assert refused == [number for number, member in enumerate(wanted) if member is None]


@given(USUAL_ROWS, st.integers(0, 6))
def test_a_part_of_a_frame_is_encoded_as_if_it_were_a_frame(chosen: list[dict[str, Any]], start: int) -> None:
    members, refused = encoded(frame(chosen).slice(start))
    assert members == [plainly(row, number) for number, row in enumerate(chosen[start:])]
    assert refused == []


@given(USUAL_ROWS, st.sampled_from([PROPERTIES, NEVER_NULL]))
def test_the_compiled_loop_where_there_is_one_takes_usual_rows(chosen: list[dict[str, Any]], kind: pa.DataType) -> None:
    batch = frame(chosen)
    members = compiled_members(batch.column("body"), [], batch.column("properties").cast(kind), MOST)
    assert (members is not None) == (compiled("members") is not None)


def test_properties_up_to_the_most_that_a_record_holds_are_taken() -> None:
    def tagged(size: int) -> dict[str, Any]:
        return {"body": b"x", "tags": "t" * size, "keys": None, "orderKey": None, "properties": None}

    room = 32_767 - len(f"UNIQ_KEY\x01id0\x02{DEDUP_ID}\x01repeat-0\x02TAGS\x01\x02")
    plenty = 1 << 20
    members, refused = encoded(frame([tagged(room)]), plenty)
    assert (members, refused) == ([plainly(tagged(room), 0, plenty)], [])
    assert encoded(frame([tagged(room + 1)]), plenty) == ([], [0])


def test_large_frames_are_encoded_in_even_parts_of_a_few_megabytes() -> None:
    small = pa.RecordBatch.from_arrays([pa.array([b"x" * 10] * 20_000)], names=["body"])
    assert [part.num_rows for part in _sized(iter([small]))] == [6666, 6667, 6667]
    large = pa.RecordBatch.from_arrays([pa.array([b"x" * (1 << 20)] * 5)], names=["body"])
    assert [part.num_rows for part in _sized(iter([large]))] == [1, 2, 2]
    huge = pa.RecordBatch.from_arrays([pa.array([b"x" * (6 << 20)])], names=["body"])
    assert [part.num_rows for part in _sized(iter([huge]))] == [1]
    assert list(_sized(iter([small.slice(0, 0)]))) == []
