"""Where the `orbitmq` command starts. Each subcommand's module is imported only when it is used, so `--help` is quick.

Exit codes: 0 done, 1 it failed and says why in one line, 2 wrong use of the command.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

from orbitmq import __version__
from orbitmq.errors import OrbitError

try:
    import click
except ImportError:
    sys.exit("the orbitmq command needs click: pip install 'orbitmq[cli]'")

# name -> (module, attribute, one line for the help page)
_COMMANDS: Final = {
    "dev": ("orbitmq.cli.dev", "dev", "Run a name server and a broker for development, in one process."),
    "nameserver": ("orbitmq.cli.nameserver", "nameserver", "Run a name server."),
    "broker": ("orbitmq.cli.broker", "broker", "Run a broker."),
    "run": ("orbitmq.cli.run", "run", "Run an app of message handlers."),
    "store": ("orbitmq.cli.store", "store", "Look into a store directory, check it, mend it."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[name]
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in _COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="orbitmq")
def cli() -> None:
    """OrbitMQ: Apache RocketMQ, whole, in Python."""


def main() -> None:
    try:
        cli(prog_name="orbitmq")
    except OrbitError as error:
        click.echo(f"orbitmq: {error}", err=True)
        sys.exit(1)
