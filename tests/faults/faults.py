"""Carrying a plan out: each fault is begun, lasts, and is mended; two faults of one broker wait for each other."""

from __future__ import annotations

import asyncio
import contextlib
import json
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Final

from orbitmq.errors import OrbitError
from orbitmq.protocol.bodies.admin import HaStatus
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import request as new_request
from orbitmq.transport.address import Address
from orbitmq.transport.pool import Pool
from tests.crash.promised_kinds import Down, now_ms
from tests.faults.losses import Losses, Window
from tests.faults.plan import KIND_OF
from tests.faults.timeline import Event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from orbitmq.protocol.command import Command
    from tests.faults.cluster import Cluster, Node
    from tests.faults.plan import Fault
    from tests.faults.timeline import Timeline

CLOCK_ERROR_MS: Final = 1500
UNCOPIED_SECONDS: Final = 30.0  # a slave that was away has caught up by then
_ASK_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 0.2
_COPIES_WITHIN_SECONDS: Final = 120.0


class Faults:
    def __init__(self, cluster: Cluster, timeline: Timeline) -> None:
        self.down: list[Down] = []  # when anything was broken: what is late then is excused
        # What was only in its memory is gone. Until the next start: whatever is answered meanwhile was answered before.
        self.master_crashes: list[Window] = []
        self.losses = Losses(timeline)
        self.promotions: list[float] = []
        self.on_forgetting: Callable[[float], None] = lambda seconds: (
            None
        )  # what the last seconds settled may be forgotten
        self.on_loss: Callable[[Window], None] = lambda window: None  # just before the broker that lost it starts again
        self._cluster = cluster
        self._timeline = timeline
        self._names_busy = [asyncio.Lock() for _ in cluster.name_servers]
        self._group: asyncio.TaskGroup | None = None

    async def carry_out(self, plan: list[Fault]) -> None:
        """Until the last is mended."""
        begun = self._timeline.now()
        async with asyncio.TaskGroup() as group:
            self._group = group
            for fault in plan:
                await asyncio.sleep(max(0.0, begun + fault.at - self._timeline.now()))
                group.create_task(self._do(fault))

    async def _do(self, fault: Fault) -> None:
        if fault.kind == "name server killed":
            await self._kill_name_server(fault)
        elif fault.kind == "promotion":
            await self._promote(fault)
        else:
            # The master of the moment is target 0, so that it gets its share wherever it is.
            node = self._cluster.master if fault.target == 0 else self._cluster.slaves[fault.target - 1]
            mode = self._cluster.mode
            if node.is_master and KIND_OF[fault.kind].loses_power and mode.copies and not mode.flushes:
                await self._promote(fault)  # its slaves have more than what is left of it
                return
            async with node.busy, self._noted(fault.kind, node.name):
                await self._break(node, fault)

    @asynccontextmanager
    async def _noted(self, kind: str, target: str) -> AsyncIterator[None]:
        event = Event(kind, target, self._timeline.now(), float("inf"))
        down = Down(now_ms() - CLOCK_ERROR_MS, 1 << 62)
        self._timeline.events.append(event)
        self.down.append(down)
        try:
            yield
        finally:
            event.ended = self._timeline.now()
            down.to_ms = now_ms() + CLOCK_ERROR_MS

    async def _break(self, node: Node, fault: Fault) -> None:
        assert node.process is not None
        chance = Random(fault.seed)
        match fault.kind:
            case "kill":
                self._note_crash(node)
                node.kill()
                await asyncio.sleep(fault.seconds)
                await self._start(node)
            case "power cut":
                async with self._may_lose(node):
                    await self._cut_power(node, fault)
                    await asyncio.sleep(fault.seconds)
                await self._start(node)
            case "failing sync":
                async with self._may_lose(node):
                    node.switch(sync_fails=True)
                    await asyncio.sleep(fault.seconds)
                    await self._cut_power(node, fault)  # nobody knows what such a disk has kept
                    node.switch(sync_fails=False)
                await self._start(node)
            case "freeze":
                node.process.freeze()
                await asyncio.sleep(fault.seconds)
                node.process.thaw()
            case "full disk":
                node.switch(disk_is_full=True)
                await asyncio.sleep(fault.seconds)
                node.switch(disk_is_full=False)
            case "wrong clock":
                node.switch(skew_ms=chance.choice((-1, 1)) * chance.randrange(100, CLOCK_ERROR_MS))
                await asyncio.sleep(fault.seconds)
                node.switch(skew_ms=0)
            case _:
                await self._break_network(node, fault)

    async def _break_network(self, node: Node, fault: Fault) -> None:
        proxies = (
            node.proxies if fault.seed % 3 else node.proxies[fault.seed % 2 :][:1]
        )  # all, or requests or copies only
        for proxy in proxies:
            match fault.kind:
                case "cut connections":
                    proxy.cut()
                case "refuse connections":
                    proxy.refuse(True)
                case "stall connections":
                    proxy.stall(True)
        await asyncio.sleep(fault.seconds)
        for proxy in proxies:
            proxy.refuse(False)
            proxy.stall(False)

    def _note_crash(self, node: Node) -> None:
        if node.is_master:
            self.master_crashes.append(Window(self._timeline.now()))

    async def _start(self, node: Node) -> None:
        if node.is_master:
            for crash in self.master_crashes:
                crash.ended = min(crash.ended, self._timeline.now())
        await self._cluster.start(node)

    @asynccontextmanager
    async def _may_lose(self, node: Node) -> AsyncIterator[None]:
        """The node loses its power in here, and with it, in the weakest mode, what was acknowledged and not yet synced."""
        mode = self._cluster.mode
        if mode.flushes or mode.copies or not node.is_master:
            yield
            return
        window = self.losses.begin()
        yield
        self.losses.end(window)
        self.on_loss(window)

    async def _cut_power(self, node: Node, fault: Fault) -> None:
        self._note_crash(node)
        await asyncio.to_thread(node.cut_power, fault.seed if fault.seed % 4 else 0)

    async def _kill_name_server(self, fault: Fault) -> None:
        async with self._names_busy[fault.target], self._noted(fault.kind, f"names-{fault.target}"):
            self._cluster.kill_name_server(fault.target)
            await asyncio.sleep(fault.seconds)
            await self._cluster.start_name_server(fault.target)

    async def _promote(self, fault: Fault) -> None:
        """The master is lost; the slave that has most of its log takes its place, and it comes back as a slave.

        After that, who has not copied from the successor all that this began with is no heir: a former master may have a tail of its
        own, longer than what was acknowledged, and the other slave may lack what only those two had. As nobody can tell yet which of
        two slaves was copied to last while one of them is no heir, nobody is promoted then.
        """
        async with AsyncExitStack() as stack:
            for node in self._cluster.nodes:
                await stack.enter_async_context(node.busy)
            master, slaves = self._cluster.master, self._cluster.slaves
            if not all(slave.may_inherit for slave in slaves):
                return
            await stack.enter_async_context(self._noted(fault.kind, master.name))
            self._note_crash(master)
            if fault.seed % 2:
                await asyncio.to_thread(master.cut_power, fault.seed)
            else:
                master.kill()
            ends = [(await self._log_end(slave), slave) for slave in slaves]
            begins_with, chosen = max(ends, key=lambda end: end[0])
            chosen.kill()
            await asyncio.sleep(fault.seconds)
            master.broker_id, chosen.broker_id = chosen.broker_id, 0
            self.promotions.append(self._timeline.now())
            self.on_forgetting(UNCOPIED_SECONDS)
            others = [node for node in self._cluster.nodes if node is not chosen]
            for node in others:
                node.may_inherit = False
            await self._start(chosen)
            await self._start(master)
            assert self._group is not None
            for node in others:
                self._group.create_task(self._until_it_may_inherit(node, chosen, begins_with))

    async def _until_it_may_inherit(self, slave: Node, master: Node, begins_with: int) -> None:
        """As an operator does, by `mqadmin haStatus`. Another master meanwhile: then that promotion looks after it."""
        deadline = self._timeline.now() + _COPIES_WITHIN_SECONDS  # the checkers say so if it never does
        while not slave.may_inherit and master.is_master and self._timeline.now() < deadline:
            with contextlib.suppress(OrbitError, OSError):
                answer = await self._ask(slave, RequestCode.GET_BROKER_HA_STATUS)
                seen = HaStatus.from_json(answer.body).ha_client_runtime_info
                copies = seen.activated and seen.master_addr == str(Address(master.host, master.port + 1))
                slave.may_inherit = copies and await self._log_end(slave) >= begins_with and master.is_master
            await asyncio.sleep(_LOOK_SECONDS)

    async def _log_end(self, node: Node) -> int:
        answer = await self._ask(node, RequestCode.GET_BROKER_RUNTIME_INFO)
        return int(json.loads(answer.body)["table"]["commitLogMaxOffset"])

    async def _ask(self, node: Node, code: RequestCode) -> Command:
        pool = Pool()
        try:
            return await pool.call(node.own_address, new_request(code), _ASK_SECONDS)
        finally:
            await pool.close()
