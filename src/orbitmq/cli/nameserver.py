"""`orbitmq nameserver`: run a name server until it is told to stop. Java: mqnamesrv"""

from __future__ import annotations

from pathlib import Path

import click

from orbitmq.cli.explaining import explain_option
from orbitmq.cli.failures import be_verbose
from orbitmq.cli.logs import log_to_stderr
from orbitmq.cli.serving import serve, warn_if_open, warn_of_settings
from orbitmq.nameserver import settings
from orbitmq.nameserver.server import NameServer
from orbitmq.protocol.properties_text import format_properties
from orbitmq.transport.loop import run


@click.command()
@click.option("-c", "--config", "file", type=click.Path(path_type=Path), help="Properties file, Apache's keys.")
@click.option("-p", "--print", "only_print", is_flag=True, help="Print every setting in force, and exit.")
@click.option("--host", help="Address to listen on.  [default: bindAddress, else 0.0.0.0]")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port; 0 takes a free one.  [default: listenPort, else 9876]"
)
@explain_option("nameserver")
@click.option("--insecure", is_flag=True, help="Say nothing about a server that is open to everyone.")
@click.option("-v", "--verbose", is_flag=True, callback=be_verbose, help="Log more; failures at length.")
def nameserver(
    file: Path | None, only_print: bool, host: str | None, port: int | None, insecure: bool, verbose: bool
) -> None:
    """Run a name server. It prints one line to stdout once it is ready, and logs to stderr."""
    configuration = settings.load(file, bind_address=host, listen_port=port)
    if only_print:
        click.echo(format_properties(configuration.as_properties()), nl=False)
        return
    log_to_stderr(verbose=verbose)
    warn_of_settings(configuration, "name server")
    if not insecure:
        warn_if_open(configuration.settings.bind_address, guarded=configuration.settings.is_guarded)
    run(serve(NameServer(configuration), lambda server: f"name server ready on {server.address}"))
