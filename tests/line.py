"""A connection without a socket: bytes are put in by hand, and what it would have sent is kept."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker
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


def swift_answer(broker: Broker, *frames: bytes) -> tuple[int, bytes]:
    """Of these frames as one read: how many bytes the compiled loops take from its front, and what they answer."""
    server = broker._servers[0]
    swift = server._service.swift
    assert swift is not None
    connection, _ = connected(server)
    taken, answers = swift(connection, b"".join(frames))
    connection.connection_lost(None)
    return taken, answers


def plain_answer(server: Server, frame: bytes) -> bytes:
    """What a server answers at once that has no such loops."""
    connection, line = connected(server)
    connection.data_received(frame)
    connection.connection_lost(None)
    return bytes(line.written)
