"""Plain messages: who sent what, what was acknowledged, what is read meanwhile and what is there in the end.

Each sender fills one queue, one message after the other, and tries each message once. So a message that is there twice was made
twice by a broker, and the acknowledged messages of a sender stand in their queue in the order of their numbers.
"""

from __future__ import annotations

import asyncio
import itertools
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from orbitmq.errors import OrbitError
from orbitmq.message.record import decode_records
from orbitmq.protocol.command import Command
from orbitmq.transport.pool import Pool
from tests.broker.kit import PULL, SEND_V2, pull_header, send_header

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.message.message import StoredMessage
    from orbitmq.transport.address import Address
    from tests.faults.cluster import Cluster, Node
    from tests.faults.losses import Losses
    from tests.faults.timeline import Timeline

TOPIC: Final = "Orders"
QUEUES: Final = 4
CALL_SECONDS: Final = 3.0
_LAST_CALL_SECONDS: Final = 60.0  # nothing is broken any more: only a machine under load takes long
_AFTER_FAILURE_SECONDS: Final = 0.1
_LOOK_SECONDS: Final = 0.1
_FILLING: Final = b"." * 200


@dataclass(slots=True)
class Attempt:
    queue_id: int
    number: int
    acked_at: float = -1.0
    offset: int = -1

    @property
    def acked(self) -> bool:
        return self.offset >= 0


@dataclass(slots=True)
class Orders:
    """The ledger, and what the checkers say of it."""

    losses: Losses
    clock_error_ms: int = 0  # by which a broker's clock may be wrong
    attempts: dict[str, Attempt] = field(default_factory=dict)
    promised: dict[tuple[int, int], str] = field(default_factory=dict)  # queue and offset, as acknowledged
    ends: list[int] = field(default_factory=lambda: [0] * QUEUES)  # behind the last acknowledged, by queue
    acks: list[list[Attempt]] = field(default_factory=lambda: [[] for _ in range(QUEUES)])  # by queue, oldest first
    reads: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)  # found while reading
    last_acked_at: float = 0.0  # what stands in the log before that message is copied as well

    def tried(self, name: str, queue_id: int, number: int) -> Attempt:
        attempt = self.attempts[name] = Attempt(queue_id, number)
        return attempt

    def acked(self, name: str, offset: int, at: float) -> None:
        attempt = self.attempts[name]
        attempt.offset, attempt.acked_at = offset, at
        self.last_acked_at = at
        self.promised[attempt.queue_id, offset] = name
        self.acks[attempt.queue_id].append(attempt)
        self.ends[attempt.queue_id] = max(self.ends[attempt.queue_id], offset + 1)

    def read(self, by: str, queue_id: int, message: StoredMessage) -> str:
        """The name of a message that was read; complaints go to `broken`."""
        self.reads[by] += 1
        name = name_of(message.body)
        if name is None:
            self.broken.append(f"phantom: {by} serves {message.body[:60]!r}, which nobody sent")
            return ""
        attempt = self.attempts.get(name)
        if attempt is None or attempt.queue_id != queue_id:
            self.broken.append(f"phantom: {by} serves {name} in queue {queue_id}, where nobody sent it")
        promised = self.promised.get((queue_id, message.queue_offset))
        if promised not in (None, name) and not self._may_change(promised, message):
            self.broken.append(f"changed: {by} serves {name} at {queue_id}/{message.queue_offset}, not {promised}")
        return name

    def _may_change(self, promised: str | None, served: StoredMessage) -> bool:
        """One of the two was lost, and its number given out again: a slave that lags shows the one, all others the other."""
        is_lost = promised is not None and self.losses.may_include(self.attempts[promised].acked_at)
        return is_lost or self.losses.may_include_ms(served.stored_at_ms, self.clock_error_ms)

    def master_ends_at(self, by: str, queue_id: int, asked_at: float, end: int) -> None:
        """What the master says of a queue, asked then."""
        least = self._must_end_at(queue_id, asked_at)
        if end < least:
            self.broken.append(f"stale: {by} ends queue {queue_id} at {end} when {least} messages were acknowledged")

    def _must_end_at(self, queue_id: int, asked_at: float) -> int:
        """Behind the last that was acknowledged before, but for what may be lost."""
        for attempt in reversed(self.acks[queue_id]):
            if attempt.acked_at <= asked_at and not self.losses.may_include(attempt.acked_at):
                return attempt.offset + 1
        return 0

    def check(self, queues: dict[int, list[str]]) -> tuple[list[str], int]:
        """What is there in the end, by queue in order; complaints, and how many were lost within what the mode allows."""
        places: dict[str, list[tuple[int, int]]] = {}
        for queue_id, names in queues.items():
            for offset, name in enumerate(names):
                places.setdefault(name, []).append((queue_id, offset))
        broken, lost = [], 0
        for name, attempt in self.attempts.items():
            found = places.get(name, [])
            if len(found) > 1:
                broken.append(f"duplicate: {name} is there {len(found)} times, at {found}, and was sent once")
            if not attempt.acked:
                continue
            if found:
                if found[0] != (attempt.queue_id, attempt.offset):
                    broken.append(
                        f"moved: {name} was promised at {attempt.queue_id}/{attempt.offset}, is at {found[0]}"
                    )
            elif self.losses.may_include(attempt.acked_at):
                lost += 1
            else:
                broken.append(f"lost: {name} was acknowledged at {attempt.acked_at:.2f} s")
        return broken + self._out_of_order(queues), lost

    def _out_of_order(self, queues: dict[int, list[str]]) -> list[str]:
        broken = []
        for queue_id, names in queues.items():
            numbers = [(self.attempts[name].number, name) for name in names if self._is_acked(name)]
            for (before, earlier), (after, later) in itertools.pairwise(numbers):
                if after < before:
                    broken.append(f"order: {later} stands behind {earlier} in queue {queue_id}")
        return broken

    def _is_acked(self, name: str) -> bool:
        attempt = self.attempts.get(name)
        return attempt is not None and attempt.acked


def body_of(name: str) -> bytes:
    return f"{name} {zlib.crc32(name.encode()):08x} ".encode() + _FILLING


def name_of(body: bytes) -> str | None:
    """None if nobody made it so."""
    name = bytes(body).split(b" ", 1)[0].decode(errors="replace")
    return name if body_of(name) == body else None


class OrderClients:
    """Senders and readers; all failures are the weather."""

    def __init__(self, cluster: Cluster, orders: Orders, timeline: Timeline, pause_seconds: float) -> None:
        self.over = False
        self._cluster = cluster
        self._orders = orders
        self._timeline = timeline
        self._pause_seconds = pause_seconds
        self._pool = Pool()

    def start(self) -> list[asyncio.Task[None]]:
        senders = [asyncio.create_task(self._send(queue_id)) for queue_id in range(QUEUES)]
        return senders + [asyncio.create_task(self._read(node)) for node in self._cluster.nodes]

    async def close(self) -> None:
        await self._pool.close()

    async def everything(self, address: Address, by: str) -> dict[int, list[str]]:
        """All queues of a broker from the first message on. An OrbitError if it does not answer."""
        return {queue_id: await self._queue(address, by, queue_id) for queue_id in range(QUEUES)}

    async def _queue(self, address: Address, by: str, queue_id: int) -> list[str]:
        names: list[str] = []
        offset = 0
        while (answer := await self._pull(address, queue_id, offset, _LAST_CALL_SECONDS)).code == 0:
            for message in decode_records(answer.body):
                if message.queue_offset != len(names):
                    self._orders.broken.append(f"gap: {by} has {message.queue_offset} at {queue_id}/{len(names)}")
                names.append(self._orders.read(by, queue_id, message))
            offset = int(answer.fields["nextBeginOffset"])
        return names

    async def _send(self, queue_id: int) -> None:
        number = 0
        while not self.over:
            number += 1
            name = f"order-{queue_id}-{number}"
            self._orders.tried(name, queue_id, number)
            began = self._timeline.now()
            answer = await self._ask(
                lambda: self._cluster.master.address, SEND_V2, send_header(TOPIC, queue_id).to_fields(), body_of(name)
            )
            acked = answer is not None and answer.code == 0
            self._timeline.sent(began, acked=acked)
            if answer is not None and acked:
                self._orders.acked(name, int(answer.fields["queueOffset"]), self._timeline.now())
            await asyncio.sleep(self._pause_seconds if acked else _AFTER_FAILURE_SECONDS)

    async def _read(self, node: Node) -> None:
        positions = [0] * QUEUES
        while not self.over:
            for queue_id in range(QUEUES):
                positions[queue_id] = await self._read_on(node, queue_id, positions[queue_id])
            await asyncio.sleep(_LOOK_SECONDS)

    async def _read_on(self, node: Node, queue_id: int, position: int) -> int:
        asked_at, was_master = self._timeline.now(), node.is_master
        try:
            answer = await self._pull(node.address, queue_id, position)
        except (OrbitError, OSError):
            await asyncio.sleep(_AFTER_FAILURE_SECONDS)
            return position
        if "maxOffset" not in answer.fields or answer.code not in (0, 19, 20, 21):
            return position
        if was_master and node.is_master:
            self._orders.master_ends_at(node.name, queue_id, asked_at, int(answer.fields["maxOffset"]))
        if answer.code == 0:
            for message in decode_records(answer.body):
                self._orders.read(node.name, queue_id, message)
        return int(answer.fields["nextBeginOffset"])

    async def _pull(
        self, address: Address, queue_id: int, offset: int, timeout_seconds: float = CALL_SECONDS
    ) -> Command:
        fields = pull_header(TOPIC, queue_id, offset).to_fields()
        return await self._pool.call(address, Command(PULL, fields=fields), timeout_seconds)

    async def _ask(
        self, address: Callable[[], Address], code: int, fields: dict[str, str], body: bytes
    ) -> Command | None:
        try:
            return await self._pool.call(address(), Command(code, fields=fields, body=body), CALL_SECONDS)
        except (OrbitError, OSError):
            return None
