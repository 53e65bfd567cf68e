"""`orbitmq acl` and mqadmin's verbs about users, on a server that asks everybody who they are."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

import pytest

from orbitmq.admin.access import AccessCheck, AccessExport, PolicyRow, UserRow
from orbitmq.testing import Server
from tests.cli.kit import Command
from tests.cli.mqadmin_schemas import check_verb

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = ("rooted", "root-secret")
ALICE: Final = ("alice", "alice-secret")
GUARDED: Final = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": ROOT[0], "password": ROOT[1]}),
}
ACCESS_VERBS: Final = {
    f"{what}{kind}" for what in ("create", "update", "delete", "get", "list", "copy") for kind in ("User", "Acl")
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    with Server(settings=GUARDED) as running:
        yield running


def test_a_user_may_do_what_was_granted_and_nothing_else(guarded: Server) -> None:
    root, alice = Command(guarded.address, ROOT), Command(guarded.address, ALICE)
    for topic in ("Hers", "Theirs"):
        root.ok("topic", "create", topic)
    root.ok("acl", "user", "create", ALICE[0], typed=f"{ALICE[1]}\n{ALICE[1]}\n")
    rows = {row.user: row for row in root.ok("acl", "user", "ls", "-o", "json").rows(UserRow)}
    assert (rows["alice"].type, rows["rooted"].type, rows["alice"].status) == ("Normal", "Super", "enable")
    assert rows["alice"].servers == [guarded.broker_address]

    assert alice.failure("msg", "send", "Hers", "no").code == 5
    root.ok(
        "acl", "grant", "alice", "Topic:Hers", "Group:*", "--action", "Pub", "--action", "Sub", "--from", "127.0.0.1"
    )
    alice.ok("msg", "send", "Hers", "yes")
    assert alice.failure("msg", "send", "Theirs", "no").code == 5
    policies = root.ok("acl", "ls", "alice", "-o", "json").rows(PolicyRow)
    assert [(row.resource, row.actions, row.sources, row.decision) for row in policies] == [
        ("Group:*", ["Pub", "Sub"], ["127.0.0.1"], "Allow"),
        ("Topic:Hers", ["Pub", "Sub"], ["127.0.0.1"], "Allow"),
    ]

    root.ok("acl", "grant", "alice", "Topic:Hers", "--action", "Pub", "--deny")
    assert alice.failure("msg", "send", "Hers", "no").code == 5
    declined = root("acl", "revoke", "alice", typed="n\n")
    assert declined.code == 6
    assert re.search(r"User:alice +Custom +Group:\* +Pub, Sub +127.0.0.1 +Allow", declined.err)
    nothing = root.failure("acl", "revoke", "alice", "--resource", "Topic:Nope", "--yes")
    assert (nothing.code, "User:alice has no policy about Topic:Nope" in nothing.err) == (4, True)
    root.ok("acl", "revoke", "alice", "--resource", "Topic:Hers", "--yes")
    assert [row.resource for row in root.ok("acl", "ls", "alice", "-o", "json").rows(PolicyRow)] == ["Group:*"]

    root.ok("acl", "user", "update", "alice", "--disable")
    rows = {row.user: row for row in root.ok("acl", "user", "ls", "-o", "json").rows(UserRow)}
    assert rows["alice"].status == "disable"
    assert root.failure("acl", "user", "update", "alice").code == 2
    assert root.failure("acl", "user", "rm", "nobody", "--yes").code == 4
    planned = root.ok("acl", "user", "rm", "alice", "--dry-run").out
    assert planned == f"user alice: Normal, disable, at {guarded.broker_address}, with 1 policies\n"
    root.ok("acl", "user", "rm", "alice", "--yes")
    assert [row["user"] for row in root.ok("acl", "user", "ls", "-o", "json").json] == ["rooted"]


def test_strangers_are_told_so(guarded: Server) -> None:
    stranger = Command(guarded.address)
    outcome = stranger.failure("topic", "create", "Mine")
    assert outcome.code == 5
    assert "credentials" in outcome.err
    wrong = Command(guarded.address, (ROOT[0], "guessed"))
    assert wrong.failure("topic", "ls").code == 5
    seen = stranger("doctor")
    assert seen.code == 1
    assert "it refuses to answer" in seen.out
    assert "->" in seen.out


def test_mqadmins_verbs_about_users(guarded: Server) -> None:
    root = Command(guarded.address, ROOT)
    broker = guarded.broker_address
    bob = ("-s", "User:bob", "-r", "Topic:Bobs,Group:Bobs", "-a", "Pub,Sub", "-d")
    tims = ("-s", "User:tim", "-r", "Topic:Tims", "-a", "Pub", "-d")
    story = (
        (
            ("createUser", "-b", broker, "-u", "bob", "-p", "bob-secret", "-t", "Normal"),
            f"create user to {broker} success.",
        ),
        (("updateUser", "-c", "DefaultCluster", "-u", "bob", "-s", "disable"), f"update user to {broker} success."),
        (("getUser", "-b", broker, "-u", "bob"), "bob               null                    Normal"),
        (("listUser", "-c", "DefaultCluster"), f"get user from {broker} success."),
        (("copyUser", "-f", broker, "-t", broker, "-u", "bob"), f"copy user of bob from {broker} to {broker} success."),
        (("createAcl", "-b", broker, *bob, "Allow", "-i", "10.0.0.0/8"), f"create acl to {broker} success."),
        (("getAcl", "-b", broker, "-s", "User:bob"), "User:bob          Custom      Topic:Bobs"),
        (("updateAcl", "-b", broker, *bob, "Deny"), f"update acl to {broker} success."),
        (("listAcl", "-c", "DefaultCluster"), "Deny"),
        (("copyAcl", "-f", broker, "-t", broker), f"copy acl of User:bob from {broker} to {broker} success."),
        (("deleteAcl", "-b", broker, "-s", "User:bob"), f"delete acl to {broker} success."),
        (("deleteUser", "-b", broker, "-u", "bob"), f"delete user to {broker} success."),
    )
    for command, want in story:
        assert want in root.ok("mqadmin", *command).out, command
        if not command[0].startswith(("create", "delete")):
            check_verb(command[0], root.ok("mqadmin", *command, "--output", "json").json)
    for verb, *more in (("createUser", "-u", "tim", "-p", "tim-secret"), ("createAcl", *tims, "Allow"),
                        ("deleteAcl", "-s", "User:tim"), ("deleteUser", "-u", "tim")):  # fmt: skip
        check_verb(verb, root.ok("mqadmin", verb, "-b", broker, *more, "--output", "json").json)
    assert {command[0] for command, _ in story} == ACCESS_VERBS
    assert [user["userName"] for user in root.ok("mqadmin", "listUser", "-b", broker, "-o", "json").json["users"]] == [
        "rooted"
    ]


def test_a_decision_is_explained_before_anyone_asks_for_it(guarded: Server) -> None:
    root = Command(guarded.address, ROOT)
    root.ok("acl", "user", "create", "bob", "--password", "bob-secret")
    root.ok("acl", "policy", "grant", "bob", "Topic:Bobs*", "--action", "Pub", "--from", "10.0.0.0/8")
    root.ok("acl", "policy", "grant", "bob", "Topic:BobsNot", "--action", "All", "--deny")

    def verdict(*question: str) -> tuple[int, bool, str]:
        outcome = root("acl", "check", *question, "-o", "json")
        (row,) = outcome.rows(AccessCheck)
        return outcome.code, row.allowed, row.why

    here = ("--from", "10.1.2.3")
    assert verdict("bob", "Pub", "Topic:BobsOwn", *here) == (0, True, "Allow Pub on Topic:Bobs* (Custom)")
    assert verdict("bob", "Pub", "Topic:BobsOwn") == (5, False, "no policy mentions it")
    assert verdict("bob", "Pub", "topic:BobsNot", *here) == (5, False, "Deny All on Topic:BobsNot (Custom)")
    assert verdict("bob", "Sub", "Topic:BobsOwn", *here) == (5, False, "no policy mentions it")
    assert verdict(ROOT[0], "Delete", "Cluster:x") == (0, True, "a super user may do everything")
    assert verdict("nobody", "Pub", "Topic:x") == (5, False, "there is no such user")
    assert "is no resource" in root.failure("acl", "check", "bob", "Pub", "orders").err

    exported = root.ok("acl", "export", "-o", "json").document(AccessExport)
    assert ("bob", "Normal") in [(user.user, user.type) for user in exported.users]
    assert {policy.resource for policy in exported.policies if policy.subject == "User:bob"} == {
        "Topic:Bobs*",
        "Topic:BobsNot",
    }
    assert "secret" not in root.ok("acl", "export", "-o", "yaml").out
    root.ok("acl", "user", "update", "bob", "--disable")
    assert verdict("bob", "Pub", "Topic:BobsOwn", *here) == (5, False, "the user is disabled")
    root.ok("acl", "user", "rm", "bob", "--yes")
