"""The seam to the operating system's sockets. Tests and simulations give another one; nothing else opens a connection."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from orbitmq.transport.address import Address


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

    def addresses(self) -> list[tuple[str, int]]:
        return [one.getsockname()[:2] for one in self._server.sockets]

    def close(self) -> None:
        self._server.close()


def listening_socket(host: str, port: int) -> socket.socket:
    """For servers that bring their own protocol and loop."""
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


class TcpNetwork:
    async def listen(
        self, accept: Callable[[], asyncio.Protocol], host: str | None, port: int, backlog: int
    ) -> Listener:
        loop = asyncio.get_running_loop()
        return _TcpListener(await loop.create_server(accept, host, port, backlog=backlog))

    async def connect(self, protocol: Callable[[], asyncio.Protocol], address: Address) -> None:
        await asyncio.get_running_loop().create_connection(protocol, address.host, address.port)


class TlsNetwork:
    """All of it encrypted. Ports that take both kinds of clients do it by themselves (tls.py)."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context

    async def listen(
        self, accept: Callable[[], asyncio.Protocol], host: str | None, port: int, backlog: int
    ) -> Listener:
        loop = asyncio.get_running_loop()
        return _TcpListener(await loop.create_server(accept, host, port, backlog=backlog, ssl=self._context))

    async def connect(self, protocol: Callable[[], asyncio.Protocol], address: Address) -> None:
        await asyncio.get_running_loop().create_connection(protocol, address.host, address.port, ssl=self._context)
