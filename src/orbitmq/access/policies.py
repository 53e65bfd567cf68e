"""Policies: what a user may do to which resources, and from where.

    resource    Topic:orders    Topic:orders*    Topic:*    Group:...    Cluster:...    *
    actions     Pub, Sub, Create, Update, Delete, Get, List, All
    sourceIps   none: from anywhere
    decision    Allow or Deny

A user's custom policies are asked first, then the default ones. Of the entries that match, the one whose resource is named most
exactly decides: a name over a prefix, a longer prefix over a shorter one, any prefix over a star. Two that are named equally and
contradict each other: Deny decides (in Apache's broker Allow does). If none matches, the answer is no.

Java: Acl, Policy, PolicyEntry, AclAuthorizationHandler
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from orbitmq.access.addresses import AddressPattern
from orbitmq.access.needs import Action, Kind
from orbitmq.errors import ConfigError
from orbitmq.protocol.bodies.access import CUSTOM, DEFAULT, Acl, Policy, PolicyEntry

if TYPE_CHECKING:
    from orbitmq.access.needs import Need

_ALLOW: Final = "allow"
_DENY: Final = "deny"
_ANY: Final = "*"
# Java's broker does not mind the case of any of these words.
_ACTIONS: Final = {action.lower(): action for action in Action}
_KINDS: Final = {kind.lower(): kind for kind in Kind}


class Entry(NamedTuple):
    """A policy entry, checked and ready to be asked."""

    kind: Kind | None  # None: any
    name: str
    is_prefix: bool
    actions: frozenset[Action]
    sources: tuple[AddressPattern, ...]
    allows: bool

    def matches(self, need: Need, source: str) -> bool:
        if self.kind is not None and self.kind is not need.kind:
            return False
        if not (need.name.startswith(self.name) if self.is_prefix else need.name == self.name):
            return False
        if Action.ALL not in self.actions and self.actions.isdisjoint(need.actions):
            return False
        return not self.sources or any(pattern.matches(source) for pattern in self.sources)

    @property
    def exactness(self) -> tuple[bool, bool, int]:
        return (self.kind is not None, not self.is_prefix, len(self.name))


def read_entry(entry: PolicyEntry) -> Entry:
    """ConfigError says what is wrong with it."""
    kind, name, is_prefix = _read_resource(entry.resource)
    wrong = [action for action in entry.actions if action.lower() not in _ACTIONS]
    if wrong or not entry.actions:
        raise ConfigError(
            f"actions {', '.join(wrong) or 'of ' + entry.resource} {'are unknown' if wrong else 'are missing'}",
            hint=f"some of {', '.join(Action)}",
        )
    if entry.decision.lower() not in (_ALLOW, _DENY):
        raise ConfigError(f"decision {entry.decision!r} is none", hint="Allow or Deny")
    sources = tuple(AddressPattern(text) for text in entry.source_ips)
    actions = frozenset(_ACTIONS[action.lower()] for action in entry.actions)
    return Entry(kind, name, is_prefix, actions, sources, entry.decision.lower() == _ALLOW)


def decide(entries: list[Entry], need: Need, source: str) -> Entry | None:
    """The entry that decides; None if none matches."""
    found = [entry for entry in entries if entry.matches(need, source)]
    return max(found, key=lambda entry: (entry.exactness, not entry.allows), default=None)


def check_acl(acl: Acl) -> None:
    """ConfigError if it could not be asked."""
    if not acl.subject.startswith("User:") or len(acl.subject) == len("User:"):
        raise ConfigError(f"subject {acl.subject!r} is none", hint="User:<name>")
    if not acl.policies or not all(policy.entries for policy in acl.policies):
        raise ConfigError(f"the policies of {acl.subject} are empty")
    for policy in acl.policies:
        if policy.policy_type not in (CUSTOM, DEFAULT):
            raise ConfigError(f"policy type {policy.policy_type!r} is none", hint="Custom or Default")
        for entry in policy.entries:
            read_entry(entry)


def merged(old: Acl, new: Acl) -> Acl:
    """Entries of `new` take the place of those for the same resource; the others stay."""
    policies = {policy.policy_type: {entry.resource: entry for entry in policy.entries} for policy in old.policies}
    for policy in new.policies:
        policies.setdefault(policy.policy_type, {}).update({entry.resource: entry for entry in policy.entries})
    kept = [Policy(policy_type=kind, entries=list(entries.values())) for kind, entries in policies.items()]
    return msgspec.structs.replace(old, policies=kept)


def without(acl: Acl, policy_type: str | None, resource: str | None) -> Acl | None:
    """The ACL without the entries for a resource, or without a whole kind of policies; None if nothing is left."""
    policies = []
    for policy in acl.policies:
        goes = policy_type is None or policy.policy_type == policy_type
        entries = [
            entry for entry in policy.entries if not goes or (resource is not None and entry.resource != resource)
        ]
        if entries:
            policies.append(Policy(policy_type=policy.policy_type, entries=entries))
    return msgspec.structs.replace(acl, policies=policies) if policies else None


def _read_resource(text: str) -> tuple[Kind | None, str, bool]:
    if text == _ANY:
        return None, "", True
    kind, separator, name = text.partition(":")
    if not separator or not name or kind.lower() not in _KINDS:
        raise ConfigError(
            f"resource {text!r} is none", hint="such as Topic:orders, Topic:orders*, Group:*, Cluster:* or *"
        )
    return _KINDS[kind.lower()], name.removesuffix(_ANY), name.endswith(_ANY)
