"""Committed offsets: they only grow, and a crash takes no more than what was not saved yet."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from orbitmq.errors import OrbitError
from orbitmq.protocol.command import Command
from orbitmq.transport.pool import Pool
from tests.broker.kit import QUERY_OFFSET, UPDATE_OFFSET
from tests.faults.losses import Window
from tests.faults.orders import QUEUES, TOPIC

if TYPE_CHECKING:
    from tests.faults.cluster import Cluster
    from tests.faults.faults import Faults
    from tests.faults.orders import Orders
    from tests.faults.timeline import Timeline

GROUP: Final = "committers"
_CALL_SECONDS: Final = 3.0
_PAUSE_SECONDS: Final = 0.3
_SAVED_WITHIN_SECONDS: Final = 12.0  # saved every two seconds, unless the process is frozen


@dataclass(slots=True)
class Committed:
    """Of one queue."""

    tried: int = 0
    answered: list[tuple[float, int]] = field(default_factory=list)  # when, and what was committed
    broken: list[str] = field(default_factory=list)
    questions: int = 0

    def floor(self, asked_at: float, crashes: list[Window], unsafe_seconds: float) -> int:
        """The least that the broker must know of, when asked then."""
        before = [
            value
            for at, value in self.answered
            if at <= asked_at and not any(crash.holds(at, and_before=unsafe_seconds) for crash in crashes)
        ]
        return max(before, default=0)

    def told(self, queue_id: int, value: int, floor: int) -> None:
        self.questions += 1
        if value < floor:
            self.broken.append(f"offset regress: queue {queue_id} is at {value}, committed was {floor}")
        if value > self.tried:
            self.broken.append(f"offset phantom: queue {queue_id} is at {value}, at most {self.tried} was committed")


class Committers:
    def __init__(self, cluster: Cluster, orders: Orders, faults: Faults, timeline: Timeline) -> None:
        self.over = False
        self.committed = [Committed() for _ in range(QUEUES)]
        self.uncopied: list[Window] = []  # what was committed then may be unknown to the slave that took over
        self._cluster = cluster
        self._orders = orders
        self._faults = faults
        self._timeline = timeline
        self._pool = Pool()

    def start(self) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._commit(queue_id)) for queue_id in range(QUEUES)]

    async def close(self) -> None:
        await self._pool.close()

    @property
    def broken(self) -> list[str]:
        return [complaint for committed in self.committed for complaint in committed.broken]

    async def _commit(self, queue_id: int) -> None:
        committed = self.committed[queue_id]
        while not self.over:
            await asyncio.sleep(_PAUSE_SECONDS)
            value = max(committed.tried, self._orders.ends[queue_id])
            if value == 0:
                continue
            committed.tried = value
            if await self._ask(UPDATE_OFFSET, queue_id, commitOffset=str(value)) is not None:
                committed.answered.append((self._timeline.now(), value))
            asked_at, crashes = self._timeline.now(), len(self._faults.master_crashes)
            answer = await self._ask(QUERY_OFFSET, queue_id)
            # Of a crash between question and answer nobody knows which came first.
            if answer is not None and crashes == len(self._faults.master_crashes):
                committed.told(queue_id, int(answer.fields["offset"]), self._floor(committed, asked_at))

    def _floor(self, committed: Committed, asked_at: float) -> int:
        crashes = [
            *self._faults.master_crashes,
            *(Window(event.begun, event.begun) for event in self._timeline.events if event.kind == "full disk"),
        ]
        saved = committed.floor(asked_at, crashes, _SAVED_WITHIN_SECONDS)
        copied = committed.floor(asked_at, self.uncopied, 0.0)
        return min(saved, copied)

    async def _ask(self, code: int, queue_id: int, **more: str) -> Command | None:
        fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id), **more}
        try:
            answer = await self._pool.call(self._cluster.master.address, Command(code, fields=fields), _CALL_SECONDS)
        except (OrbitError, OSError):
            return None
        return answer if answer.code == 0 else None
