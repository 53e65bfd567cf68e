"""One schedule: everything follows from its seed, from the mode of the cluster to the last delay of a packet."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from orbitmq.client import instance
from tests.simulation.checks import Checks, same_log
from tests.simulation.cluster import Cluster, Mode, Trace
from tests.simulation.faults import WINDOW_SECONDS, Faults, Planned, plan_faults
from tests.simulation.ledger import Fault, Ledger
from tests.simulation.loop import SimulatedLoop, current_lane
from tests.simulation.workload import GROUP, QUEUES, TOPICS, NotUnderstood, Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.machine import Machine

_QUIET_SECONDS: Final = 90.0  # far more than anything needs to come to an end once nothing is broken
_SAVED_SECONDS: Final = 3.5  # a group's offsets are on the disk after so long
_MODES: Final = (
    Mode(sync_flush=True, slaves=0, in_sync_replicas=1),
    Mode(sync_flush=False, slaves=0, in_sync_replicas=1),
    Mode(sync_flush=True, slaves=1, in_sync_replicas=1),
    Mode(sync_flush=False, slaves=1, in_sync_replicas=1),
    Mode(sync_flush=True, slaves=1, in_sync_replicas=2),
    Mode(sync_flush=False, slaves=1, in_sync_replicas=2),
    Mode(sync_flush=True, slaves=2, in_sync_replicas=2),
    Mode(sync_flush=True, slaves=2, in_sync_replicas=3),
    Mode(sync_flush=True, slaves=0, in_sync_replicas=1, timers=True),
    Mode(sync_flush=True, slaves=1, in_sync_replicas=2, timers=True),
)


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    mode: Mode
    faults: list[Planned]
    messages: int
    retries: int
    promotes: bool
    promotes_early: bool = False  # while everybody still sends
    handling_seconds: float = 0.2  # at most, for each message
    long_bodies: bool = False


def plan(seed: int) -> Plan:
    random = Random(f"{seed}/plan")
    mode = random.choice(_MODES)
    return Plan(
        seed,
        mode,
        plan_faults(random, count=random.randrange(1, 7)),
        random.randrange(10, 40),
        random.choice((0, 0, 2)),
        promotes=mode.slaves > 0 and random.random() < 0.3,
        long_bodies=random.random() < 0.2,
    )


@dataclass(slots=True)
class Outcome:
    seed: int
    mode: str
    digest: str
    steps: int
    seconds: float  # of the simulated world
    sent: int
    acked: int
    received: int
    faults: list[Fault]
    broken: list[str]
    trace: list[str] = field(default_factory=list)


def run(planned: Plan, *, keep_trace: bool = False) -> Outcome:
    trace = Trace(keep=keep_trace)
    loop = SimulatedLoop(Random(f"{planned.seed}/loop"))
    trace.now = loop.time
    ledger = Ledger()
    cluster = Cluster(loop, planned.mode, planned.seed, trace, clients=3)
    with _alone(loop) as complaints:
        try:
            loop.run_until_complete(_live(cluster, planned, ledger))
            ledger.broken += [f"not caught: {failure}" for failure in loop.failures]
            ledger.broken += [f"a bug of ours, by the log: {complaint}" for complaint in complaints]
            broken = Checks(cluster, ledger).broken() if cluster.running(cluster.master) else ledger.broken
        finally:
            for machine in cluster.machines:
                if machine.lane is not None:
                    loop.end(machine.lane)
            loop.close()
    acked = sum(sent.acked_at is not None for sent in ledger.sent.values())
    return Outcome(
        planned.seed, str(planned.mode), trace.digest(), loop.steps, loop.time(), len(ledger.sent), acked,
        len(ledger.received), ledger.faults, broken, trace.lines or [],
    )  # fmt: skip


@contextmanager
def _alone(loop: SimulatedLoop) -> Iterator[list[str]]:
    """Nothing of this process or machine is seen by the simulated ones. Tracebacks that they log are collected."""
    logger = logging.getLogger("orbitmq")
    handler = _Complaints()
    before = (logger.level, logger.propagate)
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    collecting = gc.isenabled()
    gc.disable()  # what is collected, and when, is no part of a schedule
    asyncio.set_event_loop(loop)
    try:
        with (
            mock.patch.object(os, "getpid", return_value=4242),
            mock.patch.object(instance, "local_address", _own_address),
            mock.patch.dict(instance._open_instances, clear=True),
        ):
            yield handler.tracebacks
    finally:
        asyncio.set_event_loop(None)
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
        if collecting:
            gc.enable()


def _own_address(_towards: object) -> str:
    return current_lane().host


class _Complaints(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.tracebacks: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[0] not in (None, NotUnderstood):
            self.tracebacks.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


async def _live(cluster: Cluster, planned: Plan, ledger: Ledger) -> None:
    random = Random(f"{planned.seed}/life")
    work = Random(f"{planned.seed}/work")
    workload = Workload(cluster, ledger, work, planned.handling_seconds, long_bodies=planned.long_bodies)
    producing: dict[str, asyncio.Task[Any]] = {}

    async def start_client(machine: Machine) -> None:
        if not machine.is_up():
            machine.boot()
            if machine is cluster.clients[0]:
                producing[machine.name] = machine.run(workload.produce(machine, planned.messages, planned.retries))
            else:
                machine.run(workload.consume(machine))

    for server in cluster.name_servers:
        await cluster.start_name_server(server)
    for machine in cluster.replicas:
        await cluster.start_broker(machine)
    for machine in cluster.clients:
        await start_client(machine)
    faults = Faults(cluster, ledger, random, start_client)
    watching = asyncio.ensure_future(_watch_offsets(cluster, ledger))
    if planned.promotes_early:
        await asyncio.sleep(1 + 2 * random.random())
        await faults.cut_slaves_off()
        await faults.promote_slave()
    await faults.run(planned.faults)
    if planned.promotes and not planned.promotes_early:
        await asyncio.sleep(random.random())
        await faults.promote_slave()
    await asyncio.sleep(max(0.0, WINDOW_SECONDS - cluster.loop.time()))
    await faults.mend_everything()
    if cluster.running(cluster.master) is not None:
        await _until_quiet(cluster, ledger, producing)
    watching.cancel()


async def _until_quiet(cluster: Cluster, ledger: Ledger, producing: dict[str, asyncio.Task[Any]]) -> None:
    """Until everybody has everything, or has had more than enough time for it."""
    loop = cluster.loop
    deadline, settled = loop.time() + _QUIET_SECONDS, False
    while loop.time() < deadline:
        await asyncio.sleep(0.5 if settled else 1.0)
        master = cluster.running(cluster.master)
        if master is None or not all(task.done() for task in producing.values()):
            continue
        if not all(same_log(master, cluster.running(slave)) for slave in cluster.slaves):
            continue
        checks = Checks(cluster, ledger)
        if checks.undelivered() or checks.unpublished():
            continue
        if settled:
            return
        settled = True
        await asyncio.sleep(3.0)  # for what nobody waits for, and should not come


async def _watch_offsets(cluster: Cluster, ledger: Ledger) -> None:
    """What a group had committed some seconds before a broker went down is known to it when it is back."""
    history: list[tuple[float, int, dict[tuple[str, int], int]]] = []  # of the master that is, by its lives
    master = cluster.master
    while True:
        await asyncio.sleep(0.1)
        broker = cluster.running(cluster.master)
        if broker is None:
            continue
        if cluster.master is not master:
            master, history = cluster.master, []
        queues = [(topic, queue_id) for topic in TOPICS for queue_id in range(QUEUES)]
        found = {queue: broker.state.offsets.get(GROUP, *queue) or 0 for queue in queues}
        if history and history[-1][1] != master.starts:
            ended = history[-1][0]
            saved = [seen for at, life, seen in history if life == history[-1][1] and at > ended - _SAVED_SECONDS]
            is_long = history[0][0] < ended - _SAVED_SECONDS
            for queue in queues:
                least = min(seen[queue] for seen in saved)
                if found[queue] < least and is_long and not _may_go_back(cluster, ledger, ended):
                    ledger.broken.append(f"offset forgotten: {queue} was {least}, is {found[queue]} after a restart")
            history = []
        history.append((cluster.loop.time(), master.starts, found))


def _may_go_back(cluster: Cluster, ledger: Ledger, ended: float) -> bool:
    """A reader whose last messages were lost is sent back to the end of its queue, and commits that."""
    names = {fault.what for fault in ledger.faults if fault.at >= ended}
    return not cluster.mode.sync_flush and "power cut" in names
