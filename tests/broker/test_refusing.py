"""Sends are refused when too many wait to be read: quickly, with the reason, a share of them, and no longer than needed."""

from __future__ import annotations

import random
import socket
from typing import TYPE_CHECKING

import pytest

from orbitmq.accelerated import SWITCH, compiled
from orbitmq.broker.refusing import LIMIT, RefusedSends, Refusing
from orbitmq.protocol.codes import ResponseCode
from orbitmq.protocol.command import Command, decode, encode
from orbitmq.protocol.frame import CODEC_BINARY, CODEC_JSON, FrameDecoder
from orbitmq.transport.congestion import LARGE_READ_BYTES, Congestion
from orbitmq.transport.connection import Connection
from orbitmq.transport.load_limits import Refusals
from orbitmq.transport.request_times import RequestTimes
from orbitmq.transport.service import Service
from tests.broker.kit import PULL, SEND, SEND_BATCH, SEND_V2, configuration, running, send_header, wire

if TYPE_CHECKING:
    from pathlib import Path

UNREAD_BYTES = 1_000_000


class Crowd(Congestion):
    """One whose wait the test decides, in ms."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_ms = 0

    def look(self, now: float) -> float:
        return self.waits_ms / 1000


@pytest.fixture
def crowd() -> Crowd:
    return Crowd()


@pytest.fixture
def refusing(tmp_path: Path, crowd: Crowd) -> Refusing:
    settings = configuration(tmp_path, {"waitTimeMillsInSendQueue": 200})
    return Refusing(crowd, settings, RequestTimes(), Refusals())


def looked(refusing: Refusing, crowd: Crowd, waits_ms: int, looks: int) -> None:
    crowd.waits_ms = waits_ms
    for _ in range(looks):
        refusing.look(0.0)


def test_a_hiccup_is_no_reason_to_refuse(refusing: Refusing, crowd: Crowd) -> None:
    for _ in range(10):
        looked(refusing, crowd, 5000, 4)
        looked(refusing, crowd, 0, 1)
    assert crowd.refuse is None
    looked(refusing, crowd, 201, 5)
    assert crowd.refuse is refusing


def test_more_and_more_is_refused_while_sends_wait_and_less_and_less_afterwards(
    refusing: Refusing, crowd: Crowd
) -> None:
    looked(refusing, crowd, 5000, 100)
    assert 0 < refusing.share < 0.1  # some are taken whatever happens
    least = refusing.share
    looked(refusing, crowd, 150, 10)
    assert refusing.share == least  # not too long, and not short either: that is where it stays
    looked(refusing, crowd, 100, 1)
    assert refusing.share > least
    looked(refusing, crowd, 0, 30)
    assert refusing.share == 1.0
    assert crowd.refuse is None


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("codec", [CODEC_JSON, CODEC_BINARY])
def test_sends_that_want_an_answer_get_the_reason_and_everything_else_is_left(
    refusing: Refusing, crowd: Crowd, codec: int
) -> None:
    looked(refusing, crowd, 5000, 100)
    refusing.share = 0.0
    connection = Connection(Service())
    sends = b"".join(
        _request(code, opaque, codec) for opaque, code in ((7, SEND), (-3, SEND_V2), (2**31 - 1, SEND_BATCH))
    )
    rest = _request(PULL, 9, codec) + _request(SEND_V2, 10, codec)
    taken, answers = refusing(connection, sends + rest)
    assert taken == len(sends)
    told = [decode(frame) for frame in FrameDecoder().feed(answers)]
    assert [answer.opaque for answer in told] == [7, -3, 2**31 - 1]
    assert {answer.code for answer in told} == {ResponseCode.SYSTEM_BUSY}
    assert all("wait 5000 ms" in (answer.remark or "") and LIMIT in (answer.remark or "") for answer in told)
    assert refusing(connection, _request(SEND_V2, 1, codec, flag=2)) == (0, b"")  # nobody waits for an answer
    half = _request(SEND_V2, 1, codec)
    assert refusing(connection, half[:-1]) == (0, b"")


def test_the_compiled_loop_refuses_what_the_one_in_python_does(
    refusing: Refusing, crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "1")
    loops = compiled("refusals")
    if loops is None:
        pytest.skip("orbitmq-accelerator is not installed: `make setup` builds it where there is a C compiler")
    chance = random.Random(20261116)
    both = RefusedSends(), loops.RefusedSends()
    for each in both:
        refusing.sends = each
        refusing.say(5000, 200)
    codes, flags = (SEND, SEND_V2, SEND_V2, SEND_V2, SEND_BATCH, PULL), (0,) * 30 + (1, 2)
    for _ in range(2000):
        frames = [
            _request(chance.choice(codes), chance.randrange(-(2**31), 2**31) >> chance.choice((0, 16, 28)), codec, chance.choice(flags))
            for codec in chance.choices((CODEC_JSON, CODEC_BINARY), k=chance.randrange(6))
        ]  # fmt: skip
        data = bytearray(b"".join(frames))
        for _ in range(chance.choice((0, 0, 1, 3)) if data else 0):
            data[chance.randrange(len(data))] = chance.choice((0, 1, 2, 0x2C, 0x2D, 0x30, 0x39, chance.randrange(256)))
        read = bytes(data[: chance.choice((len(data), chance.randrange(len(data) + 1)))])
        expected = both[0](read)
        assert both[1](read) == expected
    assert both[0](b"".join(_request(SEND_V2, 1, CODEC_JSON) for _ in range(3000)))[2] == 3000


def test_a_wait_that_falls_is_no_reason_to_refuse_more(refusing: Refusing, crowd: Crowd) -> None:
    looked(refusing, crowd, 5000, 10)
    share = refusing.share
    for waits_ms in (4000, 3000, 2000, 1000, 500):
        looked(refusing, crowd, waits_ms, 1)
    assert refusing.share == share
    looked(refusing, crowd, 490, 1)  # too slowly
    assert refusing.share < share


def _request(code: int, opaque: int, codec: int, flag: int = 0) -> bytes:
    fields = {
        "a": "g",
        "b": "T",
        "i": 'K\x01"flag":0,"opaque":5,\x02',
    }  # no text of a message is taken for the header's
    return encode(Command(code, fields=fields, opaque=opaque, flag=flag, body=b"x" * 100), codec)


async def test_a_broker_in_which_sends_wait_says_so_and_takes_them_again_later(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, wire(broker) as client:
        assert (await client.send("T", b"before")).code == 0
        refusing = broker.state.refusing
        refusing.say(900, 200)
        refusing.share, broker.state.congestion.refuse = 0.0, refusing
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(refusing, "look", lambda now: None)  # or it would find that nobody waits
            refused = await client.ask(SEND_V2, send_header("T"), b"during")
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert "[TIMEOUT_CLEAN_QUEUE]" in (refused.remark or "")
        assert broker.state.refusals.by_key[LIMIT] == 1
        while (await client.send("T", b"after")).code != 0:
            pass
        assert [body for body in await client.bodies("T") if body != b"after"] == [b"before"]


class _Unread(Connection):
    def __init__(self, unread: int) -> None:
        super().__init__(Service())
        self.unread = unread

    def unread_bytes(self) -> int:
        return self.unread


def test_the_wait_is_what_lies_unread_by_the_pace_of_reading() -> None:
    congestion = Congestion()
    connection = _Unread(UNREAD_BYTES)
    congestion.look(10.0)
    congestion.crowded[connection] = None
    congestion.read_bytes = UNREAD_BYTES // 2
    assert congestion.look(10.1) == pytest.approx(0.2)
    congestion.read_bytes = UNREAD_BYTES
    assert congestion.look(10.2) == pytest.approx(
        0.1
    )  # it is looked at until nothing waits, also if it was not read from
    connection.unread = 0
    congestion.read_bytes = UNREAD_BYTES
    assert congestion.look(10.3) == 0.0
    assert not congestion.crowded


def test_a_process_that_stood_still_is_not_taken_for_one_that_reads_slowly() -> None:
    congestion = Congestion()
    congestion.crowded[_Unread(UNREAD_BYTES)] = None
    congestion.read_bytes = UNREAD_BYTES
    assert congestion.look(86_400.0) == 1.0  # the loop's time does not begin with the first look
    congestion.read_bytes = UNREAD_BYTES
    assert congestion.look(86_400.0 + 60) == 1.0


def test_unread_bytes_are_those_in_the_systems_buffer() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"x" * 1234)

        class Transport:
            def get_extra_info(self, name: str) -> socket.socket | None:
                return ours if name == "socket" else None

            def is_closing(self) -> bool:
                return is_closing

        is_closing = False
        connection = Connection(Service())
        connection._transport = Transport()  # type: ignore[assignment]
        assert connection.unread_bytes() == 1234
        is_closing = True
        assert connection.unread_bytes() == 0  # nobody will read it
        is_closing = False
    assert connection.unread_bytes() == 0  # closed meanwhile


async def test_a_large_read_makes_a_connection_one_to_look_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as broker, wire(broker) as client:
        seen: list[int] = []

        def noted(now: float) -> None:
            seen.append(len(broker.state.congestion.crowded))

        monkeypatch.setattr(broker.state.refusing, "look", noted)
        while not any(seen):
            assert (await client.send("T", b"x" * (4 * LARGE_READ_BYTES - 1000))).code == 0
