"""Frames: the length-prefixed envelope around every command. Bytes in, frames out.

    offset  size  field
    0       4     length of everything after this field
    4       1     header codec: 0 JSON, 1 binary
    5       3     header length H
    8       H     header
    8+H     ...   body, up to length

Java: NettyDecoder, RemotingCommand.decode
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.errors import FrameError, FrameTooLarge

if TYPE_CHECKING:
    from collections.abc import Iterator

CODEC_JSON: Final = 0
CODEC_BINARY: Final = 1
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024  # the length word included, as in Java

_PREFIX: Final = struct.Struct(
    ">I"  # length of everything after this field
    "I"  # codec in the top byte, header length in the other three
)
_unpack_prefix: Final = _PREFIX.unpack_from
lengths: Final = (
    _PREFIX.pack
)  # the eight bytes before a JSON header, for writers who know that the frame is not too large
HEADER_LENGTH_MASK: Final = 0xFF_FFFF
_END_OF_CODECS: Final = CODEC_BINARY + 1 << 24
_LARGE_BYTES: Final = 128 * 1024  # a frame from here on is joined once, when its last piece is there
_SMALL_PIECE_BYTES: Final = 4096
_HTTP: Final = int.from_bytes(b"HTTP", "big")  # how the answer of a web server begins, read as a length


class Frame(NamedTuple):
    codec: int
    header: bytes
    body: bytes


_new_frame: Final = tuple.__new__  # a third of what calling Frame costs


class FrameDecoder:
    """Cuts a byte stream into frames, however the stream itself is cut.

    Frames before a malformed one are still returned; `failure` then says what is wrong, and the rest of the stream is
    meaningless: whoever feeds must close the connection.
    """

    __slots__ = ("_large", "_max_bytes", "_max_header_bytes", "_needed", "failure", "held")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES, max_header_bytes: int = MAX_FRAME_BYTES) -> None:
        self.failure: FrameError | None = None
        self._max_bytes = max_frame_bytes
        self._max_header_bytes = max_header_bytes
        # An unfinished frame waits here. One growing buffer, not a list of pieces: a piece of one byte would cost fifty.
        self.held = bytearray()
        self._needed = _PREFIX.size
        self._large: _LargeFrame | None = None

    @property
    def is_waiting(self) -> bool:
        """For the rest of a frame that has begun."""
        return bool(self.held) or self._large is not None

    @property
    def unfinished(self) -> tuple[object, int] | None:
        """Of the frame that has begun: what stands for it and for no other, and how much of it is there. None between two."""
        if self._large is not None:
            return self._large, self._large.held_bytes
        return (self.held, len(self.held)) if self.held else None

    def only_frame(self, data: bytes) -> int:
        """Codec << 24 | header length, if `data` is exactly one frame; 0 if `feed` must look at it."""
        size = len(data)
        if self.held or self._large is not None or size < 8:
            return 0
        length, word = _unpack_prefix(data)
        header_length = word & HEADER_LENGTH_MASK
        is_whole = length + 4 == size <= self._max_bytes and header_length + 4 <= length and word < _END_OF_CODECS
        return word if is_whole and header_length <= self._max_header_bytes and self.failure is None else 0

    @property
    def can_join(self) -> bool:
        """Whether what comes next may be looked at with `held` before it, before it is fed: no large frame is on its way."""
        return self._large is None and self.failure is None

    def joined(self, data: bytes) -> bytes:
        """`data` with the unfinished frame before it, for who looks at whole reads; nothing while it stays unfinished."""
        if self._large is not None:
            rest = self._large.add(data)
            if rest is None:
                return b""
            data = self._large.whole(rest)
            self._large = None
            return data
        if not self.held:
            return data
        self.held += data
        if len(self.held) < self._needed:
            return b""
        data = bytes(self.held)
        self.forget_held()
        return data

    def forget_held(self) -> None:
        """Whoever has the unfinished frame joins it himself. The next one is another, as `unfinished` tells them apart."""
        self.held = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        if self.failure is not None:
            return []
        frames: list[Frame] = []
        if self._large is not None:
            rest = self._large.add(data)
            if rest is None:
                return frames
            frames.append(self._large.frame())
            self._large = None
            if not rest:
                return frames
            data = rest
        data = self.joined(data)
        at, end = 0, len(data)
        needed = _PREFIX.size
        while end - at >= 8:
            length, header_word = _unpack_prefix(data, at)
            header_length = header_word & HEADER_LENGTH_MASK
            codec = header_word >> 24
            if length + 4 > self._max_bytes or header_length + 4 > length or codec > CODEC_BINARY:
                self.failure = _explain(length, header_length, codec, self._max_bytes)
                return frames
            if header_length > self._max_header_bytes:
                self.failure = FrameTooLarge(
                    f"a frame announces a header of {header_length:,} bytes; the limit is {self._max_header_bytes:,}",
                    hint="orbitmq.maxHeaderBytes changes it",
                    limit="orbitmq.maxHeaderBytes",
                )
                return frames
            next_at = at + 4 + length
            if next_at > end:
                needed = 4 + length
                if needed >= _LARGE_BYTES and end >= at + 8 + header_length:
                    header = data[at + 8 : at + 8 + header_length]
                    self._large = _LargeFrame(codec, header, length - 4 - header_length)
                    self._large.add(data[at + 8 + header_length :])
                    return frames
                break
            body_at = at + 8 + header_length
            frames.append(_new_frame(Frame, (codec, data[at + 8 : body_at], data[body_at:next_at])))
            if next_at == end:
                return frames
            at = next_at
        if at < end:
            self.held += memoryview(data)[at:]
            self._needed = needed
        return frames


class _LargeFrame:
    """One whose header is there and whose body is on its way: every byte of it is copied once."""

    __slots__ = ("_codec", "_header", "_missing", "_pieces", "held_bytes")

    def __init__(self, codec: int, header: bytes, body_length: int) -> None:
        self._codec = codec
        self._header = header
        self._missing = body_length
        self.held_bytes = 0  # of the body
        self._pieces: list[bytes | bytearray] = []

    def add(self, data: bytes) -> bytes | None:
        """What follows the frame; None while it is not whole."""
        if len(data) > self._missing:
            data, rest = data[: self._missing], data[self._missing :]
        else:
            rest = b""
        self._missing -= len(data)
        self.held_bytes += len(data)
        if len(data) >= _SMALL_PIECE_BYTES:
            self._pieces.append(data)
        elif self._pieces and isinstance(last := self._pieces[-1], bytearray):
            last += data  # a list of pieces of one byte would cost fifty for each
        else:
            self._pieces.append(bytearray(data))
        return None if self._missing else rest

    def frame(self) -> Frame:
        return Frame(self._codec, self._header, b"".join(self._pieces))

    def whole(self, rest: bytes) -> bytes:
        """As it came, and what follows it."""
        prefix = lengths(4 + len(self._header) + self.held_bytes, self._codec << 24 | len(self._header))
        return b"".join((prefix, self._header, *self._pieces, rest))


def whole_frames(data: bytes) -> Iterator[bytes]:
    """Frames that lie one behind the other, each with its prefix."""
    at = 0
    while at < len(data):
        next_at = at + 4 + _unpack_prefix(data, at)[0]
        yield data[at:next_at]
        at = next_at


def frame_bytes(header: bytes, body: bytes, codec: int = CODEC_JSON) -> bytes:
    """One whole frame."""
    return b"".join((frame_prefix(len(header), len(body), codec), header, body))


def frame_prefix(header_length: int, body_length: int, codec: int = CODEC_JSON) -> bytes:
    """The eight bytes before the header, for writers that send a body without copying it."""
    length = 4 + header_length + body_length
    if length + 4 > MAX_FRAME_BYTES:
        raise FrameError(
            f"a frame of {length + 4:,} bytes is larger than the {MAX_FRAME_BYTES:,} that any peer accepts",
            hint="send less at once: smaller messages, smaller batches",
        )
    return _PREFIX.pack(length, codec << 24 | header_length)


def _explain(length: int, header_length: int, codec: int, max_bytes: int) -> FrameError:
    if length == _HTTP:
        return FrameError("that is HTTP, not RocketMQ remoting", hint="a web server listens there: is the port right?")
    if length + 4 > max_bytes:
        return FrameTooLarge(
            f"a frame announces {length:,} bytes; the limit is {max_bytes:,}",
            hint="either the peer does not speak RocketMQ remoting, or its message is too large (orbitmq.maxFrameBytes)",
            limit="orbitmq.maxFrameBytes",
        )
    if length < 4 or header_length + 4 > length:
        return FrameError(f"a frame of {length} bytes announces a header of {header_length}")
    return FrameError(f"header codec {codec} is unknown", hint="0 is JSON, 1 is binary")
