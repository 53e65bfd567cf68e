"""The compact header codec ("ROCKETMQ" serialize type).

    int16  code            int32  flag              then extLen bytes of
    uint8  language        int32  remarkLen, remark   int16 keyLen, key
    int16  version         int32  extLen              int32 valLen, value
    int32  opaque

A zero-length text means "absent". The code has 16 bits, so the POP family cannot travel in it.

Java: RocketMQSerializable
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from orbitmq.errors import HeaderError
from orbitmq.protocol.codes import LANGUAGES

if TYPE_CHECKING:
    from collections.abc import Mapping

_FIXED: Final = struct.Struct(
    ">h"  # code
    "B"  # language
    "h"  # version
    "i"  # opaque
    "i"  # flag
    "i"  # remark length
)
_I32: Final = struct.Struct(">i")
_I16: Final = struct.Struct(">h")
_LONGEST_KEY_BYTES: Final = 0x7FFF

BinaryHeader = tuple[int, str, int, int, int, str | None, bytes]


def decode_binary_header(header: bytes) -> BinaryHeader:
    """(code, language, version, opaque, flag, remark, fields still packed)"""
    try:
        code, language, version, opaque, flag, remark_length = _FIXED.unpack_from(header)
        at = _FIXED.size
        remark, at = _text(header, at, remark_length)
        (fields_length,) = _I32.unpack_from(header, at)
    except (struct.error, UnicodeDecodeError) as error:
        raise HeaderError(f"binary header of {len(header)} bytes is cut short or not UTF-8: {error}") from None
    at += _I32.size
    if fields_length < 0 or at + fields_length > len(header):
        raise HeaderError(f"binary header announces {fields_length} bytes of fields; {len(header) - at} are left")
    name = LANGUAGES[language] if language < len(LANGUAGES) else "OTHER"
    return code, name, version, opaque, flag, remark or None, header[at : at + fields_length]


def encode_binary_header(
    code: int, language: str, version: int, opaque: int, flag: int, remark: str | None, packed_fields: bytes
) -> bytes:
    remark_bytes = (remark or "").encode()
    try:
        fixed = _FIXED.pack(code, LANGUAGES.index(language), version, opaque, flag, len(remark_bytes))
    except struct.error:
        raise HeaderError(
            f"request code {code} (version {version}) does not fit the binary header",
            hint="send this command with the JSON header",
        ) from None
    return b"".join((fixed, remark_bytes, _I32.pack(len(packed_fields)), packed_fields))


def decode_binary_fields(packed: bytes) -> dict[str, str]:
    """The last of two equal keys wins: Java writes some headers twice."""
    fields: dict[str, str] = {}
    at = 0
    try:
        while at < len(packed):
            (key_length,) = _I16.unpack_from(packed, at)
            key, at = _text(packed, at + _I16.size, key_length)
            (value_length,) = _I32.unpack_from(packed, at)
            fields[key], at = _text(packed, at + _I32.size, value_length)
    except (struct.error, UnicodeDecodeError) as error:
        raise HeaderError(f"binary header fields are cut short or not UTF-8: {error}") from None
    return fields


def encode_binary_fields(fields: Mapping[str, str]) -> bytes:
    parts: list[bytes] = []
    for key, value in fields.items():
        key_bytes, value_bytes = key.encode(), value.encode()
        if len(key_bytes) > _LONGEST_KEY_BYTES:
            raise HeaderError(f"the field name {key[:40]!r}... is too long for the binary header")
        parts += (_I16.pack(len(key_bytes)), key_bytes, _I32.pack(len(value_bytes)), value_bytes)
    return b"".join(parts)


def _text(data: bytes, at: int, length: int) -> tuple[str, int]:
    end = at + length
    if length < 0 or end > len(data):
        raise HeaderError(f"binary header announces a text of {length} bytes; {len(data) - at} are left")
    return data[at:end].decode(), end
