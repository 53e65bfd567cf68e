"""Pages for scrapers and probes: whatever is asked, and however, is answered or cut off."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from orbitmq.transport import http
from orbitmq.transport.http import HttpServer, Page

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orbitmq.transport.address import Address


async def hello() -> Page:
    await asyncio.sleep(0)
    return Page("hello é\n")


async def broken() -> Page:
    raise ValueError("no page today")


@asynccontextmanager
async def serving() -> AsyncIterator[Address]:
    server = HttpServer({"/hello": hello, "/broken": broken})
    address = await server.start("127.0.0.1", 0)
    try:
        yield address
    finally:
        await server.stop()


async def exchange(address: Address, *pieces: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    answer = await reader.read()
    writer.close()
    return answer


async def test_a_page_is_served_however_its_request_is_cut() -> None:
    request = b"GET /hello?x=1 HTTP/1.1\r\nHost: here\r\n\r\n"
    async with serving() as address:
        whole = await exchange(address, request)
        assert whole == (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 9\r\n"
            b"Connection: close\r\n\r\nhello \xc3\xa9\n"
        )
        assert await exchange(address, *[request[i : i + 1] for i in range(len(request))]) == whole


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /nope HTTP/1.1", 404),
        (b"POST /hello HTTP/1.1", 405),
        (b"GET", 404),
        (b"\xff\xfe", 405),
        (b"GET /broken HTTP/1.1", 500),
    ],
)
async def test_other_requests_get_a_status(request_line: bytes, status: int) -> None:
    async with serving() as address:
        answer = await exchange(address, request_line + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 %d " % status)


async def test_a_request_without_end_is_cut_off() -> None:
    async with serving() as address:
        assert (await exchange(address, b"GET /hello HTTP/1.1\r\n" + b"x" * 20_000)).startswith(b"HTTP/1.1 431 ")


async def test_a_silent_client_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_PATIENCE_SECONDS", 0.05)
    async with serving() as address:
        reader, writer = await asyncio.open_connection(*address)
        with suppress(ConnectionResetError):
            assert await reader.read() == b"", "an answer to nothing"
        writer.close()


async def test_stopping_cuts_off_who_is_still_there() -> None:
    server = HttpServer({"/hello": hello})
    address = await server.start("127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*address)
    writer.write(b"GET /hel")
    await writer.drain()
    await server.stop()
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)
