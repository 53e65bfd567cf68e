"""Groups of commands: all say what was probably meant, and some import a command's module only when it is used, so that `--help` is
quick.
"""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import TYPE_CHECKING, Final

import click

from orbitmq.cli.failures import WRONG_USE

if TYPE_CHECKING:
    from collections.abc import Mapping

# name -> (module, attribute, one line for the help page)
CommandTable = dict[str, tuple[str, str, str]]


# What other programs call it
_SYNONYMS: Final = {
    "list": "ls", "delete": "rm", "remove": "rm", "del": "rm", "show": "describe", "info": "describe", "get": "describe",
    "add": "create", "new": "create", "follow": "tail", "consume": "tail", "produce": "send", "query": "find",
    "search": "find", "offsets": "lag", "members": "connections", "alter": "update", "change": "update", "set": "update",
}  # fmt: skip

_LISTED_AT_MOST: Final = 20


class HelpfulGroup(click.Group):
    """Whoever mistypes a command is told which was probably meant; whoever names none sees what there is."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            # Releases of click differ in what they do here: some raise an error whose message is the whole page.
            click.echo(ctx.get_help(), err=True)
            ctx.exit(WRONG_USE)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise click.UsageError(f"{error.format_message()} Write options after the command's name.", ctx) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            known = self.list_commands(ctx)
            if name in ("help", "version"):
                ctx.fail(f"No such command {name!r}: did you mean '--{name}'?")
            synonym = _SYNONYMS.get(name, "")
            near = [synonym] if synonym in known else difflib.get_close_matches(name, known, n=1)
            if near:
                ctx.fail(f"No such command {name!r}: did you mean {near[0]!r}?")
            if len(known) <= _LISTED_AT_MOST:
                ctx.fail(f"No such command {name!r}: there are {', '.join(known)}")
        return super().resolve_command(ctx, args)


class LazyGroup(HelpfulGroup):
    """Takes its commands from `table`."""

    table: Mapping[str, tuple[str, str, str]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        module, attribute, _ = self.table[cmd_name]
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in self.table.items()])
