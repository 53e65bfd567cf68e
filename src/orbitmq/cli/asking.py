"""Before something is changed for good: show what will happen, then ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from orbitmq.cli.failures import Declined

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")


def destructive_options(function: F) -> F:
    """Gives the command `yes` and `dry_run`."""
    function = click.option("--yes", is_flag=True, help="Do not ask.")(function)
    return click.option("--dry-run", is_flag=True, help="Only show what would be done.")(function)


def may_go_on(preview: str, question: str, *, yes: bool, dry_run: bool) -> bool:
    """Show the preview; False for a dry run. Declined when the answer is no, or nobody is there to answer."""
    click.echo(preview, nl=not preview.endswith("\n"), err=not dry_run)
    if dry_run:
        click.echo("dry run: nothing was changed", err=True)
        return False
    if yes:
        return True
    try:
        agreed = click.confirm(question, default=False, err=True)
    except click.Abort:
        click.echo(err=True)  # the question has no line end yet: nobody typed one
        agreed = False
    if not agreed:
        raise Declined
    return True
