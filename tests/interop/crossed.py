"""Java's clients, every release with every header codec, on our own servers: what their tests share (fixtures: conftest.py)."""

from dataclasses import dataclass
from itertools import product
from typing import Final

from tests.interop.apache import Broker, NameServer
from tests.interop.drivers import JavaClient, Received
from tests.interop.java import RELEASES

CLIENTS: Final = list(product(RELEASES, ("json", "binary")))


@dataclass(frozen=True, slots=True)
class OrbitCluster:
    name_server: NameServer
    broker: Broker


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
