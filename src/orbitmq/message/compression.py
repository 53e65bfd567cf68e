"""Bodies made smaller: zlib, LZ4 frames, zstd. Inflating stops at a limit given by the caller.

The limit is enforced while inflating, so a few bytes that claim to be gigabytes cost only what was allowed.
zlib is always here; the other two come with the `compression` extra and are imported when first used.

Java: CompressorFactory, ZlibCompressor, Lz4Compressor, ZstdCompressor
"""

from __future__ import annotations

import zlib
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from orbitmq.errors import InflatedTooLarge, MessageError
from orbitmq.message.sysflags import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
)

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_LEVEL: Final = 5  # Java's default for every algorithm
# A body of 4 MB is the most that brokers take by default, before or after compressing. While it is inflated it needs its size twice.
DEFAULT_LIMIT_BYTES: Final = 24 << 20


def compress(body: bytes, compression: int = COMPRESSION_ZLIB, level: int = DEFAULT_LEVEL) -> bytes:
    """`compression` is one of sysflags.COMPRESSION_*."""
    if compression in (COMPRESSION_ZLIB, 0):
        return zlib.compress(body, level)
    if compression == COMPRESSION_LZ4:
        return bytes(_optional("lz4.frame").compress(body, compression_level=level))
    if compression == COMPRESSION_ZSTD:
        return bytes(_optional("zstandard").ZstdCompressor(level=level).compress(body))
    raise _unknown(compression)


def decompress(body: bytes, compression: int, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> bytes:
    """The original body. Raises MessageError when it is broken, cut short, or larger than `limit_bytes`."""
    inflate = _INFLATERS.get(compression & COMPRESSION_MASK)
    if inflate is None:
        raise _unknown(compression)
    # One byte more than allowed tells "exactly at the limit" from "beyond it".
    inflated = inflate(body, limit_bytes + 1)
    if len(inflated) > limit_bytes:
        del inflated  # or it would live as long as the exception's traceback
        raise InflatedTooLarge(f"the body inflates to more than {limit_bytes} bytes")
    return inflated


def plain_body(body: bytes, sys_flag: int, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> bytes:
    """The body as its producer gave it: inflated if `sys_flag` says it is compressed."""
    return decompress(body, sys_flag & COMPRESSION_MASK, limit_bytes) if sys_flag & COMPRESSED else body


def _inflate_zlib(body: bytes, at_most: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(body, at_most)
    except zlib.error as error:
        raise MessageError(f"the body is not zlib data: {error}") from error
    if not inflater.eof and len(inflated) < at_most:
        raise MessageError("the body is cut short: its zlib stream has no end")
    return inflated


def _inflate_lz4(body: bytes, at_most: int) -> bytes:
    inflater = _optional("lz4.frame").LZ4FrameDecompressor()
    pieces: list[bytes] = []
    held, rest = 0, body
    # In pieces, because it doubles its buffer as it goes, and copies it.
    try:
        while not inflater.eof and held < at_most and (rest or not inflater.needs_input):
            piece: bytes = inflater.decompress(rest, max_length=min(_LZ4_PIECE_BYTES, at_most - held))
            rest = b""
            pieces.append(piece)
            held += len(piece)
    except (RuntimeError, EOFError) as error:
        raise MessageError(f"the body is not an LZ4 frame: {error}") from error
    if not inflater.eof and held < at_most:
        raise MessageError("the body is cut short: its LZ4 frame has no end")
    return b"".join(pieces)


def _inflate_zstd(body: bytes, at_most: int) -> bytes:
    zstandard = _optional("zstandard")
    inflater = zstandard.ZstdDecompressor().decompressobj()
    pieces: list[bytes] = []
    held = 0
    # Fed in small pieces because this API has no output limit of its own; a piece inflates to a bounded block.
    try:
        for at in range(0, len(body), _ZSTD_FEED_BYTES):
            piece = inflater.decompress(body[at : at + _ZSTD_FEED_BYTES])
            pieces.append(piece)
            held += len(piece)
            if inflater.eof or held >= at_most:
                break
    except zstandard.ZstdError as error:
        raise MessageError(f"the body is not a zstd frame: {error}") from error
    if not inflater.eof and held < at_most:
        raise MessageError("the body is cut short: its zstd frame has no end")
    if held > at_most:  # cut before they are joined: a copy more would be one of the whole
        pieces[-1] = pieces[-1][: at_most - held]
    return b"".join(pieces)


_ZSTD_FEED_BYTES: Final = 64
_LZ4_PIECE_BYTES: Final = 1 << 20

_INFLATERS: Final[dict[int, Callable[[bytes, int], bytes]]] = {
    0: _inflate_zlib,  # clients from before the type bits
    COMPRESSION_ZLIB: _inflate_zlib,
    COMPRESSION_LZ4: _inflate_lz4,
    COMPRESSION_ZSTD: _inflate_zstd,
}


def _optional(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise MessageError(
            f"this message is compressed with {module.partition('.')[0]}, which is not installed",
            hint="pip install 'orbitmq[compression]'",
        ) from error


def _unknown(compression: int) -> MessageError:
    return MessageError(f"unknown compression 0x{compression:X}")
