"""A connection without a socket: bytes are put in by hand, and what it would have sent is kept."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orbitmq.transport.connection import Connection
    from orbitmq.transport.server import Server


class Line(asyncio.Transport):
    """Where a connection believes it writes to its peer."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 40_000) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def write(self, data: Any) -> None:
        self.written += data

    def writelines(self, pieces: Any) -> None:
        for piece in pieces:
            self.written += piece


def connected(server: Server) -> tuple[Connection, Line]:
    connection, line = server._new_connection(), Line()
    connection.connection_made(line)
    return connection, line
