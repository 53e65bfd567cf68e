"""What `orbitmq broker` does without a subcommand: run a broker until it is told to stop. Java: mqbroker"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from orbitmq.broker import settings
from orbitmq.broker.broker import Broker
from orbitmq.cli.assignments import assigned
from orbitmq.cli.logs import log_to_stderr
from orbitmq.cli.serving import serve, warn_if_open, warn_of_settings
from orbitmq.protocol.properties_text import format_properties
from orbitmq.transport.loop import run

if TYPE_CHECKING:
    from pathlib import Path

_IMPORTANT = (
    "namesrvAddr", "brokerIP1", "brokerName", "brokerClusterName", "brokerId", "brokerRole", "listenPort",
    "autoCreateTopicEnable", "autoCreateSubscriptionGroup", "traceTopicEnable", "flushDiskType", "storePathRootDir",
    "fileReservedTime", "deleteWhen",
)  # fmt: skip


def run_broker(
    *,
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
    given = {"namesrvAddr": namesrv, "bindAddress": host, "listenPort": port, "storePathRootDir": store}
    overrides = {key: str(value) for key, value in given.items() if value is not None}
    configuration = settings.load(file, overrides | assigned(assignments))
    if print_all or print_important:
        warn_of_settings(configuration, "broker")
        shown = configuration.as_properties()
        keys = _IMPORTANT if print_important else tuple(shown)
        click.echo(format_properties({key: shown[key] for key in keys}), nl=False)
        return
    log_to_stderr(verbose=verbose)
    warn_of_settings(configuration, "broker")
    if not insecure:
        chosen = configuration.settings
        warn_if_open(chosen.bind_address, guarded=chosen.is_guarded or chosen.acl_enable)
    name = configuration.settings.broker_name
    ready = f"broker {name} ready on"
    run(serve(Broker(configuration), lambda up: f"{ready} {up.address}", ends_with_parent=ends_with_parent))
