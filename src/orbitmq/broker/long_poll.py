"""Pulls that found nothing, held until something arrives or their time is up. No task and no timer for each.

Java: PullRequestHoldService
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from orbitmq.broker.held_tags import HeldTags

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.broker.subscriptions import Wanted
    from orbitmq.protocol.command import Command
    from orbitmq.protocol.headers.pull import PullMessage
    from orbitmq.transport.connection import Connection

BUCKET_SECONDS: Final = 0.5  # how late a time-out may be noticed
# What a client that hung up may leave behind is bounded by this; who still waits simply asks again.
LONGEST_HOLD_SECONDS: Final = 120.0
MOST_PER_CONNECTION: Final = 16_384


class HeldPull:
    __slots__ = ("bucket", "connection", "filter_hash", "header", "request", "scan_from", "wishes")

    def __init__(self, request: Command, connection: Connection, header: PullMessage, wishes: Wanted) -> None:
        self.request = request
        self.connection = connection
        self.header = header
        self.wishes = wishes
        self.scan_from = header.queue_offset  # what lies before did not match; no need to look at it again
        self.bucket = 0  # of its deadline
        # Of what heartbeats said, if the pull does not say its own; those texts can be long.
        self.filter_hash: int | None = None


class HeldPulls:
    def __init__(
        self,
        now: Callable[[], float],
        answer_arrival: Callable[[HeldPull], bool],
        answer_timeout: Callable[[HeldPull], None],
    ) -> None:
        """`answer_arrival` says whether it answered: what arrived may not be what the pull wants."""
        self._now = now
        self._answer_arrival = answer_arrival
        self._answer_timeout = answer_timeout
        self._by_queue: dict[tuple[str, int], dict[HeldPull, None]] = {}  # in order of coming
        self._by_deadline: defaultdict[int, dict[HeldPull, None]] = defaultdict(dict)
        self._by_connection: defaultdict[Connection, int] = defaultdict(int)
        self.tags = HeldTags()
        self._next_bucket = int(now() / BUCKET_SECONDS)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def has_room(self, connection: Connection, wishes: Wanted) -> bool:
        """Whether one more pull of this client may wait; its number would else be bounded by nothing."""
        return self._by_connection.get(connection, 0) < MOST_PER_CONNECTION and self.tags.has_room(
            connection, wishes.tag_codes
        )

    def hold(self, pull: HeldPull, seconds: float) -> None:
        header, tags = pull.header, pull.wishes.tag_codes
        if tags is not None and (shared := self.tags.keep(pull.connection, tags)) is not tags:
            pull.wishes = pull.wishes._replace(tag_codes=shared)
        self._by_queue.setdefault((header.topic, header.queue_id), {})[pull] = None
        due = self._now() + min(seconds, LONGEST_HOLD_SECONDS)
        pull.bucket = max(int(due / BUCKET_SECONDS), self._next_bucket)
        self._by_deadline[pull.bucket][pull] = None
        self._by_connection[pull.connection] += 1
        self._count += 1

    def arrived(self, topic: str, queue_id: int) -> None:
        """Something new is in this queue."""
        held = self._by_queue.pop((topic, queue_id), None)
        if held is None:
            return
        kept: dict[HeldPull, None] = {}
        for pull in held:
            if pull.connection.closed or self._answer_arrival(pull):
                self._finish(pull)
            else:
                kept[pull] = None
        if kept:
            self._by_queue.setdefault((topic, queue_id), {}).update(kept)

    def expire(self) -> None:
        """Answer the pulls whose time is up. Called every `BUCKET_SECONDS`."""
        bucket_now = int(self._now() / BUCKET_SECONDS)
        while self._next_bucket <= bucket_now:
            for pull in self._by_deadline.pop(self._next_bucket, ()):
                self._drop(pull)
                if not pull.connection.closed:
                    self._answer_timeout(pull)
            self._next_bucket += 1

    def release_all(self) -> None:
        """Answer everything: the broker stops."""
        everyone, self._by_queue = self._by_queue, {}
        for held in everyone.values():
            for pull in held:
                self._finish(pull)
                if not pull.connection.closed:
                    self._answer_timeout(pull)

    def _finish(self, pull: HeldPull) -> None:
        """Forget all of it at once: thousands are answered a second, long before their time is up."""
        self._count -= 1
        tags = pull.wishes.tag_codes
        if tags is not None:
            self.tags.drop(pull.connection, tags)
        due = self._by_deadline.get(pull.bucket)
        if due is not None:
            due.pop(pull, None)
            if not due:
                del self._by_deadline[pull.bucket]
        left = self._by_connection[pull.connection] - 1
        if left:
            self._by_connection[pull.connection] = left
        else:
            del self._by_connection[pull.connection]

    def _drop(self, pull: HeldPull) -> None:
        self._finish(pull)
        key = (pull.header.topic, pull.header.queue_id)
        held = self._by_queue.get(key)
        if held is not None:
            held.pop(pull, None)
            if not held:
                del self._by_queue[key]
