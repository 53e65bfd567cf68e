"""`--explain`: what a server's settings mean, without a look into the documents."""

from __future__ import annotations

import difflib
import functools
from fnmatch import fnmatchcase
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import click

from orbitmq.errors import ConfigError
from orbitmq.settings_reference import AT_ONCE, AT_START, NEVER, rows_in_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.settings_reference import SettingRow

_CHANGES: Final = {
    AT_ONCE: "a change counts at once",
    AT_START: "a change counts at the next start",
    NEVER: "cannot be changed while it runs",
}


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
    from orbitmq.broker.java_settings import WITHOUT_EFFECT
    from orbitmq.configuration import TLS_EXPLAINED

    rows: list[SettingRow] = import_module(f"orbitmq.{room}.settings_explained").rows()
    rows += rows_in_words(TLS_EXPLAINED)
    found = [row for row in rows if fnmatchcase(row.key.lower(), pattern.lower())]
    # The name server's are among its rows.
    inert = [key for key in WITHOUT_EFFECT if room == "broker" and fnmatchcase(key.lower(), pattern.lower())]
    if not found and not inert:
        near = difflib.get_close_matches(pattern, [row.key for row in rows], n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"no setting is called {pattern!r}", hint=f"{hint}patterns may hold * and ?; '*' shows all")
    for row in found:
        unit = f" {row.unit}" if row.unit else ""
        click.echo(f"{row.key}={row.default}    {row.type}{unit}; {_CHANGES[row.change_counts]}")
        click.echo(f"    {row.meaning or row.section}")
    if inert:
        click.echo(f"accepted and shown, without effect: {', '.join(inert)}")
    context.exit()
