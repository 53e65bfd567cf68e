"""A proxy in the path of connections, to cut them, to refuse them, and to let them hang without a word.

    client ── 127.0.0.2:port ──> Proxy ──> 127.0.0.1:port ── broker

A broker that advertises an address of its own of the loopback network is reached through the proxy by everybody, its slaves too.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast


class Proxy:
    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._ends: set[_End] = set()
        self._refusing = False
        self.is_stalled = False

    async def start(self) -> None:
        self._server = await asyncio.get_running_loop().create_server(lambda: _End(self), self._host, self._port)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        await asyncio.sleep(0)

    def cut(self) -> None:
        """End every connection at once."""
        for end in list(self._ends):
            end.abort()

    def refuse(self, refusing: bool) -> None:
        """Cut all, and take none."""
        self._refusing = refusing
        if refusing:
            self.cut()

    def stall(self, stalled: bool) -> None:
        """Connections stay, and nothing moves on them."""
        self.is_stalled = stalled
        for end in list(self._ends):
            end.stall(stalled)

    def joined(self, end: _End) -> bool:
        self._ends.add(end)
        return not self._refusing

    def left(self, end: _End) -> None:
        self._ends.discard(end)

    async def connect(self, end: _End) -> _End:
        other = _End(self, end)
        await asyncio.get_running_loop().create_connection(lambda: other, "127.0.0.1", self._port)
        return other


class _End(asyncio.Protocol):
    """One side of a connection; what it hears the other side says."""

    def __init__(self, proxy: Proxy, other: _End | None = None) -> None:
        self._proxy = proxy
        self._other = other
        self._early: list[bytes] = []  # heard before the other side was there
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if not self._proxy.joined(self):
            self.abort()
        elif self._other is None:
            self._connecting = asyncio.create_task(self._connect())
        self.stall(self._proxy.is_stalled)

    def data_received(self, data: bytes) -> None:
        if self._other is None:
            self._early.append(data)
        else:
            self._other.say(data)

    def pause_writing(self) -> None:
        if self._other is not None:
            self._other.stall(True)

    def resume_writing(self) -> None:
        if self._other is not None:
            self._other.stall(self._proxy.is_stalled)

    def connection_lost(self, _error: Exception | None) -> None:
        self._proxy.left(self)
        if self._other is not None:
            self._other.abort()

    def say(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def stall(self, stalled: bool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        with contextlib.suppress(RuntimeError):  # it is already so
            (self._transport.pause_reading if stalled else self._transport.resume_reading)()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _connect(self) -> None:
        try:
            self._other = await self._proxy.connect(self)
        except OSError:
            self.abort()
            return
        for data in self._early:
            self._other.say(data)
