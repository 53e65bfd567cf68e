"""A name server in this process, on a port of its own choice, with its files in the test's folder; and brokers to go with it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from orbitmq.nameserver import settings
from orbitmq.nameserver.server import NameServer
from orbitmq.protocol.bodies.registration import Registration, body_checksum
from orbitmq.protocol.bodies.route import TopicRoute
from orbitmq.protocol.bodies.topics import DataVersion, TopicConfig, TopicTable
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.properties_text import properties_file

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from orbitmq.clock import Clock
    from orbitmq.protocol.command import Command
    from tests.raw_client import RawClient


def write_settings(folder: Path, **values: object) -> Path:
    """A properties file that keeps all of the server's files inside `folder`. Use Apache's names."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "nameserver.conf"
    texts = {"kvConfigPath": str(folder / "kvConfig.json"), "bindAddress": "127.0.0.1", "listenPort": "0"}
    texts |= {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in values.items()}
    path.write_text(properties_file(texts))
    return path


@asynccontextmanager
async def running(folder: Path, *, clock: Clock | None = None, **values: object) -> AsyncIterator[NameServer]:
    async with NameServer(settings.load(write_settings(folder, **values)), clock=clock) as server:
        yield server


def topic_table(*names: str, version: int = 1, state_version: int = 0, **config: Any) -> TopicTable:
    return TopicTable(
        data_version=DataVersion(counter=version, state_version=state_version, timestamp=1_700_000_000_000),
        topic_config_table={name: TopicConfig(topic_name=name, **config) for name in names},
    )


def registration_fields(
    name: str = "broker-a",
    *,
    broker_id: int = 0,
    address: str = "10.0.0.1:10911",
    cluster: str = "cluster-1",
    **more: str,
) -> dict[str, str]:
    return {
        "brokerName": name,
        "brokerAddr": address,
        "clusterName": cluster,
        "haServerAddr": address.replace("10911", "10912"),
        "brokerId": str(broker_id),
        **more,
    }


async def register(
    client: RawClient, name: str = "broker-a", *, topics: TopicTable | None = None, version: int = 479, **fields: Any
) -> Command:
    """Register a pretend broker, by default with topics TopicA and TopicB."""
    table = topics if topics is not None else topic_table("TopicA", "TopicB")
    body = Registration(topic_config_serialize_wrapper=table, filter_server_list=[]).to_json()
    header = registration_fields(name, **fields) | {"bodyCrc32": str(body_checksum(body))}
    return await client.ask(RequestCode.REGISTER_BROKER, header, body, version=version)


async def route(client: RawClient, topic: str, **fields: str) -> TopicRoute | None:
    """What a client is told; None when there is no route."""
    answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, **fields})
    if answer.code == 17:
        return None
    assert answer.code == 0, answer.remark
    return TopicRoute.from_json(answer.body)


def addresses(found: TopicRoute | None) -> Mapping[str, Mapping[int, str]]:
    """Broker name -> id -> address."""
    return {broker.broker_name: broker.broker_addrs for broker in found.broker_datas} if found is not None else {}
