"""Fixtures of the interop tests. What a test needs (Java and Maven, mostly) its module's mark says: marks.py."""

import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from orbitmq import Client, connect
from tests.client.suite import until_routed
from tests.interop import apache, orbit
from tests.interop.apache import Broker, BrokerPlan, NameServer
from tests.interop.crossed import CLIENTS, CrossedClient, OrbitCluster
from tests.interop.drivers import DrivenClient, JavaClient
from tests.interop.java import RELEASES, JavaBuild, build
from tests.interop.languages import Language
from tests.interop.world import World, running_world

# Set to "apache", Apache's own name server takes our place everywhere: that checks the tests, not us.
STAND_IN = os.environ.get("ORBITMQ_INTEROP_NAMESERVER", "orbit")


class StartNameServer(Protocol):
    def __call__(self, settings: Mapping[str, str | int] | None = None, port: int = 0) -> NameServer: ...


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    """Each Apache release in turn."""
    value: str = request.param
    return value


@pytest.fixture(scope="module")
def java(release: str) -> JavaBuild:
    return build(release)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running_world(tmp_path_factory.mktemp("world"), _start_name_server) as world:
        yield world


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OrbitCluster]:
    """Our name server and our broker, whose delay levels are a second each, for all tests of Apache's clients on them."""
    settings: dict[str, str | int] = {
        "messageDelayLevel": " ".join(["1s"] * 18),
        "transactionTimeOut": 500,
        "transactionCheckInterval": 500,
        "enablePropertyFilter": "true",
    }
    with orbit.running(tmp_path_factory.mktemp("orbit-cluster"), settings) as (name_server, broker):
        yield OrbitCluster(name_server, broker)


@pytest.fixture(scope="session", params=CLIENTS, ids="-".join)
def crossed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrossedClient]:
    """Each release with each header codec in turn: one JVM for all tests."""
    release, codec = request.param
    is_binary = codec == "binary"
    java = JavaClient(build(release), tmp_path_factory.mktemp("client") / "jvm", binary_headers=is_binary)
    try:
        yield CrossedClient(release, is_binary, java)
    finally:
        java.close()


@pytest.fixture(scope="module")
def guest(language: Language, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DrivenClient]:
    """The client of the module's `language`, in a process of its own."""
    guest = language.start(tmp_path_factory.mktemp(language.name) / "client")
    yield guest
    guest.close()


_attempts = itertools.count(1)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """For the topic, the group and the instances of one test, and of one attempt at it: they share a JVM."""
    plain = "".join(letter if letter.isalnum() else "_" for letter in request.node.name)[-80:]
    return f"{plain}_{next(_attempts)}"


@pytest.fixture
def name_server(cluster: OrbitCluster) -> str:
    """The address of `cluster`'s, unless a module has its own."""
    return cluster.name_server.address


@pytest.fixture
async def client(name_server: str) -> AsyncIterator[Client]:
    """Our own."""
    async with connect(name_server) as client:
        yield client


@pytest.fixture
async def topic(cluster: OrbitCluster, client: Client, name: str) -> str:
    """A topic of its own for each test, with four queues, on `cluster`."""
    await cluster.create_topic(name)
    await until_routed(client, name)
    return name


@pytest.fixture
def orbit_nameserver(tmp_path: Path) -> Iterator[StartNameServer]:
    """Starts our name server, as often as asked; a port given twice is the same server started again."""
    with ExitStack() as stack:

        def start(settings: Mapping[str, str | int] | None = None, port: int = 0) -> NameServer:
            folder = tmp_path / f"nameserver-{len(list(tmp_path.glob('nameserver-*')))}"
            server = _start_name_server(folder, settings, port)
            stack.callback(server.process.kill)
            return server

        yield start


@pytest.fixture
def apache_broker(java: JavaBuild, tmp_path: Path) -> Iterator[Callable[[BrokerPlan], Broker]]:
    """Starts Apache brokers of the current release."""
    with ExitStack() as stack:

        def start(plan: BrokerPlan) -> Broker:
            broker = apache.start_broker(java, tmp_path / f"broker-{len(list(tmp_path.glob('broker-*')))}", plan)
            stack.callback(broker.process.kill)
            return broker

        yield start


@pytest.fixture
def java_client(java: JavaBuild, tmp_path: Path) -> Iterator[Callable[[bool], JavaClient]]:
    """Starts Apache's client of the current release, with binary headers or without."""
    with ExitStack() as stack:

        def start(binary_headers: bool) -> JavaClient:
            client = JavaClient(java, tmp_path / "client", binary_headers=binary_headers)
            stack.callback(client.close)
            return client

        yield start


def _start_name_server(folder: Path, settings: Mapping[str, str | int] | None = None, port: int = 0) -> NameServer:
    if STAND_IN == "apache":
        return apache.start_name_server(build(RELEASES[0]), folder, settings, port)
    return orbit.start_name_server(folder, settings, port)
