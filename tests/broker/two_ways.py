"""One broker behind two ports: with its express handlers, and with the ordinary ones alone."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from orbitmq.broker.routes import build_routes
from orbitmq.protocol import command as commands
from orbitmq.protocol.command import Command
from orbitmq.protocol.frame import CODEC_JSON
from orbitmq.transport.server import Server
from tests.raw_client import raw_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from orbitmq.broker.broker import Broker
    from orbitmq.protocol.frame import Frame
    from orbitmq.transport.address import Address

EXPRESS, ORDINARY = "express", "ordinary"
WAYS = (EXPRESS, ORDINARY)


class TwoWays:
    def __init__(self, ports: Mapping[str, Address | None]) -> None:
        self._ports = ports

    async def frame(
        self, way: str, code: int, fields: Mapping[str, str], body: bytes = b"", codec: int = CODEC_JSON
    ) -> Frame:
        """The answer as it came."""
        async with raw_client(self._ports[way]) as client:
            client.send(commands.encode(Command(code, opaque=77, fields=dict(fields), body=body), codec))
            frame = await client.frame()
            assert frame is not None
            return frame


@asynccontextmanager
async def two_ways(broker: Broker) -> AsyncIterator[TwoWays]:
    ordinary = Server(build_routes(broker.state))
    address = await ordinary.start("127.0.0.1", 0)
    try:
        yield TwoWays({EXPRESS: broker.address, ORDINARY: address})
    finally:
        await ordinary.stop()
