"""The fields of many records at once, as numpy arrays over the bytes they lie in. Nothing is copied but the fields.

A field at a fixed distance from the start of its record is read by one look-up in a view of the bytes that begins a number at
every byte: `view[starts + distance]`. Behind a host the distance depends on the record, which only adds an array. Where the
accelerator is installed, loops of its read the same. The layout of a record is drawn in message/record.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from orbitmq.accelerated import compiled
from orbitmq.errors import MessageError
from orbitmq.message.record import FIXED_BYTES, IPV6_EXTRA_BYTES, MAGIC_V1, MAGIC_V2, MAX_V1_TOPIC, crc31
from orbitmq.message.record_check import check_record
from orbitmq.message.sysflags import BORN_HOST_IPV6, HOSTS_MASK, STORE_HOST_IPV6

if TYPE_CHECKING:
    from collections.abc import Sequence

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

_MAGIC_AT: Final = 4
_CRC_AT: Final = 8
_QUEUE_ID_AT: Final = 12
_FLAG_AT: Final = 16
_QUEUE_OFFSET_AT: Final = 20
_LOG_OFFSET_AT: Final = 28
_SYS_FLAG_AT: Final = 36
_BORN_AT: Final = 40
_BORN_HOST_AT: Final = 48
_STORED_AT: Final = 56  # from here on an IPv6 host before it adds to the distance
_STORE_HOST_AT: Final = 64
_RECONSUME_TIMES_AT: Final = 72
_PREPARED_AT: Final = 76
_BODY_AT: Final = 88


class BadRecord(NamedTuple):
    """Bytes that should be a record and are not, or a record whose body cannot be had."""

    position: int  # in the bytes that were decoded
    reason: str


class RecordBytes:
    """Bytes seen as an array of numbers that begin at every byte."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.memory = memoryview(data)
        self.array: Bytes = np.frombuffer(data, np.uint8)
        self.int16 = self._numbers(">i2")
        self.int32 = self._numbers(">i4")
        self.uint32 = self._numbers(">u4")
        self.int64 = self._numbers(">i8")

    def __len__(self) -> int:
        return len(self.array)

    def _numbers(self, kind: str) -> npt.NDArray[Any]:
        width = np.dtype(kind).itemsize
        count = max(0, len(self.array) - width + 1)
        return np.ndarray((count,), kind, self.array, strides=(1,)) if count else np.zeros(0, kind)


class RecordFields:
    """The fields of the records at `starts`, read when asked for. Made by `sound_records`, which checks the lengths."""

    __slots__ = ("body_at", "body_end", "data", "ends", "properties_at", "starts", "sys_flags", "topic_at", "topic_end")

    def __init__(self, data: RecordBytes, starts: Numbers, layout: Sequence[Numbers]) -> None:
        self.data = data
        self.starts = starts
        self.ends, self.sys_flags, self.body_at, self.body_end, self.topic_at, self.topic_end = layout
        self.properties_at = self.topic_end + 2

    def __len__(self) -> int:
        return len(self.starts)

    def chosen(self, rows: Mask | Numbers | slice) -> RecordFields:
        layout = (self.ends, self.sys_flags, self.body_at, self.body_end, self.topic_at, self.topic_end)
        return RecordFields(self.data, self.starts[rows], [values[rows] for values in layout])

    @property
    def sizes(self) -> Numbers:
        return self.ends - self.starts

    @property
    def body_crcs(self) -> Numbers:
        return self._read(self.data.uint32, _CRC_AT)

    @property
    def queue_ids(self) -> Numbers:
        return self._read(self.data.int32, _QUEUE_ID_AT)

    @property
    def flags(self) -> Numbers:
        return self._read(self.data.int32, _FLAG_AT)

    @property
    def queue_offsets(self) -> Numbers:
        return self._read(self.data.int64, _QUEUE_OFFSET_AT)

    @property
    def log_offsets(self) -> Numbers:
        return self._read(self.data.int64, _LOG_OFFSET_AT)

    @property
    def born_at_ms(self) -> Numbers:
        return self._read(self.data.int64, _BORN_AT)

    @property
    def stored_at_ms(self) -> Numbers:
        return self._read(self.data.int64, _STORED_AT + self._born_extra())

    @property
    def reconsume_times(self) -> Numbers:
        return self._read(self.data.int32, _RECONSUME_TIMES_AT + self._hosts_extra())

    @property
    def prepared_offsets(self) -> Numbers:
        return self._read(self.data.int64, _PREPARED_AT + self._hosts_extra())

    @property
    def born_hosts(self) -> tuple[Numbers, Mask]:
        """Where each packed host begins, and whether it is IPv6."""
        return self.starts + _BORN_HOST_AT, self.sys_flags & BORN_HOST_IPV6 != 0

    @property
    def store_hosts(self) -> tuple[Numbers, Mask]:
        return self.starts + _STORE_HOST_AT + self._born_extra(), self.sys_flags & STORE_HOST_IPV6 != 0

    def _born_extra(self) -> Numbers:
        return np.where(self.sys_flags & BORN_HOST_IPV6, IPV6_EXTRA_BYTES, 0)

    def _hosts_extra(self) -> Numbers:
        return self._born_extra() + np.where(self.sys_flags & STORE_HOST_IPV6, IPV6_EXTRA_BYTES, 0)

    def _read(self, view: npt.NDArray[Any], distance: int | Numbers) -> Numbers:
        places = self.starts + distance
        loops = compiled("columns")
        if loops is not None:
            column = loops.numbers(self.data.array, places, view.itemsize, view.dtype.kind == "i")
            return np.frombuffer(column, np.int64)
        values: Numbers = view[places].astype(np.int64)
        return values


def sound_records(
    data: RecordBytes, starts: Numbers, *, check_crc: bool = False
) -> tuple[RecordFields, list[BadRecord]]:
    """The records at `starts` (ascending) whose lengths agree, and what is wrong with the others."""
    loops = compiled("columns")
    found = loops.layout(data.array, np.ascontiguousarray(starts)) if loops is not None else None
    if found is not None:
        columns = np.frombuffer(found, np.int64).reshape(6, len(starts))
        fields, sound = RecordFields(data, starts, list(columns)), np.ones(len(starts), np.bool_)
    else:
        fields, sound = _layout(data, starts)
    if check_crc:
        sound[sound] = _crcs_match(fields.chosen(sound))
    if sound.all():
        return fields, []
    return fields.chosen(sound), [BadRecord(int(at), _reason(data, int(at))) for at in starts[~sound]]


def _layout(data: RecordBytes, starts: Numbers) -> tuple[RecordFields, Mask]:
    """Where the parts of each record are, and of which records they add up. What is nonsense is kept inside the bytes."""
    length = len(data)
    sound = (starts >= 0) & (starts + FIXED_BYTES <= length)
    at = np.where(sound, starts, 0)
    if length < FIXED_BYTES:
        return RecordFields(data, starts, [starts] * 6), sound
    sizes = data.int32[at].astype(np.int64)
    magics = data.int32[at + _MAGIC_AT]
    sys_flags = data.int32[at + _SYS_FLAG_AT].astype(np.int64)
    is_v2 = magics == MAGIC_V2
    ends = at + sizes
    sound &= (is_v2 | (magics == MAGIC_V1)) & (sizes >= FIXED_BYTES) & (ends <= length)
    body_at = at + _BODY_AT
    if (sys_flags & HOSTS_MASK).any():
        body_at += IPV6_EXTRA_BYTES * (sys_flags & BORN_HOST_IPV6 != 0)
        body_at += IPV6_EXTRA_BYTES * (sys_flags & STORE_HOST_IPV6 != 0)
    body_end = body_at + data.int32[np.minimum(body_at - 4, length - 4)]
    sound &= (body_end >= body_at) & (body_end + 3 <= ends)
    body_end = np.where(sound, body_end, 0)
    topic_bytes = data.array[body_end].astype(np.int64)
    topic_at = body_end + 1
    if is_v2.any():
        topic_bytes = np.where(is_v2, data.int16[body_end], topic_bytes)
        topic_at += is_v2
        sound &= is_v2 | (topic_bytes <= MAX_V1_TOPIC)
    else:
        sound &= topic_bytes <= MAX_V1_TOPIC
    topic_end = topic_at + topic_bytes
    sound &= (topic_bytes >= 0) & (topic_end + 2 <= ends)
    properties_bytes = data.int16[np.where(sound, topic_end, 0)]
    sound &= (properties_bytes >= 0) & (topic_end + 2 + properties_bytes == ends)
    return RecordFields(data, starts, [ends, sys_flags, body_at, body_end, topic_at, topic_end]), sound


def _crcs_match(fields: RecordFields) -> Mask:
    memory = fields.data.memory
    places = zip(fields.body_at.tolist(), fields.body_end.tolist(), fields.body_crcs.tolist(), strict=True)
    # An empty body has no CRC: Apache writes 0 for some and the CRC of nothing for others.
    return np.fromiter((end == at or crc31(memory[at:end]) == crc for at, end, crc in places), np.bool_, len(fields))


def _reason(data: RecordBytes, at: int) -> str:
    """In words, from the one place that knows the rules."""
    if not 0 <= at < len(data):
        return "it lies outside the bytes that are there"
    try:
        size = check_record(data.memory, at, len(data))
    except MessageError as error:
        return error.message
    return "a blank record" if size == 0 else "the parts of the record contradict each other"
