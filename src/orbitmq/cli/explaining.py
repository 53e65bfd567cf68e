"""`--explain`: what a server's settings mean, without a look into the documents."""

from __future__ import annotations

import functools
from fnmatch import fnmatchcase
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from orbitmq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.settings_reference import SettingRow


def explain_option(room: str) -> Callable[[Any], Any]:
    """An option that prints what settings mean, and exits."""
    return click.option(
        "--explain",
        metavar="PATTERN",
        expose_value=False,
        is_eager=True,
        callback=functools.partial(_explain, room),
        help="Print what settings mean, such as 'flush*' or '*', and exit.",
    )


def _explain(room: str, context: click.Context, parameter: click.Parameter, pattern: str | None) -> None:
    if pattern is None:
        return
    rows: list[SettingRow] = import_module(f"orbitmq.{room}.settings_explained").rows()
    found = [row for row in rows if fnmatchcase(row.key.lower(), pattern.lower())]
    if not found:
        raise ConfigError(f"no setting is called {pattern!r}", hint="patterns may hold * and ?; '*' shows all")
    for row in found:
        unit = f" {row.unit}" if row.unit else ""
        click.echo(f"{row.key}={row.default}    {row.type}{unit}; can be changed while it runs: {row.change_counts}")
        click.echo(f"    {row.meaning or row.section}")
    context.exit()
