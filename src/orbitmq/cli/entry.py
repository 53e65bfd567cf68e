"""Where the `orbitmq` command starts. Each subcommand's module is imported only when it is used, so `--help` is quick.

Exit codes and how failures are told: `failures.py`.
"""

from __future__ import annotations

import sys
from typing import Any, Final, NoReturn

from orbitmq import __version__

try:
    import click
except ImportError:
    sys.exit("the orbitmq command needs click: pip install 'orbitmq[cli]'")

from orbitmq.cli.failures import INTERRUPTED, be_verbose, report, verbosity
from orbitmq.cli.lazy import CommandTable, LazyGroup
from orbitmq.cli.process_list import hide_secrets

_COMMANDS: Final[CommandTable] = {
    "dev": ("orbitmq.cli.dev", "dev", "Run a name server and a broker for development, in one process."),
    "nameserver": ("orbitmq.cli.nameserver", "nameserver", "Run a name server."),
    "broker": ("orbitmq.cli.broker", "broker", "Run a broker; with a subcommand, look at running ones."),
    "run": ("orbitmq.cli.run", "run", "Run an app of message handlers."),
    "topic": ("orbitmq.cli.topic", "topic", "List, make, change, describe, follow, delete topics."),
    "group": ("orbitmq.cli.group", "group", "Consumer groups: list, make, change, lag, members, reset."),
    "msg": ("orbitmq.cli.msg", "msg", "Messages: send, get, find, trace."),
    "dlq": ("orbitmq.cli.dlq", "dlq", "Dead letters: list, send again, export."),
    "acl": ("orbitmq.cli.acl", "acl", "Users, and what they may do."),
    "cluster": ("orbitmq.cli.cluster", "cluster", "The clusters in numbers."),
    "console": ("orbitmq.cli.console", "console", "The cluster in a browser."),
    "doctor": ("orbitmq.cli.doctor", "doctor", "What is wrong with a cluster, seen from here, and what to do."),
    "bench": ("orbitmq.cli.bench", "bench", "How fast a cluster takes and gives messages, measured from here."),
    "spark": ("orbitmq.cli.spark", "spark", "Topics and stores through Spark: archive, replay, query."),
    "pipeline": ("orbitmq.cli.pipeline", "pipeline", "Sources, transforms and sinks in a file, run by Spark."),
    "store": ("orbitmq.cli.store", "store", "Look into a store directory, check it, mend it."),
    "mqadmin": ("orbitmq.cli.mqadmin.verbs", "mqadmin", "Apache's verbs and flags as they are, for scripts."),
    "completion": ("orbitmq.cli.completion", "completion", "Print the script that makes a shell complete commands."),
}


class _Root(LazyGroup):
    """The whole command. Whatever fails ends here, as one line and an exit code."""

    table = _COMMANDS

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        verbosity.verbose = False
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False})
        except (click.Abort, KeyboardInterrupt):
            click.echo("orbitmq: interrupted", err=True)
            sys.exit(INTERRUPTED)
        except Exception as error:
            sys.exit(report(error))
        sys.exit(code if isinstance(code, int) else 0)


@click.group(cls=_Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="orbitmq")
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    callback=be_verbose,
    expose_value=False,
    help="Log more; failures at length. Before any command; most take it behind their name as well.",
)
def cli() -> None:
    """OrbitMQ: Apache RocketMQ, whole, in Python."""


def main() -> None:
    hide_secrets(sys.argv[1:])
    cli(prog_name="orbitmq")
