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
_TAKEN_UP_MS: Final = 120_000  # by then others have noticed that a queue is theirs, or the broker misses them


class _Wanted:
    """A topic since it was wanted."""

    def __init__(self, queues: frozenset[QueueRef] | None, since_ms: int) -> None:
        self.queues = queues  # that it had then; None if nobody could say
        self.since_ms = since_ms
        self.is_new = queues is not None  # nobody has tried yet to begin there


class Latest:
    """What "latest" means in each queue of a member: behind what was there when its topic was wanted.

    At its end, where a queue is begun at once; where that takes another attempt, and in queues that came later, from that time on: what was
    sent meanwhile is not passed over.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wanted: dict[str, _Wanted] = {}  # by topic
        self._begun: set[QueueRef] = set()
        self._left_ms: dict[QueueRef, int] = {}  # when it was found to be others'

    def knows(self, topic: str) -> bool:
        return topic in self._wanted

    def begin(self, topic: str, queues: Iterable[QueueRef] | None) -> None:
        """The topic is wanted from now on, and has these queues; None: nobody can say now."""
        self._wanted[topic] = _Wanted(None if queues is None else frozenset(queues), self._clock.now_ms())

    def forget(self, topic: str) -> None:
        """It is wanted no longer."""
        self._wanted.pop(topic, None)
        self._begun = {queue for queue in self._begun if queue.topic != topic}
        self._left_ms = {queue: left_ms for queue, left_ms in self._left_ms.items() if queue.topic != topic}

    def left_to_others(self, queues: Iterable[QueueRef]) -> None:
        """They begin there, if they are not gone before."""
        now_ms = self._clock.now_ms()
        for queue in queues:
            self._left_ms.setdefault(queue, now_ms)

    def begun(self, queue: QueueRef) -> None:
        """A group whose offsets are deleted after that begins at the end again."""
        self._begun.add(queue)

    def attempted(self, topic: str) -> None:
        """To begin in all its queues."""
        if topic in self._wanted:
            self._wanted[topic].is_new = False

    def since_ms(self, queue: QueueRef) -> int | None:
        """None: at its end."""
        wanted = self._wanted.get(queue.topic)
        if wanted is None or (wanted.is_new and queue in (wanted.queues or ())) or self._is_begun(queue):
            return None
        if wanted.queues is None or queue in wanted.queues:
            return wanted.since_ms
        # All of it is newer; but a name server may just have lost sight of it for a while.
        return wanted.since_ms - _SKEW_MS

    def _is_begun(self, queue: QueueRef) -> bool:
        left_ms = self._left_ms.get(queue)
        return queue in self._begun or (left_ms is not None and self._clock.now_ms() - left_ms > _TAKEN_UP_MS)


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
