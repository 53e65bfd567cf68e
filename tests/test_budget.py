"""What a request may cost, in calls: the budget stands in docs/performance.md, and time is no part of it.

A connection is fed from this process, without sockets, while the interpreter's profiler counts every call of a Python or C
function. The count is the same on every machine and at every load.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.protocol import command as commands
from orbitmq.protocol.bodies.registration import Registration
from orbitmq.protocol.command import Command
from orbitmq.protocol.frame import CODEC_BINARY, CODEC_JSON, FrameDecoder
from orbitmq.protocol.headers.pull import PULL_SUBSCRIPTION, PULL_SUSPEND
from tests.broker.kit import PULL, SEND, SEND_V2, long_send_header, pull_header, send_header
from tests.broker.kit import running as running_broker
from tests.line import Line, connected
from tests.nameserver.running import registration_fields, topic_table
from tests.nameserver.running import running as running_name_server
from tests.profiling import counted_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orbitmq.broker.broker import Broker
    from orbitmq.protocol.headers.base import Header

PERFORMANCE = Path(__file__).parents[1] / "docs" / "performance.md"
REQUESTS = 128
TOGETHER = 32  # in one read, as from a client with that many in flight
QUEUES = 4
# No file is full in the middle of the count.
ROOMY: dict[str, Any] = {
    "mappedFileSizeCommitLog": 8 << 20,
    "mappedFileSizeConsumeQueue": 20 * 10_000,
    "maxHashSlotNum": 10_000,
    "maxIndexNum": 40_000,
}


def budget(request: str) -> float:
    """The calls that the table in docs/performance.md allows this request."""
    found = re.search(rf"^\| {re.escape(request)} \| ([0-9.]+) \|", PERFORMANCE.read_text(), re.M)
    assert found is not None, f"docs/performance.md has no budget for {request!r}"
    return float(found[1])


def calls_for(chunks: list[bytes], feed: Callable[[bytes], None], afterwards: Callable[[], None]) -> float:
    """Calls for each request, with what the broker does for them a moment later."""
    with pytest.MonkeyPatch.context() as patch:
        loop = asyncio.get_running_loop()
        patch.setattr(loop, "time", partial(float, loop.time()))  # a slow machine would note slow requests
        with counted_calls() as calls:
            for chunk in chunks:
                feed(chunk)
            afterwards()
    return calls.count / REQUESTS


def index_all(broker: Broker) -> None:
    """What makes messages findable: by queue at once, by key a moment later and from another thread."""
    broker.state.store.dispatch()
    broker.state.store._indexer.enter_waiting_keys()


def frames(code: int, headers: Sequence[Header], body: bytes = b"", codec: int = CODEC_JSON) -> list[bytes]:
    return [
        commands.encode(Command(code, opaque=number + 1, fields=header.to_fields(), body=body), codec)
        for number, header in enumerate(headers)
    ]


def chunks_of(single: list[bytes], together: int) -> list[bytes]:
    return [b"".join(single[at : at + together]) for at in range(0, len(single), together)]


def assert_answered(line: Line) -> None:
    answers = [commands.decode(frame) for frame in FrameDecoder().feed(bytes(line.written))]
    assert len(answers) == REQUESTS
    assert {answer.code for answer in answers} == {0}


def properties(number: int) -> dict[str, str]:
    return {"UNIQ_KEY": f"7F0000010001{number:020X}", "WAIT": "true", "TAGS": "TagA"}


SENDS: dict[str, tuple[int, Callable[..., Header], int, int]] = {
    "send, many in a read": (SEND_V2, send_header, CODEC_JSON, TOGETHER),
    "send, one in a read": (SEND_V2, send_header, CODEC_JSON, 1),
    "send with long names, many in a read": (SEND, long_send_header, CODEC_JSON, TOGETHER),
    "send with a binary header, many in a read": (SEND_V2, send_header, CODEC_BINARY, TOGETHER),
}


@pytest.mark.parametrize("request_name", SENDS)
async def test_a_send_stays_within_its_budget(tmp_path: Path, request_name: str) -> None:
    code, header_of, codec, together = SENDS[request_name]
    async with running_broker(tmp_path / "store", **ROOMY) as broker:
        headers = [header_of("T", number % QUEUES, properties(number)) for number in range(REQUESTS)]
        chunks = chunks_of(frames(code, headers, bytes(1024), codec), together)
        connection, line = connected(broker._servers[0])
        for chunk in chunks:  # topic, queues and caches are there afterwards
            connection.data_received(chunk)
        index_all(broker)
        line.written.clear()

        spent = calls_for(chunks, connection.data_received, partial(index_all, broker))

        assert_answered(line)
        connection.connection_lost(None)
    assert spent <= budget(request_name)


async def test_a_pull_of_32_messages_stays_within_its_budget(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "store", **ROOMY) as broker:
        connection, line = connected(broker._servers[0])
        sends = frames(SEND_V2, [send_header("T", n % QUEUES, properties(n)) for n in range(32 * QUEUES)], bytes(1024))
        for chunk in chunks_of(sends, TOGETHER):
            connection.data_received(chunk)
        broker.state.store.dispatch()
        pulls = [pull_header("T", n % QUEUES, 0, {"expression_type": "TAG"}) for n in range(REQUESTS)]
        chunks = frames(PULL, pulls)
        connection.data_received(chunks[0])
        line.written.clear()

        spent = calls_for(chunks, connection.data_received, lambda: None)

        assert_answered(line)
        connection.connection_lost(None)
    assert spent <= budget("pull of 32 messages")


async def test_a_pull_that_waits_stays_within_its_budget(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "store", **ROOMY) as broker:
        connection, line = connected(broker._servers[0])
        connection.data_received(frames(SEND_V2, [send_header("T", 0, properties(0))], bytes(1024))[0])
        broker.state.store.dispatch()
        waiting = {
            "expression_type": "TAG",
            "sys_flag": PULL_SUBSCRIPTION | PULL_SUSPEND,
            "suspend_timeout_millis": 60_000,
        }
        chunks = frames(PULL, [pull_header("T", 0, 1, waiting)] * REQUESTS)
        connection.data_received(chunks[0])
        line.written.clear()

        spent = calls_for(chunks, connection.data_received, lambda: None)

        assert (len(broker.state.pulling.held), bytes(line.written)) == (1 + REQUESTS, b"")
        connection.connection_lost(None)
    assert spent <= budget("pull that waits")


@pytest.mark.parametrize(
    ("request_name", "together"), [("route query, one in a read", 1), ("route query, many in a read", TOGETHER)]
)
async def test_a_route_query_stays_within_its_budget(tmp_path: Path, request_name: str, together: int) -> None:
    async with running_name_server(tmp_path) as server:
        connection, line = connected(server._server)
        body = Registration(topic_config_serialize_wrapper=topic_table("T", "U")).to_json()
        fields = registration_fields()
        connection.data_received(commands.encode(Command(103, fields=fields, body=body)))
        single = [
            commands.encode(Command(105, opaque=number + 1, fields={"topic": "T"}, language="JAVA"))
            for number in range(REQUESTS)
        ]
        connection.data_received(single[0])
        line.written.clear()

        spent = calls_for(chunks_of(single, together), connection.data_received, lambda: None)

        assert_answered(line)
        connection.connection_lost(None)
    assert spent <= budget(request_name)
