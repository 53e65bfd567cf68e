"""Replies go to who asked, whoever says to be the same client."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pytest

from orbitmq.protocol.bodies.access import User
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import Command, ok
from orbitmq.protocol.signing import Credentials, sign
from orbitmq.transport.pool import Pool
from tests.access.test_around_the_gate import guarded_broker
from tests.access.test_matrix import MEMBER, NOBODY, ROOT
from tests.broker.kit import PATIENCE_SECONDS, send_header

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbitmq.transport.address import Address
    from orbitmq.transport.connection import Connection

ASKER: Final = "10.0.0.5@4711#1"


class Peer:
    """One connection that may be given replies."""

    def __init__(self, who: Credentials, address: Address) -> None:
        self.got: list[bytes] = []
        self._who = who
        self._address = address
        self._pool = Pool({RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._take})

    async def _take(self, request: Command, _connection: Connection) -> Command:
        self.got.append(request.body)
        return ok()

    async def ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        request = Command(code, fields=fields, body=body)
        sign(request, self._who)
        return await self._pool.call(self._address, request, PATIENCE_SECONDS)

    async def beat(self, client_id: str, group: str) -> None:
        beat = {"clientID": client_id, "producerDataSet": [{"groupName": group}]}
        assert (await self.ask(RequestCode.HEART_BEAT, {}, json.dumps(beat).encode())).code == 0

    async def reply(self, body: bytes) -> str:
        """What was wrong with it."""
        properties = {"CORRELATION_ID": "c1", "REPLY_TO_CLIENT": ASKER, "MSG_TYPE": "reply"}
        header = send_header("DefaultCluster_REPLY_TOPIC", properties=properties)
        return (await self.ask(RequestCode.SEND_REPLY_MESSAGE_V2, header.to_fields(), body)).remark or ""

    async def close(self) -> None:
        await self._pool.close()


Peers = dict[str, Peer]


@pytest.fixture
async def peers(tmp_path: Path) -> AsyncIterator[Peers]:
    """The thief was there before all others."""
    async with guarded_broker(tmp_path) as guarded:
        guarded.broker.state.users.create(User(username=NOBODY.access_key, password=NOBODY.secret_key))
        assert guarded.broker.address is not None
        members = {"thief": NOBODY, "asker": MEMBER, "asker again": MEMBER, "responder": ROOT}
        peers = {name: Peer(who, guarded.broker.address) for name, who in members.items()}
        await peers["thief"].beat("thief", "whatever")
        try:
            yield peers
        finally:
            for peer in peers.values():
                await peer.close()


async def test_who_says_to_be_another_client_gets_none_of_its_replies(peers: Peers) -> None:
    await peers["asker"].beat(ASKER, "askers")
    for group in ("whatever", "askers"):
        await peers["thief"].beat(ASKER, group)
    assert await peers["responder"].reply(b"secret") == ""
    assert (peers["asker"].got, peers["thief"].got) == ([b"secret"], [])


async def test_nor_does_it_when_the_client_comes_back(peers: Peers) -> None:
    await peers["asker"].beat(ASKER, "askers")
    await peers["thief"].beat(ASKER, "whatever")
    await peers["asker"].ask(RequestCode.UNREGISTER_CLIENT, {"clientID": ASKER, "producerGroup": "askers"})
    assert "not found" in await peers["responder"].reply(b"for nobody")
    await peers["asker"].beat(ASKER, "askers")
    assert await peers["responder"].reply(b"secret") == ""
    assert (peers["asker"].got, peers["thief"].got) == ([b"secret"], [])


async def test_a_reply_goes_to_the_newest_connection_of_who_asked(peers: Peers) -> None:
    await peers["asker"].beat(ASKER, "askers")
    await peers["asker again"].beat(ASKER, "askers")
    await peers["asker"].beat(ASKER, "askers")
    assert await peers["responder"].reply(b"secret") == ""
    assert (peers["asker"].got, peers["asker again"].got) == ([], [b"secret"])
