"""Serving requests: at once and later, in any order, with every kind of failure, and never two answers for one."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

from orbitmq.errors import (
    BodyError,
    ConfigError,
    ConnectFailed,
    HeaderError,
    MessageError,
    OrbitError,
    RequestFailed,
    StoreFull,
)
from orbitmq.protocol import command as commands
from orbitmq.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, ResponseCode
from orbitmq.protocol.frame import MAX_FRAME_BYTES
from orbitmq.transport.limits import Limits
from tests.raw_client import raw_client, until
from tests.transport.serving import ECHO, SILENT, WAIT, Gate, echo, serving

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.protocol.command import Command
    from orbitmq.transport.connection import Connection

FAIL = 9


async def test_a_request_is_answered_with_its_opaque() -> None:
    async with serving({ECHO: echo}) as (_, address), raw_client(address) as client:
        answer = await client.ask(ECHO, body=b"hello")
        assert (answer.code, answer.flag, answer.body) == (0, FLAG_RESPONSE, b"hello")


async def test_a_binary_request_is_answered_in_json() -> None:
    async with serving({ECHO: echo}) as (_, address), raw_client(address) as client:
        client.send(client.request(ECHO, body=b"x", codec=1))
        frame = await client.frame()
        assert frame is not None
        assert frame.codec == 0


async def test_an_unknown_code_is_answered_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with serving({ECHO: echo}) as (_, address), raw_client(address) as client:
        answer = await client.ask(4711)
        assert (answer.code, answer.remark) == (3, " request type 4711 not supported")
        assert len(caplog.records) == 1
        assert (await client.ask(ECHO)).code == 0


async def test_a_one_way_request_is_served_and_not_answered() -> None:
    served: list[bytes] = []

    async def note(request: Command, connection: Connection) -> Command:
        served.append(request.body)
        return commands.ok()

    async with serving({ECHO: echo, FAIL: note}) as (_, address), raw_client(address) as client:
        client.send(client.request(FAIL, body=b"quiet", flag=FLAG_ONEWAY))
        client.send(client.request(4711, flag=FLAG_ONEWAY))
        assert (await client.ask(ECHO, body=b"loud")).body == b"loud"
        assert served == [b"quiet"]


async def test_an_answer_nobody_waits_for_is_dropped() -> None:
    async with serving({ECHO: echo}) as (_, address), raw_client(address) as client:
        client.send(client.request(0, flag=FLAG_RESPONSE))
        assert (await client.ask(ECHO)).code == 0


async def test_quick_and_waiting_requests_of_one_chunk_answer_each_in_their_time() -> None:
    gate = Gate()
    async with serving({ECHO: echo, WAIT: gate.handle}) as (_, address), raw_client(address) as client:
        chunk = [client.request(WAIT, body=b"w1"), client.request(ECHO, body=b"e1"),
                 client.request(WAIT, body=b"w2"), client.request(ECHO, body=b"e2")]  # fmt: skip
        client.send(b"".join(chunk))
        assert [(await client.answer()).body for _ in range(2)] == [b"e1", b"e2"]
        gate.let_through(1)
        assert (await client.answer()).body == b"w2"
        gate.let_through(0)
        assert (await client.answer()).body == b"w1"


async def test_requests_that_finish_at_once_cost_no_task() -> None:
    tasks: set[asyncio.Task[object] | None] = set()

    async def who(request: Command, connection: Connection) -> Command:
        tasks.add(asyncio.current_task())
        return commands.ok()

    async with serving({ECHO: who}) as (server, address), raw_client(address) as client:
        for _ in range(3):
            await client.ask(ECHO)
        assert tasks == {None}
        assert all(not connection.unfinished for connection in server.connections)


async def test_a_handler_may_answer_much_later_by_itself() -> None:
    kept: list[tuple[Command, Connection]] = []

    async def keep(request: Command, connection: Connection) -> None:
        kept.append((request, connection))

    async with serving({ECHO: echo, SILENT: keep}) as (_, address), raw_client(address) as client:
        client.send(client.request(SILENT, body=b"later"))
        assert (await client.ask(ECHO)).code == 0
        request, connection = kept[0]
        connection.answer(request, commands.ok(body=request.body))
        assert (await client.answer()).body == b"later"


FAILURES: list[tuple[Callable[[], Exception], int, str, int]] = [
    (lambda: RequestFailed(ResponseCode.TOPIC_NOT_EXIST, "no such topic", hint="create it"), 17, "no such topic (create it)", 0),
    (lambda: HeaderError("topic is missing"), ResponseCode.INVALID_PARAMETER, "topic is missing", 1),
    (lambda: BodyError("broken"), ResponseCode.INVALID_PARAMETER, "broken", 1),
    (lambda: MessageError("too long"), ResponseCode.INVALID_PARAMETER, "too long", 1),
    (lambda: ConfigError("cannot be"), ResponseCode.SYSTEM_ERROR, "cannot be", 0),
    (lambda: ConnectFailed("nobody there"), ResponseCode.SYSTEM_ERROR, "nobody there", 0),
    (lambda: StoreFull("no room", code=14), ResponseCode.SERVICE_NOT_AVAILABLE, "no room", 0),
    (lambda: OrbitError("other"), ResponseCode.SYSTEM_ERROR, "other", 0),
    (lambda: ValueError("a bug"), ResponseCode.SYSTEM_ERROR, "internal error: ValueError('a bug')", 1),
    (lambda: TimeoutError(), ResponseCode.SYSTEM_ERROR, "internal error: TimeoutError()", 1),
]  # fmt: skip


@pytest.mark.parametrize("waits_first", [False, True], ids=["at once", "after waiting"])
@pytest.mark.parametrize(("failure", "code", "remark", "lines"), FAILURES, ids=[remark for _, _, remark, _ in FAILURES])
async def test_every_kind_of_failure_is_answered_and_the_connection_goes_on(
    failure: Callable[[], Exception],
    code: int,
    remark: str,
    lines: int,
    waits_first: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(request: Command, connection: Connection) -> Command:
        if waits_first:
            await asyncio.sleep(0)
        raise failure()

    async with serving({ECHO: echo, FAIL: fail}) as (_, address), raw_client(address) as client:
        answer = await client.ask(FAIL)
        assert (answer.code, answer.remark) == (code, remark)
        client.send(client.request(FAIL, flag=FLAG_ONEWAY))  # nobody hears of this one
        assert (await client.ask(ECHO, body=b"on")).body == b"on"
    assert len(caplog.records) == 2 * lines


@pytest.mark.parametrize("waits_first", [False, True], ids=["at once", "after waiting"])
async def test_an_answer_larger_than_a_frame_becomes_an_error_not_a_silence(
    waits_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def boast(request: Command, connection: Connection) -> Command:
        if waits_first:
            await asyncio.sleep(0)
        return commands.ok(body=bytes(MAX_FRAME_BYTES))

    async with serving({ECHO: echo, FAIL: boast}) as (_, address), raw_client(address) as client:
        answer = await client.ask(FAIL)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "larger than" in (answer.remark or "")
        assert (await client.ask(ECHO)).code == 0
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


async def test_frames_before_a_malformed_one_are_answered_then_it_closes(caplog: pytest.LogCaptureFixture) -> None:
    async with serving({ECHO: echo}) as (_, address), raw_client(address) as client:
        client.send(client.request(ECHO, body=b"good") + b"\xff" * 20)
        assert (await client.answer()).body == b"good"
        assert await client.is_closed_by_the_server()
    assert len(caplog.records) == 1


async def test_frames_before_a_broken_header_are_answered_and_those_after_it_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    served: list[bytes] = []

    async def note(request: Command, connection: Connection) -> Command:
        served.append(request.body)
        return commands.ok(body=request.body)

    async with serving({ECHO: note}) as (_, address), raw_client(address) as client:
        broken = bytes.fromhex("0000000a 00000006") + b"{oops}"
        client.send(client.request(ECHO, body=b"1") + broken + client.request(ECHO, body=b"2"))
        assert (await client.answer()).body == b"1"
        assert await client.is_closed_by_the_server()
    assert served == [b"1"]
    assert len(caplog.records) == 1


async def test_too_many_waiting_requests_pause_reading_and_none_is_lost() -> None:
    gate = Gate()
    limits = Limits(max_unanswered=4)
    async with serving({WAIT: gate.handle}, limits=limits) as (_, address), raw_client(address) as client:
        client.send(b"".join(client.request(WAIT, body=b"%d" % i) for i in range(10)))
        await until(lambda: len(gate.came) == 4)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(gate.came) == 4
        gate.let_through()
        await until(lambda: len(gate.came) == 5)
        answered = [(await client.answer()).body]
        while len(answered) < 10:
            gate.open()
            answered.append((await client.answer()).body)
        assert sorted(answered) == sorted(b"%d" % i for i in range(10))
        assert gate.came == [b"%d" % i for i in range(10)]
