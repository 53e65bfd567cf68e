"""A message made ready for the wire: checked by Java's rules, compressed if that pays, with an id of its own.

Java: Validators.checkMessage, DefaultMQProducerImpl.sendKernelImpl
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from orbitmq.errors import ConfigError, MessageError
from orbitmq.message import properties as names
from orbitmq.message.compression import compress
from orbitmq.message.properties import MAX_PROPERTIES_BYTES, RESERVED, join_properties
from orbitmq.message.sysflags import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD

COMPRESSIONS: Final = {"zlib": COMPRESSION_ZLIB, "lz4": COMPRESSION_LZ4, "zstd": COMPRESSION_ZSTD}
_SURELY_SHORT: Final = 8000
_COMPRESS_IN_THREAD_BYTES: Final = 256 * 1024  # beyond this, compressing would hold up everything else


class Compression:
    """When bodies are compressed, and how."""

    __slots__ = ("_flag", "_level", "over_bytes")

    def __init__(self, kind: str | None, over_bytes: int, level: int) -> None:
        if kind is not None and kind not in COMPRESSIONS:
            raise ConfigError(f"compression {kind!r} is unknown", hint="zlib, lz4, zstd, or None for none")
        self._flag = COMPRESSIONS[kind] if kind is not None else 0
        self._level = level
        self.over_bytes = over_bytes

    def applies_to(self, body: bytes) -> bool:
        return bool(self._flag) and len(body) >= self.over_bytes

    async def apply(self, body: bytes) -> tuple[bytes, int]:
        """The smaller body, and the flags that say so."""
        if len(body) >= _COMPRESS_IN_THREAD_BYTES:
            smaller = await asyncio.to_thread(compress, body, self._flag, self._level)
        else:
            smaller = compress(body, self._flag, self._level)
        return smaller, COMPRESSED | self._flag


def check_body(body: bytes, max_bytes: int) -> None:
    if body.__class__ is not bytes and not isinstance(body, bytes | bytearray | memoryview):
        raise MessageError(
            f"the body of a message is {body!r:.50}, which is no bytes", hint="send(topic, ...) encodes it"
        )
    if not body:
        raise MessageError("a message needs a body", hint="brokers refuse empty ones")
    if len(body) > max_bytes:
        raise MessageError(
            f"a body of {len(body):,} bytes is more than the {max_bytes:,} allowed",
            hint="raise max_message_bytes= here and maxMessageSize on the broker, or send less",
        )


def check_user_properties(properties: Mapping[str, str]) -> None:
    """Names that the system uses are refused, and so is what cannot be text."""
    if properties.__class__ is not dict and not isinstance(properties, Mapping):
        raise MessageError(f"properties are {properties!r}, which is no mapping", hint='{"name": "value"}, say')
    for name, value in properties.items():
        if name in RESERVED:
            raise MessageError(f"property {name!r} is reserved by the system", hint="choose another name")
        if not isinstance(value, str) or not isinstance(name, str):
            raise MessageError(f"property {name!r} is {value!r}; names and values are texts", hint="str(...) makes one")
        if not name or not value:
            raise MessageError(f"property {name!r} has no {'value' if name else 'name'}", hint="leave it out")


def check_tag(tag: str | None) -> None:
    if tag is not None and not isinstance(tag, str):
        raise MessageError(f"tag is {tag!r}, which is no text", hint="str(...) makes one")


def properties_text(properties: Mapping[str, str]) -> str:
    text = join_properties(properties)
    if len(text) <= _SURELY_SHORT and text.isascii():
        return text
    encoded = text.encode("utf-8", "replace")  # a lone surrogate becomes "?", as in Java
    if len(encoded) > MAX_PROPERTIES_BYTES:
        raise MessageError(
            f"properties take {len(encoded):,} bytes; up to {MAX_PROPERTIES_BYTES:,} are allowed",
            hint="put large values into the body",
        )
    return encoded.decode()


def keys_text(keys: str | list[str] | tuple[str, ...]) -> str:
    """Keys are separated by blanks, so none may hold one."""
    parts = [keys] if isinstance(keys, str) or not isinstance(keys, Iterable) else list(keys)
    for key in parts:
        if not isinstance(key, str) or not key or names.KEY_SEPARATOR in key:
            raise MessageError(
                f"key {key!r} cannot be used", hint="a key is a text without blanks; give several as a list"
            )
    return names.KEY_SEPARATOR.join(parts)
