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
_TAKEN_UP_MS: Final = 180_000  # by then others have noticed that a queue is theirs, or the broker misses them


class _Wanted:
    """A topic since it was wanted."""

    def __init__(self, queues: frozenset[QueueRef], now_ms: int) -> None:
        self.since_ms = now_ms - _SKEW_MS
        self.at_end = queues  # that were there, as long as nobody has tried to begin in them
        self.begun: set[QueueRef] = set()
        self.left_ms: dict[QueueRef, int] = {}  # when a queue was found to be others'


class Latest:
    """What "latest" means in each queue of a member: behind what was there when its topic was wanted.

    At its end, where a queue is begun at once. Where that takes another attempt, and in queues that came later, from that time on: what was
    sent meanwhile is not passed over, whatever was sent in the minute before.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wanted: dict[str, _Wanted] = {}  # by topic

    def knows(self, topic: str) -> bool:
        return topic in self._wanted

    def begin(self, topic: str, queues: Iterable[QueueRef]) -> None:
        """The topic is wanted from now on, and has these queues, as far as anybody can say now."""
        self._wanted[topic] = _Wanted(frozenset(queues), self._clock.now_ms())

    def forget(self, topic: str) -> None:
        """It is wanted no longer."""
        self._wanted.pop(topic, None)

    def attempted(self, topic: str) -> None:
        """To begin in all its queues."""
        if topic in self._wanted:
            self._wanted[topic].at_end = frozenset()

    def shared(self, topic: str, queues: Iterable[QueueRef], ours: Iterable[QueueRef]) -> None:
        """Others begin in what is not ours, if they are not gone before. What a topic has no longer begins anew if it comes back."""
        wanted = self._wanted.get(topic)
        if wanted is not None:
            there, now_ms = set(queues), self._clock.now_ms()
            taken_up = {queue for queue, left_ms in wanted.left_ms.items() if now_ms - left_ms > _TAKEN_UP_MS}
            wanted.begun = (wanted.begun | taken_up) & there
            wanted.left_ms = {queue: wanted.left_ms.get(queue, now_ms) for queue in there.difference(ours)}

    def begun(self, queues: Iterable[QueueRef]) -> None:
        """The group has committed offsets. If they are deleted after that, it begins at the end."""
        for queue in queues:
            if queue.topic in self._wanted:
                self._wanted[queue.topic].begun.add(queue)

    def since_ms(self, queue: QueueRef) -> int | None:
        """None: at its end."""
        wanted = self._wanted.get(queue.topic)
        if wanted is None or queue in wanted.at_end or queue in wanted.begun:
            return None
        return wanted.since_ms


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
