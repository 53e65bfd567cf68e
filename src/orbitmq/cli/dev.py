"""`orbitmq dev`: a name server and a broker in one process, on one folder, ready in a second."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from orbitmq.broker import settings as broker_settings
from orbitmq.broker.broker import Broker
from orbitmq.cli.logs import log_to_stderr
from orbitmq.cli.serving import serve
from orbitmq.cli.topics_file import TopicPlan, read_topics_file
from orbitmq.nameserver import settings as nameserver_settings
from orbitmq.nameserver.server import NameServer
from orbitmq.storage.tables import TopicConfig
from orbitmq.transport.loop import run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orbitmq.transport.address import Address

logger = logging.getLogger(__name__)

_SEGMENT_BYTES: Final = 64 << 20  # a development machine need not give a gigabyte at once
_WELCOME: Final = """
  OrbitMQ is up.

    name server   {name_server}
    broker        {broker}
    data          {data}

  Python   async with orbitmq.connect("{name_server}") as c: ...
  Java     producer.setNamesrvAddr("{name_server}");
  Go       producer.WithNsResolver(primitive.NewPassthroughResolver([]string{{"{name_server}"}}))

  Topics appear with their first message. Ctrl-C stops it.
"""


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path("orbitmq-data"),
    show_default=True,
    help="Folder for everything it keeps.",
)
@click.option("--ephemeral", is_flag=True, help="Keep nothing: a temporary folder, gone at the end.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on, and to give to clients.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9876,
    show_default=True,
    help="Name server port; 0 takes a free one.",
)
@click.option(
    "--broker-port",
    type=click.IntRange(0, 65535),
    default=10911,
    show_default=True,
    help="Broker port; 0 takes a free one.",
)
@click.option("--topics", "topics_file", type=click.Path(path_type=Path), help="TOML file of topics to create.")
@click.option("--json-ready", is_flag=True, help="Print one line of JSON when ready, and nothing else, to stdout.")
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
def dev(
    data: Path,
    ephemeral: bool,
    host: str,
    port: int,
    broker_port: int,
    topics_file: Path | None,
    json_ready: bool,
    verbose: bool,
) -> None:
    """Run a name server and a broker for development, in one process. Nothing outside its folder is touched."""
    log_to_stderr(verbose=verbose)
    if not verbose:
        logging.getLogger().setLevel(logging.WARNING)
    topics = read_topics_file(topics_file) if topics_file is not None else []
    folder = Path(tempfile.mkdtemp(prefix="orbitmq-dev-")) if ephemeral else data.absolute()
    try:
        where = f"{folder}{' (temporary)' if ephemeral else ''}"
        run(
            serve(
                _running_pair(folder, host, port, broker_port, topics),
                lambda pair: _as_json(pair, folder) if json_ready else _WELCOME.format(**pair._asdict(), data=where),
            )
        )
    finally:
        if ephemeral:
            shutil.rmtree(folder, ignore_errors=True)


class _Pair(NamedTuple):
    """What runs, for the line that says so."""

    name_server: Address | None
    broker: Address | None


@asynccontextmanager
async def _running_pair(
    folder: Path, host: str, port: int, broker_port: int, topics: list[TopicPlan]
) -> AsyncIterator[_Pair]:
    async with NameServer(_name_server_configuration(folder, host, port)) as name_server:
        assert name_server.address is not None
        configuration = _broker_configuration(folder, host, broker_port, name_server.address)
        async with Broker(configuration) as broker:
            await _create_topics(broker, topics)
            yield _Pair(name_server.address, broker.address)


def _as_json(pair: _Pair, folder: Path) -> str:
    ready = {
        "nameServer": str(pair.name_server),
        "broker": str(pair.broker),
        "data": str(folder),
        "pid": os.getpid(),
    }
    return json.dumps(ready)


def _name_server_configuration(folder: Path, host: str, port: int) -> nameserver_settings.NameServerConfiguration:
    return nameserver_settings.load(
        None,
        bind_address=host,
        listen_port=port,
        kv_config_path=str(folder / "nameserver" / "kvConfig.json"),
        config_store_path=str(folder / "nameserver" / "namesrv.properties"),
    )


def _broker_configuration(
    folder: Path, host: str, port: int, name_server: Address
) -> broker_settings.BrokerConfiguration:
    return broker_settings.load(
        None,
        {
            "bindAddress": host,
            "listenPort": str(port),
            "namesrvAddr": str(name_server),
            "brokerName": "dev",
            "storePathRootDir": str(folder / "store"),
            "mappedFileSizeCommitLog": str(_SEGMENT_BYTES),
            "traceTopicEnable": "true",
        },
    )


async def _create_topics(broker: Broker, topics: list[TopicPlan]) -> None:
    wanted = [
        (
            TopicConfig(
                topic_name=plan.name, read_queue_nums=plan.queues, write_queue_nums=plan.queues, order=plan.ordered
            ),
            plan.attribute_changes(),
        )
        for plan in topics
    ]
    if wanted:
        await broker.state.topics.update(wanted)
