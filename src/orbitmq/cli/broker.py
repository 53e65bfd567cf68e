"""`orbitmq broker`: run a broker until it is told to stop. Java: mqbroker"""

from __future__ import annotations

import logging
from pathlib import Path

import click

from orbitmq.broker import settings
from orbitmq.broker.broker import Broker
from orbitmq.cli.logs import log_to_stderr
from orbitmq.cli.serving import serve
from orbitmq.errors import ConfigError
from orbitmq.protocol.properties_text import format_properties
from orbitmq.transport.loop import run

logger = logging.getLogger(__name__)

_IMPORTANT = (
    "namesrvAddr", "brokerIP1", "brokerName", "brokerClusterName", "brokerId", "brokerRole", "listenPort",
    "autoCreateTopicEnable", "autoCreateSubscriptionGroup", "traceTopicEnable", "flushDiskType", "storePathRootDir",
    "fileReservedTime", "deleteWhen",
)  # fmt: skip


@click.command()
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
@click.option("--store", type=click.Path(path_type=Path), help="Folder of the messages.  [default: ~/store]")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Any setting; may be repeated.")
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
def broker(
    file: Path | None,
    namesrv: str | None,
    print_all: bool,
    print_important: bool,
    host: str | None,
    port: int | None,
    store: Path | None,
    assignments: tuple[str, ...],
    verbose: bool,
) -> None:
    """Run a broker. It prints one line to stdout once it is ready, and logs to stderr."""
    given = {"namesrvAddr": namesrv, "bindAddress": host, "listenPort": port, "storePathRootDir": store}
    overrides = {key: str(value) for key, value in given.items() if value is not None}
    configuration = settings.load(file, overrides | _assigned(assignments))
    if print_all or print_important:
        shown = configuration.as_properties()
        keys = _IMPORTANT if print_important else tuple(shown)
        click.echo(format_properties({key: shown[key] for key in keys}), nl=False)
        return
    log_to_stderr(verbose=verbose)
    for key in configuration.unknown:
        nearest = configuration.nearest_known(key)
        logger.warning("%s is no setting of a broker%s", key, f"; did you mean {nearest}?" if nearest else "")
    name = configuration.settings.broker_name
    run(serve(Broker(configuration), lambda running: f"broker {name} ready on {running.address}"))


def _assigned(assignments: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--set {assignment} has no value", hint="write --set key=value")
        pairs[key.strip()] = value.strip()
    return pairs
