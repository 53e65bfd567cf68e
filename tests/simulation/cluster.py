"""Name servers, a master, its slaves, and machines for clients: who runs where, and how each is started."""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from orbitmq.broker import settings as broker_settings
from orbitmq.broker.broker import Broker
from orbitmq.client.client import Client
from orbitmq.client.config import ClientConfig
from orbitmq.nameserver import settings as nameserver_settings
from orbitmq.nameserver.server import NameServer
from orbitmq.transport.address import Address
from tests.simulation.machine import Machine
from tests.simulation.network import SimulatedNetwork

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.loop import SimulatedLoop

_NAME_SERVER_PORT: Final = 9876
_BROKER_PORT: Final = 10911
_NOWHERE: Final = Path("/in-memory")


@dataclass(frozen=True, slots=True)
class Mode:
    """What the brokers promise."""

    sync_flush: bool
    slaves: int
    in_sync_replicas: int  # with the master; 1 waits for nobody
    timers: bool = False

    def __str__(self) -> str:
        flush = "SYNC_FLUSH" if self.sync_flush else "ASYNC_FLUSH"
        timers = ", timers" if self.timers else ""
        return f"{flush}, {self.slaves} slaves, inSyncReplicas {self.in_sync_replicas}{timers}"


class Trace:
    """Everything that happened, as a running hash, and as text if anybody wants to read it."""

    def __init__(self, *, keep: bool) -> None:
        self.lines: list[str] | None = [] if keep else None
        self.count = 0
        self._hash = hashlib.blake2b(digest_size=12)
        self.now: Callable[[], float] = time.monotonic  # until there is a loop

    def note(self, what: str, *details: object) -> None:
        line = f"{self.now():.6f} {what} {' '.join(map(str, details))}"
        self.count += 1
        self._hash.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    def digest(self) -> str:
        return self._hash.hexdigest()


class Cluster:
    def __init__(self, loop: SimulatedLoop, mode: Mode, seed: int, trace: Trace, *, clients: int) -> None:
        self.loop = loop
        self.mode = mode
        self.network = SimulatedNetwork(loop, Random(f"{seed}/network"), trace.note)
        self.trace = trace
        self._seed = seed
        self.name_servers = [self._machine(f"n{number}", f"10.0.1.{number}") for number in range(1, 3)]
        self.replicas = [self._machine(f"b{number}", f"10.0.2.{number + 1}") for number in range(1 + mode.slaves)]
        self.clients = [self._machine(f"c{number}", f"10.0.3.{number}") for number in range(1, clients + 1)]
        self.master = self.replicas[0]
        self.brokers: dict[str, Broker] = {}  # by the machine they run on
        self.clock_tolerance_ms = 0.0  # how wrong clocks were made

    def _machine(self, name: str, host: str) -> Machine:
        return Machine(name, host, self.loop, self.network, Random(f"{self._seed}/{name}"), self.trace.note)

    @property
    def machines(self) -> list[Machine]:
        return [*self.name_servers, *self.replicas, *self.clients]

    @property
    def slaves(self) -> list[Machine]:
        return [machine for machine in self.replicas if machine is not self.master]

    async def start_name_server(self, machine: Machine) -> None:
        machine.boot()
        configuration = nameserver_settings.load(
            None,
            bind_address=machine.host,
            listen_port=_NAME_SERVER_PORT,
            kv_config_path=str(_NOWHERE / machine.name / "kvConfig.json"),
            config_store_path=str(_NOWHERE / machine.name / "namesrv.properties"),
        )

        async def start() -> None:
            await NameServer(configuration, clock=machine.clock, network=machine.network).start()

        await machine.run(start())

    async def start_broker(self, machine: Machine) -> None:
        """As what its place in the cluster says. What goes wrong is raised."""
        lane = machine.boot()
        configuration = broker_settings.load(None, self._broker_settings(machine))

        async def start() -> None:
            broker = Broker(
                configuration,
                clock=machine.clock,
                disk=machine.disk,
                network=machine.network,
                randomness=machine.random,
                threads=machine.threads,
            )
            await broker.start()
            self.brokers[machine.name] = broker

        self.brokers.pop(machine.name, None)
        starting = machine.run(start())
        while not starting.done() and lane.alive:
            await _pause()
        if lane.alive:
            starting.result()

    async def stop_broker(self, machine: Machine) -> None:
        """In good order."""
        broker, lane = self.brokers.pop(machine.name), machine.lane
        stopping = machine.run(broker.stop())
        while not stopping.done() and lane is not None and lane.alive:
            await _pause()
        if lane is not None and lane.alive:
            stopping.result()
            machine.ended()

    def running(self, machine: Machine) -> Broker | None:
        return self.brokers.get(machine.name) if machine.is_up() else None

    def client(self, machine: Machine) -> Client:
        """For the process that runs there."""
        return Client(
            ClientConfig(
                name_servers=tuple(Address(server.host, _NAME_SERVER_PORT) for server in self.name_servers),
                clock=machine.clock,
                randomness=machine.random,
                network=machine.network,
                route_refresh_seconds=5.0,
                heartbeat_seconds=5.0,
            )
        )

    def _broker_settings(self, machine: Machine) -> dict[str, str]:
        mode = self.mode
        is_master = machine is self.master
        replicas = self.replicas.index(machine)
        master_role = "SYNC_MASTER" if mode.in_sync_replicas > 1 else "ASYNC_MASTER"
        changes: dict[str, object] = {
            "brokerName": "a",
            "brokerId": 0 if is_master else replicas or len(self.replicas),
            "brokerRole": master_role if is_master else "SLAVE",
            "inSyncReplicas": mode.in_sync_replicas,
            "slaveReadEnable": "true",
            "flushDiskType": "SYNC_FLUSH" if mode.sync_flush else "ASYNC_FLUSH",
            "bindAddress": machine.host,
            "brokerIP1": machine.host,
            "listenPort": _BROKER_PORT,
            "namesrvAddr": ";".join(f"{server.host}:{_NAME_SERVER_PORT}" for server in self.name_servers),
            "registerNameServerPeriod": 10_000,
            "storePathRootDir": _NOWHERE / machine.name,
            "mappedFileSizeCommitLog": 16 << 10,
            "mappedFileSizeConsumeQueue": 20 * 100,
            "mappedFileSizeTimerLog": 4 << 10,
            "maxHashSlotNum": 20,
            "maxIndexNum": 60,
            "maxMessageSize": 4 << 10,
            "timerWheelEnable": str(mode.timers).lower(),
            "transactionTimeOut": 2_000,
            "transactionCheckInterval": 2_000,
            "flushConsumeQueueThoroughInterval": 2_000,
            "flushConsumerOffsetInterval": 2_000,
            "osPageCacheBusyTimeOutMills": 60_000,
        }
        return {key: str(value) for key, value in changes.items()}


async def _pause() -> None:
    await asyncio.sleep(0.01)
