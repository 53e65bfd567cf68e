"""Servers for tests: a port of their own choice on the loopback address, and handlers that do as told."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from orbitmq.protocol import command as commands
from orbitmq.transport.limits import Limits
from orbitmq.transport.pool import Pool
from orbitmq.transport.server import Server

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

    from orbitmq.protocol.command import Command
    from orbitmq.transport.address import Address
    from orbitmq.transport.connection import Connection, Routes

ECHO, WAIT, SILENT = 1, 2, 3


async def echo(request: Command, connection: Connection) -> Command:
    return commands.ok(body=request.body)


class Gate:
    """Handlers that wait until they are let through, and count who came."""

    def __init__(self) -> None:
        self.came: list[bytes] = []
        self._waiting: list[asyncio.Future[None]] = []

    async def handle(self, request: Command, connection: Connection) -> Command:
        self.came.append(request.body)
        passage = asyncio.get_running_loop().create_future()
        self._waiting.append(passage)
        await passage
        return commands.ok(body=request.body)

    def let_through(self, index: int = 0) -> None:
        self._waiting.pop(index).set_result(None)

    def open(self) -> None:
        while self._waiting:
            self.let_through()


@asynccontextmanager
async def serving(
    routes: Routes, *, limits: Limits | None = None, **options: Any
) -> AsyncIterator[tuple[Server, Address]]:
    server = Server(routes, limits=limits or Limits(), **options)
    address = await server.start("127.0.0.1", 0)
    try:
        yield server, address
    finally:
        await server.stop(grace_seconds=0.5)


@asynccontextmanager
async def pool_of(tls: ssl.SSLContext | None = None, **options: Any) -> AsyncIterator[Pool]:
    pool = Pool(tls=None if tls is None else lambda: tls, **options)
    try:
        yield pool
    finally:
        await pool.close()
