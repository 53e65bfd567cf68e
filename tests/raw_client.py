"""A peer of our own making: sends any bytes it likes, and shows what comes back."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from orbitmq.protocol import command as commands
from orbitmq.protocol.command import Command
from orbitmq.protocol.frame import CODEC_JSON, Frame, FrameDecoder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from orbitmq.transport.address import Address

PATIENCE_SECONDS = 20.0  # far beyond what anything takes: only a test that would hang forever meets it


class RawClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._decoder = FrameDecoder()
        self._frames: deque[Frame] = deque()
        self._opaque = 0

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def send_in_pieces(self, pieces: Iterable[bytes]) -> None:
        """Each piece as a packet of its own, as far as the system lets us, and until the server has heard enough."""
        with suppress(ConnectionError):
            for piece in pieces:
                self.writer.write(piece)
                await self.writer.drain()
                await asyncio.sleep(0)

    def finish_sending(self) -> None:
        with suppress(OSError):  # the server was quicker, and closed it all
            self.writer.write_eof()

    def request(
        self,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        flag: int = 0,
        version: int = 479,
        codec: int = CODEC_JSON,
    ) -> bytes:
        """A request's frame, with the next opaque."""
        self._opaque += 1
        command = Command(
            code,
            flag=flag,
            opaque=self._opaque,
            fields=dict(fields or {}),
            body=body,
            language="OTHER",
            version=version,
        )
        return commands.encode(command, codec)

    async def ask(
        self,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        version: int = 479,
        codec: int = CODEC_JSON,
    ) -> Command:
        self.send(self.request(code, fields, body, version=version, codec=codec))
        answer = await self.answer()
        assert answer.opaque == self._opaque
        return answer

    async def answer(self) -> Command:
        frame = await self.frame()
        assert frame is not None, "the server closed the connection instead of answering"
        return commands.decode(frame)

    async def frame(self) -> Frame | None:
        """The next frame; None when the server has closed the connection."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self._frames:
                try:
                    data = await self._reader.read(1 << 18)
                except ConnectionError:
                    return None
                if not data:
                    return None
                self._frames.extend(self._decoder.feed(data))
                assert self._decoder.failure is None
        return self._frames.popleft()

    async def raw(self, size: int) -> bytes:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._reader.read(size)

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                return await self._reader.read()
            except ConnectionError:
                return b""

    async def is_closed_by_the_server(self) -> bool:
        return await self.frame() is None

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):  # the server was quicker
            await self.writer.wait_closed()


@asynccontextmanager
async def raw_client(address: Address | None) -> AsyncIterator[RawClient]:
    assert address is not None, "the server is not started"
    client = RawClient(*await asyncio.open_connection(address.host, address.port))
    try:
        yield client
    finally:
        await client.close()


async def until(condition: object, *, what: str = "it") -> None:
    """Wait until `condition()` holds. For things that happen soon, but not in answer to anything."""
    assert callable(condition)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"{what} did not happen") from None
