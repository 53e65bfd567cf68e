"""Damaged and odd requests: with express handlers and without, a broker says the same about them."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.broker.routes import build_routes
from orbitmq.protocol import command as commands
from orbitmq.protocol.command import Command
from orbitmq.protocol.frame import CODEC_BINARY, CODEC_JSON, FrameDecoder
from orbitmq.transport.server import Server
from tests.broker.kit import PULL, SEND, SEND_V2, long_send_header, pull_header, running, send_header
from tests.line import connected
from tests.mutations import mutated

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.protocol.headers.base import Header

pytestmark = pytest.mark.usefixtures("loops")

MUTATIONS = 600
DIFFERENT_EACH_TIME = ("msgId", "queueOffset", "transactionId", "nextBeginOffset", "maxOffset")
PROPERTIES = {"UNIQ_KEY": "7F00000100012A139A55", "WAIT": "true", "TAGS": "TagA", "KEYS": "k"}
REQUESTS: dict[str, tuple[int, Header, int]] = {
    "send, JSON": (SEND_V2, send_header("T", 1, PROPERTIES), CODEC_JSON),
    "send, binary": (SEND_V2, send_header("T", 1, PROPERTIES), CODEC_BINARY),
    "send, long names": (SEND, long_send_header("T", 1, PROPERTIES), CODEC_JSON),
    "pull, JSON": (PULL, pull_header("T", 1, 0, {"expression_type": "TAG"}), CODEC_JSON),
    "pull, binary": (PULL, pull_header("T", 1, 0, {"expression_type": "TAG"}), CODEC_BINARY),
}


def said(server: Server, frame: bytes) -> Any:
    """What a fresh connection answers, without what differs each time; and whether it was closed."""
    connection, line = connected(server)
    connection.data_received(frame)
    answers = []
    for found in FrameDecoder().feed(bytes(line.written)):
        answer = commands.decode(found)
        fields = {key: text for key, text in answer.fields.items() if key not in DIFFERENT_EACH_TIME}
        answers.append((answer.code, answer.opaque, answer.flag, answer.remark, fields, bool(answer.body)))
    connection.connection_lost(None)
    return answers, line.closed


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_damaged_request_is_answered_the_same_both_ways(tmp_path: Path, name: str) -> None:
    logging.disable()  # a line for each of them would be many
    try:
        code, header, codec = REQUESTS[name]
        chance = random.Random(name)
        async with running(tmp_path / "store", mappedFileSizeCommitLog=4 << 20) as broker:
            ordinary, express = Server(build_routes(broker.state)), broker._servers[0]
            await ordinary.start("127.0.0.1", 0)
            known = Command(SEND_V2, fields=send_header("T", 1, PROPERTIES).to_fields(), body=b"body")
            said(ordinary, commands.encode(known))
            frame = commands.encode(Command(code, opaque=7, fields=header.to_fields(), body=b"body"), codec)
            assert said(ordinary, frame) == said(express, frame)
            broker.state.store.dispatch()
            usual = 0
            for _ in range(MUTATIONS):
                odd = mutated(frame, chance)
                first, second = said(ordinary, odd), said(express, odd)
                assert first == second, odd
                usual += first[0][:1] != [] and first[0][0][0] == 0
                await asyncio.sleep(0)
            await ordinary.stop()
            assert usual > MUTATIONS // 100  # enough of them are still what an express handler takes
    finally:
        logging.disable(logging.NOTSET)
