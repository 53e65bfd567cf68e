"""Whether bytes are a record: one looked at closely, or many in a row as quickly as possible.

Java: CommitLog.checkMessageAndReturnSize
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from orbitmq.errors import MessageError
from orbitmq.message.properties import RECORD_CRC, property_finder, property_number
from orbitmq.message.record import (
    END_OF_FILE,
    FIXED_BYTES,
    IPV6_EXTRA_BYTES,
    MAGIC_V1,
    MAX_V1_TOPIC,
    PROPERTY_CRC_BYTES,
    USUAL_HEAD_BYTES,
    crc31,
    record_layout,
)
from orbitmq.message.sysflags import HOSTS_MASK

# Size, magic, body CRC, sysFlag, and where it stands with IPv4 hosts, body length: unsigned, so that a negative one is too large.
_QUICK: Final = struct.Struct(">iiI24xi44xI")
_SHORT: Final = struct.Struct(">h")
_UNSIGNED: Final = struct.Struct(">I")
_UNSIGNED_SHORT: Final = struct.Struct(">H")
_SYS_FLAG_AT: Final = 36
_CRC_AT: Final = 8
_CRC_MASK: Final = 0x7FFFFFFF
_CRC_DIGITS: Final = 10
_find_crc: Final = property_finder(RECORD_CRC)


def check_record(buffer: memoryview, at: int, end: int, *, check_crc: bool = True, property_crc: bool = False) -> int:
    """The size of the valid record at `at`; END_OF_FILE for a blank one. Raises MessageError with the reason.

    With `property_crc` the CRC property must be there and right, and takes the body CRC's place.
    """
    size, body_at, topic_length_at, _, topic_end = record_layout(buffer, at, end)
    if check_crc and size != END_OF_FILE:
        if property_crc:
            _check_property_crc(buffer, at, at + size, topic_end + 2)
        elif (
            topic_length_at > body_at
            and zlib.crc32(buffer[body_at:topic_length_at]) & _CRC_MASK
            != _UNSIGNED.unpack_from(buffer, at + _CRC_AT)[0]
        ):
            raise MessageError("the body does not match its CRC")
    return size


def valid_run(buffer: memoryview, at: int, end: int, at_most: int, *, check_crc: bool = True) -> tuple[list[int], int]:
    """Where valid records begin from `at` on, one behind the other, and where the last of them ends.

    Stops before whatever is none; `check_record` at that place tells what it is. The common record is checked right here,
    because a restart goes over a million of them.
    """
    starts: list[int] = []
    unpack, short, crc32 = _QUICK.unpack_from, _SHORT.unpack_from, zlib.crc32
    last = end - FIXED_BYTES
    while at <= last and at_most:
        size, magic, body_crc, sys_flag, body_bytes = unpack(buffer, at)
        if magic == MAGIC_V1 and not sys_flag & HOSTS_MASK:
            body_at = at + USUAL_HEAD_BYTES
            topic_at = body_at + body_bytes
            record_end = at + size
            if not topic_at + 3 <= record_end <= end:
                break
            topic_bytes = buffer[topic_at]
            behind_topic = topic_at + 3 + topic_bytes  # and behind the length of the properties
            if (
                topic_bytes > MAX_V1_TOPIC
                or behind_topic > record_end
                or short(buffer, behind_topic - 2)[0] != record_end - behind_topic
            ):
                break
            if check_crc and crc32(buffer[body_at:topic_at]) & _CRC_MASK != body_crc and body_bytes:
                break
        else:
            try:
                size = check_record(buffer, at, end, check_crc=check_crc)
            except MessageError:
                break
            if size == END_OF_FILE:
                break
            record_end = at + size
        starts.append(at)
        at = record_end
        at_most -= 1
    return starts, at


def size_by_parts(buffer: memoryview, at: int, end: int) -> int | None:
    """What the lengths of body, topic and properties add up to, whatever size and magic say; None: to more than there is."""
    if end - at < FIXED_BYTES:
        return None
    hosts = _UNSIGNED.unpack_from(buffer, at + _SYS_FLAG_AT)[0] & HOSTS_MASK
    body_at = at + USUAL_HEAD_BYTES + IPV6_EXTRA_BYTES * hosts.bit_count()
    if body_at > end:
        return None
    topic_length_at = body_at + _UNSIGNED.unpack_from(buffer, body_at - 4)[0]
    if topic_length_at + 4 > end:
        return None
    topic_at, topic_bytes = topic_length_at + 1, buffer[topic_length_at]
    if topic_bytes == 0:  # no topic is empty: this is the first of the two bytes that a long one's length has
        topic_at, topic_bytes = topic_length_at + 2, _UNSIGNED_SHORT.unpack_from(buffer, topic_length_at)[0]
    behind_topic = topic_at + topic_bytes + 2
    if behind_topic > end:
        return None
    behind = behind_topic + _UNSIGNED_SHORT.unpack_from(buffer, behind_topic - 2)[0]
    return behind - at if behind <= end else None


def _check_property_crc(buffer: memoryview, at: int, record_end: int, properties_at: int) -> None:
    digits = _find_crc(bytes(buffer[properties_at:record_end]))
    told = property_number(digits[::-1], -1, _CRC_DIGITS) if digits is not None else -1
    if told < 0:
        raise MessageError("the record has no CRC property")
    if crc31(buffer[at : record_end - PROPERTY_CRC_BYTES]) != told:
        raise MessageError("the record does not match its CRC property")
