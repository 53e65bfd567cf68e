"""What goes wrong, and when: drawn from the seed before anything runs, so that a fault can be left out and the others stay.

Every fault mends itself after a while, and whoever was down is started again. A broker that cannot start again is a finding.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orbitmq.errors import OrbitError
from tests.simulation.ledger import Fault

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from random import Random

    from tests.simulation.cluster import Cluster
    from tests.simulation.ledger import Ledger
    from tests.simulation.machine import Machine

WINDOW_SECONDS: Final = 8.0  # faults begin in here
_FORGOTTEN_SECONDS: Final = 6.0  # by then every client has a route without a broker that its name servers do not know
MISSED: Final = "power cut of the master until it is missed"  # name servers forget it, and readers go to its slaves
_KINDS: Final = {
    "kill": 4,
    "power cut": 4,
    "kill at a disk operation": 4,
    "power cut at a disk operation": 4,
    "stop": 1,
    "name server killed": 1,
    "client killed": 2,
    "link down": 3,
    "resets": 3,
    "slow network": 1,
    "clock jumps": 1,
    MISSED: 0,  # in chosen schedules only: it takes long
}


@dataclass(frozen=True, slots=True)
class Planned:
    at: float
    kind: str
    choice: float  # who, of those it can happen to
    size: float  # how long, how many, how far
    tail: float

    def __str__(self) -> str:
        return f"{self.kind} at {self.at:.2f} s"


def plan_faults(random: Random, *, count: int, kinds: Sequence[str] = ()) -> list[Planned]:
    """Of any kind, or of some."""
    weights = {kind: _KINDS[kind] or 1 for kind in kinds} if kinds else _KINDS
    kinds = random.choices(list(weights), list(weights.values()), k=count)
    planned = [
        Planned(random.random() * WINDOW_SECONDS, kind, random.random(), random.random(), random.random())
        for kind in kinds
    ]
    return sorted(planned, key=lambda fault: fault.at)


class Faults:
    def __init__(
        self,
        cluster: Cluster,
        ledger: Ledger,
        random: Random,
        restart_client: Callable[[Machine], Awaitable[None]],
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._random = random
        self._restart_client = restart_client
        self._loop = cluster.loop
        self._changing: set[str] = set()  # machines whose process is being started or stopped by somebody

    async def run(self, planned: list[Planned]) -> None:
        await asyncio.gather(*(self._one(fault) for fault in planned))

    async def cut_slaves_off(self) -> None:
        """For a moment; nothing reaches them from their master any more."""
        master = self._cluster.master
        self._note("slaves cut off", master)
        for slave in self._cluster.slaves:
            self._cluster.network.cut_link(master.host, slave.host)
        await asyncio.sleep(0.2 + self._random.random())

    async def promote_slave(self) -> None:
        """The master's machine is lost for good; the slave that has most of the log takes its place."""
        cluster = self._cluster
        while self._changing:
            await asyncio.sleep(0.05)
        old = cluster.master
        self._changing.update(machine.name for machine in cluster.replicas)
        self._note("master lost for good", old)
        if old.is_up():
            old.cut_power()
        old.platter.wipe()
        for slave in cluster.slaves:
            await self._start_broker(slave)
        lengths = {slave.name: self._log_end(slave) for slave in cluster.slaves}
        chosen = max(cluster.slaves, key=lambda slave: lengths[slave.name])
        if cluster.running(chosen) is not None:
            await cluster.stop_broker(chosen)
        cluster.master = chosen
        self._note("slave becomes master", chosen)
        await self._start_broker(chosen)
        self._changing.clear()

    async def mend_everything(self) -> None:
        while self._changing:
            await asyncio.sleep(0.05)
        cluster = self._cluster
        cluster.network.mend_all()
        for server in cluster.name_servers:
            if not server.is_up():
                await cluster.start_name_server(server)
        for machine in [cluster.master, *cluster.slaves]:
            await self._start_broker(machine)

    # ---- one fault

    async def _one(self, fault: Planned) -> None:
        await asyncio.sleep(fault.at)
        network = self._cluster.network
        if fault.kind == MISSED:
            await self._go_missing(self._cluster.master, fault)
        elif fault.kind in ("kill", "power cut", "stop") or fault.kind.endswith("a disk operation"):
            await self._hit_broker(fault)
        elif fault.kind == "name server killed":
            machine = _pick(self._cluster.name_servers, fault)
            if machine.is_up():
                self._note(fault.kind, machine)
                machine.kill()
                await asyncio.sleep(fault.size * 5)
                if not machine.is_up():
                    await self._cluster.start_name_server(machine)
        elif fault.kind == "client killed":
            machine = _pick(self._cluster.clients, fault)
            if machine.is_up():
                self._note(fault.kind, machine)
                machine.kill()
                await asyncio.sleep(fault.size * 3)
                await self._restart_client(machine)
        elif fault.kind == "link down":
            one = _pick(self._cluster.replicas, fault)
            other = self._random.choice([machine for machine in self._cluster.machines if machine is not one])
            self._note(f"link down to {other.name}", one)
            network.cut_link(one.host, other.host)
            if fault.size < 0.7:
                network.cut_link(other.host, one.host)
            await asyncio.sleep(fault.tail * 6)
            network.mend_all()
        elif fault.kind == "resets":
            self._note("resets", self._cluster.master)
            for _ in range(1 + int(fault.size * 8)):
                network.reset_one()
                await asyncio.sleep(fault.tail)
        elif fault.kind == "slow network":
            self._note("slow network", self._cluster.master)
            network.slowness = 1 + fault.size * 100
            await asyncio.sleep(fault.tail * 4)
            network.slowness = 1.0
        else:
            machine = _pick(self._cluster.machines, fault)
            jump_ms = int((fault.size - 0.5) * 8000)
            self._note(f"clock jumps {jump_ms} ms", machine)
            machine.clock.wrong_by_ms += jump_ms
            self._cluster.clock_tolerance_ms += abs(jump_ms)

    async def _hit_broker(self, fault: Planned) -> None:
        replicas = self._cluster.replicas
        machine = self._cluster.master if fault.choice < 0.6 else _pick(replicas, fault)
        if not machine.is_up() or machine.name in self._changing:
            return
        if fault.kind == "stop":
            if self._cluster.running(machine) is None:
                return
            self._note(fault.kind, machine)
            self._changing.add(machine.name)
            await self._cluster.stop_broker(machine)
            self._changing.discard(machine.name)
        elif fault.kind in ("kill", "power cut"):
            self._end(machine, fault.kind)
        else:
            way = fault.kind.removesuffix(" at a disk operation")
            lane = machine.lane
            machine.disk.die_after(1 + int(fault.size * 40), lambda: self._end(machine, way))
            while lane is not None and lane.alive and self._loop.time() < 1e9:
                await asyncio.sleep(0.1)
                if machine.lane is not lane:
                    break
        await asyncio.sleep(fault.tail**2 * 6)
        if machine.name not in self._changing:
            if fault.size * 10 % 1 < 0.25:  # and once more, while it recovers
                await self._interrupted_start(machine, fault)
            await self._start_broker(machine)

    async def _go_missing(self, machine: Machine, fault: Planned) -> None:
        if not machine.is_up() or machine.name in self._changing:
            return
        if fault.choice < 0.5:
            await self.cut_slaves_off()  # readers get what the slaves never will
        self._end(machine, "power cut")
        await asyncio.sleep(fault.size**2)
        self._cluster.network.miss(machine.host)
        await asyncio.sleep(_FORGOTTEN_SECONDS * (1 + fault.tail))
        self._cluster.network.mend_all()
        if machine.name not in self._changing:
            await self._start_broker(machine)

    def _end(self, machine: Machine, way: str) -> None:
        if machine.is_up():
            self._note(way, machine)
            machine.kill() if way == "kill" else machine.cut_power()

    async def _interrupted_start(self, machine: Machine, fault: Planned) -> None:
        if machine.is_up() or machine.name in self._changing:
            return
        self._changing.add(machine.name)
        starting = asyncio.ensure_future(self._cluster.start_broker(machine))
        await asyncio.sleep(0)
        if machine.is_up():
            way = "kill" if fault.choice * 10 % 1 < 0.5 else "power cut"
            machine.disk.die_after(1 + int(fault.tail * 25), lambda: self._end(machine, way))
        await self._started(starting, machine)
        machine.disk.live_on()
        self._changing.discard(machine.name)

    async def _start_broker(self, machine: Machine) -> None:
        if machine.is_up():
            return
        self._changing.add(machine.name)
        await self._started(asyncio.ensure_future(self._cluster.start_broker(machine)), machine)
        self._changing.discard(machine.name)

    async def _started(self, starting: asyncio.Future[None], machine: Machine) -> None:
        try:
            await starting
        except OrbitError as error:
            self._ledger.broken.append(f"{machine.name} does not start: {error}")
            machine.kill()

    def _log_end(self, machine: Machine) -> int:
        broker = self._cluster.running(machine)
        return broker.state.store.log.end if broker is not None else -1

    def _note(self, what: str, machine: Machine) -> None:
        self._cluster.trace.note("fault", what, machine.name)
        self._ledger.faults.append(Fault(self._loop.time(), what, machine.name))


def _pick(machines: list[Machine], fault: Planned) -> Machine:
    return machines[int(fault.choice * 1000) % len(machines)]
