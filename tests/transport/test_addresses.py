"""Addresses as texts, finding name servers over HTTP, and choosing the event loop."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from orbitmq.errors import ConfigError, ConnectFailed
from orbitmq.transport.address import Address, parse_address, parse_addresses
from orbitmq.transport.lookup import fetch_name_servers
from orbitmq.transport.loop import run
from tests.raw_client import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9876", Address("127.0.0.1", 9876)),
        (" broker.local:10911 ", Address("broker.local", 10911)),
        ("[::1]:9876", Address("::1", 9876)),
        ("::1:9876", Address("::1", 9876)),
        ("h:0", Address("h", 0)),
        ("h:65535", Address("h", 65535)),
    ],
)
def test_reads_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize("text", ["", ":", "host", "host:", ":9876", "host:port", "host:65536", "host:-1", "host:１"])
def test_refuses_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        parse_address(text)


def test_reads_lists() -> None:
    assert parse_addresses("a:1;b:2;") == [Address("a", 1), Address("b", 2)]
    assert parse_addresses("") == []


@asynccontextmanager
async def page(answer: bytes) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/rocketmq/nsaddr"
    finally:
        server.close()


async def test_name_servers_are_looked_up() -> None:
    async with page(b"HTTP/1.0 200 OK\r\n\r\n 10.0.0.1:9876;10.0.0.2:9876\nmore\n") as url:
        assert await fetch_name_servers(url, PATIENCE_SECONDS) == [Address("10.0.0.1", 9876), Address("10.0.0.2", 9876)]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nwhat is this\n",
        b"HTTP/1.0 404 Not Found\r\n\r\n",
        b"this is not HTTP\r\n\r\n",
        b"",
    ],
)
async def test_a_look_up_without_a_usable_answer_is_an_ordinary_failure(answer: bytes) -> None:
    async with page(answer) as url:
        with pytest.raises(ConnectFailed):
            await fetch_name_servers(url, PATIENCE_SECONDS)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://127.0.0.1:1/", "http://127.0.0.1:1/with space"])
async def test_a_look_up_at_a_place_that_is_none_is_an_ordinary_failure(url: str) -> None:
    with pytest.raises(ConnectFailed):
        await fetch_name_servers(url, PATIENCE_SECONDS)


async def _name_of_loop() -> str:
    return type(asyncio.get_running_loop()).__module__


def test_runs_on_uvloop_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(_name_of_loop()).startswith("uvloop")
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert run(_name_of_loop()).startswith("asyncio")
