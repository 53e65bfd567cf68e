"""One cluster from its start, under load and through all faults of a plan, to the quiet in which everything is counted."""

from __future__ import annotations

import asyncio
import contextlib
import json
from random import Random
from typing import TYPE_CHECKING, Final

from orbitmq.errors import OrbitError
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import Command
from orbitmq.transport.pool import Pool
from tests.crash.promised_kinds import Down, PromisedKinds, now_ms
from tests.faults import leases, library, orders, progress
from tests.faults.cluster import Cluster
from tests.faults.faults import CLOCK_ERROR_MS, Faults
from tests.faults.leases import LeaseLedger, Leasers
from tests.faults.library import LibraryClients, LibraryLedger
from tests.faults.losses import Window
from tests.faults.orders import OrderClients, Orders
from tests.faults.outcome import FOUND_MEANWHILE, Outcome, rule_of
from tests.faults.progress import Committers
from tests.faults.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.faults.cluster import Mode, Node
    from tests.faults.plan import Fault

UPDATE_TOPIC: Final = 17
UPDATE_GROUP: Final = 200
KINDS_TOPICS: Final = ("Delayed", "Timers", "Payments")
SOON_SECONDS: Final = 120.0  # until everything that must come has come; only something lost takes that long
WANTED_SECONDS: Final = 120.0
QUIET_SECONDS: Final = 120.0  # until all logs have ended at the same place
_CALL_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.5
_ENOUGH_ORDERS: Final = 30  # in each queue
_SAME_TIMES: Final = 4  # so often in a row all logs have the same end


class Life:
    """`outcome = await Life(folder, seed, seconds, mode).live(plan)`"""

    def __init__(
        self,
        folder: Path,
        seed: int,
        seconds: float,
        mode: Mode,
        *,
        pause_seconds: float = 0.05,
        slaves: int = 2,
        name_servers: int = 3,
        variants: str = "",
        wanted: frozenset[str] = frozenset(),
    ) -> None:
        """`pause_seconds` is each sender's between two messages. `variants` are promises that the brokers break on purpose, and
        `wanted` the rules for which a complaint is waited for, however slow the machine is."""
        self.cluster = Cluster(folder, mode, slaves=slaves, name_servers=name_servers, variants=variants)
        self._seconds = seconds
        self._pause_seconds = pause_seconds
        self._pool = Pool()
        self._quiet_end = 1 << 62  # of all logs, once it is quiet
        self._seed = seed
        self._wanted = wanted

    async def live(self, plan: list[Fault]) -> Outcome:
        async with self.cluster:
            try:
                return await self._live(plan)
            finally:
                await self._pool.close()

    async def _live(self, plan: list[Fault]) -> Outcome:
        await self._create_topics()
        timeline = Timeline()
        outcome = Outcome(self._seed, self.cluster.mode.name, self._seconds, timeline)
        faults = Faults(self.cluster, timeline)
        losses = faults.losses
        ledger = Orders(losses, CLOCK_ERROR_MS)
        lease_ledger = LeaseLedger(losses)
        library_ledger = LibraryLedger(losses)
        kinds = PromisedKinds(
            self._seed, lambda: self.cluster.master.address, 2 * CLOCK_ERROR_MS, 4 * self._pause_seconds, 3.0
        )
        kinds.down = faults.down
        kinds.may_be_lost = losses.may_include_ms
        clients = OrderClients(self.cluster, ledger, timeline, self._pause_seconds)
        committers = Committers(self.cluster, ledger, faults, timeline)
        leasers = Leasers(self.cluster, lease_ledger, timeline, Random(f"leases {self._seed}"))
        libraries = LibraryClients(
            lambda: self.cluster.name_server_list, library_ledger, timeline, 4 * self._pause_seconds
        )

        def forget(seconds: float) -> None:
            """Acks, decisions and commits are answered without a copy too; what was answered after the last copied message, while no
            slave was there, may be lost."""
            since = max(seconds, timeline.now() - ledger.last_acked_at + seconds)
            lease_ledger.forget_since(timeline.now() - since)
            committers.uncopied.append(Window(timeline.now() - since, timeline.now()))
            kinds.decisions_lost.append(Down(now_ms() - round(since * 1000), now_ms()))

        def lose(window: Window) -> None:
            lease_ledger.forget_since(window.begun)

        faults.on_forgetting, faults.on_loss = forget, lose
        running = [
            *clients.start(), *committers.start(), *leasers.senders(), *kinds.senders(), *libraries.senders()
        ]  # fmt: skip
        consuming = [*leasers.consumers(), *libraries.consumers()]
        try:
            await self._until_copied(ledger)
            begun = timeline.now()
            await faults.carry_out(plan)
            await asyncio.sleep(max(0.0, begun + self._seconds - timeline.now()))
            if self._wanted:
                await self._until_wanted(ledger, lambda: ledger.broken + committers.broken + lease_ledger.broken)
            clients.over = committers.over = leasers.over = kinds.over = libraries.over = True
            await asyncio.gather(*running)
            await kinds.settle()
            await self._until_quiet(lease_ledger, library_ledger)
        finally:
            for task in (*running, *consuming):
                task.cancel()
            await asyncio.gather(*running, *consuming, return_exceptions=True)
            await committers.close()
        await self._check_orders(outcome, clients, ledger)
        await clients.close()
        outcome.broken += ledger.broken + committers.broken + lease_ledger.broken
        outcome.broken += [f"{_rule_of_kind(complaint)}: {complaint}" for complaint in kinds.broken()]
        outcome.broken += [f"lost: {name} was never leased" for name in lease_ledger.open()]
        outcome.broken += [f"client: {name} did not arrive" for name in library_ledger.missing()]
        outcome.excused_losses += sum(len(each.excused()) for each in (kinds, lease_ledger, library_ledger))
        await asyncio.to_thread(self._check_processes, outcome)
        _count(outcome, ledger, committers, lease_ledger, kinds, faults)
        outcome.figures["received by the client library"] = len(library_ledger.received)
        return outcome

    # ---- before and after

    async def _create_topics(self) -> None:
        for topic in (orders.TOPIC, leases.TOPIC, library.TOPIC, *KINDS_TOPICS):
            fields = {"topic": topic, "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
            fields["topicFilterType"] = "SINGLE_TAG"
            answer = await self._pool.call(
                self.cluster.master.own_address, Command(UPDATE_TOPIC, fields=fields), _CALL_SECONDS
            )
            assert answer.code == 0, answer
        for group in (progress.GROUP, leases.GROUP):
            body = json.dumps({"groupName": group, "consumeEnable": True}).encode()
            answer = await self._pool.call(
                self.cluster.master.own_address, Command(UPDATE_GROUP, body=body), _CALL_SECONDS
            )
            assert answer.code == 0, answer

    async def _until_copied(self, ledger: Orders) -> None:
        """Everybody has found everybody: a master that is lost before has no heir."""
        async with asyncio.timeout(WANTED_SECONDS):
            while min(ledger.ends) == 0:
                await asyncio.sleep(_LOOK_SECONDS)

    async def _until_wanted(self, ledger: Orders, complaints: Callable[[], list[str]]) -> None:
        """Enough was sent for what is found in the end, and the rest was found."""
        wanted = self._wanted & FOUND_MEANWHILE
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WANTED_SECONDS):
                while min(ledger.ends) < _ENOUGH_ORDERS or not wanted <= {rule_of(line) for line in complaints()}:
                    await asyncio.sleep(_LOOK_SECONDS)

    async def _until_quiet(self, lease_ledger: LeaseLedger, library_ledger: LibraryLedger) -> None:
        """Everything has come, and all logs have ended at the same place for a while. The checkers say what has not."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SOON_SECONDS):
                while lease_ledger.open() or library_ledger.missing():
                    await asyncio.sleep(_LOOK_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(QUIET_SECONDS):
                same, before = 0, -1
                while same < _SAME_TIMES:
                    await asyncio.sleep(_LOOK_SECONDS)
                    ends = {await self._log_end(node) for node in self.cluster.nodes}
                    same = same + 1 if ends == {before} else 0
                    before = min(ends)
                self._quiet_end = before

    async def _log_end(self, node: Node) -> int:
        try:
            answer = await self._pool.call(
                node.own_address, Command(RequestCode.GET_BROKER_RUNTIME_INFO), _CALL_SECONDS
            )
            return int(json.loads(answer.body)["table"]["commitLogMaxOffset"])
        except OrbitError:
            return -2  # not up yet

    async def _check_orders(self, outcome: Outcome, clients: OrderClients, ledger: Orders) -> None:
        served = {}
        for node in self.cluster.nodes:
            served[node.name] = await clients.everything(node.own_address, node.name)
        of_master = served[self.cluster.master.name]
        for name, queues in served.items():
            if queues != of_master:
                ends = {queue_id: (len(names), len(of_master[queue_id])) for queue_id, names in queues.items()}
                outcome.broken.append(f"copy: {name} serves other queues than the master, messages in both: {ends}")
        broken, outcome.excused_losses = ledger.check(of_master)
        outcome.broken += broken

    def _check_processes(self, outcome: Outcome) -> None:
        """Stop them all; their logs must be equal byte by byte."""
        logs = {}
        for node in (*self.cluster.slaves, self.cluster.master):
            assert node.process is not None
            status = node.process.stop()
            if status != 0:
                outcome.broken.append(f"process: {node.name} ended with status {status}")
            log = (node.folder / "broker.out").read_text(errors="replace")
            if "Traceback" in log:
                at = log.index("Traceback")
                outcome.broken.append(f"process: {node.name} printed {log[at : at + 2000]}")
            logs[node.name] = _log_of(node.folder)
        of_master = logs[self.cluster.master.name]
        outcome.figures["bytes of log"] = len(of_master)
        # The master stops last, and writes its last word then.
        outcome.broken += [
            f"copy: the log of {name} ends at {len(log)}, the master's at {len(of_master)}, and they are not the same"
            for name, log in logs.items()
            if len(log) < self._quiet_end or not of_master.startswith(log)
        ]


def _count(
    outcome: Outcome,
    ledger: Orders,
    committers: Committers,
    lease_ledger: LeaseLedger,
    kinds: PromisedKinds,
    faults: Faults,
) -> None:
    promises = kinds.promises.values()
    outcome.figures.update(
        {
            "sends tried": len(ledger.attempts),
            "sends acknowledged": sum(attempt.acked for attempt in ledger.attempts.values()),
            "messages read meanwhile": sum(ledger.reads.values()),
            "offsets committed": sum(len(each.answered) for each in committers.committed),
            "offsets asked for": sum(each.questions for each in committers.committed),
            "messages leased": len(lease_ledger.sent),
            "leases given": lease_ledger.times_given,
            "leases acknowledged in time": len(lease_ledger.acked),
            "promotions": len(faults.promotions),
        }
    )
    for topic in KINDS_TOPICS:
        outcome.figures[f"{topic} acknowledged"] = sum(promise.acked for promise in promises if promise.topic == topic)
    outcome.figures["Payments committed"] = sum(promise.committed for promise in promises)
    outcome.figures["came again (delays, timers)"] = sum(
        len(messages) - 1
        for name, messages in kinds.seen.items()
        if name in kinds.promises and kinds.promises[name].topic != "Payments"
    )


def _rule_of_kind(complaint: str) -> str:
    if "is lost" in complaint:
        return "lost"
    return "half" if "never committed" in complaint or "before it was committed" in complaint else "kind"


def _log_of(folder: Path) -> bytes:
    """All of it; files that were made ahead are no part of it."""
    files = sorted((folder / "store" / "commitlog").iterdir())
    return b"".join(file.read_bytes() for file in files).rstrip(b"\0")
