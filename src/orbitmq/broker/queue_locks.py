"""Who may consume a queue in order: one client at a time, until it unlocks or falls silent. Java: RebalanceLockManager"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orbitmq.clock import Clock
    from orbitmq.protocol.bodies.groups import QueueKey

LOCK_LIVES_MS: Final = 60_000
_NEW_BETWEEN_LOOKS: Final = 10_000  # locks, until those that are over are forgotten


class QueueLocks:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._owners: dict[str, dict[QueueKey, tuple[str, int]]] = {}  # group -> queue -> (client, since when)
        self._new = 0

    def __len__(self) -> int:
        """How many are remembered; some may be over."""
        return sum(map(len, self._owners.values()))

    def lock(self, group: str, client_id: str, queues: Iterable[QueueKey]) -> list[QueueKey]:
        """Those of `queues` that the client holds now; each is its own for another minute."""
        now_ms = self._clock.now_ms()
        if self._new >= _NEW_BETWEEN_LOOKS:
            self._forget_old(now_ms)
        owners = self._owners.get(group, {})
        before = len(owners)
        held = []
        for queue in queues:
            owner = owners.get(queue)
            if owner is None or owner[0] == client_id or now_ms - owner[1] > LOCK_LIVES_MS:
                owners[queue] = (client_id, now_ms)
                held.append(queue)
        if held:  # a group without locks would never be forgotten
            self._owners[group] = owners
        self._new += len(owners) - before
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[QueueKey]) -> None:
        owners = self._owners.get(group, {})
        for queue in queues:
            owner = owners.get(queue)
            if owner is not None and owner[0] == client_id:
                del owners[queue]
        if not owners:
            self._owners.pop(group, None)

    def _forget_old(self, now_ms: int) -> None:
        """Clients that fall silent do not unlock."""
        self._new = 0
        for group, owners in list(self._owners.items()):
            for queue in [queue for queue, (_, since) in owners.items() if now_ms - since > LOCK_LIVES_MS]:
                del owners[queue]
            if not owners:
                del self._owners[group]

    def is_any_held(self, group: str) -> bool:
        now_ms = self._clock.now_ms()
        return any(now_ms - since <= LOCK_LIVES_MS for _, since in self._owners.get(group, {}).values())
