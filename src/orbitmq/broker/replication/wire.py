"""The bytes that master and slave exchange; no framing besides this, and no handshake unless both are told so.

    slave to master    i64    how much of the log it has: what to send first, and an acknowledgement from then on
    master to slave    i64    where in the log the following bytes stand
                       i32    how many they are; none: a sign of life
                       ...    bytes of the log, cut anywhere, never over the end of a file

With orbitmq.haAuthentication, before all that (a report is never negative, so a master knows the first bytes):

    slave to master    0xFF ORBITMQ, u8, access key        who it is
    master to slave    16 bytes                            never the same
    slave to master    28 bytes                            their signature (protocol/signing.py)

Java: DefaultHAClient, DefaultHAConnection
"""

from __future__ import annotations

import hmac
import struct
from typing import TYPE_CHECKING, Final

from orbitmq.errors import FrameError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from orbitmq.protocol.signing import SigningKey

REPORT: Final = struct.Struct(">q")
PIECE: Final = struct.Struct(">qi")


HELLO: Final = b"\xffORBITMQ"
CHALLENGE_BYTES: Final = 16
SIGNATURE_BYTES: Final = 28
_SIGNED_PREFIX: Final = b"orbitmq ha "  # what is signed here is of no use as a request


def hello(access_key: str) -> bytes:
    name = access_key.encode()
    return HELLO + bytes([len(name)]) + name


def proof(key: SigningKey, challenge: bytes) -> bytes:
    return key.signature(_SIGNED_PREFIX + challenge)


class Handshake:
    """The master's side of it. FrameError when this is no slave that may copy."""

    def __init__(self, key_of: Callable[[str], SigningKey | None], challenge: bytes) -> None:
        self.is_done = False
        self._key_of = key_of
        self._challenge = challenge
        self._name = ""
        self._key: SigningKey | None = None
        self._received = b""

    @property
    def still_counts(self) -> bool:
        """Whether who proved itself may copy now, and with that key: users and rights change, and a connection lasts for months."""
        key = self._key_of(self._name)
        return key is not None and self._key is not None and key.first_blocks == self._key.first_blocks

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """What to answer, and once it is done, the bytes behind it."""
        self._received += data
        answer = b""
        if self._key is None:
            if not HELLO.startswith(self._received[: len(HELLO)]):
                raise FrameError("it does not say who it is", hint="set orbitmq.haAuthentication=true there, too")
            name_at = len(HELLO) + 1
            if len(self._received) < name_at or len(self._received) < name_at + self._received[name_at - 1]:
                return b"", b""
            end = name_at + self._received[name_at - 1]
            self._name = self._received[name_at:end].decode("utf-8", "replace")
            self._key = self._key_of(self._name)
            if self._key is None:
                raise FrameError(f"{self._name!r} is no user that may copy the log")
            self._received = self._received[end:]
            answer = self._challenge
        if len(self._received) < SIGNATURE_BYTES:
            return answer, b""
        given, rest = self._received[:SIGNATURE_BYTES], self._received[SIGNATURE_BYTES:]
        if not hmac.compare_digest(given, proof(self._key, self._challenge)):
            raise FrameError("its signature is wrong")
        self.is_done = True
        return answer, rest


class Reports:
    """What a slave says. Only its last word counts."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> int | None:
        """The last whole report in what came; None if there was none. FrameError if it cannot be one."""
        received = self._rest + data
        whole = len(received) - len(received) % REPORT.size
        self._rest = received[whole:]
        if not whole:
            return None
        offset: int = REPORT.unpack_from(received, whole - REPORT.size)[0]
        if offset < 0:
            raise FrameError(f"a slave cannot have {offset} bytes of a log")
        return offset


class Pieces:
    """What a master sends. A piece is handed on as it comes: the log does not mind where it is cut."""

    def __init__(self) -> None:
        self._header = b""
        self._offset = 0
        self._missing = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        """Log offsets and bytes; empty bytes are a sign of life. FrameError if this is no master."""
        left = memoryview(data)
        while left:
            if self._missing:
                part, left = left[: self._missing], left[self._missing :]
                offset = self._offset
                self._offset += len(part)
                self._missing -= len(part)
                yield offset, part
                continue
            wanted = PIECE.size - len(self._header)
            self._header += bytes(left[:wanted])
            left = left[wanted:]
            if len(self._header) < PIECE.size:
                return
            self._offset, self._missing = PIECE.unpack(self._header)
            self._header = b""
            if self._offset < 0 or self._missing < 0:
                raise FrameError(f"{self._missing} bytes at offset {self._offset} of a log cannot be")
            if not self._missing:
                yield self._offset, left[:0]
