"""Raw records, from a mapped file of the commit log or from the body of a pull answer, as Arrow batches: no loop over records.

    decoder = RecordDecoder(projection, broker_name="broker-a")
    decoded = decoder.pulled(body)                      # or decoder.at(RecordBytes(segment.memory), positions)
    decoded.batch                                       # of exactly the projection's schema
    decoded.bad                                         # what could not be read, and why

Bodies come as their producers gave them: inflated, and the members of an inner batch each as a row of its own. A message whose body
cannot be inflated is left out where bodies are wanted, and reported; that a package for it is missing here is an error. What the
columns are is said in schema.py.

Java: MessageDecoder.decodes
"""

from __future__ import annotations

import struct
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orbitmq.accelerated import compiled
from orbitmq.errors import MessageError
from orbitmq.message import properties as names
from orbitmq.message.compression import plain_body
from orbitmq.message.hosts import IPV4_HOST_BYTES, IPV6_HOST_BYTES, host_text
from orbitmq.message.record import FIXED_BYTES, decode_record
from orbitmq.message.sysflags import COMPRESSED, INNER_BATCH, NEED_UNWRAP
from orbitmq.spark.byte_ranges import binary_column, text_column
from orbitmq.spark.plain_rows import plain_batch, unwrapped
from orbitmq.spark.property_buffers import property_columns
from orbitmq.spark.record_fields import BadRecord, Mask, Numbers, RecordBytes, RecordFields, sound_records

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.message import StoredMessage
    from orbitmq.spark.property_buffers import Properties
    from orbitmq.spark.schema import Projection

_BATCH: Final = NEED_UNWRAP | INNER_BATCH
_MICROSECONDS: Final = 1000
_TIME_LIMIT_MS: Final = np.iinfo(np.int64).max // _MICROSECONDS
_SIZE: Final = struct.Struct(">i")
_HEX_DIGITS: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)


class Decoded(NamedTuple):
    batch: pa.RecordBatch
    bad: list[BadRecord]


class RecordDecoder:
    """Makes batches of one projection. `broker_name` fills the column of that name: records do not hold it."""

    def __init__(self, projection: Projection, *, broker_name: str = "", check_crc: bool = False) -> None:
        self.projection = projection
        self._broker_name = broker_name
        self._check_crc = check_crc

    def pulled(self, body: bytes | memoryview) -> Decoded:
        """All records of a pull answer's body. What follows bytes that are no record cannot be found, and is reported."""
        data = RecordBytes(body)
        loops = compiled("columns")
        if loops is not None:
            return self.at(data, np.frombuffer(loops.chain(data.array, FIXED_BYTES), np.int64))
        return self.at(data, np.array(_chain(data.memory), np.int64))

    def at(self, data: RecordBytes, starts: Numbers) -> Decoded:
        """The records that begin at `starts`, which ascend."""
        fields, bad = sound_records(data, starts, check_crc=self._check_crc)
        decoded = self.batch_of(fields)
        return Decoded(decoded.batch, bad + decoded.bad) if bad else decoded

    def batch_of(self, fields: RecordFields) -> Decoded:
        """Of records that are known to be sound."""
        is_batch = fields.sys_flags & _BATCH == _BATCH
        if not is_batch.any():
            return self._single_messages(fields)
        pieces: list[pa.RecordBatch] = []
        bad: list[BadRecord] = []
        edges = np.flatnonzero(np.diff(is_batch)) + 1
        for begin, end in zip([0, *edges.tolist()], [*edges.tolist(), len(fields)], strict=True):
            decode = self._inner_batches if is_batch[begin] else self._single_messages
            decoded = decode(fields.chosen(slice(begin, end)))
            pieces.append(decoded.batch)
            bad += decoded.bad
        return Decoded(pa.concat_batches(pieces), bad)

    def _inner_batches(self, fields: RecordFields) -> Decoded:
        """Records that hold several messages: rare enough for a loop."""
        messages: list[StoredMessage] = []
        bad: list[BadRecord] = []
        for position in fields.starts.tolist():
            try:
                messages += unwrapped(decode_record(fields.data.memory, position))
            except MessageError as error:
                _check_installed(error)
                bad.append(BadRecord(position, f"a batch that cannot be unpacked: {error.message}"))
        return Decoded(plain_batch(messages, self.projection, self._broker_name), bad)

    def _single_messages(self, fields: RecordFields) -> Decoded:
        making = _Columns(fields, self._broker_name)
        columns = []
        for field in self.projection.arrow:
            column = making.properties_as(field.type) if field.name == "properties" else _MAKERS[field.name](making)
            columns.append(column if column.type == field.type else column.cast(field.type))
        batch = pa.RecordBatch.from_arrays(columns, schema=self.projection.arrow)
        if making.bad:
            left_out = np.array([record.position for record in making.bad], np.int64)
            batch = batch.filter(pa.array(~np.isin(fields.starts, left_out)))
        return Decoded(batch, making.bad)


def _check_installed(error: MessageError) -> None:
    """A message that cannot be inflated for want of a package is not damaged: to leave it out would lose it."""
    if isinstance(error.__cause__, ImportError):
        raise error


def _chain(records: memoryview) -> list[int]:
    """Where records begin, by their sizes alone: whether they are sound is looked at for all of them at once."""
    positions = []
    at, end = 0, len(records)
    while at < end:
        positions.append(at)
        if end - at < FIXED_BYTES:
            break
        size = _SIZE.unpack_from(records, at)[0]
        if size < FIXED_BYTES:
            break
        at += size
    return positions


class _Columns:
    """One method a column; what several of them need is made once."""

    def __init__(self, fields: RecordFields, broker_name: str) -> None:
        self.fields = fields
        self.bad: list[BadRecord] = []  # rows that cannot be given
        self._array = fields.data.array
        self._broker_name = broker_name

    @cached_property
    def properties(self) -> Properties:
        return property_columns(self._array, self.fields.properties_at, self.fields.ends)

    def properties_as(self, kind: pa.DataType) -> pa.Array:
        return self.properties.map(kind) if pa.types.is_map(kind) else self.properties.raw()

    def topic(self) -> pa.Array:
        return text_column(self._array, self.fields.topic_at, self.fields.topic_end)

    def tags(self) -> pa.Array:
        return self.properties.single(names.TAGS.encode())

    def keys(self) -> pa.Array:
        return self.properties.single(names.KEYS.encode())

    def body(self) -> pa.Array:
        stored = binary_column(self._array, self.fields.body_at, self.fields.body_end)
        compressed = self.fields.sys_flags & COMPRESSED != 0
        if not compressed.any():
            return stored
        rows = np.flatnonzero(compressed)
        inflated = [self._inflated(row, stored[row].as_py()) for row in rows.tolist()]
        return pc.replace_with_mask(stored, pa.array(compressed), pa.array(inflated, pa.binary()))

    def _inflated(self, row: int, body: bytes) -> bytes:
        try:
            return plain_body(body, int(self.fields.sys_flags[row]))
        except MessageError as error:
            _check_installed(error)
            self.bad.append(BadRecord(int(self.fields.starts[row]), str(error)))
            return body

    def broker_name(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._broker_name), len(self.fields))

    def message_id(self) -> pa.Array:
        given = self.properties.single(names.UNIQUE_KEY.encode())
        return pc.coalesce(given, self.offset_message_id()) if given.null_count else given

    def offset_message_id(self) -> pa.Array:
        """Store host and place in the log, in hex: two digits a byte, all records of one host kind at once."""
        at, is_ipv6 = self.fields.store_hosts
        digits: list[pa.Array] = []
        for wants_ipv6, host_bytes in ((False, IPV4_HOST_BYTES), (True, IPV6_HOST_BYTES)):
            rows = np.flatnonzero(is_ipv6 == wants_ipv6)
            host = self._array[at[rows, None] + np.arange(host_bytes)]
            offsets = self.fields.log_offsets[rows].astype(">i8").view(np.uint8).reshape(len(rows), 8)
            both = np.concatenate([host, offsets], axis=1)
            texts = np.stack([_HEX_DIGITS[both >> 4], _HEX_DIGITS[both & 15]], axis=2)
            ends = np.arange(len(rows) + 1, dtype=np.int32) * (2 * both.shape[1])
            buffers = [None, pa.py_buffer(ends), pa.py_buffer(texts.reshape(texts.size))]
            digits.append(pa.Array.from_buffers(pa.string(), len(rows), buffers))
        return _merged(digits[0], digits[1], is_ipv6)

    def hosts(self, places: tuple[Numbers, Mask]) -> pa.Array:
        """As text. A client's host is the same in all that it sends: each is put into words once."""
        at, is_ipv6 = places
        packed = self.fields.data.int64[at].astype(np.int64)
        distinct, which = np.unique(packed, return_inverse=True)
        short = pa.array([host_text(int(value).to_bytes(8, "big", signed=True)) for value in distinct], pa.string())
        texts = short.take(pa.array(which))
        rows = np.flatnonzero(is_ipv6)
        if not len(rows):
            return texts
        memory = self.fields.data.memory
        long = [host_text(bytes(memory[place : place + IPV6_HOST_BYTES])) for place in at[rows].tolist()]
        return pc.replace_with_mask(texts, pa.array(is_ipv6), pa.array(long, pa.string()))


def _merged(usual: pa.Array, other: pa.Array, is_other: Mask) -> pa.Array:
    """Rows of `other` where the mask says so, rows of `usual` elsewhere."""
    if not len(other):
        return usual
    places = np.where(is_other, len(usual) + np.cumsum(is_other) - 1, np.cumsum(~is_other) - 1)
    return pa.concat_arrays([usual, other]).take(pa.array(places))


def _time(at_ms: Numbers) -> pa.Array:
    microseconds = np.clip(at_ms, -_TIME_LIMIT_MS, _TIME_LIMIT_MS) * _MICROSECONDS
    return pa.array(microseconds).cast(pa.timestamp("us", "UTC"))


def _int(values: Numbers) -> pa.Array:
    return pa.array(values.astype(np.int32))


_MAKERS: Final[dict[str, Callable[[_Columns], Any]]] = {
    "topic": _Columns.topic,
    "tags": _Columns.tags,
    "keys": _Columns.keys,
    "body": _Columns.body,
    "brokerName": _Columns.broker_name,
    "queueId": lambda make: _int(make.fields.queue_ids),
    "queueOffset": lambda make: pa.array(make.fields.queue_offsets),
    "msgId": _Columns.message_id,
    "bornTimestamp": lambda make: _time(make.fields.born_at_ms),
    "storeTimestamp": lambda make: _time(make.fields.stored_at_ms),
    "flag": lambda make: _int(make.fields.flags),
    "commitLogOffset": lambda make: pa.array(make.fields.log_offsets),
    "offsetMsgId": _Columns.offset_message_id,
    "bornHost": lambda make: make.hosts(make.fields.born_hosts),
    "storeHost": lambda make: make.hosts(make.fields.store_hosts),
    "sysFlag": lambda make: _int(make.fields.sys_flags),
    "reconsumeTimes": lambda make: _int(make.fields.reconsume_times),
    "preparedTransactionOffset": lambda make: pa.array(make.fields.prepared_offsets),
    "storeSize": lambda make: _int(make.fields.sizes),
    "bodyCrc": lambda make: pa.array(make.fields.body_crcs),
}
