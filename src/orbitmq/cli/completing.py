"""Names of topics and groups for a shell that completes them: asked of the cluster, quickly or not at all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from orbitmq.admin.session import Session

_SECONDS: Final = 1.0


def topic_argument(name: str = "name", **options: Any) -> Callable[[Any], Any]:
    return click.argument(name, shell_complete=_complete_topics, **options)


def group_argument(name: str = "name", **options: Any) -> Callable[[Any], Any]:
    return click.argument(name, shell_complete=_complete_groups, **options)


def topic_option(**options: Any) -> Callable[[Any], Any]:
    return click.option("-t", "--topic", shell_complete=_complete_topics, **options)


def group_option(**options: Any) -> Callable[[Any], Any]:
    return click.option("-g", "--group", shell_complete=_complete_groups, **options)


def _complete_topics(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from orbitmq.admin.topics import kind_of, topic_names

    async def ask(session: Session) -> list[str]:
        return [topic for topic in await topic_names(session) if incomplete or kind_of(topic) == "normal"]

    return _asked(context, ask, incomplete)


def _complete_groups(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from orbitmq.admin.brokers import find_brokers
    from orbitmq.admin.groups import group_tables, is_system_group

    async def ask(session: Session) -> list[str]:
        groups = await group_tables(session, await find_brokers(session))
        return sorted(group for group in groups if not is_system_group(group))

    return _asked(context, ask, incomplete)


def _asked(context: click.Context, ask: Callable[[Session], Awaitable[list[str]]], incomplete: str) -> list[str]:
    from orbitmq.cli.options import DEFAULT_NAME_SERVER, Target, tls_wanted
    from orbitmq.errors import OrbitError

    target = Target(
        name_servers=context.params.get("name_servers") or os.environ.get("NAMESRV_ADDR") or DEFAULT_NAME_SERVER,
        access_key=os.environ.get("ORBITMQ_ACCESS_KEY"),
        secret_key=os.environ.get("ORBITMQ_SECRET_KEY"),
        tls=bool(context.params.get("tls")) or tls_wanted(),
        timeout=_SECONDS,
    )
    try:
        names = target.run(ask)
    except (OrbitError, click.ClickException):
        return []  # somebody presses a key and waits: a message would only spoil the line
    return [name for name in names if name.startswith(incomplete)]
