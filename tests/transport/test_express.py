"""Express handlers: they answer among the others, leave what they do not know, and owe what they cannot say yet."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from orbitmq.protocol import command as commands
from orbitmq.protocol.command import Command
from orbitmq.protocol.frame import CODEC_BINARY, CODEC_JSON, Frame
from orbitmq.transport.limits import Limits
from tests.raw_client import raw_client, until
from tests.transport.serving import echo, pool_of, serving

if TYPE_CHECKING:
    import pytest

    from orbitmq.transport.connection import Connection

QUICK = 310


def answer_to(header: bytes, body: bytes, codec: int = CODEC_JSON) -> bytes:
    request = commands.decode(Frame(codec, header, body))
    return commands.encode(Command(0, flag=1, opaque=request.opaque, body=body))


def quick(connection: Connection, header: bytes, body: bytes) -> bytes | None:
    return answer_to(header, b"quick " + body) if body != b"unusual" else None


async def test_what_an_express_handler_leaves_goes_the_ordinary_way_and_answers_keep_their_order() -> None:
    express = {(QUICK, CODEC_JSON): quick}
    async with serving({QUICK: echo}, express=express) as (_, address), raw_client(address) as client:
        bodies = [b"1", b"unusual", b"2", b"unusual", b"3"]
        client.send(b"".join(client.request(QUICK, body=body) for body in bodies))
        answers = [await client.answer() for _ in bodies]
    assert [answer.body for answer in answers] == [b"quick 1", b"unusual", b"quick 2", b"unusual", b"quick 3"]
    assert [answer.opaque for answer in answers] == [1, 2, 3, 4, 5]


async def test_a_code_that_only_begins_alike_and_the_other_codec_are_not_taken_for_it() -> None:
    def of_code(connection: Connection, header: bytes, body: bytes) -> bytes | None:
        return quick(connection, header, body) if commands.decode(Frame(0, header, body)).code == QUICK else None

    express = {(QUICK, CODEC_JSON): of_code}
    async with serving({QUICK: echo, 3100: echo}, express=express) as (_, address), raw_client(address) as client:
        assert (await client.ask(3100, body=b"x")).body == b"x"
        assert (await client.ask(QUICK, body=b"x", codec=CODEC_BINARY)).body == b"x"
        assert (await client.ask(QUICK, body=b"x")).body == b"quick x"


async def test_each_codec_has_a_handler_of_its_own() -> None:
    def binary(connection: Connection, header: bytes, body: bytes) -> bytes | None:
        return answer_to(header, b"binary " + body, CODEC_BINARY)

    express = {(QUICK, CODEC_JSON): quick, (QUICK, CODEC_BINARY): binary}
    async with serving({}, express=express) as (_, address), raw_client(address) as client:
        assert (await client.ask(QUICK, body=b"x", codec=CODEC_BINARY)).body == b"binary x"
        assert (await client.ask(QUICK, body=b"x")).body == b"quick x"


async def test_an_express_handler_that_fails_is_answered_like_any_other(caplog: pytest.LogCaptureFixture) -> None:
    def broken(connection: Connection, header: bytes, body: bytes) -> bytes | None:
        raise ZeroDivisionError("a bug")

    async with serving({}, express={(QUICK, CODEC_JSON): broken}) as (_, address), raw_client(address) as client:
        answer = await client.ask(QUICK)
    assert (answer.code, "a bug" in str(answer.remark)) == (1, True)
    assert len(caplog.records) == 1


class Debts:
    """An express handler that answers everything later, when told to."""

    def __init__(self) -> None:
        self.owed: list[tuple[Connection, bytes]] = []

    def __call__(self, connection: Connection, header: bytes, body: bytes) -> bytes | None:
        connection.owe()
        self.owed.append((connection, answer_to(header, body)))
        return b""

    def pay(self, count: int) -> None:
        for connection, frame in self.owed[:count]:
            connection.pay(frame)
        del self.owed[:count]


async def test_what_is_owed_counts_as_unanswered_and_stops_the_reading() -> None:
    debts = Debts()
    limits = Limits(max_unanswered=10)
    async with (
        serving({}, limits=limits, express={(QUICK, CODEC_JSON): debts}) as (_, address),
        raw_client(address) as client,
    ):
        client.send(b"".join(client.request(QUICK, body=b"%d" % i) for i in range(25)))
        await until(lambda: len(debts.owed) == 10)
        await asyncio.sleep(0.02)
        assert len(debts.owed) == 10
        debts.pay(1)
        await until(lambda: len(debts.owed) == 10, what="the eleventh request")
        for expected in (9, 10, 5):
            await until(lambda: debts.owed, what="more requests")
            debts.pay(expected)
        await until(lambda: len(debts.owed) == 0)
        assert [(await client.answer()).body for _ in range(25)] == [b"%d" % i for i in range(25)]


async def test_a_stopping_server_waits_for_what_is_owed() -> None:
    debts = Debts()
    async with pool_of() as pool:
        async with serving({}, express={(QUICK, CODEC_JSON): debts}) as (server, address):
            call = asyncio.ensure_future(pool.call(address, Command(QUICK, body=b"late"), 20))
            await until(lambda: debts.owed)
            stopping = asyncio.ensure_future(server.stop(grace_seconds=20))
            await asyncio.sleep(0.02)
            assert not stopping.done()
            debts.pay(1)
            await stopping
        assert (await call).body == b"late"


async def test_what_is_owed_to_a_client_that_left_is_dropped() -> None:
    debts = Debts()
    async with serving({}, express={(QUICK, CODEC_JSON): debts}) as (server, address):
        async with raw_client(address) as client:
            client.send(client.request(QUICK))
            await until(lambda: debts.owed)
        await until(lambda: not server.connections)
        debts.pay(1)
