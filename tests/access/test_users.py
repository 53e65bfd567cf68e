"""The files with users and policies: what was edited into them by hand opens no door."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.access.users import Users
from orbitmq.errors import ConfigError
from orbitmq.protocol.bodies.access import Acl, Policy, PolicyEntry, User

if TYPE_CHECKING:
    from pathlib import Path

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
