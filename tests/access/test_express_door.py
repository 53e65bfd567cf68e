"""Signed sends on the short way in: the same decisions as on the ordinary one, and none that outlives its reason."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import pytest

from orbitmq.broker.broker import Broker
from orbitmq.broker.routes import build_express
from orbitmq.protocol import command as commands
from orbitmq.protocol.bodies.access import Acl, Policy, PolicyEntry, User
from orbitmq.protocol.command import Command
from orbitmq.protocol.frame import CODEC_JSON, FrameDecoder
from orbitmq.protocol.signing import Credentials, SigningKey, sign, signature
from orbitmq.testing.clock import MovableClock
from tests.access.test_matrix import GUARDED, ROOT
from tests.broker.kit import SEND_V2, configuration, running, send_header
from tests.broker.two_ways import EXPRESS, ORDINARY, TwoWays, two_ways
from tests.line import connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

MEMBER: Final = Credentials("member", "member-secret")
BODY: Final = "тело".encode()
PROPERTIES: Final = {"UNIQ_KEY": "ключ", "WAIT": "true"}


@asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[Broker]:
    async with Broker(configuration(folder, GUARDED)) as broker:
        yield broker


def signed(who: Credentials, token: str = "") -> dict[str, str]:
    request = Command(SEND_V2, fields=send_header("T", 1, PROPERTIES).to_fields(), body=BODY)
    sign(request, Credentials(who.access_key, who.secret_key, token))
    return dict(request.fields)


def on_the_short_way(broker: Broker, fields: dict[str, str], body: bytes = BODY) -> bool:
    """Whether the express handler takes it; None of its is the ordinary one's to answer."""
    handler = build_express(broker.state)[SEND_V2, CODEC_JSON]
    connection, _ = connected(broker._servers[0])
    (frame,) = FrameDecoder().feed(commands.encode(Command(SEND_V2, fields=fields, body=body)))
    taken = handler(connection, frame.header, frame.body) is not None
    connection.connection_lost(None)
    return taken


async def both(two: TwoWays, fields: dict[str, str], body: bytes = BODY) -> set[tuple[int, str | None]]:
    answers = [commands.decode(await two.frame(way, SEND_V2, fields, body)) for way in (EXPRESS, ORDINARY)]
    return {(answer.code, answer.remark) for answer in answers}


def allow(broker: Broker, resource: str) -> None:
    entry = PolicyEntry(resource=resource, actions=["Pub"], decision="Allow")
    broker.state.users.create_acl(Acl(subject="User:member", policies=[Policy(entries=[entry])]))


async def test_signed_sends_take_the_short_way_and_forged_ones_are_refused_as_ever(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker, two_ways(broker) as two:
        broker.state.users.create(User(username="member", password="member-secret"))
        allow(broker, "Topic:T")
        assert await both(two, signed(ROOT)) == {(0, None)}  # and the topic is there
        for fields in (signed(MEMBER), signed(ROOT), signed(MEMBER, "a-token")):
            assert on_the_short_way(broker, fields)
            assert await both(two, fields) == {(0, None)}
        forged = {
            "another queue": {**signed(MEMBER), "e": "2"},
            "another topic": {**signed(MEMBER), "b": "U"},
            "another flag": {**signed(MEMBER), "f": "1"},
            "one field more": {**signed(MEMBER), "o": "1"},
            "a token more": {**signed(MEMBER), "SecurityToken": "t"},
            "no signature": {key: text for key, text in signed(MEMBER).items() if key != "Signature"},
            "an odd signature": {**signed(MEMBER), "Signature": "ü"},
            "another's name": {**signed(MEMBER), "AccessKey": "root"},
        }
        for name, fields in forged.items():
            assert not on_the_short_way(broker, fields), name
            (answer,) = await both(two, fields)
            assert answer[0] == 16, name
        assert not on_the_short_way(broker, signed(MEMBER), b"another body")


@pytest.mark.parametrize("change", ["disabled", "other password", "policy gone", "forbidden", "deleted"])
async def test_what_was_allowed_counts_no_longer_than_its_reason(tmp_path: Path, change: str) -> None:
    async with guarded(tmp_path) as broker, two_ways(broker) as two:
        users = broker.state.users
        users.create(User(username="member", password="member-secret"))
        allow(broker, "Topic:T")
        assert await both(two, signed(ROOT)) == {(0, None)}
        assert await both(two, signed(MEMBER)) == {(0, None)}
        if change == "disabled":
            users.update(User(username="member", user_status="disable"))
        elif change == "other password":
            users.update(User(username="member", password="changed-secret"))
        elif change == "policy gone":
            users.delete_acl("User:member", None, None)
        elif change == "forbidden":
            entry = PolicyEntry(resource="Topic:T", actions=["Pub"], decision="Deny")
            users.create_acl(Acl(subject="User:member", policies=[Policy(entries=[entry])]))
        else:
            users.delete("member")
        (answer,) = await both(two, signed(MEMBER))
        assert answer[0] == 16


async def test_access_files_of_4x_have_the_short_way_too(tmp_path: Path) -> None:
    who, clock = Credentials("longname", "longsecret"), MovableClock()
    file = tmp_path / "config" / "plain_acl.yml"
    file.parent.mkdir()
    account = "accounts:\n- accessKey: longname\n  secretKey: longsecret\n  topicPerms: [T=%s]\n"
    file.write_text(account % "PUB")
    async with running(tmp_path, clock=clock, aclEnable="true") as broker, two_ways(broker) as two:
        assert await both(two, signed(who)) == {(0, None)}
        assert on_the_short_way(broker, signed(who))
        assert not on_the_short_way(broker, {**signed(who), "e": "2"})
        file.write_text(account % "DENY")
        clock.advance(seconds=2)
        assert not on_the_short_way(broker, signed(who))
        (answer,) = await both(two, signed(who))
        assert answer[0] == 1
        assert "No permission for Topic:T" in str(answer[1])


@pytest.mark.parametrize("secret", ["s", "x" * 64, "longer than a block " * 5, "ключ"])
def test_a_prepared_key_signs_like_any_other(secret: str) -> None:
    fields = {"b": "2", "a": "1", "Signature": "not signed"}
    assert SigningKey(secret).signature(b"12body").decode() == signature(fields, b"body", secret)
