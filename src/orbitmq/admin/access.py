"""Users and what they may do, on servers with access control of 5.x. Java: `tools.command.auth`

Every server keeps its own: changes go to all brokers of a cluster, slaves too, or to one server by its address, which may be a
name server of ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from orbitmq.access.needs import Action, Kind, Need
from orbitmq.access.policies import decide, read_entry
from orbitmq.admin.brokers import find_brokers
from orbitmq.admin.session import gathered
from orbitmq.errors import ConfigError, RequestFailed
from orbitmq.protocol.bodies.access import CUSTOM, DEFAULT, DISABLED, Acl, Policy, PolicyEntry, User
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.headers.access import AclFilter, DeleteAcl, OfSubject, OfUser, UserFilter
from orbitmq.transport.address import Address, parse_address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orbitmq.admin.session import Session
    from orbitmq.protocol.headers.base import Header


class UserRow(msgspec.Struct, frozen=True, kw_only=True):
    """A user; passwords are not shown."""

    user: str
    type: str  # Super or Normal
    status: str  # enable or disable
    servers: list[str]  # that know it so


class PolicyRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a user may do with a resource, or may not."""

    subject: str  # User:NAME
    policy: str  # Custom or Default
    resource: str  # Topic:orders, Group:*, Cluster:...
    actions: list[str]
    sources: list[str]  # addresses it holds for; none: all
    decision: str  # Allow or Deny
    servers: list[str]


class AccessCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a user may do something, as one server would decide it."""

    server: str
    allowed: bool
    why: str  # the policy that decides, or what is missing


class AccessExport(msgspec.Struct, frozen=True, kw_only=True):
    """Everyone, and what they may do. Passwords stay where they are."""

    users: list[UserRow]
    policies: list[PolicyRow]


async def access_servers(
    session: Session, *, cluster: str | None = None, server: str | None = None, masters_only: bool = False
) -> list[Address]:
    """Where users are kept: one server by name or address, or the brokers of a cluster, or all."""
    if server is not None and ":" in server:
        return [parse_address(server)]
    places = await find_brokers(session, cluster=cluster, broker=server, masters_only=masters_only)
    return [place.address for place in places]


# ---- users


async def users_of(session: Session, address: Address, text: str | None = None) -> list[User]:
    """Those of one server whose name holds `text`."""
    answer = await session.ask(address, RequestCode.AUTH_LIST_USER, UserFilter(filter=text))
    return msgspec.json.decode(answer.body, type=list[User]) if answer.body else []


async def user_of(session: Session, address: Address, name: str) -> User | None:
    answer = await session.ask(address, RequestCode.AUTH_GET_USER, OfUser(username=name))
    return User.from_json(answer.body) if answer.body else None


async def list_users(session: Session, servers: Sequence[Address]) -> list[UserRow]:
    """Over all servers; one that is another on some of them has several rows."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for address, users in zip(servers, await gathered(lambda one: users_of(session, one), servers), strict=True):
        for user in users:
            key = (user.username, user.user_type or "", user.user_status or "")
            rows.setdefault(key, []).append(str(address))
    return [
        UserRow(user=name, type=kind, status=status, servers=where)
        for (name, kind, status), where in sorted(rows.items())
    ]


async def create_user(session: Session, address: Address, user: User) -> None:
    await _write_user(session, address, RequestCode.AUTH_CREATE_USER, user)


async def update_user(session: Session, address: Address, user: User) -> None:
    """What is None stays as it is."""
    await _write_user(session, address, RequestCode.AUTH_UPDATE_USER, user)


async def _write_user(session: Session, address: Address, code: RequestCode, user: User) -> None:
    await _change(session, address, code, OfUser(username=user.username), user.to_json())


async def delete_user(session: Session, address: Address, name: str) -> None:
    await _change(session, address, RequestCode.AUTH_DELETE_USER, OfUser(username=name))


# ---- policies


async def acls_of(
    session: Session, address: Address, subject: str | None = None, resource: str | None = None
) -> list[Acl]:
    header = AclFilter(subject_filter=subject, resource_filter=resource)
    answer = await session.ask(address, RequestCode.AUTH_LIST_ACL, header)
    return msgspec.json.decode(answer.body, type=list[Acl]) if answer.body else []


async def acl_of(session: Session, address: Address, subject: str) -> Acl | None:
    answer = await session.ask(address, RequestCode.AUTH_GET_ACL, OfSubject(subject=subject))
    return Acl.from_json(answer.body) if answer.body else None


async def list_policies(
    session: Session, servers: Sequence[Address], *, subject: str | None = None, resource: str | None = None
) -> list[PolicyRow]:
    rows: dict[tuple[str, str, str, tuple[str, ...], tuple[str, ...], str], list[str]] = {}
    found = await gathered(lambda one: acls_of(session, one, subject, resource), servers)
    for address, acls in zip(servers, found, strict=True):
        for acl in acls:
            for policy in acl.policies:
                for entry in policy.entries:
                    key = (
                        acl.subject,
                        policy.policy_type,
                        entry.resource,
                        tuple(entry.actions),
                        tuple(entry.source_ips),
                        entry.decision,
                    )
                    rows.setdefault(key, []).append(str(address))
    return [
        PolicyRow(
            subject=subject_,
            policy=policy_type,
            resource=resource_,
            actions=list(actions),
            sources=list(sources),
            decision=decision,
            servers=where,
        )
        for (subject_, policy_type, resource_, actions, sources, decision), where in sorted(rows.items())
    ]


def new_acl(
    subject: str, resources: Sequence[str], actions: Sequence[str], sources: Sequence[str], decision: str
) -> Acl:
    entries = [
        PolicyEntry(resource=resource, actions=list(actions), source_ips=list(sources), decision=decision)
        for resource in resources
    ]
    return Acl(subject=subject, policies=[Policy(policy_type=CUSTOM, entries=entries)])


async def create_acl(session: Session, address: Address, acl: Acl) -> None:
    await _change(session, address, RequestCode.AUTH_CREATE_ACL, OfSubject(subject=acl.subject), acl.to_json())


async def update_acl(session: Session, address: Address, acl: Acl) -> None:
    await _change(session, address, RequestCode.AUTH_UPDATE_ACL, OfSubject(subject=acl.subject), acl.to_json())


async def delete_acl(session: Session, address: Address, subject: str, resource: str | None = None) -> None:
    """Of one resource, or all of the subject."""
    await _change(session, address, RequestCode.AUTH_DELETE_ACL, DeleteAcl(subject=subject, resource=resource))


async def _change(session: Session, address: Address, code: RequestCode, header: Header, body: bytes = b"") -> None:
    try:
        await session.ask(address, code, header, body)
    except RequestFailed as error:
        if error.code not in (ResponseCode.SYSTEM_ERROR, ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
            raise
        is_cured = "authenticationEnabled" in error.message  # as our own servers say it
        guess = "" if is_cured else "does it have authenticationEnabled=true and authorizationEnabled=true?"
        raise RequestFailed(
            error.code, f"{address} does not do it: {error.message}", hint=error.hint or guess
        ) from None


# ---- questions


async def export_access(session: Session, servers: Sequence[Address]) -> AccessExport:
    return AccessExport(users=await list_users(session, servers), policies=await list_policies(session, servers))


async def check_access(
    session: Session, servers: Sequence[Address], user: str, action: str, resource: str, source: str
) -> list[AccessCheck]:
    """What each server would say to `user` who does `action` to `resource` from the address `source`."""
    need = _need(action, resource)
    return [await _check_on(session, server, user, need, source) for server in servers]


async def _check_on(session: Session, server: Address, name: str, need: Need, source: str) -> AccessCheck:
    def verdict(allowed: bool, why: str) -> AccessCheck:
        return AccessCheck(server=str(server), allowed=allowed, why=why)

    user = await user_of(session, server, name)
    if user is None:
        return verdict(False, "there is no such user")
    if user.user_status == DISABLED:
        return verdict(False, "the user is disabled")
    if user.is_super:
        return verdict(True, "a super user may do everything")
    acl = await acl_of(session, server, f"User:{name}")
    policies = acl.policies if acl is not None else []
    for kind in (CUSTOM, DEFAULT):
        entries = {
            read_entry(entry): entry for policy in policies if policy.policy_type == kind for entry in policy.entries
        }
        decided = decide(list(entries), need, source)
        if decided is not None:
            said = entries[decided]
            return verdict(decided.allows, f"{said.decision} {', '.join(said.actions)} on {said.resource} ({kind})")
    return verdict(False, "no policy mentions it")


def _need(action: str, resource: str) -> Need:
    kind, _, name = resource.partition(":")
    kinds = {one.lower(): one for one in Kind}
    if kind.lower() not in kinds or not name:
        raise ConfigError(
            f"{resource!r} is no resource", hint="such as Topic:orders, Group:billing or Cluster:DefaultCluster"
        )
    return Need(kinds[kind.lower()], name, (Action(action),))
