"""`orbitmq broker`: run a broker; with a subcommand, look at running ones and change their settings."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from orbitmq.cli.asking import destructive_options, may_go_on
from orbitmq.cli.completing import topic_option
from orbitmq.cli.explaining import explain_option
from orbitmq.cli.failures import be_verbose
from orbitmq.cli.lazy import HelpfulGroup
from orbitmq.cli.options import document_options, target_options, view_options
from orbitmq.cli.view import View, show_document, show_rows, table_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orbitmq.admin.session import Session
    from orbitmq.cli.options import Target


@click.group(cls=HelpfulGroup, invoke_without_command=True)
@click.option("-c", "--config", "file", type=click.Path(path_type=Path), help="Properties file, Apache's keys.")
@click.option(
    "-n", "--namesrv", help="Name servers, `host:port;host:port`.  [default: namesrvAddr, else $NAMESRV_ADDR]"
)
@click.option("-p", "--print", "print_all", is_flag=True, help="Print every setting in force, and exit.")
@click.option("-m", "--print-important", is_flag=True, help="Print the important settings, and exit.")
@click.option("--host", help="Address to listen on.  [default: bindAddress, else 0.0.0.0]")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port; 0 takes a free one.  [default: listenPort, else 10911]"
)
@click.option(
    "--store", type=click.Path(path_type=Path, readable=False), help="Folder of the messages.  [default: ~/store]"
)
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Any setting; may be repeated.")
@explain_option("broker")
@click.option("--insecure", is_flag=True, help="Say nothing about a broker that is open to everyone.")
@click.option("--ends-with-parent", is_flag=True, hidden=True, help="Stop when the process that started it is gone.")
@click.option("-v", "--verbose", is_flag=True, callback=be_verbose, help="Log more; failures at length.")
@click.pass_context
def broker(
    context: click.Context,
    file: Path | None,
    namesrv: str | None,
    print_all: bool,
    print_important: bool,
    host: str | None,
    port: int | None,
    store: Path | None,
    assignments: tuple[str, ...],
    insecure: bool,
    ends_with_parent: bool,
    verbose: bool,
) -> None:
    """Run a broker. It prints one line to stdout once it is ready, and logs to stderr.

    With a subcommand nothing is run: it looks at the brokers of a cluster.
    """
    if context.invoked_subcommand is not None:
        _check_nothing_is_ignored(context, context.invoked_subcommand)
        return
    from orbitmq.cli.broker_server import run_broker

    run_broker(
        file=file,
        namesrv=namesrv,
        print_all=print_all,
        print_important=print_important,
        host=host,
        port=port,
        store=store,
        assignments=assignments,
        insecure=insecure,
        ends_with_parent=ends_with_parent,
        verbose=verbose,
    )


def _check_nothing_is_ignored(context: click.Context, subcommand: str) -> None:
    """Options before a subcommand would be those of a broker to run: `-n` there must not mean another cluster."""
    given = [
        parameter.opts[-1]
        for parameter in context.command.params
        if parameter.name and context.get_parameter_source(parameter.name) == ParameterSource.COMMANDLINE
    ]
    if given:
        raise click.UsageError(f"{', '.join(given)}: write options after `{subcommand}`")


@broker.command("ls")
@click.option("-c", "--cluster", help="Only of this cluster.")
@view_options
@target_options
def list_(target: Target, view: View, cluster: str | None) -> None:
    """The brokers of the cluster and their figures. One that does not answer is listed with the reason."""
    from orbitmq.admin.brokers import BrokerRow, list_brokers

    columns = (
        "cluster",
        "broker",
        "id",
        "role",
        "address",
        "version",
        "put_tps",
        "get_tps",
        "disk_used_percent",
        "problem",
    )
    target.run(
        lambda session: show_rows(session, view, BrokerRow, lambda: list_brokers(session, cluster=cluster), columns)
    )


@broker.command()
@click.argument("name")
@document_options
@target_options
def describe(target: Target, view: View, name: str) -> None:
    """Everything a broker says about itself. NAME is its name or address."""
    from orbitmq.admin.brokers import describe_broker

    show_document(view, target.run(lambda session: describe_broker(session, name)))


@broker.command()
@click.argument("name")
@click.argument("settings", nargs=-1, metavar="[KEY | KEY=VALUE]...")
@view_options
@destructive_options
@target_options
def config(target: Target, view: View, name: str, settings: Sequence[str], yes: bool, dry_run: bool) -> None:
    """Show a broker's settings, all or those whose KEY matches (*, ?); with KEY=VALUE change them while it runs.

    NAME is that of a broker with its slaves, or the address of one process.
    """
    changes = dict(text.split("=", 1) for text in settings if "=" in text)
    wanted = [text for text in settings if "=" not in text]
    if changes and wanted:
        raise click.UsageError("either show settings or change them")
    if changes:
        _change(target, name, changes, yes=yes, dry_run=dry_run)
    else:
        _show(target, view, name, wanted)


@broker.command()
@topic_option(help="Only this topic.")
@click.option("-a", "--all", "everything", is_flag=True, help="Also topics without traffic today.")
@view_options
@target_options
def stats(target: Target, view: View, topic: str | None, everything: bool) -> None:
    """What topics and groups sent and read: messages a second, and in the last 24 hours."""
    from orbitmq.admin.statistics import TrafficRow, traffic

    async def show(session: Session) -> None:
        async def fetch() -> list[TrafficRow]:
            rows = await traffic(session, topic)
            return [row for row in rows if everything or topic is not None or row.sent_24h or row.read_24h]

        await show_rows(session, view, TrafficRow, fetch)

    target.run(show)


def _show(target: Target, view: View, name: str, wanted: Sequence[str]) -> None:
    from orbitmq.admin.brokers import SettingRow, check_setting_names, setting_rows

    async def show(session: Session) -> None:
        async def fetch() -> list[SettingRow]:
            rows = await setting_rows(session, name)
            check_setting_names({row.key for row in rows}, [one for one in wanted if not _is_pattern(one)])
            return [row for row in rows if not wanted or any(fnmatchcase(row.key, one) for one in wanted)]

        await show_rows(session, view, SettingRow, fetch, ("broker", "address", "key", "value"))

    target.run(show)


def _is_pattern(text: str) -> bool:
    return "*" in text or "?" in text


def _change(target: Target, name: str, changes: dict[str, str], *, yes: bool, dry_run: bool) -> None:
    from orbitmq.admin.brokers import check_setting_names, find_brokers, setting_rows, update_broker_settings

    rows = target.run(lambda session: setting_rows(session, name))
    check_setting_names({row.key for row in rows}, list(changes))
    changed = [(row.broker, row.address, row.key, row.value, changes[row.key]) for row in rows if row.key in changes]
    preview = table_text(("BROKER", "ADDRESS", "KEY", "NOW", "NEW"), changed)

    async def apply(session: Session) -> None:
        for place in await find_brokers(session, broker=name, masters_only=False):
            await update_broker_settings(session, place.address, changes)

    if may_go_on(preview, "Change it?", yes=yes, dry_run=dry_run):
        target.run(apply)
        click.echo(f"changed {', '.join(changes)} on {name}")
