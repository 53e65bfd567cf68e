"""One broker hangs: the others are changed all the same, and what was done is said."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from orbitmq.admin.access import UserRow
from orbitmq.testing import Cluster
from tests.cli.kit import Command

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = ("rooted", "root-secret")
GUARDED = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": ROOT[0], "password": ROOT[1]}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": ROOT[0], "secretKey": ROOT[1]}),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(masters=2, settings=GUARDED) as running:
        yield running


@pytest.fixture
def root(cluster: Cluster) -> Command:
    return Command(cluster.address, ROOT)


def test_a_user_is_shut_out_wherever_that_can_be_done(cluster: Cluster, root: Command) -> None:
    root.ok("acl", "user", "create", "mallory", "--password", "mallorys-secret")
    cluster["a"].pause()
    try:
        failed = root.failure("acl", "user", "update", "mallory", "--disable", "--timeout", "1")
        assert f"done at {cluster['b'].address}" in failed.err
    finally:
        cluster["a"].resume()
    rows = root.ok("acl", "user", "ls", "-s", cluster["b"].address, "-o", "json").rows(UserRow)
    assert {row.user: row.status for row in rows}["mallory"] == "disable"


def test_policies_and_users_are_taken_away_wherever_that_can_be_done(cluster: Cluster, root: Command) -> None:
    root.ok("acl", "user", "create", "trudy", "--password", "trudys-secret")
    root.ok("acl", "grant", "trudy", "Topic:orders", "--action", "Pub")
    elsewhere = ("-s", cluster["b"].address, "-o", "json")
    cluster["a"].pause()
    try:
        for taken_away in (("acl", "revoke", "trudy"), ("acl", "user", "rm", "trudy")):
            failed = root(*taken_away, "--yes", "--timeout", "2")  # `failure` wants one line: here is a preview, too
            assert failed.code == 3
            assert f"done at {cluster['b'].address}" in failed.err
            assert failed.err.count(f"what broker {cluster['a'].address} has is missing here") == 1
    finally:
        cluster["a"].resume()
    assert root.ok("acl", "ls", "trudy", *elsewhere).json == []
    assert "trudy" not in [row.user for row in root.ok("acl", "user", "ls", *elsewhere).rows(UserRow)]


def test_a_verb_says_what_it_did_before_it_failed(cluster: Cluster, root: Command) -> None:
    change = ("mqadmin", "updateBrokerConfig", "-c", "DefaultCluster", "-k", "fileReservedTime", "-v", "70")
    cluster["b"].pause()
    try:
        failed = root.failure(*change)
    finally:
        cluster["b"].resume()
    assert failed.out == f"update broker config success, {cluster['a'].address}\n"
