"""Rows of a frame as members of message batches, encoded all at once, and what is wrong with those that cannot be sent.

    columns ─> checks ─> property text ─> header + body + properties of every row in one buffer ─> cut into requests

Where the accelerator is installed and all rows of a frame are as usual, its loop does it in one pass (sink_members.py). A member is drawn in
message/batch.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orbitmq.client.names import check_topic
from orbitmq.errors import MessageError
from orbitmq.message import properties as names
from orbitmq.spark.property_texts import DEDUP_ID, LEFT_OUT, entry, holds_separator, joined, keys_text, map_entries
from orbitmq.spark.sink_members import compiled_members

if TYPE_CHECKING:
    import numpy.typing as npt

    from orbitmq.spark.sink_options import SinkOptions

BORN_NOW: Final = -1
# Columns that no broker takes in a batch.
TRAVEL_ALONE: Final = frozenset({"delay", "deliverAt", "delayLevel", "retryTopic"})
_HEAD_BYTES: Final = 20
_MS_PER_SECOND: Final = 1000
_TEXT_COLUMNS: Final = (("tags", names.TAGS), ("orderKey", names.SHARDING_KEY), ("retryTopic", names.RETRY_TOPIC))


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """The rows of one frame batch that can be sent. All arrays have one entry a row."""

    topics: pa.Array
    members: pa.Array  # binary: the row as a member of a batch
    bodies: pa.Array
    properties: pa.Array | None  # binary: for rows that cannot travel in a batch; None where all can
    order_keys: pa.Array | None
    travels_alone: npt.NDArray[np.bool_]
    when: pa.Array | None = None  # duration: after so long; timestamp: then; null: at once
    born_ms: npt.NDArray[np.int64] | None = None  # BORN_NOW or when; None: all are born now


@dataclass(frozen=True, slots=True)
class RefusedRows:
    """The rows that cannot, by their number in the frame batch, and why."""

    rows: npt.NDArray[np.int64]
    reasons: list[str]


class _Verdicts:
    """The first thing that is wrong with each row."""

    def __init__(self, count: int) -> None:
        self.codes = np.zeros(count, np.int32)
        self.reasons: list[str] = [""]

    def refuse(self, rows: npt.NDArray[np.bool_], reason: str) -> None:
        if rows.any():
            self.reasons.append(reason)
            self.codes[rows & (self.codes == 0)] = len(self.reasons) - 1

    def any(self) -> bool:
        return len(self.reasons) > 1


def encode_rows(
    batch: pa.RecordBatch, columns: dict[str, str], options: SinkOptions, ids: list[str], dedup_ids: pa.Array | None
) -> tuple[EncodedRows, RefusedRows]:
    """`columns`: column of the sink -> name in the batch. `ids` and `dedup_ids` are one a row."""
    verdicts = _Verdicts(batch.num_rows)
    given = {column: _plain(batch.column(name)) for column, name in columns.items()}
    bodies = _bodies(given["body"], options.max_message_bytes, verdicts)
    topics = _topics(given.get("topic"), batch.num_rows, options.topic, verdicts)
    order_keys = _order_keys(given)
    born_ms = _born_ms(given, verdicts)
    quick = _by_the_loop(given, bodies, options, ids, dedup_ids) if not verdicts.any() else None
    if quick is not None:
        none_alone = np.zeros(batch.num_rows, bool)
        encoded = EncodedRows(topics, quick, bodies, None, order_keys, none_alone, born_ms=born_ms)
        return encoded, RefusedRows(np.empty(0, np.int64), [])
    entries = [entry(names.UNIQUE_KEY, pa.array(ids, pa.string()))]
    if "dedupId" in given:
        entries.append(entry(DEDUP_ID, _given_dedup_ids(given["dedupId"], dedup_ids, verdicts)))
    elif dedup_ids is not None:
        entries.append(entry(DEDUP_ID, dedup_ids))
    entries += _user_entries(given, verdicts)
    levels, travels_alone = _level_entries(given, verdicts)
    when = _delivery(given, verdicts)
    if when is not None:
        travels_alone = pc.is_valid(when).to_numpy(zero_copy_only=False)
    if "retryTopic" in given:
        travels_alone |= pc.is_valid(given["retryTopic"]).to_numpy(zero_copy_only=False)
    properties = joined(entries + levels)
    too_long = pc.greater(pc.binary_length(properties), names.MAX_PROPERTIES_BYTES).to_numpy(zero_copy_only=False)
    verdicts.refuse(too_long, f"its properties take more than {names.MAX_PROPERTIES_BYTES:,} bytes")
    members = _members(bodies, properties, verdicts.codes == 0)
    too_large = ~travels_alone & _too_large(members, options.max_message_bytes)
    verdicts.refuse(too_large, f"it has more than {options.max_message_bytes:,} bytes (maxMessageBytes)")
    good = verdicts.codes == 0
    encoded = EncodedRows(topics, members, bodies, properties, order_keys, travels_alone, when, born_ms)
    if good.all():
        return encoded, RefusedRows(np.empty(0, np.int64), [])
    refused = np.flatnonzero(~good)
    reasons = [verdicts.reasons[code] for code in verdicts.codes[refused]]
    return _chosen(encoded, pa.array(good), good), RefusedRows(refused, reasons)


def _by_the_loop(
    given: dict[str, pa.Array], bodies: pa.Array, options: SinkOptions, ids: list[str], dedup_ids: pa.Array | None
) -> pa.Array | None:
    """The members, if no row is unusual."""
    if not given.keys().isdisjoint(TRAVEL_ALONE):
        return None
    texts = [(names.UNIQUE_KEY, pa.array(ids, pa.string()))]
    if "dedupId" in given:
        texts.append((DEDUP_ID, _own_or_made(given["dedupId"], dedup_ids)))
    elif dedup_ids is not None:
        texts.append((DEDUP_ID, dedup_ids))
    texts += [(name, given[column]) for column, name in _TEXT_COLUMNS if column in given]
    keys = given.get("keys")
    if keys is not None and not pa.types.is_string(keys.type):
        keys, bad = keys_text(keys)
        if bad.any():
            return None
    if keys is not None:
        texts.append((names.KEYS, keys))
    members = compiled_members(bodies, texts, given.get("properties"), options.max_message_bytes, _left_out(given))
    return None if members is None or _too_large(members, options.max_message_bytes).any() else members


def _left_out(given: dict[str, pa.Array]) -> frozenset[str]:
    """Properties of the map that columns say, or nobody but the system."""
    return LEFT_OUT | {names.SHARDING_KEY} if "orderKey" in given else LEFT_OUT


def cut(sizes: npt.NDArray[np.int64], max_bytes: int, max_rows: int) -> list[tuple[int, int]]:
    """Consecutive rows, `(from, to)`, that fit a request; one that is too large by itself is a request of its own."""
    ends = np.cumsum(sizes)
    pieces = []
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + max_bytes, side="right"))
        stop = min(max(stop, start + 1), start + max_rows)
        pieces.append((start, stop))
        start = stop
    return pieces


# ---- columns


def _plain(column: pa.Array) -> pa.Array:
    """Spark uses 64-bit offsets when it is told to; nothing in one batch needs them."""
    small = {
        pa.large_string(): pa.string(),
        pa.large_binary(): pa.binary(),
        pa.large_list(pa.string()): pa.list_(pa.string()),
    }
    return column.cast(small[column.type]) if column.type in small else column


def _bodies(given: pa.Array, max_bytes: int, verdicts: _Verdicts) -> pa.Array:
    bodies = given if pa.types.is_binary(given.type) else given.cast(pa.binary())
    lengths = pc.fill_null(pc.binary_length(bodies), 0).to_numpy(zero_copy_only=False)
    verdicts.refuse(pc.is_null(bodies).to_numpy(zero_copy_only=False), "its body is null")
    verdicts.refuse(lengths == 0, "its body is empty, which brokers refuse")
    verdicts.refuse(lengths > max_bytes, f"its body has more than {max_bytes:,} bytes (maxMessageBytes)")
    return bodies


def _topics(given: pa.Array | None, count: int, option: str, verdicts: _Verdicts) -> pa.Array:
    """The option wins over the column, as with Kafka's sink: a frame that was read from a topic has the column anyway."""
    if option or given is None:
        return pa.repeat(pa.scalar(option, pa.string()), count)
    topics = given
    verdicts.refuse(pc.is_null(topics).to_numpy(zero_copy_only=False), "its topic is null")
    for topic in topics.unique().to_pylist():
        if topic is None:
            continue
        try:
            check_topic(topic)
        except MessageError as error:
            is_it = pc.fill_null(pc.equal(topics, topic), False).to_numpy(zero_copy_only=False)
            verdicts.refuse(is_it, str(error))
    return topics


def _order_keys(given: dict[str, pa.Array]) -> pa.Array | None:
    """What chooses the queues: the column, or without one the keys that messages had when they were read. None: no row has one."""
    if "orderKey" in given or "properties" not in given:
        return given.get("orderKey")
    properties = given["properties"]
    name = pa.scalar(names.SHARDING_KEY, properties.type.key_type)
    if pc.index(properties.keys, name).as_py() < 0:  # of most frames: a look-up in every map would cost more
        return None
    keys = _plain(pc.map_lookup(properties, name, "first"))
    return pc.if_else(pc.equal(pc.binary_length(keys), 0), pa.scalar(None, pa.string()), keys)


def _given_dedup_ids(given: pa.Array, made: pa.Array | None, verdicts: _Verdicts) -> pa.Array:
    """Those of the rows; rows without one have what the sink made for them."""
    verdicts.refuse(holds_separator(given), "its dedupId holds a character that separates properties")
    return _own_or_made(given, made)


def _own_or_made(given: pa.Array, made: pa.Array | None) -> pa.Array:
    own = pc.if_else(pc.equal(pc.binary_length(given), 0), pa.scalar(None, pa.string()), given)
    return own if made is None else pc.coalesce(own, made)


def _user_entries(given: dict[str, pa.Array], verdicts: _Verdicts) -> list[pa.Array]:
    entries = []
    for column, name in _TEXT_COLUMNS:
        if column in given:
            texts = given[column]
            verdicts.refuse(holds_separator(texts), f"its {column} hold a character that separates properties")
            empty = pc.equal(pc.binary_length(texts), 0)
            entries.append(entry(name, pc.if_else(empty, pa.scalar(None, pa.string()), texts)))
    if "keys" in given:
        texts, bad = keys_text(given["keys"])
        verdicts.refuse(bad, "one of its keys is empty, null, or has a blank in it")
        verdicts.refuse(holds_separator(texts), "its keys hold a character that separates properties")
        entries.append(entry(names.KEYS, texts))
    if "properties" in given:
        texts, bad = map_entries(given["properties"], _left_out(given))
        verdicts.refuse(bad, "one of its properties has no name, no value, or holds a character that separates them")
        entries.append(texts)
    return entries


def _level_entries(given: dict[str, pa.Array], verdicts: _Verdicts) -> tuple[list[pa.Array], npt.NDArray[np.bool_]]:
    """The broker's delay level of a row, and which rows have one: brokers take none of those in a batch."""
    if "delayLevel" not in given:
        return [], np.zeros(len(given["body"]), bool)
    levels = _numbers(given["delayLevel"])
    verdicts.refuse(levels < 0, "its delayLevel is negative")
    return [_number_entry(names.DELAY, levels, levels > 0)], levels > 0


def _delivery(given: dict[str, pa.Array], verdicts: _Verdicts) -> pa.Array | None:
    """When rows are to be delivered, as a client says it: how a broker is asked for that depends on its release."""
    if "deliverAt" in given:
        return given["deliverAt"].cast(pa.timestamp("ms", "UTC"), safe=False)
    if "delay" not in given:
        return None
    delays = _delay_ms(given["delay"])
    verdicts.refuse(delays < 0, "its delay is negative")
    return pa.array(delays, mask=delays <= 0).cast(pa.duration("ms"))


def _born_ms(given: dict[str, pa.Array], verdicts: _Verdicts) -> npt.NDArray[np.int64] | None:
    if "bornAt" not in given:
        return None
    times = given["bornAt"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    born: npt.NDArray[np.int64] = pc.fill_null(times, BORN_NOW).to_numpy(zero_copy_only=False)
    verdicts.refuse((born < 0) & pc.is_valid(times).to_numpy(zero_copy_only=False), "it was born before 1970 (bornAt)")
    return born


def _delay_ms(values: pa.Array) -> npt.NDArray[np.int64]:
    if pa.types.is_duration(values.type):
        return _numbers(values.cast(pa.duration("ms"), safe=False).cast(pa.int64()))
    seconds = pc.fill_null(values.cast(pa.float64(), safe=False), 0.0).to_numpy(zero_copy_only=False)
    milliseconds: npt.NDArray[np.int64] = np.rint(seconds * _MS_PER_SECOND).astype(np.int64)
    return milliseconds


def _numbers(values: pa.Array) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = pc.fill_null(values.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return found


def _number_entry(name: str, numbers: npt.NDArray[np.int64], there: npt.NDArray[np.bool_]) -> pa.Array:
    return entry(name, pa.array(numbers, mask=~there).cast(pa.string()))


# ---- members


def _members(bodies: pa.Array, properties: pa.Array, good: npt.NDArray[np.bool_]) -> pa.Array:
    """Every row as bytes; rows that will not be sent may be anything."""
    count = len(bodies)
    body_lengths = pc.fill_null(pc.binary_length(bodies), 0).to_numpy(zero_copy_only=False)
    property_lengths = np.where(good, pc.binary_length(properties).to_numpy(zero_copy_only=False), 0)
    heads = np.zeros((count, _HEAD_BYTES // 4), ">i4")  # size, magic, CRC, flag, body length
    heads[:, 0] = _HEAD_BYTES + body_lengths + 2 + property_lengths
    heads[:, 4] = body_lengths
    return pc.binary_join_element_wise(
        _fixed(heads.tobytes(), _HEAD_BYTES, count),
        bodies,
        _fixed(property_lengths.astype(">i2").tobytes(), 2, count),
        properties,
        b"",
        null_handling="replace",
    )


def _too_large(members: pa.Array, most: int) -> npt.NDArray[np.bool_]:
    """Brokers measure a batch with the heads and properties of its members."""
    found: npt.NDArray[np.bool_] = pc.greater(pc.binary_length(members), most).to_numpy(zero_copy_only=False)
    return found


def _fixed(data: bytes, width: int, count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(width), count, [None, pa.py_buffer(data)]).cast(pa.binary())


def _chosen(rows: EncodedRows, mask: pa.Array, good: npt.NDArray[np.bool_]) -> EncodedRows:
    def some(column: Any) -> Any:
        return column.filter(mask) if column is not None else None

    return EncodedRows(
        some(rows.topics),
        some(rows.members),
        some(rows.bodies),
        some(rows.properties),
        some(rows.order_keys),
        rows.travels_alone[good],
        some(rows.when),
        rows.born_ms[good] if rows.born_ms is not None else None,
    )
