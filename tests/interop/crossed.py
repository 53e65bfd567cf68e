"""Java's clients, every release with every header codec, on our own servers: what their tests share (fixtures: conftest.py)."""

from dataclasses import dataclass
from itertools import product
from typing import Final

from orbitmq.protocol.bodies.groups import GroupConfig
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import Command, request
from orbitmq.protocol.headers.admin import CreateTopic
from orbitmq.transport.address import parse_address
from orbitmq.transport.pool import Pool
from tests.interop.apache import Broker, NameServer
from tests.interop.drivers import JavaClient, Received
from tests.interop.java import RELEASES

CLIENTS: Final = list(product(RELEASES, ("json", "binary")))


@dataclass(frozen=True, slots=True)
class OrbitCluster:
    name_server: NameServer
    broker: Broker

    async def create_topic(self, topic: str) -> None:
        """With four queues."""
        header = CreateTopic(topic=topic, read_queue_nums=4, write_queue_nums=4, perm=6, topic_filter_type="SINGLE_TAG")
        await self._told(request(RequestCode.UPDATE_AND_CREATE_TOPIC, header))

    async def create_group(self, group: str, retries: int) -> None:
        config = GroupConfig(group_name=group, retry_max_times=retries)
        await self._told(request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config.to_json()))

    async def _told(self, command: Command) -> None:
        pool = Pool()
        answer = await pool.call(parse_address(self.broker.address), command, 30)
        await pool.close()
        assert answer.code == 0, answer


@dataclass(frozen=True, slots=True)
class CrossedClient:
    release: str
    is_binary: bool
    java: JavaClient


def send(java: JavaClient, cluster: OrbitCluster, topic: str, count: int, what: str = "message") -> list[str]:
    producer = f"{topic}-{what}"
    java.open_producer(producer, cluster.name_server.address)
    texts = [f"{what} {i}" for i in range(count)]
    java.send(producer, topic, [{"text": text} for text in texts])
    java.close_one(producer)
    return texts


def texts_of(messages: list[Received]) -> list[str]:
    return sorted(message.body.decode() for message in messages)
