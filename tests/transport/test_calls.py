"""Our own requests to a peer: answers in any order, timeouts, and connections that end in the middle."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import pytest

from orbitmq.errors import CallTimeout, ConnectionLost, FrameError, TransportError
from orbitmq.protocol import command as commands
from orbitmq.protocol.command import Command
from orbitmq.protocol.frame import MAX_FRAME_BYTES
from orbitmq.transport.address import Address
from orbitmq.transport.limits import Limits
from tests.raw_client import PATIENCE_SECONDS, raw_client, until
from tests.transport.serving import ECHO, SILENT, WAIT, Gate, echo, pool_of, serving

if TYPE_CHECKING:
    from orbitmq.transport.connection import Connection


async def never(request: Command, connection: Connection) -> None:
    return None


async def test_a_call_gets_its_answer_whatever_the_code() -> None:
    async with serving({ECHO: echo}) as (_, address), pool_of() as pool:
        assert (await pool.call(address, Command(ECHO, body=b"x"), PATIENCE_SECONDS)).body == b"x"
        assert (await pool.call(address, Command(4711), PATIENCE_SECONDS)).code == 3


async def test_concurrent_calls_get_each_their_own_answer_in_any_order() -> None:
    gate = Gate()
    async with serving({WAIT: gate.handle, ECHO: echo}) as (_, address), pool_of() as pool:
        connection = await pool.connection(address)
        waiting = [connection.start_call(Command(WAIT, body=b"%d" % i), PATIENCE_SECONDS) for i in range(50)]
        await until(lambda: len(gate.came) == 50)
        assert (await pool.call(address, Command(ECHO, body=b"quick"), PATIENCE_SECONDS)).body == b"quick"
        for index in range(49, -1, -7):
            gate.let_through(index)
        gate.open()
        assert [(await call).body for call in waiting] == [b"%d" % i for i in range(50)]


async def test_a_call_without_an_answer_times_out_and_the_connection_goes_on() -> None:
    async with serving({SILENT: never, ECHO: echo}) as (_, address), pool_of() as pool:
        connection = await pool.connection(address)
        patient = connection.start_call(Command(SILENT), PATIENCE_SECONDS)
        with pytest.raises(CallTimeout, match="did not answer in time"):
            await connection.call(Command(SILENT), 0.01)
        assert not patient.done()
        assert (await connection.call(Command(ECHO, body=b"on"), PATIENCE_SECONDS)).body == b"on"


async def test_a_peer_that_says_nothing_until_a_call_times_out_is_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A firewall that forgot the connection, or a host without power: a new connection may work at once."""
    monkeypatch.setattr("orbitmq.transport.connection._SILENT_SECONDS", 0.02)
    async with serving({SILENT: never, ECHO: echo}) as (_, address), pool_of() as pool:
        connection = await pool.connection(address)
        patient = connection.start_call(Command(SILENT), PATIENCE_SECONDS)
        with pytest.raises(CallTimeout):
            await pool.call(address, Command(SILENT), 0.01)  # too short to say anything
        with pytest.raises(CallTimeout):
            await pool.call(address, Command(SILENT), 0.02)
        with pytest.raises(ConnectionLost):
            await patient
        assert connection.closed
        assert (await pool.call(address, Command(ECHO, body=b"on"), PATIENCE_SECONDS)).body == b"on"
    assert "it has said nothing" in caplog.text


async def test_a_peer_that_has_not_taken_all_of_what_was_asked_is_only_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a slow line: it cannot have answered yet, and may have taken some of the sends before."""
    monkeypatch.setattr("orbitmq.transport.connection._SILENT_SECONDS", 0.02)
    accepted: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: accepted.append(writer), "127.0.0.1", 0, limit=1024)
    address = Address(*server.sockets[0].getsockname()[:2])
    async with pool_of() as pool:
        connection = await pool.connection(address)
        large = connection.start_call(Command(ECHO, body=bytes(15 << 20)), PATIENCE_SECONDS)
        with pytest.raises(CallTimeout):
            await pool.call(address, Command(ECHO), 0.05)
        connection._leave_if_silent()
        assert not connection.closed
        assert not large.done()
    await until(lambda: bool(accepted))
    for writer in accepted:
        writer.transport.abort()
    server.close()
    with pytest.raises(TransportError):
        await large


async def test_a_peer_that_says_anything_is_only_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orbitmq.transport.connection._LAST_LOOK_SECONDS", 3600.0)
    now = asyncio.get_running_loop().time()
    doubted: list[bool] = []
    async with serving({ECHO: echo}) as (server, address), pool_of() as pool:
        connection = await pool.connection(address)
        await connection.call(Command(ECHO), PATIENCE_SECONDS)
        connection._was_late(now - 5)
        doubted.append(connection._is_doubted)
        connection.last_activity = now - 10
        connection._was_late(now - 5)
        doubted.append(connection._is_doubted)
        await connection.call(Command(ECHO), PATIENCE_SECONDS)  # heard before the last look
        connection._leave_if_silent()
        assert not connection.closed
        (accepted,) = server.connections
        accepted.last_activity = now - 10
        accepted._was_late(now - 5)  # who is served may take its time
        doubted.append(accepted._is_doubted)
    assert doubted == [False, True, False]


async def test_an_answer_after_its_timeout_is_dropped() -> None:
    gate = Gate()
    async with serving({WAIT: gate.handle, ECHO: echo}) as (_, address), pool_of() as pool:
        connection = await pool.connection(address)
        with pytest.raises(CallTimeout):
            await connection.call(Command(WAIT), 0.01)
        gate.open()
        for _ in range(3):
            assert (await connection.call(Command(ECHO, body=b"mine"), PATIENCE_SECONDS)).body == b"mine"


async def test_a_cancelled_call_leaves_the_others_alone() -> None:
    gate = Gate()
    async with serving({WAIT: gate.handle}) as (_, address), pool_of() as pool:
        connection = await pool.connection(address)
        cancelled = asyncio.ensure_future(connection.call(Command(WAIT, body=b"1"), PATIENCE_SECONDS))
        kept = asyncio.ensure_future(connection.call(Command(WAIT, body=b"2"), PATIENCE_SECONDS))
        await until(lambda: len(gate.came) == 2)
        cancelled.cancel()
        gate.open()
        assert (await kept).body == b"2"
        with pytest.raises(asyncio.CancelledError):
            await cancelled


async def test_a_connection_that_ends_fails_the_calls_on_it() -> None:
    gate = Gate()
    async with serving({WAIT: gate.handle}) as (server, address), pool_of() as pool:
        connection = await pool.connection(address)
        calls = [connection.start_call(Command(WAIT), PATIENCE_SECONDS) for _ in range(3)]
        await until(lambda: len(gate.came) == 3)
        for accepted in list(server.connections):
            accepted.abort()
        for call in calls:
            with pytest.raises(ConnectionLost, match="closed before it answered"):
                await call
        with pytest.raises(ConnectionLost, match="is closed"):
            connection.start_call(Command(WAIT), PATIENCE_SECONDS)
        connection.notify(Command(WAIT))  # dropped, quietly
        connection.answer(Command(WAIT), commands.ok())
        connection.close()
        connection.abort()
        gate.open()  # the server's handlers finish into the void


async def test_a_request_larger_than_a_frame_is_refused_and_leaves_nothing_behind() -> None:
    async with serving({ECHO: echo}) as (_, address), pool_of() as pool:
        connection = await pool.connection(address)
        with pytest.raises(FrameError):
            await connection.call(Command(ECHO, body=bytes(MAX_FRAME_BYTES)), 0.01)
        assert (await connection.call(Command(ECHO, body=b"on"), PATIENCE_SECONDS)).body == b"on"
        await asyncio.sleep(0.02)
        gc.collect()  # a call left behind would fail here, unseen by anyone


async def test_more_calls_than_allowed_are_refused() -> None:
    gate = Gate()
    async with serving({WAIT: gate.handle}) as (_, address), pool_of(limits=Limits(max_calls=2)) as pool:
        connection = await pool.connection(address)
        calls = [connection.start_call(Command(WAIT), PATIENCE_SECONDS) for _ in range(2)]
        with pytest.raises(TransportError, match=r"2 calls to .* are unanswered"):
            connection.start_call(Command(WAIT), PATIENCE_SECONDS)
        await until(lambda: len(gate.came) == 2)
        gate.open()
        await asyncio.gather(*calls)
        again = connection.start_call(Command(WAIT), PATIENCE_SECONDS)
        await until(lambda: len(gate.came) == 3)
        gate.open()
        await again


async def test_a_notice_is_one_way() -> None:
    heard: list[Command] = []

    async def hear(request: Command, connection: Connection) -> Command:
        heard.append(request)
        return commands.ok()

    async with serving({ECHO: hear}) as (_, address), pool_of() as pool:
        await pool.notify(address, Command(ECHO, body=b"news"))
        await until(lambda: heard)
        assert heard[0].is_oneway


async def test_the_other_side_may_ask_on_the_same_connection() -> None:
    accepted: list[Connection] = []

    async def remember(request: Command, connection: Connection) -> Command:
        accepted.append(connection)
        return commands.ok()

    async with serving({ECHO: remember}) as (_, address), pool_of(routes={ECHO: echo}) as pool:
        await pool.call(address, Command(ECHO), PATIENCE_SECONDS)
        answer = await accepted[0].call(Command(ECHO, body=b"back"), PATIENCE_SECONDS)
        assert answer.body == b"back"


async def test_frames_of_one_turn_leave_in_one_write() -> None:
    async with serving({ECHO: echo}) as (_, address), raw_client(address) as client:
        client.send(b"".join(client.request(ECHO, body=b"%03d" % i) for i in range(100)))
        first = await client.answer()
        size = len(commands.encode(first))
        # 100 small answers fit one packet of the loopback device, so they all came with the first.
        assert len(client._frames) * size > 50 * size
