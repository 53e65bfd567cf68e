"""Verbs about users and what they may do. Java: `tools.command.auth`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.admin.access import (
    access_servers,
    acl_of,
    acls_of,
    create_acl,
    create_user,
    delete_acl,
    delete_user,
    new_acl,
    update_acl,
    update_user,
    user_of,
    users_of,
)
from orbitmq.cli.mqadmin.verb import flag, one_of, verb
from orbitmq.protocol.bodies.access import Acl, User
from orbitmq.transport.address import parse_address

if TYPE_CHECKING:
    import click

    from orbitmq.admin.session import Session
    from orbitmq.cli.mqadmin.report import Report
    from orbitmq.transport.address import Address

_USER_TITLES: Final = ("#UserName", "#Password", "#UserType", "#UserStatus")
_USER_FORM: Final = "%-16s  %-22s  %-22s  %-22s"
_ACL_TITLES: Final = ("#Subject", "#PolicyType", "#Resource", "#Actions", "#SourceIp", "#Decision")
_ACL_FORM: Final = "%-16s  %-10s  %-22s  %-20s  %-24s  %-10s"


def _where(what: str) -> tuple[click.Option, click.Option]:
    return (
        flag("c", "clusterName", "cluster", f"{what} which cluster"),
        flag("b", "brokerAddr", "broker", f"{what} which broker"),
    )


async def _servers(
    session: Session, cluster: str | None, broker: str | None, *, masters_only: bool = False
) -> list[Address]:
    one_of(("-b", broker), ("-c", cluster))
    return await access_servers(session, cluster=cluster, server=broker, masters_only=masters_only)


# ---- users


@verb(
    "createUser",
    *_where("create user to"),
    flag("u", "username", "name", "the username of user to create.", required=True),
    flag("p", "password", "password", "the password of user to create", required=True),
    flag("t", "userType", "kind", "the userType of user to create"),
)
async def create_user_(
    session: Session,
    report: Report,
    cluster: str | None,
    broker: str | None,
    name: str,
    password: str,
    kind: str | None,
) -> None:
    """Create user to cluster."""
    for address in await _servers(session, cluster, broker):
        await create_user(session, address, User(username=name, password=password, user_type=kind))
        report.fact(f"create user to {address} success.", **{str(address): name})


@verb(
    "updateUser",
    *_where("update user to"),
    flag("u", "username", "name", "the username of user to update.", required=True),
    flag("p", "password", "password", "the password of user to update"),
    flag("t", "userType", "kind", "the userType of user to update"),
    flag("s", "userStatus", "status", "the userStatus of user to update"),
)
async def update_user_(
    session: Session, report: Report, cluster: str | None, broker: str | None, **given: str | None
) -> None:
    """Update user to cluster."""
    user = User(
        username=given["name"] or "", password=given["password"], user_type=given["kind"], user_status=given["status"]
    )
    for address in await _servers(session, cluster, broker):
        await update_user(session, address, user)
        report.fact(f"update user to {address} success.", **{str(address): user.username})


@verb(
    "deleteUser",
    *_where("delete user from"),
    flag("u", "username", "name", "the username of user to delete.", required=True),
)
async def delete_user_(session: Session, report: Report, cluster: str | None, broker: str | None, name: str) -> None:
    """Delete user from cluster."""
    for address in await _servers(session, cluster, broker):
        await delete_user(session, address, name)
        report.fact(f"delete user to {address} success.", **{str(address): name})


@verb("getUser", *_where("get user for"), flag("u", "username", "name", "the username of user to get", required=True))
async def get_user(session: Session, report: Report, cluster: str | None, broker: str | None, name: str) -> None:
    """Get user from cluster."""
    report.items("users")
    for address in await _servers(session, cluster, broker, masters_only=True):
        user = await user_of(session, address, name)
        if user is not None:
            _print_users(report, [user])
            return


@verb("listUser", *_where("list user for"), flag("f", "filter", "text", "the filter to list users"))
async def list_user(
    session: Session, report: Report, cluster: str | None, broker: str | None, text: str | None
) -> None:
    """List user from cluster."""
    report.items("users")
    for address in await _servers(session, cluster, broker, masters_only=True):
        users = await users_of(session, address, text)
        if users:
            _print_users(report, users)
            if cluster is not None:
                report.line(f"get user from {address} success.")
            return


@verb(
    "copyUser",
    flag("f", "fromBroker", "source", "the source broker that the users copy from", required=True),
    flag("t", "toBroker", "to", "the target broker that the users copy to", required=True),
    flag("u", "usernames", "names", "the username list of user to copy."),
)
async def copy_user(session: Session, report: Report, source: str, to: str, names: str | None) -> None:
    """Copy user to cluster."""
    wanted = {name.strip() for name in names.split(",")} if names else None
    there = parse_address(to)
    for user in await users_of(session, parse_address(source)):
        if wanted is not None and user.username not in wanted:
            continue
        change = create_user if await user_of(session, there, user.username) is None else update_user
        await change(session, there, user)
        report.fact(f"copy user of {user.username} from {source} to {to} success.", **{user.username: to})


def _print_users(report: Report, users: list[User]) -> None:
    rows = [(user.username, user.password, user.user_type, user.user_status) for user in users]
    report.table(_USER_FORM, _USER_TITLES, _USER_FORM, rows, "users")


# ---- policies


def _acl_verb(name: str, word: str) -> click.Command:
    async def work(
        session: Session, report: Report, cluster: str | None, broker: str | None, **given: str | None
    ) -> None:
        acl = new_acl(
            given["subject"] or "",
            _listed(given["resources"]),
            _listed(given["actions"]),
            _listed(given["sources"]),
            given["decision"] or "",
        )
        change = create_acl if word == "create" else update_acl
        for address in await _servers(session, cluster, broker):
            await change(session, address, acl)
            report.fact(f"{word} acl to {address} success.", **{str(address): acl.subject})

    work.__doc__ = f"{word.capitalize()} acl to cluster."
    return verb(
        name,
        *_where(f"{word} acl to"),
        flag("s", "subject", "subject", f"the subject of acl to {word}.", required=True),
        flag("r", "resources", "resources", f"the resources of acl to {word}", required=True),
        flag("a", "actions", "actions", f"the actions of acl to {word}", required=True),
        flag("i", "sourceIp", "sources", f"the sourceIps of acl to {word}"),
        flag("d", "decision", "decision", f"the decision of acl to {word}", required=True),
    )(work)


create_acl_ = _acl_verb("createAcl", "create")
update_acl_ = _acl_verb("updateAcl", "update")


@verb(
    "deleteAcl",
    *_where("delete acl from"),
    flag("s", "subject", "subject", "the subject of acl to delete.", required=True),
    flag("r", "resources", "resource", "the resources of acl to delete"),
)
async def delete_acl_(
    session: Session, report: Report, cluster: str | None, broker: str | None, subject: str, resource: str | None
) -> None:
    """Delete acl from cluster."""
    for address in await _servers(session, cluster, broker):
        await delete_acl(session, address, subject, resource)
        report.fact(f"delete acl to {address} success.", **{str(address): subject})


@verb("getAcl", *_where("get acl for"), flag("s", "subject", "subject", "the subject of acl to get", required=True))
async def get_acl(session: Session, report: Report, cluster: str | None, broker: str | None, subject: str) -> None:
    """Get acl from cluster."""
    report.items("acls")
    for address in await _servers(session, cluster, broker, masters_only=True):
        acl = await acl_of(session, address, subject)
        if acl is not None:
            _print_acls(report, [acl])


@verb(
    "listAcl",
    *_where("list acl for"),
    flag("s", "subject", "subject", "the subject of acl to filter."),
    flag("r", "resource", "resource", "the resource of acl to filter."),
)
async def list_acl(
    session: Session,
    report: Report,
    cluster: str | None,
    broker: str | None,
    subject: str | None,
    resource: str | None,
) -> None:
    """List acl from cluster."""
    report.items("acls")
    for address in await _servers(session, cluster, broker, masters_only=True):
        acls = await acls_of(session, address, subject, resource)
        if acls:
            _print_acls(report, acls)


@verb(
    "copyAcl",
    flag("f", "fromBroker", "source", "the source broker that the acls copy from", required=True),
    flag("t", "toBroker", "to", "the target broker that the acls copy to", required=True),
    flag("s", "subjects", "subjects", "the subject list of acl to copy."),
)
async def copy_acl(session: Session, report: Report, source: str, to: str, subjects: str | None) -> None:
    """Copy acl to cluster."""
    wanted = set(_listed(subjects))
    there = parse_address(to)
    for acl in await acls_of(session, parse_address(source)):
        if wanted and acl.subject not in wanted:
            continue
        change = create_acl if await acl_of(session, there, acl.subject) is None else update_acl
        await change(session, there, acl)
        report.fact(f"copy acl of {acl.subject} from {source} to {to} success.", **{acl.subject: to})


def _print_acls(report: Report, acls: list[Acl]) -> None:
    report.line(_ACL_FORM % _ACL_TITLES)
    for acl in acls:
        for policy in acl.policies:
            for entry in policy.entries:
                actions, sources = (_java_list(some) for some in (entry.actions, entry.source_ips))
                row = (acl.subject, policy.policy_type, entry.resource, actions, sources, entry.decision)
                report.line(_ACL_FORM % row)
        if not acl.policies:
            report.line(_ACL_FORM % (acl.subject, "", "", "", "", ""))
    report.items("acls").extend(msgspec.to_builtins(acls))


def _java_list(texts: list[str]) -> str:
    return f"[{', '.join(texts)}]"


def _listed(text: str | None) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()] if text else []
