"""The compiled loops of sends: whole stories, cut into reads anyhow, leave the very bytes that the loops in Python leave."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from orbitmq.accelerated import SWITCH, compiled
from orbitmq.clock import ManualClock
from orbitmq.protocol import command as commands
from orbitmq.protocol.command import Command
from orbitmq.protocol.frame import CODEC_BINARY, CODEC_JSON, FrameDecoder
from tests.broker.kit import SEND_V2, running, send_header, wire
from tests.line import connected

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

REQUESTS = 400
TOPICS = ("Orders", "Payments", "T" * 127)


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv(SWITCH, "1")
    if compiled("sends") is None:
        pytest.skip("orbitmq-accelerator is not installed: `make setup` builds it where there is a C compiler")
    return monkeypatch


def some_send(number: int, chance: random.Random) -> bytes:
    """Most are usual. The others break a run: of another kind, with other letters, refused."""
    properties = {"UNIQ_KEY": f"7F0000010001{number:020X}", "TAGS": chance.choice("ab"), "WAIT": "true"}
    odd = chance.random()
    if odd < 0.05:
        properties["цвет"] = "красный"
    elif odd < 0.08:
        properties["DELAY"] = "3"
    elif odd < 0.2:
        properties["KEYS"] = f"k{number} other"
    queue_id = 99 if 0.2 < odd < 0.23 else chance.randrange(4)
    changes = {
        "flag": chance.randrange(3),
        "sys_flag": chance.choice((0, 0, 8)),
        "reconsume_times": chance.randrange(2),
    }
    header = send_header(chance.choice(TOPICS), queue_id, properties, changes)
    body = chance.randbytes(chance.choice((1, 7, 8, 100, 1024, 3000)))
    code = 9999 if 0.23 < odd < 0.25 else SEND_V2
    codec = chance.choice((CODEC_JSON, CODEC_BINARY))
    return commands.encode(Command(code, opaque=number, fields=header.to_fields(), body=body), codec)


def cut(data: bytes, chance: random.Random) -> list[bytes]:
    """As reads come: many frames, one, or a part of one."""
    reads = []
    while data:
        size = chance.choice((3, 100, 1500, 20_000, 60_000))
        reads.append(data[:size])
        data = data[size:]
    return reads


async def story(directory: Path, seed: int) -> tuple[list[tuple[int, int, Mapping[str, str]]], dict[str, bytes]]:
    """The answers, and every file with messages or indexes in it."""
    chance = random.Random(seed)
    reads = cut(b"".join(some_send(number, chance) for number in range(REQUESTS)), chance)
    async with running(directory, clock=ManualClock(), mappedFileSizeCommitLog=128 << 10, maxIndexNum=300) as broker:
        broker.state.store.settle_at(bytes(8))  # each has a port of its own
        broker.state.receipts.settle_at(bytes(8))
        connection, line = connected(broker._servers[0])
        for read in reads:
            connection.data_received(read)
        answers = [commands.decode(frame) for frame in FrameDecoder().feed(bytes(line.written))]
        connection.connection_lost(None)
    files = {
        str(file.relative_to(directory)): file.read_bytes()
        for folder in ("commitlog", "consumequeue", "index")
        for file in sorted((directory / folder).rglob("*"))
        if file.is_file()
    }
    return [(answer.opaque, answer.code, answer.fields) for answer in answers], files


@pytest.mark.parametrize("seed", range(4))
async def test_a_story_leaves_the_same_bytes_both_ways(
    tmp_path: Path, seed: int, accelerator: pytest.MonkeyPatch
) -> None:
    compiled_story = await story(tmp_path / "compiled", seed)
    accelerator.setenv(SWITCH, "0")
    assert compiled_story == await story(tmp_path / "python", seed)
    answers, files = compiled_story
    assert len(answers) == REQUESTS
    assert len([name for name in files if name.startswith("commitlog")]) > 2


async def test_a_run_ends_before_what_is_unusual(tmp_path: Path, accelerator: pytest.MonkeyPatch) -> None:
    async with running(tmp_path / "store") as broker, wire(broker) as client:
        await client.send("T", b"the topic is there")
        swift = broker._servers[0]._swift
        assert swift is not None
        usual = send_header("T", 1, {"UNIQ_KEY": "A1"})
        delayed = send_header("T", 1, {"UNIQ_KEY": "A2", "DELAY": "1"})
        frames = [
            commands.encode(Command(SEND_V2, opaque=number, fields=header.to_fields(), body=b"body"))
            for number, header in enumerate((usual, usual, delayed, usual))
        ]
        connection, _ = connected(broker._servers[0])
        taken, answers = swift(connection, b"".join(frames))

        assert taken == len(frames[0]) + len(frames[1])
        assert [commands.decode(frame).opaque for frame in FrameDecoder().feed(answers)] == [0, 1]
        assert swift(connection, frames[3][:-1]) == (0, b"")  # half a frame
        connection.connection_lost(None)
