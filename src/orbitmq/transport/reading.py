"""Who reads a connection's socket: the event loop, a swift reader (express.py), or nobody while it is paused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

    from orbitmq.transport.connection import Connection
    from orbitmq.transport.express import SwiftReader

_NONE: Final = -1


class Reading:
    """Of one connection. What the swift reader reads is paused for the event loop."""

    __slots__ = ("_connection", "_descriptor", "_reader", "_transport")

    def __init__(self, connection: Connection, transport: asyncio.Transport, reader: SwiftReader | None) -> None:
        self._connection = connection
        self._transport = transport
        self._descriptor = _NONE  # of the socket, while the swift reader has it
        # A transport that encrypts has a socket as well, but what comes out of it is no frame.
        self._reader = reader if transport.get_extra_info("sslcontext") is None else None

    def hand_over(self) -> None:
        """To the swift reader, if there is one and the connection is open."""
        if self._reader is None or self._descriptor != _NONE or self._transport.is_closing():
            return
        socket = self._transport.get_extra_info("socket")
        if socket is not None and self._reader.take(self._connection, self._transport, socket.fileno()):
            self._descriptor = socket.fileno()
            self._transport.pause_reading()

    def pause(self) -> None:
        if self._descriptor != _NONE:
            self.end()
        elif not self._transport.is_closing():  # uvloop refuses to pause what is closing
            self._transport.pause_reading()

    def by_loop(self) -> None:
        """The event loop reads, whoever did before."""
        self.end()
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def end(self) -> None:
        """Before the connection closes: its descriptor may soon be another's."""
        if self._descriptor != _NONE and self._reader is not None:
            self._reader.give_back(self._connection, self._descriptor)
            self._descriptor = _NONE
