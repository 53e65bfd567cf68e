"""Many messages in one body: what SEND_BATCH_MESSAGE carries, and the body of an inner batch.

    offset  size  field, repeated for each message
    0       4     size of this member
    4       4     magic, 0
    8       4     CRC, 0
    12      4     flag
    16      4     body length B, then the body
    20+B    2     properties length, then the properties

Java: MessageDecoder.encodeMessages, decodeMessages
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.errors import MessageError
from orbitmq.message.properties import MAX_PROPERTIES_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

_MEMBER: Final = struct.Struct(
    ">i"  # size
    "i"  # magic
    "i"  # CRC
    "i"  # flag
    "i"  # body length
)
_SHORT: Final = struct.Struct(">h")
_OVERHEAD_BYTES: Final = _MEMBER.size + _SHORT.size


class BatchMember(msgspec.Struct):
    """One message of a batch; topic, queue and times are those of the batch."""

    body: bytes
    properties: bytes = b""  # encoded
    flag: int = 0


def encode_batch(members: Iterable[BatchMember]) -> bytes:
    parts: list[bytes] = []
    for member in members:
        body, properties = member.body, member.properties
        body_bytes, properties_bytes = len(body), len(properties)
        if properties_bytes > MAX_PROPERTIES_BYTES:
            raise MessageError(f"properties take {properties_bytes} bytes; a batch holds up to {MAX_PROPERTIES_BYTES}")
        size = _OVERHEAD_BYTES + body_bytes + properties_bytes
        parts += (_MEMBER.pack(size, 0, 0, member.flag, body_bytes), body, _SHORT.pack(properties_bytes), properties)
    return b"".join(parts)


def decode_batch(data: bytes | memoryview) -> list[BatchMember]:
    view = memoryview(data)
    members: list[BatchMember] = []
    at, end = 0, len(view)
    while at < end:
        if end - at < _MEMBER.size + _SHORT.size:
            raise MessageError(f"batch member {len(members)} is cut short at byte {at}")
        size, _, _, flag, body_bytes = _MEMBER.unpack_from(view, at)
        body_at = at + _MEMBER.size
        properties_at = body_at + body_bytes + _SHORT.size
        if body_bytes < 0 or properties_at > end:
            raise MessageError(f"batch member {len(members)} claims a body of {body_bytes} bytes")
        properties_bytes = _SHORT.unpack_from(view, properties_at - _SHORT.size)[0]
        member_end = properties_at + properties_bytes
        if properties_bytes < 0 or member_end > end or member_end - at != size:
            raise MessageError(f"the parts of batch member {len(members)} do not add up to its {size} bytes")
        members.append(
            BatchMember(
                bytes(view[body_at : body_at + body_bytes]),
                bytes(view[properties_at:member_end]),
                flag,
            )
        )
        at = member_end
    return members
