"""Which entry of a policy decides."""

from __future__ import annotations

import pytest

from orbitmq.access.addresses import AddressPattern
from orbitmq.access.needs import Action, Kind, Need
from orbitmq.access.policies import check_acl, decide, merged, read_entry, without
from orbitmq.errors import ConfigError
from orbitmq.protocol.bodies.access import Acl, Policy, PolicyEntry


def entry(resource: str, decision: str = "Allow", actions: str = "Pub", sources: str = "") -> PolicyEntry:
    return PolicyEntry(
        resource=resource, actions=actions.split(","), source_ips=sources.split() if sources else [], decision=decision
    )


PUB_ORDERS = Need(Kind.TOPIC, "orders", (Action.PUB,))


@pytest.mark.parametrize(
    ("entries", "allowed"),
    [
        ([], None),
        ([entry("Topic:orders")], True),
        ([entry("Topic:order")], None),
        ([entry("Group:orders")], None),
        ([entry("Topic:orders", actions="Sub")], None),
        ([entry("Topic:orders", actions="Sub,Pub")], True),
        ([entry("Topic:orders", actions="All")], True),
        ([entry("Topic:ord*")], True),
        ([entry("Topic:*")], True),
        ([entry("*")], True),
        ([entry("Topic:*"), entry("Topic:orders", "Deny")], False),
        ([entry("Topic:*", "Deny"), entry("Topic:orders")], True),
        ([entry("Topic:o*", "Deny"), entry("Topic:ord*")], True),
        ([entry("Topic:o*"), entry("Topic:ord*", "Deny")], False),
        ([entry("*", "Deny"), entry("Topic:*")], True),
        ([entry("Topic:orders"), entry("Topic:orders", "Deny")], False),
        ([entry("Topic:orders", sources="10.0.0.0/8")], True),
        ([entry("Topic:orders", sources="192.168.0.1")], None),
        ([entry("Topic:orders"), entry("Topic:orders", "Deny", sources="192.168.0.1")], True),
    ],
)
def test_the_most_exact_entry_decides(entries: list[PolicyEntry], allowed: bool | None) -> None:
    found = decide([read_entry(each) for each in entries], PUB_ORDERS, "10.1.2.3")
    assert (found.allows if found is not None else None) is allowed


@pytest.mark.parametrize(
    "wrong",
    [
        entry("orders"), entry("Queue:x"), entry("Topic:"), entry(""), entry("Topic:x", "Maybe"),
        entry("Topic:x", actions="Fly"), entry("Topic:x", sources="here"), entry("Topic:x", sources="300.1.1.1"),
        PolicyEntry(resource="Topic:x", decision="Allow"),
    ],
)  # fmt: skip
def test_an_entry_that_says_nothing_is_refused(wrong: PolicyEntry) -> None:
    with pytest.raises(ConfigError):
        check_acl(Acl(subject="User:u", policies=[Policy(entries=[wrong])]))


@pytest.mark.parametrize("subject", ["", "u", "User:", "Group:g"])
def test_a_subject_is_a_user(subject: str) -> None:
    with pytest.raises(ConfigError):
        check_acl(Acl(subject=subject, policies=[Policy(entries=[entry("*")])]))


def test_what_is_set_anew_takes_the_place_of_what_was_said_of_that_resource() -> None:
    old = Acl(subject="User:u", policies=[Policy(entries=[entry("Topic:a"), entry("Topic:b")])])
    new = Acl(subject="User:u", policies=[Policy(entries=[entry("Topic:a", "Deny")])])
    entries = merged(old, new).policies[0].entries
    assert {each.resource: each.decision for each in entries} == {"Topic:a": "Deny", "Topic:b": "Allow"}


def test_deleting_the_last_entry_deletes_the_policies() -> None:
    acl = Acl(subject="User:u", policies=[Policy(entries=[entry("Topic:a"), entry("Topic:b")])])
    left = without(acl, "Custom", "Topic:a")
    assert left is not None
    assert [each.resource for each in left.policies[0].entries] == ["Topic:b"]
    assert without(left, "Custom", "Topic:b") is None
    assert without(acl, None, None) is None
    assert without(acl, "Default", None) == acl


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("10.1.2.3", "10.1.2.3", "10.1.2.4"),
        ("10.1.2.*", "10.1.2.200", "10.1.3.1"),
        ("10.1.1-5.*", "10.1.4.9", "10.1.6.9"),
        ("10.1.2.{3,4}", "10.1.2.4", "10.1.2.5"),
        ("10.0.0.0/8", "10.200.1.1", "11.0.0.1"),
        ("10.1.2.3,10.1.2.9", "10.1.2.9", "10.1.2.8"),
        ("2001:db8::1", "2001:db8:0::1", "2001:db8::2"),
        ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::1"),
        ("2001:db8::*", "2001:db8::7", "2001:db8:1::7"),
        ("10.1.2.3", "::ffff:10.1.2.3", "::ffff:10.1.2.4"),
        ("fe80::/10", "fe80::7%eth0", "fec0::7%eth0"),
        ("fe80::*", "fe80::7%eth0", "fe80:1::7%2"),
    ],
)
def test_addresses(pattern: str, inside: str, outside: str) -> None:
    assert AddressPattern(pattern).matches(inside)
    assert not AddressPattern(pattern).matches(outside)
    assert AddressPattern("*").matches(outside)
    assert not AddressPattern("").matches(inside)
    assert not AddressPattern(pattern).matches("not an address")
