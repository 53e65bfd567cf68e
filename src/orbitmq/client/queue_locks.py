"""Queues that are ours alone: orderly consumers hold a lock on each of theirs, kept by its broker and renewed every 20 s.

The broker forgets a lock after 60 s; we stop trusting it after 30. What was forgotten may have been somebody else's since.

Java: RebalanceImpl.lock, lockAll, unlock; ConsumeMessageOrderlyService
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from orbitmq.client import questions
from orbitmq.errors import OrbitError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orbitmq.client.cluster import Cluster
    from orbitmq.message import QueueRef

logger = logging.getLogger(__name__)

RENEW_SECONDS: Final = 20.0
TRUSTED_SECONDS: Final = 30.0
KEPT_SECONDS: Final = 60.0  # Java: RebalanceLockManager.REBALANCE_LOCK_MAX_LIVE_TIME


class QueueLocks:
    """Asks the brokers for locks, one request a broker."""

    def __init__(self, cluster: Cluster, group: str, client_id: str) -> None:
        self._cluster = cluster
        self._group = group
        self._client_id = client_id
        self._asking = asyncio.Lock()  # brokers may carry out a lock after an unlock that was sent later

    async def lock(self, queues: Iterable[QueueRef]) -> tuple[set[QueueRef], set[QueueRef]]:
        """Those that we hold now, and those that their broker says are not ours; of a broker that cannot be asked, neither."""
        by_broker = _by_broker(queues)
        async with self._asking:
            answers = await asyncio.gather(*(self._lock_on(name, wanted) for name, wanted in by_broker.items()))
        locked: set[QueueRef] = set()
        refused: set[QueueRef] = set()
        for wanted, ours in zip(by_broker.values(), answers, strict=True):
            if ours is not None:
                locked |= ours
                refused |= set(wanted) - ours
        return locked, refused

    async def unlock(self, queues: Iterable[QueueRef]) -> None:
        """Let others have them. A broker that does not hear of it forgets the lock by itself."""
        by_broker = _by_broker(queues)
        async with self._asking:
            await asyncio.gather(*(self._unlock_on(name, held) for name, held in by_broker.items()))

    async def _lock_on(self, broker_name: str, queues: list[QueueRef]) -> set[QueueRef] | None:
        address = self._cluster.master(broker_name)
        if address is None:
            return None
        try:
            return await questions.lock(self._cluster, address, self._group, self._client_id, queues)
        except OrbitError as error:
            logger.warning("broker %s does not lock queues: %s", broker_name, error)
            return None

    async def _unlock_on(self, broker_name: str, queues: list[QueueRef]) -> None:
        address = self._cluster.master(broker_name)
        if address is None:
            return
        try:
            await questions.unlock(self._cluster, address, self._group, self._client_id, queues)
        except OrbitError as error:
            logger.info("broker %s will unlock our queues by itself: %s", broker_name, error)


def _by_broker(queues: Iterable[QueueRef]) -> dict[str, list[QueueRef]]:
    found: dict[str, list[QueueRef]] = {}
    for queue in queues:
        found.setdefault(queue.broker_name, []).append(queue)
    return found
