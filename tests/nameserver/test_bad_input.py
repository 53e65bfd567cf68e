"""Strangers' bytes: each kind gets a coded answer or a closed connection, one line in the log, and disturbs nobody."""

from __future__ import annotations

import asyncio
import gc
import logging
import struct
import tracemalloc
import zlib
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from fuzz.decoders import corpus
from fuzz.mutation import mutated, pieces
from fuzz.servers import allowed_answers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orbitmq.protocol import command as commands
from orbitmq.protocol.bodies.registration import Registration, encode_compressed
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import Command
from orbitmq.protocol.frame import frame_bytes
from tests.nameserver.running import addresses, register, registration_fields, route, running, topic_table
from tests.raw_client import RawClient, raw_client, until

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

    from orbitmq.nameserver.server import NameServer


def request(code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> bytes:
    return commands.encode(Command(code, opaque=7, fields=fields, body=body))


def header(text: bytes) -> bytes:
    return frame_bytes(text, b"")


def without(field: str) -> dict[str, str]:
    return {key: value for key, value in registration_fields().items() if key != field}


REGISTER = RequestCode.REGISTER_BROKER
BINARY = commands.encode(Command(105, opaque=7, fields={"topic": "T"}), 1)
COMPRESSED = encode_compressed(Registration(topic_config_serialize_wrapper=topic_table("A", "B")))


class Case(NamedTuple):
    data: bytes
    code: int | None  # None: closed without an answer
    line: str  # what the one line in the log says


CASES = {
    # the envelope
    "oversized length": Case(struct.pack(">II", 17 << 20, 10), None, "the limit is 16,777,216"),
    "length of 2 GiB": Case(struct.pack(">iI", 0x7FFFFFFF, 10), None, "the limit"),
    "negative length": Case(struct.pack(">iI", -1, 10), None, "the limit"),
    "most negative length": Case(struct.pack(">iI", -(1 << 31), 10), None, "the limit"),
    "length of zero": Case(struct.pack(">II", 0, 0), None, "announces a header"),
    "length of three": Case(struct.pack(">II", 3, 0), None, "announces a header"),
    "header longer than the frame": Case(struct.pack(">II", 20, 17) + bytes(30), None, "announces a header of 17"),
    "longest header in a small frame": Case(struct.pack(">II", 20, 0xFFFFFF) + bytes(30), None, "announces a header"),
    "unknown codec": Case(struct.pack(">II", 20, 2 << 24 | 8) + bytes(30), None, "codec 2 is unknown"),
    "a lying length swallows the next frame": Case(
        struct.pack(">II", 4 + 21 + len(BINARY), 21) + b'{"code":1,"opaque":7}' + BINARY, 3, "refused request 1 from"
    ),
    "HTTP": Case(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", None, "does not speak RocketMQ"),
    "a TLS hello on a plain port": Case(b"\x16\x03\x01\x02\x00\x01\x00" + bytes(60), None, "no certificate is configured"),
    "a broken PROXY header": Case(b"PROXY TCP4 nowhere\r\n", None, "broken PROXY header"),
    "a PROXY header with odd digits": Case(b"PROXY TCP4 1.1.1.1 1.1.1.1 \xb2 1\r\n", None, "broken PROXY header"),
    # the header
    "no header at all": Case(header(b""), None, "JSON header is broken"),
    "broken JSON": Case(header(b'{"code":105,'), None, "JSON header is broken"),
    "JSON that is no object": Case(header(b"[1,2,3]"), None, "JSON header is broken"),
    "JSON without a code": Case(header(b'{"opaque":1}'), None, "JSON header is broken"),
    "JSON nested without end": Case(header(b'{"x":' + b"[" * 50_000), None, "JSON header is broken"),
    "JSON that is not UTF-8": Case(header(b'{"code":105,"remark":"\xff"}'), None, "JSON header is broken"),
    "an opaque of 5000 digits": Case(header(b'{"code":105,"opaque":' + b"9" * 5000 + b"}"), None, "JSON header"),
    "a binary header cut short": Case(frame_bytes(BINARY[8:20], b"", 1), None, "binary header"),
    "a binary header with a lying remark": Case(
        frame_bytes(BINARY[8:21] + struct.pack(">i", 1 << 30) + BINARY[25:], b"", 1), None, "binary header"
    ),
    "binary fields with a lying length": Case(
        BINARY[:-5] + struct.pack(">i", 1 << 30) + BINARY[-1:], 29, "binary header announces a text"
    ),
    # the request
    "unknown code": Case(request(4711), 3, "refused request 4711 from"),
    "a code of the broker": Case(request(RequestCode.SEND_MESSAGE), 3, "refused request SEND_MESSAGE from"),
    "a negative code": Case(request(-5), 3, "refused request -5 from"),
    "no fields": Case(request(105), 29, "topic"),
    "fields that are no map": Case(header(b'{"code":105,"opaque":7,"extFields":[1]}'), 29, "extFields"),
    "a missing field": Case(request(REGISTER, without("clusterName")), 29, "clusterName"),
    "a missing number": Case(request(REGISTER, without("brokerId")), 29, "brokerId"),
    "a number that is none": Case(request(REGISTER, registration_fields() | {"brokerId": "zero"}), 29, "brokerId"),
    "a number beyond all bounds": Case(
        request(REGISTER, registration_fields() | {"brokerId": "9" * 25}), 29, "brokerId"
    ),
    "a timeout that is no number": Case(
        request(REGISTER, registration_fields() | {"heartbeatTimeoutMillis": "soon"}), 29, "heartbeatTimeoutMillis"
    ),
    # the body
    "a body that is no JSON": Case(request(REGISTER, registration_fields(), b"\x00\x01"), 29, "JSON"),
    "a body that is not UTF-8": Case(request(REGISTER, registration_fields(), b'{"filterServerList":["\xff"]}'), 29, "UTF-8"),
    "a body of another shape": Case(request(REGISTER, registration_fields(), b'{"filterServerList":5}'), 29, "array"),
    "a body nested without end": Case(request(REGISTER, registration_fields(), b"[" * 50_000), 29, "nested"),
    "a body that refers to itself": Case(
        request(REGISTER, registration_fields(), b'{"topicConfigSerializeWrapper":{"$ref":"$"}}'), 29, "reference"
    ),
    "a topic with a number beyond all bounds": Case(
        request(
            REGISTER,
            registration_fields(),
            b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"t":{"topicName":"t","perm":99999999999}}}}',
        ),
        29,
        "perm",
    ),
    "a compressed body cut short": Case(request(REGISTER, registration_fields(), COMPRESSED[:-9]), 29, "compressed"),
    "a compressed body with a lying count": Case(
        request(REGISTER, registration_fields(), zlib.compress(struct.pack(">i2si", 2, b"{}", 1 << 30))), 29, "announces"
    ),
    "a compressed list that is not UTF-8": Case(
        request(
            REGISTER, registration_fields(), zlib.compress(struct.pack(">i2sii5s", 2, b"{}", 0, 5, b'["\xff"]')[:-1] + b"]")
        ),
        29,
        "filter server list",
    ),
    "a version that is none": Case(
        request(RequestCode.QUERY_DATA_VERSION, registration_fields(), b"new"), 29, "broken JSON"
    ),
    "a route that is none": Case(request(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "t"}, b"[]"), 29, "TopicRoute"),
    "settings with a broken escape": Case(request(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"a=\\u1"), 29, "escape"),
    "settings that are not UTF-8": Case(request(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"a=\xff"), 29, "UTF-8"),
    "settings of the wrong type": Case(
        request(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"waitSecondsForService=x"), 29, "waitSecondsForService"
    ),
    "settings that may not be": Case(request(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"kvConfigPath=x"), 16, "kvConfigPath"),
    "a port that may be taken": Case(request(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"listenPort=22"), 16, "listenPort"),
}  # fmt: skip


async def try_case(client: RawClient, case: Case) -> None:
    client.send(case.data)
    if case.code is None:
        assert await client.is_closed_by_the_server()
    else:
        answer = await client.answer()
        assert answer.code == case.code
        assert answer.remark
        # The connection is of use as before.
        assert (await client.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).code == 0


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_bad_input_is_answered_or_closed_logged_once_and_disturbs_nobody(
    case: Case, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path_factory.mktemp("server")) as server, raw_client(server.address) as neighbour:
        await register(neighbour)
        caplog.clear()
        async with raw_client(server.address) as client:
            await try_case(client, case)
        assert addresses(await route(neighbour, "TopicA")) != {}
        assert [record.levelno for record in caplog.records] == [logging.WARNING], caplog.text
        assert case.line in caplog.text
        assert caplog.records[0].exc_info is None


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_bad_input_is_treated_the_same_when_it_comes_byte_by_byte(
    case: Case, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    if len(case.data) > 1000:
        parts = [case.data[at : at + 997] for at in range(0, len(case.data), 997)]
    else:
        parts = [case.data[at : at + 1] for at in range(len(case.data))]
    async with running(tmp_path_factory.mktemp("server")) as server, raw_client(server.address) as client:
        await client.send_in_pieces(parts)
        if case.code is None:
            assert await client.is_closed_by_the_server()
        else:
            assert (await client.answer()).code == case.code
    assert [record.levelno for record in caplog.records] == [logging.WARNING], caplog.text


async def test_half_frames_and_silence_are_closed_with_a_line_each(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path_factory.mktemp("server")
    async with running(folder, serverChannelMaxIdleTimeSeconds=1) as server:
        whole = request(105, {"topic": "TopicA"})

        async def stall(size: int) -> None:
            async with raw_client(server.address) as client:
                client.send(whole[:size])
                assert await client.is_closed_by_the_server()

        sizes = [1, 3, 4, 7, 8, 20, len(whole) - 1]
        await asyncio.gather(*(stall(size) for size in sizes))
    assert len(caplog.records) == len(sizes)
    assert all("half a frame" in record.getMessage() for record in caplog.records)


async def test_memory_stays_flat_however_often_bad_input_comes(tmp_path_factory: pytest.TempPathFactory) -> None:
    logging.getLogger("orbitmq").setLevel(logging.CRITICAL)  # kept log lines would count as growth
    try:
        async with running(tmp_path_factory.mktemp("server")) as server:

            async def round_of_all() -> None:
                for case in CASES.values():
                    async with raw_client(server.address) as client:
                        await try_case(client, case)
                await until(lambda: not server._server.connections)

            for _ in range(2):
                await round_of_all()
            gc.collect()
            tracemalloc.start()
            try:
                before, _ = tracemalloc.get_traced_memory()
                for _ in range(3):
                    await round_of_all()
                gc.collect()
                after, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert after - before < 100_000  # of three times fifty connections, frames and failures: caches, no more
            assert not server._server.connections
    finally:
        logging.getLogger("orbitmq").setLevel(logging.NOTSET)


async def test_a_bomb_is_refused_and_the_neighbours_are_served(tmp_path: Path) -> None:
    bomb = zlib.compress(bytes(64 << 20), level=9)
    settings: dict[str, Any] = {"orbitmq.maxDecompressedBytes": 1 << 20}
    async with running(tmp_path, **settings) as server, raw_client(server.address) as client:
        tracemalloc.start()
        try:
            answer = await client.ask(REGISTER, registration_fields(), bomb)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert answer.code == 29
        assert "at most 1,048,576 (raise orbitmq.maxDecompressedBytes)" in (answer.remark or "")
        assert peak < 8 << 20
        assert (await register(client)).code == 0


# ---- recorded frames, damaged at random, against one living server


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def server(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServer]:
    started = running(tmp_path_factory.mktemp("server"))
    yield runner.run(started.__aenter__())
    runner.run(started.__aexit__(None, None, None))


async def attack(server: NameServer, parts: list[bytes]) -> Counter[int]:
    """Send, say that no more comes, and gather what comes back."""
    answers: Counter[int] = Counter()
    async with raw_client(server.address) as client:
        await client.send_in_pieces(parts)
        client.finish_sending()
        while (frame := await client.frame()) is not None:
            answers[commands.decode(frame).opaque] += 1
    return answers


async def is_alive(server: NameServer) -> bool:
    async with raw_client(server.address) as client:
        await register(client)
        return addresses(await route(client, "TopicA")) != {}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chance=st.randoms(use_true_random=False))
def test_damaged_recordings_get_at_most_one_answer_each_and_the_server_lives(
    chance: random.Random, runner: asyncio.Runner, server: NameServer, caplog: pytest.LogCaptureFixture
) -> None:
    stream = mutated(corpus(), chance)
    caplog.clear()
    answers = runner.run(attack(server, pieces(stream, chance)))
    # A PROXY header or TLS hello would be read before the frames; then there is nothing to count.
    assert answers <= allowed_answers(stream)
    assert runner.run(is_alive(server))
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
