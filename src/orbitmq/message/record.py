"""The stored record: the bytes of one message in the commit log, and in the body of a pull response.

    offset  size     field
    0       4        size of the whole record
    4       4        magic: V1 (topic length in 1 byte), V2 (in 2 bytes), or blank
    8       4        CRC of the body
    12      4        queue id
    16      4        flag, the application's own
    20      8        queue offset
    28      8        offset in the commit log
    36      4        sysFlag
    40      8        born at, ms
    48      8 or 20  born host
    56      8        stored at, ms
    64      8 or 20  store host
    72      4        reconsume times
    76      8        commit-log offset of the half message that this record commits
    84      4        body length B, then the body
    88+B    1 or 2   topic length, then the topic
            2        properties length, then the properties

Offsets hold when both hosts are IPv4; an IPv6 host moves what follows by 12. A blank record is the first two fields only and
closes a file: nothing up to the end of that file counts.

Java: MessageExtEncoder, MessageDecoder
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.errors import MessageError
from orbitmq.message.message import StoredMessage
from orbitmq.message.properties import MAX_PROPERTIES_BYTES, decode_properties
from orbitmq.message.sysflags import (
    BORN_HOST_IPV6,
    COMPRESSED,
    HOSTS_MASK,
    INNER_BATCH,
    NEED_UNWRAP,
    STORE_HOST_IPV6,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC_V1: Final = -626843481  # 0xDAA320A7
MAGIC_V2: Final = -626843477  # 0xDAA320AB
MAGIC_BLANK: Final = -875286124  # 0xCBD43194
_MESSAGE_MAGICS: Final = frozenset((MAGIC_V1, MAGIC_V2))

BLANK_BYTES: Final = 8
FIXED_BYTES: Final = 91  # a V1 record with IPv4 hosts and empty body, topic and properties
IPV6_EXTRA_BYTES: Final = 12  # for each IPv6 host
MAX_V1_TOPIC: Final = 127  # the length byte is signed

PROPERTY_CRC_BYTES: Final = 20
_CRC_NAME: Final = b"__CRC32#\x01"
_CRC_DIGITS: Final = 10
_CRC_MASK: Final = 0x7FFFFFFF


_SIZE_AND_MAGIC_FORMAT: Final = ">ii"


def _head(born_host_bytes: int, store_host_bytes: int, start: str = _SIZE_AND_MAGIC_FORMAT) -> struct.Struct:
    return struct.Struct(
        f"{start}"
        "I"  # body CRC
        "i"  # queue id
        "i"  # flag
        "q"  # queue offset
        "q"  # commit-log offset
        "i"  # sysFlag
        "q"  # born at
        f"{born_host_bytes}s"
        "q"  # stored at
        f"{store_host_bytes}s"
        "i"  # reconsume times
        "q"  # prepared transaction offset
        "i"  # body length
    )


# By which hosts are IPv6: (sysFlag & HOSTS_MASK) >> 4.
_HEADS: Final = (_head(8, 8), _head(20, 8), _head(8, 20), _head(20, 20))
_USUAL_HEAD: Final = _HEADS[0]
_HOSTS_SHIFT: Final = 4
SIZE_AND_MAGIC: Final = struct.Struct(_SIZE_AND_MAGIC_FORMAT)
REST_OF_USUAL_HEAD: Final = _head(8, 8, start=">")  # what stands between the magic and the body, both hosts IPv4
_SYS_FLAG_AND_BODY_LENGTH: Final = struct.Struct(">i44xi")  # the latter where it stands with IPv4 hosts
_UNUSUAL_FLAGS: Final = HOSTS_MASK | COMPRESSED | NEED_UNWRAP | INNER_BATCH
_BRIEF_HEAD: Final = struct.Struct(
    ">ii8x"  # size, magic
    "iq8x"  # flag, queue offset
    "i32x"  # sysFlag
    "i8x"  # reconsume times
    "i"  # body length
)
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_ENTRY: Final = struct.Struct(">i8xi4xq8xi")  # size, queue id, queue offset, sysFlag
_LONG: Final = struct.Struct(">q")
_OFFSET_AT: Final = 28
_SYS_FLAG_AT: Final = 36
_STORED_AT: Final = 56
USUAL_HEAD_BYTES: Final = 88


def crc31(data: bytes | memoryview) -> int:
    """CRC-32 without its top bit: every checksum in RocketMQ."""
    return zlib.crc32(data) & _CRC_MASK


class TopicField(msgspec.Struct, frozen=True):
    """A topic as a record holds it. Made once per topic, reused by every append."""

    magic: int
    data: bytes  # length and text


def topic_field(topic: str) -> TopicField:
    """V2 when the topic has more than 127 characters: Java counts characters, not bytes."""
    data = topic.encode()
    if len(topic) > MAX_V1_TOPIC:
        if len(data) > 0x7FFF:
            raise MessageError(f"a topic of {len(data)} bytes does not fit into a record")
        return TopicField(MAGIC_V2, len(data).to_bytes(2, "big") + data)
    if len(data) > MAX_V1_TOPIC:
        raise MessageError(f"topic {topic!r} takes {len(data)} bytes; a record holds up to {MAX_V1_TOPIC}")
    return TopicField(MAGIC_V1, len(data).to_bytes(1, "big") + data)


def record_size(topic: TopicField, sys_flag: int, body_bytes: int, properties_bytes: int) -> int:
    hosts = (sys_flag & HOSTS_MASK) >> _HOSTS_SHIFT
    return _HEADS[hosts].size + body_bytes + len(topic.data) + 2 + properties_bytes


def encode_record(
    topic: TopicField,
    queue_id: int,
    flag: int,
    queue_offset: int,
    commit_log_offset: int,
    sys_flag: int,
    born_at_ms: int,
    born_host: bytes,
    stored_at_ms: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
    body: bytes | memoryview,
    body_crc: int,
    properties: bytes,
) -> bytes:
    """One join, nothing looked up: the append path. `sys_flag` must already say which hosts are IPv6."""
    head = _HEADS[(sys_flag & HOSTS_MASK) >> _HOSTS_SHIFT]
    body_bytes = len(body)
    properties_bytes = len(properties)
    topic_data = topic.data
    return b"".join(
        (
            head.pack(
                head.size + body_bytes + len(topic_data) + 2 + properties_bytes,
                topic.magic,
                body_crc,
                queue_id,
                flag,
                queue_offset,
                commit_log_offset,
                sys_flag,
                born_at_ms,
                born_host,
                stored_at_ms,
                store_host,
                reconsume_times,
                prepared_transaction_offset,
                body_bytes,
            ),
            body,
            topic_data,
            _SHORT.pack(properties_bytes),
            properties,
        )
    )


def hosts_flag(born_host: bytes, store_host: bytes) -> int:
    """The sysFlag bits that say how long the hosts are."""
    return (BORN_HOST_IPV6 if len(born_host) > 8 else 0) | (STORE_HOST_IPV6 if len(store_host) > 8 else 0)


def encode_blank(size: int) -> bytes:
    """Closes a file that has `size` bytes left."""
    return SIZE_AND_MAGIC.pack(size, MAGIC_BLANK)


def with_offset(record: bytes | memoryview, offset: int) -> bytes:
    """A copy of a record that lies elsewhere: only what it says of its own place changes."""
    return b"".join((record[:_OFFSET_AT], _LONG.pack(offset), record[_OFFSET_AT + _LONG.size :]))


def with_crc_room(properties: bytes) -> bytes:
    """`properties` ending in room for the record's CRC, which `fill_record_crc` writes once the rest is known."""
    separator = b"" if not properties or properties.endswith(b"\x02") else b"\x02"
    return properties + separator + _CRC_NAME + b"0" * _CRC_DIGITS + b"\x02"


def fill_record_crc(record: bytes) -> bytes:
    """The record with the CRC of all that stands before the CRC property, digits from the smallest to the largest."""
    covered = record[:-PROPERTY_CRC_BYTES]
    digits = str(crc31(covered))[::-1].ljust(_CRC_DIGITS, "0")
    return b"".join((covered, _CRC_NAME, digits.encode(), b"\x02"))


def encode_stored(message: StoredMessage) -> bytes:
    """The record of a message that has its place already; the inverse of `decode_record`."""
    raw_properties = message.raw_properties
    if len(raw_properties) > MAX_PROPERTIES_BYTES:
        raise MessageError(f"properties take {len(raw_properties)} bytes; a record holds up to {MAX_PROPERTIES_BYTES}")
    hosts = hosts_flag(message.born_host, message.store_host)
    return encode_record(
        topic_field(message.topic),
        message.queue_id,
        message.flag,
        message.queue_offset,
        message.commit_log_offset,
        message.sys_flag & ~HOSTS_MASK | hosts,
        message.born_at_ms,
        message.born_host,
        message.stored_at_ms,
        message.store_host,
        message.reconsume_times,
        message.prepared_transaction_offset,
        message.body,
        message.body_crc,
        raw_properties,
    )


def decode_record(buffer: bytes | memoryview, at: int = 0) -> StoredMessage:
    """The whole message at `at`. Raises MessageError when the lengths contradict each other; does not check the CRC."""
    view = memoryview(buffer)
    size, body_at, topic_length_at, topic_at, topic_end = _message_layout(view, at)
    head = _HEADS[(_INT.unpack_from(view, at + _SYS_FLAG_AT)[0] & HOSTS_MASK) >> _HOSTS_SHIFT]
    (
        _, _, body_crc, queue_id, flag, queue_offset, commit_log_offset, sys_flag, born_at_ms, born_host,
        stored_at_ms, store_host, reconsume_times, prepared_transaction_offset, _,
    ) = head.unpack_from(view, at)  # fmt: skip
    raw_properties = bytes(view[topic_end + 2 : at + size])
    return StoredMessage(
        topic=str(view[topic_at:topic_end], "utf-8", "replace"),
        queue_id=queue_id,
        queue_offset=queue_offset,
        body=bytes(view[body_at:topic_length_at]),
        properties=decode_properties(raw_properties),
        raw_properties=raw_properties,
        flag=flag,
        sys_flag=sys_flag,
        born_at_ms=born_at_ms,
        born_host=born_host,
        stored_at_ms=stored_at_ms,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        commit_log_offset=commit_log_offset,
        size=size,
        body_crc=body_crc,
    )


def decode_records(buffer: bytes | memoryview) -> Iterator[StoredMessage]:
    """The messages of a pull response's body, one behind the other."""
    data = bytes(buffer)
    at, end = 0, len(data)
    while at < end:
        message = _decode_usual(data, at, end) or decode_record(data, at)
        yield message
        at += message.size


def _decode_usual(data: bytes, at: int, end: int) -> StoredMessage | None:
    """`decode_record` in one pass, for nearly all records: V1, hosts IPv4, lengths that agree. None for any other."""
    if end - at < FIXED_BYTES:
        return None
    (
        size, magic, body_crc, queue_id, flag, queue_offset, commit_log_offset, sys_flag, born_at_ms, born_host,
        stored_at_ms, store_host, reconsume_times, prepared_transaction_offset, body_bytes,
    ) = _USUAL_HEAD.unpack_from(data, at)  # fmt: skip
    body_at = at + USUAL_HEAD_BYTES
    topic_length_at = body_at + body_bytes
    record_end = at + size
    if (
        magic != MAGIC_V1
        or sys_flag & HOSTS_MASK
        or body_bytes < 0
        or record_end > end
        or topic_length_at + 3 > record_end
    ):
        return None
    topic_at = topic_length_at + 1
    topic_end = topic_at + data[topic_length_at]
    properties_at = topic_end + 2
    if data[topic_length_at] > MAX_V1_TOPIC or properties_at > record_end:
        return None
    if _SHORT.unpack_from(data, topic_end)[0] != record_end - properties_at:
        return None
    raw_properties = data[properties_at:record_end]
    return StoredMessage(
        topic=data[topic_at:topic_end].decode("utf-8", "replace"),
        queue_id=queue_id,
        queue_offset=queue_offset,
        body=data[body_at:topic_length_at],
        properties=decode_properties(raw_properties),
        raw_properties=raw_properties,
        flag=flag,
        sys_flag=sys_flag,
        born_at_ms=born_at_ms,
        born_host=born_host,
        stored_at_ms=stored_at_ms,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        commit_log_offset=commit_log_offset,
        size=size,
        body_crc=body_crc,
    )


class RawRecord(msgspec.Struct, gc=False):
    """A record as it is stored again elsewhere: its properties stay encoded, its body is not copied."""

    topic: str
    queue_id: int
    queue_offset: int
    body: memoryview
    properties: bytes
    flag: int
    sys_flag: int
    born_at_ms: int
    born_host: bytes
    stored_at_ms: int
    reconsume_times: int
    commit_log_offset: int


def decode_raw(view: memoryview) -> RawRecord:
    """The one record that is in `view`. MessageError when the lengths contradict each other; does not check the CRC."""
    size, body_at, topic_length_at, topic_at, topic_end = _message_layout(view, 0)
    if size != len(view):
        raise MessageError(f"a record of {size} bytes where {len(view)} were expected")
    head = _HEADS[(_INT.unpack_from(view, _SYS_FLAG_AT)[0] & HOSTS_MASK) >> _HOSTS_SHIFT]
    (
        _, _, _, queue_id, flag, queue_offset, commit_log_offset, sys_flag, born_at_ms, born_host,
        stored_at_ms, _, reconsume_times, _, _,
    ) = head.unpack_from(view)  # fmt: skip
    return RawRecord(
        str(view[topic_at:topic_end], "utf-8", "replace"),
        queue_id,
        queue_offset,
        view[body_at:topic_length_at],
        bytes(view[topic_end + 2 :]),
        flag,
        sys_flag,
        born_at_ms,
        born_host,
        stored_at_ms,
        reconsume_times,
        commit_log_offset,
    )


BriefRecord = tuple[int, int, int, int, bytes, bytes]
"""Where a record begins, its flag, queue offset and reconsume times, its body and its encoded properties."""


def decode_briefly(data: bytes, topic: bytes) -> list[BriefRecord | StoredMessage]:
    """As `decode_records`, but of usual records of `topic` only what most readers look at: plain body, IPv4 hosts.

    Whoever wants the rest of one decodes it with `decode_record` at the place given.
    """
    found: list[BriefRecord | StoredMessage] = []
    at, end = 0, len(data)
    unpack, topic_bytes = _BRIEF_HEAD.unpack_from, len(topic)
    topic_field = (
        topic_bytes.to_bytes(1, "big") + topic if topic_bytes <= MAX_V1_TOPIC else b"\xff"
    )  # none is like that
    while at < end:
        if end - at >= FIXED_BYTES:
            size, magic, flag, queue_offset, sys_flag, reconsume_times, body_bytes = unpack(data, at)
            body_at = at + USUAL_HEAD_BYTES
            topic_length_at = body_at + body_bytes
            properties_at = topic_length_at + topic_bytes + 3
            record_end = at + size
            if (
                magic == MAGIC_V1
                and body_bytes >= 0
                and properties_at <= record_end <= end
                and not sys_flag & _UNUSUAL_FLAGS
                and data.startswith(topic_field, topic_length_at)
                and _SHORT.unpack_from(data, properties_at - 2)[0] == record_end - properties_at
            ):
                properties = data[properties_at:record_end]
                body = data[body_at:topic_length_at]
                found.append((at, flag, queue_offset, reconsume_times, body, properties))
                at = record_end
                continue
        message = decode_record(data, at)
        found.append(message)
        at += message.size
    return found


class RecordEntry(msgspec.Struct):
    """What an index needs of a record; the body is not touched."""

    commit_log_offset: int  # where the record was found, not what it says of itself
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    stored_at_ms: int
    properties: bytes


def decode_entry(buffer: bytes | memoryview, at: int, commit_log_offset: int) -> RecordEntry:
    view = memoryview(buffer)
    size, _, _, topic_at, topic_end = _message_layout(view, at)
    _, queue_id, queue_offset, sys_flag = _ENTRY.unpack_from(view, at)
    stored_at = at + _STORED_AT + (IPV6_EXTRA_BYTES if sys_flag & BORN_HOST_IPV6 else 0)
    return RecordEntry(
        commit_log_offset,
        size,
        str(view[topic_at:topic_end], "utf-8", "replace"),
        queue_id,
        queue_offset,
        sys_flag,
        _LONG.unpack_from(view, stored_at)[0],
        bytes(view[topic_end + 2 : at + size]),
    )


def stored_at_ms(buffer: bytes | memoryview, at: int = 0) -> int:
    """The store time of the record at `at`, alone: what a search by time looks at."""
    sys_flag = _INT.unpack_from(buffer, at + _SYS_FLAG_AT)[0]
    moved = IPV6_EXTRA_BYTES if sys_flag & BORN_HOST_IPV6 else 0
    value: int = _LONG.unpack_from(buffer, at + _STORED_AT + moved)[0]
    return value


def own_offset(buffer: bytes | memoryview, at: int = 0) -> int:
    """Where in the log the record at `at` says it begins."""
    value: int = _LONG.unpack_from(buffer, at + _OFFSET_AT)[0]
    return value


END_OF_FILE: Final = 0  # the size of a blank record
_BLANK_LAYOUT: Final = (END_OF_FILE, 0, 0, 0, 0)


def record_layout(buffer: bytes | memoryview, at: int, end: int) -> tuple[int, int, int, int, int]:
    """Size, start of the body, of the topic's length, of the topic, end of the topic: of a record whose lengths agree."""
    room = end - at
    if room < BLANK_BYTES:
        raise MessageError(f"{room} bytes left, too few for a record")
    size, magic = SIZE_AND_MAGIC.unpack_from(buffer, at)
    if magic not in _MESSAGE_MAGICS:
        if magic == MAGIC_BLANK:
            return _BLANK_LAYOUT
        raise MessageError("no record starts here" if magic == 0 else f"unknown magic 0x{magic & 0xFFFFFFFF:08X}")
    if size < FIXED_BYTES or size > room:
        raise MessageError(f"a record of {size} bytes where {room} are left")
    sys_flag, body_bytes = _SYS_FLAG_AND_BODY_LENGTH.unpack_from(buffer, at + _SYS_FLAG_AT)
    body_at = at + USUAL_HEAD_BYTES
    record_end = at + size
    if sys_flag & HOSTS_MASK:
        body_at = at + _HEADS[(sys_flag & HOSTS_MASK) >> _HOSTS_SHIFT].size
        body_bytes = _INT.unpack_from(buffer, body_at - 4)[0] if body_at < record_end else -1
    topic_length_at = body_at + body_bytes
    if body_bytes < 0 or topic_length_at + 3 > record_end:
        raise MessageError(f"a body of {body_bytes} bytes does not fit into a record of {size}")
    if magic == MAGIC_V1:
        topic_bytes = buffer[topic_length_at]
        topic_at = topic_length_at + 1
        fits = topic_bytes <= MAX_V1_TOPIC
    else:
        topic_bytes = _SHORT.unpack_from(buffer, topic_length_at)[0]
        topic_at = topic_length_at + 2
        fits = topic_bytes >= 0
    topic_end = topic_at + topic_bytes
    if not fits or topic_end + 2 > record_end:
        raise MessageError(f"a topic of {topic_bytes} bytes does not fit into the record")
    properties_bytes = _SHORT.unpack_from(buffer, topic_end)[0]
    if topic_end + 2 + properties_bytes != record_end or properties_bytes < 0:
        raise MessageError(f"the parts of the record do not add up to its {size} bytes")
    return size, body_at, topic_length_at, topic_at, topic_end


def _message_layout(buffer: bytes | memoryview, at: int) -> tuple[int, int, int, int, int]:
    layout = record_layout(buffer, at, len(buffer))
    if layout is _BLANK_LAYOUT:
        raise MessageError(f"the record at byte {at} is blank")
    return layout
