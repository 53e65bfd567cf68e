"""The seam to the operating system's sockets. Tests and simulations give another one; nothing else opens a connection."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from orbitmq.transport.address import Address

# A peer that takes none of our bytes for so long is gone, or as good as gone; one that is silent is left after the same time. The
# system alone tries for a quarter of an hour, and calls made meanwhile time out though a new connection would work.
_UNACKNOWLEDGED_MS: Final = 120_000


class Listener(Protocol):
    """What listens: where it does, and how to make it stop."""

    def addresses(self) -> list[tuple[str, int]]: ...

    def close(self) -> None: ...


class Network(Protocol):
    async def listen(
        self, accept: Callable[[], asyncio.Protocol], host: str | None, port: int, backlog: int
    ) -> Listener: ...

    async def connect(self, protocol: Callable[[], asyncio.Protocol], address: Address) -> None: ...


class _TcpListener:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        for one in server.sockets:
            _leave_the_dead(one)  # what it accepts has it from there

    def addresses(self) -> list[tuple[str, int]]:
        return [one.getsockname()[:2] for one in self._server.sockets]

    def close(self) -> None:
        self._server.close()


def listening_socket(host: str, port: int) -> socket.socket:
    """For servers that bring their own protocol and loop."""
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


def _leave_the_dead(one: socket.socket) -> None:
    if sys.platform == "linux":  # others have no such option
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)


async def _connect(protocol: Callable[[], asyncio.Protocol], address: Address, tls: ssl.SSLContext | None) -> None:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(protocol, address.host, address.port, ssl=tls)
    if not transport.is_closing():
        _leave_the_dead(transport.get_extra_info("socket"))


class TcpNetwork:
    async def listen(
        self, accept: Callable[[], asyncio.Protocol], host: str | None, port: int, backlog: int
    ) -> Listener:
        loop = asyncio.get_running_loop()
        return _TcpListener(await loop.create_server(accept, host, port, backlog=backlog))

    async def connect(self, protocol: Callable[[], asyncio.Protocol], address: Address) -> None:
        await _connect(protocol, address, None)


class TlsNetwork:
    """All of it encrypted. Ports that take both kinds of clients do it by themselves (tls.py)."""

    def __init__(self, context: Callable[[], ssl.SSLContext]) -> None:
        """`context` is asked when a port is opened, and for each connection to others."""
        self._context = context

    async def listen(
        self, accept: Callable[[], asyncio.Protocol], host: str | None, port: int, backlog: int
    ) -> Listener:
        loop = asyncio.get_running_loop()
        return _TcpListener(await loop.create_server(accept, host, port, backlog=backlog, ssl=self._context()))

    async def connect(self, protocol: Callable[[], asyncio.Protocol], address: Address) -> None:
        await _connect(protocol, address, self._context())
