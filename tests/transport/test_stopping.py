"""Stopping a server: what it accepted is answered, nothing new begins, nobody can hold it up."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from orbitmq.errors import ConfigError
from orbitmq.protocol import command as commands
from orbitmq.transport.address import Address
from orbitmq.transport.limits import Limits
from orbitmq.transport.server import Server
from tests.raw_client import raw_client, until
from tests.transport.serving import ECHO, WAIT, Gate, echo, serving

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.protocol.command import Command
    from orbitmq.transport.connection import Connection


async def test_what_was_accepted_is_answered_before_the_end() -> None:
    gate = Gate()
    async with serving({WAIT: gate.handle}) as (server, address), raw_client(address) as client:
        client.send(b"".join(client.request(WAIT, body=b"%d" % i) for i in range(3)))
        await until(lambda: len(gate.came) == 3)
        stopping = asyncio.ensure_future(server.stop())
        await asyncio.sleep(0)
        client.send(client.request(WAIT, body=b"too late"))
        with pytest.raises(OSError):
            await asyncio.open_connection(address.host, address.port)
        gate.open()
        assert sorted([(await client.answer()).body for _ in range(3)]) == [b"0", b"1", b"2"]
        assert await client.is_closed_by_the_server()
        await stopping
        assert gate.came == [b"0", b"1", b"2"]


async def test_a_request_that_takes_too_long_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    async with serving({WAIT: gate.handle}) as (server, address), raw_client(address) as client:
        client.send(client.request(WAIT))
        await until(lambda: gate.came)
        await server.stop(grace_seconds=0.01)
        assert await client.is_closed_by_the_server()
    assert [record.getMessage() for record in caplog.records] == ["gave up on 1 requests that were still waiting"]


async def test_stopping_while_reading_is_paused_begins_nothing_new() -> None:
    gate = Gate()
    limits = Limits(max_unanswered=1)
    async with serving({WAIT: gate.handle}, limits=limits) as (server, address), raw_client(address) as client:
        client.send(b"".join(client.request(WAIT, body=b"%d" % i) for i in range(5)))
        await until(lambda: gate.came)
        stopping = asyncio.ensure_future(server.stop())
        await asyncio.sleep(0)
        gate.open()
        assert (await client.answer()).body == b"0"
        assert await client.is_closed_by_the_server()
        await stopping
        assert gate.came == [b"0"]


async def test_a_peer_that_does_not_read_cannot_hold_up_the_end() -> None:
    async def big(request: Command, connection: Connection) -> Command:
        return commands.ok(body=bytes(8 << 20))

    async with serving({ECHO: big}) as (server, address), raw_client(address) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(client.request(ECHO))
        await until(lambda: any(c._transport.get_write_buffer_size() for c in server.connections))
        await server.stop(grace_seconds=0.05)
        assert not server.connections


async def test_idle_connections_are_closed_and_the_owner_hears_of_each() -> None:
    gone: list[Connection] = []
    async with (
        serving({ECHO: echo}, on_close=gone.append) as (server, address),
        raw_client(address) as one,
        raw_client(address) as other,
    ):
        await one.ask(ECHO)
        await other.ask(ECHO)
        await server.stop()
        assert len(gone) == 2
        assert await one.is_closed_by_the_server()


class LateNetwork:
    """Accepts one connection after the listening has stopped, as a system does that had it in its queue."""

    def __init__(self) -> None:
        self.accept: Callable[[], asyncio.Protocol] | None = None

    async def listen(
        self, accept: Callable[[], asyncio.Protocol], host: str | None, port: int, backlog: int
    ) -> LateNetwork:
        self.accept = accept
        return self

    def addresses(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", 1)]

    def close(self) -> None:
        pass

    async def connect(self, protocol: Callable[[], asyncio.Protocol], address: Address) -> None:
        raise AssertionError("nobody connects here")


async def test_a_connection_that_comes_after_the_end_is_closed_at_once() -> None:
    network = LateNetwork()
    server = Server({ECHO: echo}, network=network)
    await server.start("127.0.0.1", 0)
    await server.stop()
    assert network.accept is not None
    listener = await asyncio.get_running_loop().create_server(network.accept, "127.0.0.1", 0)
    async with raw_client(Address(*listener.sockets[0].getsockname()[:2])) as client:
        assert await client.is_closed_by_the_server()
    await until(lambda: not server.connections)
    listener.close()


async def test_stopping_twice_or_before_the_start_is_harmless() -> None:
    server = Server({})
    await server.stop()
    await server.start("127.0.0.1", 0)
    await server.stop()
    await server.stop()


async def test_a_port_in_use_is_reported_with_the_way_out() -> None:
    async with serving({}) as (_, address):
        with pytest.raises(ConfigError, match="in use by another process") as caught:
            await Server({}).start(address.host, address.port)
        assert "0 takes a free one" in caught.value.hint


async def test_a_host_that_is_not_ours_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:1"):
        await Server({}).start("192.0.2.1", 1)


async def test_many_connections_come_and_go_and_leave_nothing() -> None:
    async with serving({ECHO: echo}) as (server, address):
        for _ in range(5):
            async with contextlib.AsyncExitStack() as stack:
                clients = [await stack.enter_async_context(raw_client(address)) for _ in range(40)]
                for client in clients:
                    assert (await client.ask(ECHO)).code == 0
                assert len(server.connections) == 40
            await until(lambda: not server.connections)
