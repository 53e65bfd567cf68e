"""What a broker tells a name server about itself, plain or compressed.

The compressed form is one zlib stream of

    int32 len, DataVersion as JSON
    int32 topic count, then for each: int32 len, `TopicConfig.to_text`
    int32 len, filter servers as a JSON array
    int32 mapping count, then for each: int32 len, TopicQueueMapping as JSON      (from 5.0.0 on)

Java: RegisterBrokerBody
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

import msgspec

from orbitmq.errors import BodyError, InflatedTooLarge, MessageError
from orbitmq.message.compression import decompress
from orbitmq.message.sysflags import COMPRESSION_ZLIB
from orbitmq.protocol import versions
from orbitmq.protocol.bodies.base import Body
from orbitmq.protocol.bodies.topics import (
    PERM_READ,
    PERM_WRITE,
    DataVersion,
    TopicConfig,
    TopicQueueMapping,
    TopicTable,
)
from orbitmq.protocol.integers import Int32

# A million topics compress into a frame; this is about what they inflate to.
MAX_INFLATED_BYTES: Final = 24 << 20  # room for some 400,000 topics

_I32: Final = struct.Struct(">i")
_ZLIB_FIRST_BYTE: Final = 0x78


class Registration(Body):
    topic_config_serialize_wrapper: TopicTable = msgspec.field(default_factory=TopicTable)
    filter_server_list: list[str] | None = None  # None: says nothing about them


class ListedTopic(Body, gc=False):
    """What a name server keeps of a topic. A broker brings ten thousand at once, so the rest is not even read."""

    topic_name: str
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = PERM_READ | PERM_WRITE
    topic_sys_flag: Int32 = 0


class TopicListing(Body):
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    topic_config_table: dict[str, ListedTopic] = {}
    topic_queue_mapping_info_map: dict[str, TopicQueueMapping] = {}


class Listing(Body):
    """A registration, as far as a name server is concerned."""

    topic_config_serialize_wrapper: TopicListing = msgspec.field(default_factory=TopicListing)
    filter_server_list: list[str] | None = None  # None: says nothing about them


def decode_listing(data: bytes, version: int, max_inflated_bytes: int = MAX_INFLATED_BYTES) -> Listing:
    """As `decode_registration`, for a name server."""
    if data and data[0] != _ZLIB_FIRST_BYTE and version >= versions.FIRST_WITH_REGISTRATION_BODY:
        return Listing.from_json(data)
    return msgspec.convert(decode_registration(data, version, max_inflated_bytes), Listing, from_attributes=True)


def decode_registration(data: bytes, version: int, max_inflated_bytes: int = MAX_INFLATED_BYTES) -> Registration:
    """`version` is the sender's. Compression is recognised by its first byte: 5.3.3 brokers label it wrongly."""
    if not data:
        return Registration()
    if data[0] == _ZLIB_FIRST_BYTE:
        return _decode_compressed(data, version, max_inflated_bytes)
    if version < versions.FIRST_WITH_REGISTRATION_BODY:
        return Registration(topic_config_serialize_wrapper=TopicTable.from_json(data))
    return Registration.from_json(data)


def encode_compressed(registration: Registration) -> bytes:
    table = registration.topic_config_serialize_wrapper
    parts: list[bytes] = [_with_length(table.data_version.to_json()), _I32.pack(len(table.topic_config_table))]
    parts += [_with_length(config.to_text().encode()) for config in table.topic_config_table.values()]
    parts.append(_with_length(msgspec.json.encode(registration.filter_server_list or [])))
    parts.append(_I32.pack(len(table.topic_queue_mapping_info_map)))
    parts += [_with_length(mapping.to_json()) for mapping in table.topic_queue_mapping_info_map.values()]
    return zlib.compress(b"".join(parts), level=9)


def body_checksum(data: bytes) -> int:
    """What header field `bodyCrc32` holds."""
    return zlib.crc32(data) & 0x7FFF_FFFF


def _decode_compressed(data: bytes, version: int, max_inflated_bytes: int) -> Registration:
    try:
        sections = _Sections(decompress(data, COMPRESSION_ZLIB, limit_bytes=max_inflated_bytes))
    except InflatedTooLarge:
        raise
    except MessageError as error:
        raise BodyError(f"compressed registration: {error}") from None
    table = TopicTable(data_version=DataVersion.from_json(sections.next()))
    for _ in range(sections.count()):
        config = TopicConfig.from_text(_utf8(sections.next()))
        table.topic_config_table[config.topic_name] = config
    try:
        filter_servers = msgspec.json.decode(sections.next(), type=list[str] | None)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BodyError(f"filter server list: {error}") from None
    if version >= versions.FIRST_WITH_QUEUE_MAPPING and not sections.exhausted:
        for _ in range(sections.count()):
            mapping = TopicQueueMapping.from_json(sections.next())
            if mapping.topic:
                table.topic_queue_mapping_info_map[mapping.topic] = mapping
    return Registration(topic_config_serialize_wrapper=table, filter_server_list=filter_servers)


class _Sections:
    """Reads `int32 length, bytes` one after the other, and refuses lengths that lie."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def exhausted(self) -> bool:
        return self._at >= len(self._data)

    def count(self) -> int:
        if self._at + _I32.size > len(self._data):
            raise BodyError("compressed registration ends in the middle of a length")
        (number,) = _I32.unpack_from(self._data, self._at)
        self._at += _I32.size
        if not 0 <= number <= len(self._data) - self._at:
            raise BodyError(f"compressed registration announces {number}; {len(self._data) - self._at} bytes are left")
        return int(number)

    def next(self) -> bytes:
        length = self.count()
        section = self._data[self._at : self._at + length]
        self._at += length
        return section


def _with_length(data: bytes) -> bytes:
    return _I32.pack(len(data)) + data


def _utf8(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BodyError(f"topic text is not UTF-8: {error}") from None
