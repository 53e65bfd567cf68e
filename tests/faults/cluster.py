"""Name servers, a master and its slaves, each a process. Brokers are reached through proxies and run on breakable machines."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from orbitmq.transport.address import Address
from tests.faults.machine import Switches
from tests.faults.proxy import Proxy
from tests.interop import orbit
from tests.interop.apache import write_properties
from tests.interop.processes import Process, free_port, killed_on_failure

if TYPE_CHECKING:
    from pathlib import Path

    from tests.interop.apache import NameServer

BROKER_NAME: Final = "proven"


@dataclass(frozen=True, slots=True)
class Mode:
    """How safe an acknowledged message is; the terms are in docs/guarantees.md."""

    name: str
    flush: str = "SYNC_FLUSH"
    role: str = "SYNC_MASTER"

    @property
    def flushes(self) -> bool:
        return self.flush == "SYNC_FLUSH"

    @property
    def copies(self) -> bool:
        return self.role == "SYNC_MASTER"


MODES: Final = {
    mode.name: mode
    for mode in (
        Mode("sync"),
        Mode("async-flush", flush="ASYNC_FLUSH"),
        Mode("async-copies", role="ASYNC_MASTER"),
        Mode("async", flush="ASYNC_FLUSH", role="ASYNC_MASTER"),
    )
}


class Node:
    """One broker, its machine and its network."""

    def __init__(self, folder: Path, number: int, mode: Mode, variants: str) -> None:
        self.name = f"node-{number}"
        self.folder = folder / self.name
        self.broker_id = number
        self.port = free_port(-2, 1)
        self.host = f"127.0.0.{number + 2}"
        self.busy = asyncio.Lock()  # held while a fault is done to it
        self.may_inherit = True  # it has all that the master had when it became the master, and copied it from there
        self.switches = Switches()
        self.process: Process | None = None
        self.proxies = [Proxy(self.host, port) for port in (self.port, self.port + 1)]
        self._mode = mode
        self._variants = variants
        self.folder.mkdir(parents=True)
        self.switches.save(self._switches_path)

    @property
    def address(self) -> Address:
        """As everybody knows it: through the proxy."""
        return Address(self.host, self.port)

    @property
    def own_address(self) -> Address:
        """Past the proxy, for looking at it whatever is done to its network."""
        return Address("127.0.0.1", self.port)

    @property
    def is_master(self) -> bool:
        return self.broker_id == 0

    @property
    def _switches_path(self) -> Path:
        return self.folder / "switches.json"

    def switch(self, **changes: object) -> None:
        self.switches = replace(self.switches, **changes)  # type: ignore[arg-type]
        self.switches.save(self._switches_path)

    def start(self, name_servers: str) -> None:
        """Waits until it is ready."""
        config = write_properties(self.folder / "broker.conf", self._settings())
        command = [sys.executable, "-m", "tests.faults.machine", str(self._switches_path), self._variants, "broker"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "-n", name_servers, "-c", str(config)]
        self.process = Process(command, self.folder / "broker.out", {"HOME": str(self.folder)})
        with killed_on_failure(self.process):
            self.process.wait_for_line(" ready on ")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def cut_power(self, seed: int) -> None:
        """It ends by itself once what was not synced is gone."""
        assert self.process is not None
        self.switch(power_seed=seed)
        self.process.signal(signal.SIGUSR1)
        self.process.wait()

    def _settings(self) -> dict[str, str | int | Path]:
        role = self._mode.role if self.is_master else "SLAVE"
        return {
            "brokerName": BROKER_NAME, "brokerClusterName": "proven", "brokerId": self.broker_id, "brokerRole": role,
            "flushDiskType": self._mode.flush, "inSyncReplicas": 2 if self._mode.copies else 1, "slaveTimeout": 1500,
            "brokerIP1": self.host, "brokerIP2": self.host, "storePathRootDir": self.folder / "store",
            "slaveReadEnable": "true", "haSendHeartbeatInterval": 1000, "haHousekeepingInterval": 4000,
            "mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20 * 1000, "maxHashSlotNum": 1000,
            "maxIndexNum": 4000, "mappedFileSizeTimerLog": 52 * 1000, "transactionCheckInterval": 600_000,
            "osPageCacheBusyTimeOutMills": 60_000, "waitTimeMillsInSendQueue": 60_000,
            "flushDelayOffsetInterval": 1000, "reviveInterval": 100,
            "diskMaxUsedSpaceRatio": 95, "cleanFileForciblyEnable": "false", "flushConsumerOffsetInterval": 2000, "defaultTopicQueueNums": 4,
        }  # fmt: skip


class Cluster:
    """`async with Cluster(folder, mode) as cluster: cluster.master.address`"""

    def __init__(self, folder: Path, mode: Mode, *, slaves: int = 2, name_servers: int = 3, variants: str = "") -> None:
        self.mode = mode
        self.folder = folder
        self.nodes = [Node(folder, number, mode, variants) for number in range(1 + slaves)]
        self.name_ports = [free_port() for _ in range(name_servers)]
        self.name_servers: list[NameServer | None] = [None] * name_servers
        self._stack = AsyncExitStack()

    @property
    def master(self) -> Node:
        return next(node for node in self.nodes if node.is_master)

    @property
    def slaves(self) -> list[Node]:
        return [node for node in self.nodes if not node.is_master]

    @property
    def name_server_list(self) -> str:
        return ";".join(f"127.0.0.1:{port}" for port in self.name_ports)

    async def __aenter__(self) -> Cluster:
        try:
            for number in range(len(self.name_servers)):
                await self.start_name_server(number)
            for node in self.nodes:
                for proxy in node.proxies:
                    await proxy.start()
                    self._stack.push_async_callback(proxy.close)
            await asyncio.gather(*(self.start(node) for node in self.nodes))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self.nodes:
            node.kill()
        for server in self.name_servers:
            if server is not None:
                server.process.kill()
        await self._stack.aclose()

    async def start(self, node: Node) -> None:
        await asyncio.to_thread(node.start, self.name_server_list)

    async def start_name_server(self, number: int) -> None:
        folder = self.folder / f"names-{number}"
        port = self.name_ports[number]
        self.name_servers[number] = await asyncio.to_thread(orbit.start_name_server, folder, None, port)

    def kill_name_server(self, number: int) -> None:
        server = self.name_servers[number]
        if server is not None:
            server.process.kill()
