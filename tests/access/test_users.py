"""The files with users and policies: what was edited into them by hand opens no door."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, cast

import pytest

from orbitmq.access.handlers import access_routes
from orbitmq.access.users import Users
from orbitmq.errors import ConfigError, RequestFailed
from orbitmq.protocol.bodies.access import ENABLED, NORMAL, SUPER, Acl, Policy, PolicyEntry, User
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import Command

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.transport.connection import Connection

MEMBER = {"username": "member", "password": "secret", "userType": "Normal", "userStatus": "enable"}
ENTRY = {"resource": "Topic:Orders", "actions": ["Pub"], "decision": "Deny"}


def policies(**changes: Any) -> list[dict[str, Any]]:
    return [{"subject": "User:member", "policies": [{"policyType": "Custom", "entries": [ENTRY | changes]}]}]


def test_what_was_saved_is_read_again(tmp_path: Path) -> None:
    users = Users(tmp_path)
    entry = PolicyEntry(resource="Topic:Orders", actions=["Pub"], decision="Allow")
    users.create(User(username="member", password="secret"))
    users.create_acl(Acl(subject="User:member", policies=[Policy(entries=[entry])]))
    again = Users(tmp_path)
    assert again.all() == users.all()
    assert again.acls() == users.acls()


@pytest.mark.parametrize(
    ("users", "why"),
    [
        ([{key: text for key, text in MEMBER.items() if key != "password"}], "password can not be blank"),
        ([MEMBER | {"password": ""}], "password can not be blank"),
        ([MEMBER | {"userStatus": "disabled"}], "enable or disable"),
        ([MEMBER | {"userType": "super"}], "Super or Normal"),
        ([MEMBER | {"username": " "}], "username can not be blank"),
        ([MEMBER, MEMBER | {"password": "another"}], "twice"),
    ],
)
def test_a_user_who_could_come_in_by_mistake_is_refused_at_the_start(
    tmp_path: Path, users: list[dict[str, str]], why: str
) -> None:
    (tmp_path / "users.json").write_text(json.dumps(users))
    with pytest.raises(ConfigError, match=why):
        Users(tmp_path)


@pytest.mark.parametrize("changes", [{"decision": "Denied"}, {"actions": ["Publish"]}, {"resource": "Orders"}])
def test_a_policy_that_cannot_be_asked_is_refused_at_the_start(tmp_path: Path, changes: dict[str, Any]) -> None:
    (tmp_path / "users.json").write_text(json.dumps([MEMBER]))
    (tmp_path / "acls.json").write_text(json.dumps(policies()))
    assert len(Users(tmp_path).acls()) == 1
    (tmp_path / "acls.json").write_text(json.dumps(policies(**changes)))
    with pytest.raises(ConfigError, match=r"acls\.json"):
        Users(tmp_path)


@pytest.mark.parametrize("code", [RequestCode.AUTH_UPDATE_USER, RequestCode.AUTH_DELETE_USER])
async def test_a_super_user_made_while_a_change_waits_is_not_touched_by_it(tmp_path: Path, code: RequestCode) -> None:
    users = Users(tmp_path)
    users.create(User(username="operator", password="secret"))
    users.create(User(username="boss", password="an older one's"))
    request = Command(code, fields={"username": "boss", "AccessKey": "operator"}, body=b'{"password":"stolen"}')
    with users._changing:  # the change waits for another one
        waiting = asyncio.ensure_future(access_routes(users, enabled=True)[code](request, cast("Connection", None)))
        await asyncio.sleep(0.1)
        users._put(User(username="boss", password="right", user_type=SUPER, user_status=ENABLED))
    with pytest.raises(RequestFailed, match="only a super user"):
        await waiting
    boss = users.get("boss")
    assert boss is not None
    assert boss.password == "right"


@pytest.mark.parametrize("code", [RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_UPDATE_USER])
async def test_who_is_no_super_user_any_more_makes_none(tmp_path: Path, code: RequestCode) -> None:
    users = Users(tmp_path)
    users.create(User(username="fallen", password="secret", user_type=SUPER))
    if code == RequestCode.AUTH_UPDATE_USER:
        users.create(User(username="friend", password="secret"))
    body = b'{"password":"secret","userType":"Super"}'
    request = Command(code, fields={"username": "friend", "AccessKey": "fallen"}, body=body)
    with users._changing:
        waiting = asyncio.ensure_future(access_routes(users, enabled=True)[code](request, cast("Connection", None)))
        await asyncio.sleep(0.1)
        users._put(User(username="fallen", password="secret", user_type=NORMAL, user_status=ENABLED))
    with pytest.raises(RequestFailed, match="only a super user"):
        await waiting
    assert not any(user.is_super for user in users.all())
