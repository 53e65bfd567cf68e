"""Pops and notifications that found nothing, held until something arrives or their time is up. No task, no timer for each.

They wait for a group, for one queue of a topic or for any. An arrival wakes those who wait for its queue or for any; one in
a retry topic wakes its group where it waits for the topic itself.

Java: PopLongPollingService
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from orbitmq.broker.long_poll import BUCKET_SECONDS, LONGEST_HOLD_SECONDS
from orbitmq.protocol.headers.leases import ANY_QUEUE
from orbitmq.protocol.lease_texts import retry_topic_v1, retry_topic_v2

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.broker.subscriptions import Wanted
    from orbitmq.protocol.command import Command
    from orbitmq.protocol.headers.leases import Notification, PopMessage
    from orbitmq.transport.connection import Connection

_Place = tuple[str, str, int]  # topic, group, queue or any


class Waiting:
    __slots__ = ("bucket", "connection", "header", "request", "wishes")

    def __init__(
        self, request: Command, connection: Connection, header: PopMessage | Notification, wishes: Wanted
    ) -> None:
        self.request = request
        self.connection = connection
        self.header = header
        self.wishes = wishes
        self.bucket = 0  # of its deadline

    @property
    def place(self) -> _Place:
        return (self.header.topic, self.header.consumer_group, self.header.queue_id)


class WaitingRequests:
    def __init__(
        self,
        now: Callable[[], float],
        answer_arrival: Callable[[Waiting], bool],
        answer_timeout: Callable[[Waiting], None],
    ) -> None:
        """`answer_arrival` says whether it answered: what arrived may be gone already, or not what is wanted."""
        self._now = now
        self._answer_arrival = answer_arrival
        self._answer_timeout = answer_timeout
        self._places: dict[_Place, dict[Waiting, None]] = {}  # in order of coming
        self._groups: dict[str, dict[str, int]] = {}  # topic -> group -> how many wait
        self._retried: dict[str, dict[tuple[str, str], None]] = {}  # retry topic -> topics and groups that wait
        self._by_deadline: defaultdict[int, dict[Waiting, None]] = defaultdict(dict)
        self._next_bucket = int(now() / BUCKET_SECONDS)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def at(self, topic: str, group: str, queue_id: int) -> int:
        """How many wait there."""
        return len(self._places.get((topic, group, queue_id), ()))

    def hold(self, waiting: Waiting, seconds: float) -> None:
        topic, group, _ = waiting.place
        self._places.setdefault(waiting.place, {})[waiting] = None
        groups = self._groups.setdefault(topic, {})
        if group not in groups:
            groups[group] = 0
            for retry_topic in (retry_topic_v1(group, topic), retry_topic_v2(group, topic)):
                self._retried.setdefault(retry_topic, {})[topic, group] = None
        groups[group] += 1
        due = self._now() + min(seconds, LONGEST_HOLD_SECONDS)
        waiting.bucket = max(int(due / BUCKET_SECONDS), self._next_bucket)
        self._by_deadline[waiting.bucket][waiting] = None
        self._count += 1

    def arrived(self, topic: str, queue_id: int) -> None:
        """Something new is in this queue."""
        if not self._count:
            return
        for retried in list(self._retried.get(topic, ())):
            self.wake_all(*retried)
        for group in list(self._groups.get(topic, ())):
            self.wake(topic, group, queue_id)

    def wake(self, topic: str, group: str, queue_id: int) -> None:
        """Answer who waits for this queue or for any, in order, until one finds nothing."""
        for place in ((topic, group, ANY_QUEUE), (topic, group, queue_id)):
            self._answer_at(place)

    def wake_all(self, topic: str, group: str) -> None:
        for place in [place for place in self._places if place[:2] == (topic, group)]:
            self._answer_at(place)

    def expire(self) -> None:
        """Answer those whose time is up. Called every `BUCKET_SECONDS`."""
        bucket_now = int(self._now() / BUCKET_SECONDS)
        while self._next_bucket <= bucket_now:
            for waiting in self._by_deadline.pop(self._next_bucket, ()):
                self._finish(waiting)
                if not waiting.connection.closed:
                    self._answer_timeout(waiting)
            self._next_bucket += 1

    def release_all(self) -> None:
        """Answer everything: the broker stops."""
        for waiting in [waiting for held in self._places.values() for waiting in held]:
            self._finish(waiting)
            if not waiting.connection.closed:
                self._answer_timeout(waiting)

    def _answer_at(self, place: _Place) -> None:
        while (held := self._places.get(place)) is not None:
            waiting = next(iter(held))
            if not waiting.connection.closed and not self._answer_arrival(waiting):
                return
            self._finish(waiting)

    def _finish(self, waiting: Waiting) -> None:
        """Forget all of it at once: thousands are answered a second, long before their time is up."""
        topic, group, _ = waiting.place
        held = self._places.get(waiting.place)
        if held is None or held.pop(waiting, waiting) is waiting:
            return
        self._count -= 1
        if not held:
            del self._places[waiting.place]
        due = self._by_deadline.get(waiting.bucket)
        if due is not None:
            due.pop(waiting, None)
            if not due:
                del self._by_deadline[waiting.bucket]
        groups = self._groups[topic]
        groups[group] -= 1
        if not groups[group]:
            del groups[group]
            for retry_topic in (retry_topic_v1(group, topic), retry_topic_v2(group, topic)):
                waiters = self._retried[retry_topic]
                del waiters[topic, group]
                if not waiters:
                    del self._retried[retry_topic]
        if not groups:
            del self._groups[topic]
