"""`orbitmq acl`: users, and what they may do. For servers with access control of 5.x, Apache's and ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from orbitmq.cli.asking import destructive_options, may_go_on
from orbitmq.cli.choosing import fields_of
from orbitmq.cli.lazy import HelpfulGroup
from orbitmq.cli.options import document_options, target_options, view_options
from orbitmq.cli.view import View, rows_text, show_document, show_rows, tell_missing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from orbitmq.admin.access import PolicyRow, UserRow
    from orbitmq.admin.session import Session
    from orbitmq.cli.options import Target
    from orbitmq.errors import RequestFailed
    from orbitmq.transport.address import Address

F = TypeVar("F", bound="Callable[..., Any]")

_ACTIONS = ("All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")


def server_options(function: F) -> F:
    function = click.option("-c", "--cluster", help="Only the brokers of this cluster.")(function)
    return click.option(
        "-s", "--server", metavar="NAME|HOST:PORT", help="Only this server: a broker, or a name server by its address."
    )(function)


@click.group(cls=HelpfulGroup)
def acl() -> None:
    """Users, and what they may do (access control of 5.x)."""


@acl.command("ls")
@click.argument("user", required=False)
@click.option("--resource", help="Only policies whose resource holds this text.")
@server_options
@view_options
@target_options
def list_(
    target: Target, view: View, user: str | None, resource: str | None, cluster: str | None, server: str | None
) -> None:
    """What users may do, or one USER."""
    from orbitmq.admin.access import PolicyRow, access_servers, list_policies

    async def show(session: Session) -> None:
        async def fetch() -> list[PolicyRow]:
            servers = await access_servers(session, cluster=cluster, server=server)
            rows = await list_policies(session, servers, resource=resource)
            return [row for row in rows if user is None or row.subject == subject_of(user)]

        await show_rows(session, view, PolicyRow, fetch)

    target.run(show)


@acl.command()
@click.argument("user")
@click.argument("resources", metavar="RESOURCE...", nargs=-1, required=True)
@click.option("--action", "actions", type=click.Choice(_ACTIONS), multiple=True, required=True, help="Repeatable.")
@click.option("--from", "sources", multiple=True, metavar="ADDRESS", help="Only from this address or net; repeatable.")
@click.option("--deny", is_flag=True, help="Forbid it, instead of allowing it.")
@server_options
@target_options
def grant(
    target: Target,
    user: str,
    resources: Sequence[str],
    actions: Sequence[str],
    sources: Sequence[str],
    deny: bool,
    cluster: str | None,
    server: str | None,
) -> None:
    """Let USER do something with RESOURCEs such as Topic:orders, Topic:orders*, Group:billing."""
    from orbitmq.admin.access import create_acl, new_acl

    wanted = new_acl(subject_of(user), resources, actions, sources, "Deny" if deny else "Allow")
    servers = _on_all(target, cluster, server, lambda session, address: create_acl(session, address, wanted))
    click.echo(f"{'forbade' if deny else 'allowed'} {user} {', '.join(actions)} on {', '.join(resources)} at {servers}")


@acl.command()
@click.argument("user")
@click.option("--resource", help="Only what is said of this resource.")
@server_options
@destructive_options
@target_options
def revoke(
    target: Target,
    user: str,
    resource: str | None,
    cluster: str | None,
    server: str | None,
    yes: bool,
    dry_run: bool,
) -> None:
    """Take policies of USER away, all or those of one resource."""
    from orbitmq.admin.access import PolicyRow, delete_acl

    subject = subject_of(user)

    async def look(session: Session) -> list[PolicyRow]:
        rows = await _policies(session, await _answering_servers(session, cluster, server), subject)
        return [row for row in rows if resource is None or row.resource.lower() == resource.lower()]

    rows = target.run(look)
    if not rows:
        about = f" about {resource}" if resource is not None else ""
        raise _nothing_there(f"{subject} has no policy{about}", f"`orbitmq acl ls {user}` shows what there is")
    preview = rows_text(View(), PolicyRow, [fields_of(row) for row in rows])
    if may_go_on(preview, "Take that away?", yes=yes, dry_run=dry_run):
        servers = _on_all(target, cluster, server, lambda session, one: delete_acl(session, one, subject, resource))
        click.echo(f"took {len(rows)} policies of {user} away at {servers}")


@acl.command()
@click.argument("user")
@click.argument("action", type=click.Choice(_ACTIONS))
@click.argument("resource")
@click.option("--from", "source", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where the user is.")
@server_options
@view_options
@target_options
def check(
    target: Target,
    view: View,
    user: str,
    action: str,
    resource: str,
    source: str,
    cluster: str | None,
    server: str | None,
) -> None:
    """Would USER be let do ACTION to RESOURCE, and why? Exit code 5 if any server says no."""
    from orbitmq.admin.access import AccessCheck, access_servers, check_access
    from orbitmq.cli.failures import NOT_PERMITTED

    async def show(session: Session) -> bool:
        verdicts: list[AccessCheck] = []

        async def fetch() -> list[AccessCheck]:
            servers = await access_servers(session, cluster=cluster, server=server)
            verdicts[:] = await check_access(session, servers, user, action, resource, source)
            return verdicts

        await show_rows(session, view, AccessCheck, fetch)
        return all(verdict.allowed for verdict in verdicts)

    if not target.run(show):
        raise click.exceptions.Exit(NOT_PERMITTED)


@acl.command()
@server_options
@document_options
@target_options
def export(target: Target, view: View, cluster: str | None, server: str | None) -> None:
    """Everyone, and what they may do, in one document. Passwords stay where they are."""
    from orbitmq.admin.access import AccessExport, access_servers, export_access

    async def collect(session: Session) -> AccessExport:
        return await export_access(session, await access_servers(session, cluster=cluster, server=server))

    show_document(view, target.run(collect))


@acl.group(cls=HelpfulGroup)
def policy() -> None:
    """Policies: ls, grant, revoke."""


for _command in (list_, grant, revoke):
    policy.add_command(_command)


@acl.group(cls=HelpfulGroup)
def user() -> None:
    """Users: list, create, update, rm."""


@user.command("ls")
@server_options
@view_options
@target_options
def user_list(target: Target, view: View, cluster: str | None, server: str | None) -> None:
    """All users, and which servers know them."""
    from orbitmq.admin.access import UserRow, access_servers, list_users

    async def show(session: Session) -> None:
        async def fetch() -> list[UserRow]:
            return await list_users(session, await access_servers(session, cluster=cluster, server=server))

        await show_rows(session, view, UserRow, fetch)

    target.run(show)


_password_option = click.option(
    "--password", envvar="ORBITMQ_USER_PASSWORD", show_envvar=True, help="The secret key; asked for when not given."
)


@user.command("create")
@click.argument("name")
@_password_option
@click.option("--super", "is_super", is_flag=True, help="May do everything.")
@server_options
@target_options
def user_create(
    target: Target, name: str, password: str | None, is_super: bool, cluster: str | None, server: str | None
) -> None:
    """Make a user."""
    from orbitmq.admin.access import create_user
    from orbitmq.protocol.bodies.access import NORMAL, SUPER, User

    secret = password or click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    wanted = User(username=name, password=secret, user_type=SUPER if is_super else NORMAL)
    servers = _on_all(target, cluster, server, lambda session, address: create_user(session, address, wanted))
    click.echo(f"created user {name} at {servers}")


@user.command("update")
@click.argument("name")
@click.option("--password", envvar="ORBITMQ_USER_PASSWORD", show_envvar=True, help="A new secret key.")
@click.option("--enable/--disable", "enabled", default=None, help="Whether it is let in.")
@server_options
@target_options
def user_update(
    target: Target, name: str, password: str | None, enabled: bool | None, cluster: str | None, server: str | None
) -> None:
    """Change a user; what is not named stays as it is."""
    from orbitmq.admin.access import update_user
    from orbitmq.protocol.bodies.access import DISABLED, ENABLED, User

    if password is None and enabled is None:
        raise click.UsageError("nothing to change: give --password, --enable or --disable")
    status = None if enabled is None else ENABLED if enabled else DISABLED
    wanted = User(username=name, password=password, user_status=status)
    servers = _on_all(target, cluster, server, lambda session, address: update_user(session, address, wanted))
    click.echo(f"changed user {name} at {servers}")


@user.command("rm")
@click.argument("name")
@server_options
@destructive_options
@target_options
def user_remove(target: Target, name: str, cluster: str | None, server: str | None, yes: bool, dry_run: bool) -> None:
    """Delete a user."""
    from orbitmq.admin.access import delete_user, list_users

    async def look(session: Session) -> tuple[list[UserRow], list[PolicyRow]]:
        servers = await _answering_servers(session, cluster, server)
        rows = [row for row in await list_users(session, servers) if row.user == name]
        return rows, await _policies(session, servers, subject_of(name))

    found, policies = target.run(look)
    if not found:
        raise _nothing_there(f"there is no user {name!r}", "`orbitmq acl user ls` shows who there is")
    what = ", ".join(f"{row.type}, {row.status}, at {', '.join(row.servers)}" for row in found)
    preview = f"user {name}: {what}, with {len(policies)} policies"
    if may_go_on(preview, "Delete it?", yes=yes, dry_run=dry_run):
        servers = _on_all(target, cluster, server, lambda session, address: delete_user(session, address, name))
        click.echo(f"deleted user {name} at {servers}")


def subject_of(user: str) -> str:
    return user if ":" in user else f"User:{user}"


async def _answering_servers(session: Session, cluster: str | None, server: str | None) -> list[Address]:
    """Where something can be looked at before it is taken away; those that are missing are named."""
    from orbitmq.admin.access import access_servers
    from orbitmq.admin.brokers import answering_addresses

    servers = await access_servers(session, cluster=cluster, server=server)
    answering = await answering_addresses(session, servers)
    tell_missing(session)
    return [address for address in servers if address in answering]


async def _policies(session: Session, servers: list[Address], subject: str) -> list[PolicyRow]:
    """Of this subject alone: servers take a subject for a part of one."""
    from orbitmq.admin.access import list_policies

    return [row for row in await list_policies(session, servers, subject=subject) if row.subject == subject]


def _nothing_there(what: str, hint: str) -> RequestFailed:
    from orbitmq.errors import RequestFailed
    from orbitmq.protocol.codes import ResponseCode

    return RequestFailed(ResponseCode.QUERY_NOT_FOUND, what, hint=hint)


def _on_all(
    target: Target,
    cluster: str | None,
    server: str | None,
    change: Callable[[Session, Address], Awaitable[None]],
) -> str:
    """Change it on every server there is to change it on; which those are. One that is down must not keep a user in at the others."""
    from orbitmq.admin.access import access_servers
    from orbitmq.admin.session import done_at_each

    async def work(session: Session) -> str:
        servers = await access_servers(session, cluster=cluster, server=server)
        return ", ".join(map(str, await done_at_each(lambda address: change(session, address), servers)))

    return target.run(work)
