"""Where a group begins in a queue. Java: RebalancePushImpl.computePullFromWhere"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

from orbitmq.client import questions
from orbitmq.client.names import RETRY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orbitmq.client.cluster import Cluster
    from orbitmq.client.consumer_options import Start
    from orbitmq.client.offsets import Offsets
    from orbitmq.clock import Clock
    from orbitmq.message import QueueRef

_SKEW_MS: Final = 60_000  # clocks differ


class Latest:
    """What "latest" means in each queue of a member: behind what was there when the member began.

    At the end, in a queue that was there. One that came later has nothing older, and one whose end could not be found out at once has
    messages since: they are not passed over.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._there: dict[str, frozenset[QueueRef]] = {}  # by topic
        self._wanted_ms: dict[str, int] = {}
        self._since_ms: dict[QueueRef, int | None] = {}

    def knows(self, topic: str) -> bool:
        return topic in self._there

    def begin(self, topic: str, queues: Iterable[QueueRef]) -> None:
        """The topic is wanted from now on, and has these queues."""
        self._there[topic] = frozenset(queues)
        self._wanted_ms[topic] = self._clock.now_ms()

    def forget(self, topic: str) -> None:
        """It is wanted no longer."""
        self._there.pop(topic, None)
        self._wanted_ms.pop(topic, None)
        self._since_ms = {queue: since_ms for queue, since_ms in self._since_ms.items() if queue.topic != topic}

    def since_ms(self, queue: QueueRef) -> int | None:
        """None: at its end."""
        if queue in self._since_ms or queue in self._there.get(queue.topic, ()):
            return self._since_ms.get(queue)
        # A name server may have lost the topic for a while, so what is old stays behind us all the same.
        wanted_ms = self._wanted_ms.get(queue.topic)
        return None if wanted_ms is None else wanted_ms - _SKEW_MS

    def left_to_others(self, queues: Iterable[QueueRef]) -> None:
        """Other members begin there; who takes over from them goes on where they were."""
        for queue in queues:
            self._since_ms.setdefault(queue, None)

    def sought(self, queue: QueueRef, asked_ms: int, *, found: bool) -> None:
        since_ms = self.since_ms(queue)
        if found:
            self._since_ms[queue] = None  # a group whose offsets are deleted begins anew
        else:
            self._since_ms[queue] = asked_ms if since_ms is None else since_ms


async def first_offset(
    cluster: Cluster, offsets: Offsets, queue: QueueRef, start: Start, latest_since_ms: int | None
) -> int:
    """Where the group left off; a group that never was here begins at `start`."""
    stored = await offsets.stored(queue)
    if stored is not None and stored >= 0:
        return stored
    if queue.topic.startswith(RETRY_PREFIX):
        return 0  # what is to be delivered again is never too old
    if start == "latest" and latest_since_ms is not None:
        return await questions.offset_at(cluster, queue, latest_since_ms)
    return await offset_of(cluster, queue, start)


async def offset_of(cluster: Cluster, queue: QueueRef, start: Start) -> int:
    """What `start` means in this queue now."""
    if isinstance(start, datetime):
        return await questions.offset_at(cluster, queue, int(start.timestamp() * 1000))
    if start == "earliest":
        return await questions.min_offset(cluster, queue)
    return await questions.max_offset(cluster, queue)
