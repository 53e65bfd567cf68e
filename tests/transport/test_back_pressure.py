"""Peers that do not read, do not speak, or do not stop: each costs a bounded amount, and is shown the door."""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from typing import TYPE_CHECKING

import pytest

from orbitmq.errors import ConnectionLost
from orbitmq.protocol import command as commands
from orbitmq.protocol.command import Command
from orbitmq.transport.address import Address
from orbitmq.transport.limits import Limits
from tests.raw_client import PATIENCE_SECONDS, raw_client, until
from tests.transport.serving import ECHO, WAIT, Gate, echo, pool_of, serving

if TYPE_CHECKING:
    from orbitmq.transport.connection import Connection

BIG = 16 << 10
LIMITS = Limits(write_pause_bytes=64 << 10, write_abort_bytes=4 << 20)


class BigAnswers:
    def __init__(self) -> None:
        self.served = 0
        self.most_unsent = 0

    async def handle(self, request: Command, connection: Connection) -> Command:
        self.served += 1
        self.most_unsent = max(self.most_unsent, connection._transport.get_write_buffer_size())
        return commands.ok(body=bytes(BIG))


async def settled(answers: BigAnswers) -> None:
    """Until nothing has been served for a while: the connection is paused."""
    before = -1
    while answers.served != before:
        before = answers.served
        await asyncio.sleep(0.03)


async def test_a_peer_that_does_not_read_is_served_a_bounded_amount_and_all_of_it_once_it_reads() -> None:
    answers, count = BigAnswers(), 3000
    async with serving({ECHO: answers.handle}, limits=LIMITS) as (_, address), raw_client(address) as client:
        client.send(b"".join(client.request(ECHO) for _ in range(count)))
        await until(lambda: answers.served > 0)
        await settled(answers)
        assert answers.served < count
        # What is unsent: up to the pause, plus what one flush may hold.
        assert answers.most_unsent <= LIMITS.write_pause_bytes + (256 << 10) + 2 * BIG
        for _ in range(count):
            assert len((await client.answer()).body) == BIG
        assert answers.served == count


def in_the_systems_buffer(connection: Connection) -> int:
    descriptor = connection._transport.get_extra_info("socket").fileno()
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)


async def test_what_a_peer_sends_that_does_not_read_is_not_taken_for_a_server_that_is_slow() -> None:
    answers = BigAnswers()
    async with serving({ECHO: answers.handle}, limits=LIMITS) as (server, address), raw_client(address) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(b"".join(client.request(ECHO) for _ in range(3000)))
        await until(lambda: any(connection.is_behind for connection in server.connections))
        (connection,) = server.connections
        client.send(client.request(ECHO, body=bytes(256 << 10)))
        await until(lambda: in_the_systems_buffer(connection) > 0)
        assert connection.unread_bytes() == 0


async def test_what_a_peer_sends_whose_requests_all_wait_is_not_taken_for_a_server_that_is_slow() -> None:
    gate, limits = Gate(), Limits(max_unanswered=1)
    async with serving({WAIT: gate.handle}, limits=limits) as (server, address), raw_client(address) as client:
        client.send(client.request(WAIT))
        await until(lambda: len(gate.came) == 1)
        (connection,) = server.connections
        client.send(client.request(WAIT, body=b"later"))
        await until(lambda: in_the_systems_buffer(connection) > 0)
        assert connection.unread_bytes() == 0
        gate.open()
        await client.answer()
        await until(lambda: len(gate.came) == 2)  # and then it is read
        gate.open()
        assert (await client.answer()).body == b"later"


async def test_a_peer_that_never_reads_is_closed_when_we_have_too_much_to_tell_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving({ECHO: echo}, limits=LIMITS) as (server, address), raw_client(address) as client:
        await client.ask(ECHO)
        (connection,) = server.connections
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        while not connection.closed:
            connection.notify(Command(ECHO, body=bytes(256 << 10)))
            await asyncio.sleep(0)
        await until(lambda: not server.connections)
    assert [record.getMessage() for record in caplog.records if "bytes unread" in record.getMessage()]
    assert len(caplog.records) == 1


async def test_what_is_told_in_one_turn_is_not_all_kept_for_a_peer_that_never_reads() -> None:
    async with serving({ECHO: echo}, limits=LIMITS) as (server, address), raw_client(address) as client:
        await client.ask(ECHO)
        (connection,) = server.connections
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        size, most_unsent = 32 << 10, 0
        for _ in range((256 << 20) // size):  # far more than the system keeps for a socket
            connection.notify(Command(ECHO, body=bytes(size)))
            if connection.closed:
                break
            most_unsent = max(most_unsent, connection._out.size + connection._transport.get_write_buffer_size())
        assert connection.closed
        assert most_unsent <= LIMITS.write_abort_bytes + LIMITS.write_pause_bytes + 2 * size
        connection.notify(Command(ECHO, body=bytes(size)))
        assert connection._out.size == 0
        await until(lambda: not server.connections)


async def test_a_peer_that_stops_reading_is_closed_after_the_idle_time_though_bytes_are_unsent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers = BigAnswers()
    limits = Limits(write_pause_bytes=64 << 10, idle_seconds=0.3)
    async with serving({ECHO: answers.handle}, limits=limits) as (server, address), raw_client(address) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(b"".join(client.request(ECHO) for _ in range(3000)))
        await until(lambda: answers.served > 0)
        await until(lambda: not server.connections, what="the end of the connection")
    assert len(caplog.records) == 1
    assert "bytes unread" in caplog.text


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux leaves a peer that takes nothing")


@on_linux
async def test_a_peer_that_takes_none_of_our_bytes_is_left_though_we_have_more_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one whose machine is gone: here its buffers are full."""
    monkeypatch.setattr("orbitmq.transport.network._UNACKNOWLEDGED_MS", 300)
    answers = BigAnswers()
    async with serving({ECHO: answers.handle}, limits=LIMITS) as (server, address), raw_client(address) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(b"".join(client.request(ECHO) for _ in range(3000)))
        await until(lambda: answers.served > 0)
        await until(lambda: not server.connections, what="the end of the connection")


@on_linux
async def test_who_is_asked_and_takes_none_of_our_bytes_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orbitmq.transport.network._UNACKNOWLEDGED_MS", 300)

    def take_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        accepted.append(writer)

    accepted: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(take_nothing, "127.0.0.1", 0)
    async with pool_of() as pool:
        connection = await pool.connection(Address(*server.sockets[0].getsockname()[:2]))
        with pytest.raises(ConnectionLost):
            await connection.call(Command(ECHO, body=bytes(15 << 20)), PATIENCE_SECONDS)
    for writer in accepted:
        writer.transport.abort()
    server.close()


async def test_a_peer_that_says_nothing_is_closed_quietly(caplog: pytest.LogCaptureFixture) -> None:
    limits = Limits(idle_seconds=0.05)
    async with serving({ECHO: echo}, limits=limits) as (server, address), raw_client(address) as client:
        assert await client.is_closed_by_the_server()
        await until(lambda: not server.connections)
    assert caplog.records == []


@pytest.mark.parametrize("sent", [1, 4, 7, 8, 12])
async def test_half_a_frame_and_silence_is_closed_with_one_line(sent: int, caplog: pytest.LogCaptureFixture) -> None:
    limits = Limits(idle_seconds=0.5)  # long enough to hear the half frame on a busy machine
    async with serving({ECHO: echo}, limits=limits) as (_, address), raw_client(address) as client:
        client.send(client.request(ECHO, body=b"never comes")[:sent])
        assert await client.is_closed_by_the_server()
    assert len(caplog.records) == 1
    assert "half a frame" in caplog.text


@pytest.mark.parametrize("body_bytes", [1 << 10, 1 << 20], ids=["small frame", "large frame"])
async def test_a_peer_that_sends_a_frame_byte_by_byte_is_closed(
    body_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Limits(idle_seconds=3600)
    async with serving({ECHO: echo}, limits=limits) as (server, address), raw_client(address) as client:
        frame = client.request(ECHO, body=bytes(body_bytes))
        client.send(frame[:500])
        await until(lambda: any(each._decoder.is_waiting for each in server.connections))
        (connection,) = server.connections
        connection._close_if_idle()  # as its timer does, long afterwards
        client.send(frame[500:501])
        await until(lambda: connection._decoder.unfinished != connection._unfinished)
        connection._close_if_idle()
        assert await client.is_closed_by_the_server()
    assert "hardly goes on" in caplog.text


async def test_half_a_frame_at_every_look_is_no_trickle_if_it_is_another_or_grows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = Limits(idle_seconds=100)
    async with serving({ECHO: echo}, limits=limits) as (server, address), raw_client(address) as client:
        frame, large = client.request(ECHO, body=b"x" * 100), client.request(ECHO, body=bytes(1 << 20))
        client.send(frame[:50])
        await until(lambda: any(each._decoder.is_waiting for each in server.connections))
        (connection,) = server.connections
        connection._close_if_idle()
        for step, least in (
            (frame[50:] + frame[:60], 60),
            (frame[60:] + large[:1000], 500),
            (large[1000:900_000], 800_000),
        ):
            client.send(step)
            await until(lambda least=least: (connection._decoder.unfinished or (None, 0))[1] >= least)
            connection._close_if_idle()
        client.send(large[900_000:])
        for _ in range(3):
            assert (await client.answer()).code == 0
    assert caplog.records == []


async def test_traffic_in_either_direction_keeps_a_connection_alive() -> None:
    limits = Limits(idle_seconds=3600)
    async with serving({ECHO: echo}, limits=limits) as (server, address), raw_client(address) as client:
        await client.ask(ECHO)
        (connection,) = server.connections
        connection.last_activity -= 7200
        connection.notify(Command(ECHO))
        await client.answer()
        connection._close_if_idle()
        assert not connection._transport.is_closing()
        connection._written_at -= 7200
        await client.ask(ECHO)
        connection._close_if_idle()
        assert not connection._transport.is_closing()


async def test_a_refused_peer_that_does_not_read_its_last_answers_is_closed_all_the_same() -> None:
    answers = BigAnswers()
    limits = Limits(write_pause_bytes=1 << 20, idle_seconds=0.3)
    async with serving({ECHO: answers.handle}, limits=limits) as (server, address), raw_client(address) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(b"".join(client.request(ECHO) for _ in range(2000)) + b"\xff" * 16)
        await until(lambda: answers.served > 0)
        await until(lambda: not server.connections, what="the end of the connection")


async def test_waiting_requests_of_a_lost_connection_finish_into_the_void(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    async with serving({WAIT: gate.handle}) as (server, address):
        async with raw_client(address) as client:
            client.send(client.request(WAIT) * 3)
            await until(lambda: len(gate.came) == 3)
        await until(lambda: not server.connections)
        gate.open()
        await asyncio.sleep(0)
    assert caplog.records == []
