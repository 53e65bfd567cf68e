"""`orbitmq dev`: a name server and a broker in one process, on one folder, ready in a second."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click
import msgspec

from orbitmq.broker import settings as broker_settings
from orbitmq.broker.broker import Broker
from orbitmq.cli.assignments import assigned
from orbitmq.cli.dev_cluster import BrokerPlan, running_broker
from orbitmq.cli.dev_tls import Certificates, certificates
from orbitmq.cli.failures import be_verbose
from orbitmq.cli.logs import log_to_stderr
from orbitmq.cli.serving import ANY_ADDRESS, is_loopback, serve, warn_of_settings
from orbitmq.cli.topics_file import TopicPlan, read_topics_file
from orbitmq.errors import RequestFailed
from orbitmq.nameserver import settings as nameserver_settings
from orbitmq.nameserver.server import NameServer
from orbitmq.protocol.bodies.topics import PERM_READ, PERM_WRITE
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import request
from orbitmq.protocol.headers.admin import CreateTopic
from orbitmq.storage.tables import TopicConfig
from orbitmq.transport.address import Address, parse_address
from orbitmq.transport.loop import run
from orbitmq.transport.pool import Pool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

logger = logging.getLogger(__name__)

_SETTINGS: Final = {
    "mappedFileSizeCommitLog": str(64 << 20),  # a development machine need not give a gigabyte at once
    "mappedFileSizeTimerLog": str(8 << 20),
    "traceTopicEnable": "true",
    "enablePropertyFilter": "true",  # SQL92 filters, which a newcomer tries
}
_PORTS_APART: Final = 10
_CALL_SECONDS: Final = 10.0
_WELCOME: Final = """
  OrbitMQ is up.

    name server   {name_server}
{brokers}
    advertised    {advertised}: {reason}
{open}    data          {data}

  Python   async with orbitmq.connect("{name_server}") as c: ...
  Java     producer.setNamesrvAddr("{name_server}");
  Go       producer.WithNsResolver(primitive.NewPassthroughResolver([]string{{"{name_server}"}}))

  Topics appear with their first message. Ctrl-C stops it.
"""

_OPEN: Final = """\
    open          to anyone who reaches this machine; --host 127.0.0.1 keeps others out
"""


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path, readable=False),
    default=Path("orbitmq-data"),
    show_default=True,
    help="Folder for everything it keeps.",
)
@click.option("--ephemeral", is_flag=True, help="Keep nothing: a temporary folder, gone at the end.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 is every one.")
@click.option(
    "--advertise",
    metavar="IP",
    help="Address that clients are told to reach brokers by, if it is another: 127.0.0.1 for a container with published ports.",
)
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
@click.option(
    "--brokers", type=click.IntRange(1, 32), default=1, show_default=True, help="Masters; more than one are processes."
)
@click.option("--slaves", type=click.IntRange(0, 8), default=0, show_default=True, help="Slaves of each master.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Any setting of a broker; repeatable.")
@click.option("--topics", "topics_file", type=click.Path(path_type=Path), help="TOML file of topics to create.")
@click.option(
    "--tls", "with_tls", is_flag=True, help="Speak TLS as well, with a throw-away certificate made in the folder."
)
@click.option("--json-ready", is_flag=True, help="Print one line of JSON when ready, and nothing else, to stdout.")
@click.option("-v", "--verbose", is_flag=True, callback=be_verbose, help="Log more; failures at length.")
def dev(
    data: Path,
    ephemeral: bool,
    host: str,
    advertise: str | None,
    port: int,
    broker_port: int,
    brokers: int,
    slaves: int,
    assignments: tuple[str, ...],
    topics_file: Path | None,
    with_tls: bool,
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
        tls = certificates(folder / "tls", host) if with_tls else None
        settings = _SETTINGS | ({"brokerIP1": advertise} if advertise is not None else {}) | assigned(assignments)
        settings |= tls.settings if tls is not None else {}
        plans = _plans(folder, broker_port, brokers, slaves, settings)
        run(
            serve(
                _running_cluster(folder, host, port, plans, topics, tls),
                lambda cluster: _as_json(cluster, folder) if json_ready else _welcome(cluster, where, host),
            )
        )
    finally:
        if ephemeral:
            shutil.rmtree(folder, ignore_errors=True)


class Ready(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What runs, for the program that started it."""

    name_server: str
    broker: str  # the first one's address
    brokers: dict[str, str]  # what each is -> its address
    data: str  # the folder with everything
    pid: int
    tls_authority: str | None = None  # file of the certificate that clients trust; only with --tls


class _Cluster(NamedTuple):
    """What runs, for the line that says so."""

    name_server: Address  # as clients reach it
    brokers: dict[str, str]  # what it is -> where it is
    address_reason: str  # why brokers are reached by that address
    tls: Certificates | None


@asynccontextmanager
async def _running_cluster(
    folder: Path,
    host: str,
    port: int,
    plans: list[BrokerPlan],
    topics: list[TopicPlan],
    tls: Certificates | None,
) -> AsyncIterator[_Cluster]:
    """The first master lives in this process; the others, and slaves, in their own."""
    async with AsyncExitStack() as stack:
        name_server = await stack.enter_async_context(NameServer(_name_server_configuration(folder, host, port, tls)))
        assert name_server.address is not None
        first, *others = plans
        configuration = _broker_configuration(first, host, name_server.address)
        warn_of_settings(configuration, "broker")
        broker = await stack.enter_async_context(Broker(configuration))
        await _create_topics(broker, topics)
        addresses = {first.title: str(broker.address)}
        for plan in others:
            started = running_broker(plan, host, str(name_server.address))
            addresses[plan.title] = await stack.enter_async_context(started)
            if plan.broker_id == 0:
                await _create_topics_at(parse_address(addresses[plan.title]), topics)
        await _send_first_messages(broker, name_server.address, topics)
        assert broker.address is not None
        reached_by = broker.address.host if host in ANY_ADDRESS else name_server.address.host
        yield _Cluster(Address(reached_by, name_server.address.port), addresses, broker.address_reason, tls)


def _plans(folder: Path, port: int, masters: int, slaves: int, settings: dict[str, str]) -> list[BrokerPlan]:
    """Ports a good distance apart: each broker takes those next to its own as well."""
    plans: list[BrokerPlan] = []
    for number in range(masters):
        for broker_id in range(slaves + 1):
            name = "dev" if number == 0 else f"dev-{number + 1}"
            store = "store" if (number, broker_id) == (0, 0) else f"store-{name}-{broker_id}"
            own_port = port and port + _PORTS_APART * len(plans)
            plans.append(BrokerPlan(name, broker_id, folder / store, own_port, settings))
    return plans


def _welcome(cluster: _Cluster, where: str, host: str) -> str:
    kinds = [
        f"    {'broker' if number == 0 else '':14}{address}   {title}"
        for number, (title, address) in enumerate(cluster.brokers.items())
    ]
    lines = kinds if len(kinds) > 1 else [line.rsplit("   ", 1)[0] for line in kinds]
    how = cluster.tls.how_to_connect(str(cluster.name_server)) if cluster.tls is not None else ""
    welcome = _WELCOME.format(
        name_server=cluster.name_server,
        brokers="\n".join(lines),
        advertised=next(iter(cluster.brokers.values())).rpartition(":")[0],
        reason=cluster.address_reason,
        open="" if is_loopback(host) else _OPEN,
        data=where,
    )
    return welcome + how


def _as_json(cluster: _Cluster, folder: Path) -> str:
    ready = Ready(
        name_server=str(cluster.name_server),
        broker=next(iter(cluster.brokers.values())),
        brokers=cluster.brokers,
        data=str(folder),
        pid=os.getpid(),
        tls_authority=None if cluster.tls is None else str(cluster.tls.authority),
    )
    return msgspec.json.encode(ready).decode()


def _name_server_configuration(
    folder: Path, host: str, port: int, tls: Certificates | None
) -> nameserver_settings.NameServerConfiguration:
    return nameserver_settings.load(
        None,
        properties_given=tls.settings if tls is not None else {},
        bind_address=host,
        listen_port=port,
        kv_config_path=str(folder / "nameserver" / "kvConfig.json"),
        config_store_path=str(folder / "nameserver" / "namesrv.properties"),
    )


def _broker_configuration(plan: BrokerPlan, host: str, name_server: Address) -> broker_settings.BrokerConfiguration:
    return broker_settings.load(
        None,
        {
            "bindAddress": host,
            "listenPort": str(plan.port),
            "namesrvAddr": str(name_server),
            "brokerName": plan.name,
            "storePathRootDir": str(plan.folder),
            **plan.settings,
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


async def _create_topics_at(broker: Address, topics: list[TopicPlan]) -> None:
    """On a master in a process of its own."""
    pool = Pool()
    try:
        for plan in topics:
            header = CreateTopic(
                topic=plan.name,
                read_queue_nums=plan.queues,
                write_queue_nums=plan.queues,
                perm=PERM_READ | PERM_WRITE,
                topic_filter_type="SINGLE_TAG",
                order=plan.ordered,
                attributes=plan.attribute_changes(),
            )
            answer = await pool.call(broker, request(RequestCode.UPDATE_AND_CREATE_TOPIC, header), _CALL_SECONDS)
            if answer.code != ResponseCode.SUCCESS:
                raise RequestFailed(answer.code, f"cannot create topic {plan.name} on {broker}: {answer.remark}")
    finally:
        await pool.close()


async def _send_first_messages(broker: Broker, name_server: Address, topics: list[TopicPlan]) -> None:
    empty = [plan for plan in topics if plan.messages and not _has_messages(broker, plan.name)]
    if not empty:
        return
    from orbitmq.client.client import connect  # here: most starts have nothing to send

    async with connect(str(name_server)) as client, client.producer(group="orbitmq-dev") as producer:
        for plan in empty:
            for text in plan.messages:
                await producer.send(plan.name, text.encode())


def _has_messages(broker: Broker, topic: str) -> bool:
    return any(queue.max_offset for queue in broker.state.store.queue_ranges(topic).values())
