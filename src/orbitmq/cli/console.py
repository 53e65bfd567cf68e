"""`orbitmq console`: the cluster in a browser."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orbitmq.cli.logs import log_to_stderr
from orbitmq.cli.options import target_options
from orbitmq.cli.serving import is_loopback, serve
from orbitmq.errors import ConfigError

if TYPE_CHECKING:
    from orbitmq.cli.options import Target
    from orbitmq.console.app import RunningConsole

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0 takes a free one.")
@click.option(
    "--allow-changes", is_flag=True, help="Also send, make and delete topics, reset groups, resend dead letters."
)
@click.option(
    "--token-file", type=_FILE, help="File with the token that visitors need; without, one is made at every start."
)
@click.option("--certificate", type=_FILE, help="Serve HTTPS with this certificate (PEM).")
@click.option("--key", type=_FILE, help="Its key (PEM).")
@target_options
def console(
    target: Target,
    host: str,
    port: int,
    allow_changes: bool,
    token_file: Path | None,
    certificate: Path | None,
    key: Path | None,
) -> None:
    """Show a cluster in a browser: brokers, topics, groups, messages, dead letters, and what the doctor says.

    It works on Apache's clusters as well. Visitors need the token in the address that is printed; nothing is open.
    """
    try:
        from orbitmq.console.app import ConsoleSettings, running_console
    except ImportError as error:
        raise ConfigError(f"the console needs {error.name}", hint="pip install 'orbitmq[console]'") from None
    from orbitmq.transport.loop import run

    if (certificate is None) != (key is None):
        raise click.UsageError("--certificate and --key belong together")
    log_to_stderr(verbose=False)
    if certificate is None and not is_loopback(host):
        click.echo(
            f"orbitmq: the token and all that is shown go over the network unencrypted from {host}"
            " (--certificate and --key encrypt it)",
            err=True,
        )
    target.open()  # a wrong option shows here, once, not on every page
    token = token_file.read_text().strip() if token_file is not None else secrets.token_urlsafe(24)
    settings = ConsoleSettings(
        open_session=target.open,
        name_servers=target.name_servers,
        token=token,
        allow_changes=allow_changes,
        host=host,
        port=port,
        certificate=certificate,
        key=key,
    )

    def ready(running: RunningConsole) -> str:
        if token_file is not None:
            return f"console of {target.name_servers} on {running.url}"
        return f"console of {target.name_servers}: {running.address_with(token)}"

    run(serve(running_console(settings), ready))
