"""The bytes that master and slave exchange; no handshake, no framing besides this.

    slave to master    i64    how much of the log it has: what to send first, and an acknowledgement from then on
    master to slave    i64    where in the log the following bytes stand
                       i32    how many they are; none: a sign of life
                       ...    bytes of the log, cut anywhere, never over the end of a file

Java: DefaultHAClient, DefaultHAConnection
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from orbitmq.errors import FrameError

if TYPE_CHECKING:
    from collections.abc import Iterator

REPORT: Final = struct.Struct(">q")
PIECE: Final = struct.Struct(">qi")


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
