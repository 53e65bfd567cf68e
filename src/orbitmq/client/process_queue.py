"""One queue that is ours for now: what was pulled from it and is not done with, and how far it may be committed.

Messages end in any order, offsets are committed in order: up to the first message that is not done with, no further.

Java: ProcessQueue
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from orbitmq.client.figures import TopicFigures
from orbitmq.client.received import ReceivedMessage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from orbitmq.client.received import Settler
    from orbitmq.message import QueueRef


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLimits:
    """How much of one queue may wait here. At any of them pulling pauses until messages are done with."""

    messages: int = 1000
    bytes: int = 100 << 20
    span: int = 2000  # between the first and the last offset held: one stuck message must not let the rest run away


class ProcessQueue:
    """Dropped, it belongs to somebody else: what ends then is not committed any more."""

    __slots__ = (
        "_first_place",
        "_held",
        "_last_held",
        "_limits",
        "_next_place",
        "_room",
        "active",
        "bytes",
        "consumed_at",
        "dropped",
        "figures",
        "handed_out",
        "idle",
        "last_offset",
        "locked_at",
        "next_offset",
        "pending",
        "public_queue",
        "pull_from",
        "pulled_at",
        "queue",
        "settler",
        "suspended_until",
    )

    def __init__(
        self,
        queue: QueueRef,
        public_queue: QueueRef,
        next_offset: int,
        limits: CacheLimits,
        figures: TopicFigures | None = None,
    ) -> None:
        self.queue = queue
        self.figures = figures or TopicFigures()
        self.public_queue = public_queue  # the same, under the name the program knows
        self.next_offset = next_offset  # to pull from
        self.last_offset = next_offset - 1  # the highest that was pulled
        self.bytes = 0
        self.dropped = False
        self.active = asyncio.Event()  # set while the program lets it be pulled
        self.active.set()
        self.pull_from = 0  # the replica that the broker suggests
        self.pulled_at = 0.0
        self.consumed_at = 0.0
        # Orderly consumption only: what waits its turn, how many are being handled, until when the queue is ours alone.
        self.pending: deque[ReceivedMessage] = deque()
        self.handed_out = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self.locked_at: float | None = None
        self.suspended_until = 0.0
        self.settler: Settler | None = None  # who takes its messages back; None where nobody handles them
        self._limits = limits
        # By place: messages are numbered as they come. What is done with leaves at once, also from behind a stuck one.
        self._held: dict[int, ReceivedMessage] = {}
        self._first_place = 0  # of those held, if any is
        self._next_place = 0
        self._last_held = 0  # the offset of the last that came, held or done with
        self._room = asyncio.Event()
        self._room.set()

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return iter(self._held.values())

    @property
    def commit_offset(self) -> int:
        """Everything before it is done with."""
        return self._held[self._first_place].queue_offset if self._held else self.last_offset + 1

    def holds(self, message: ReceivedMessage) -> bool:
        return message.holder is self and message.place in self._held

    def add(self, messages: list[ReceivedMessage]) -> None:
        """Messages that name this queue as their holder."""
        held, place, added = self._held, self._next_place, 0
        for message in messages:
            message.place = place
            held[place] = message
            place += 1
            size = len(message.body) if message.__class__ is ReceivedMessage else len(message.stored.body)
            message.held_bytes = size  # a handler may put another body into it
            added += size
        self._next_place = place
        self.bytes += added
        if messages:
            self._last_held = messages[-1].queue_offset
            self.last_offset = max(self.last_offset, self._last_held)
        self._update_room()

    def skip_to(self, offset: int) -> None:
        """Pull from here next. What lies between was not wanted, so it counts as done with."""
        self.next_offset = offset
        self.last_offset = max(self.last_offset, offset - 1)

    def remove(self, messages: Iterable[ReceivedMessage]) -> int:
        """Done with. A message that is not held any more (expired, say) is left alone; how many were."""
        held, freed, removed = self._held, 0, 0
        for message in messages:
            if message.holder is self and message.place in held:
                del held[message.place]
                freed += message.held_bytes
                removed += 1
        self.bytes -= freed
        first, end = self._first_place, self._next_place
        while first < end and first not in held:
            first += 1
        self._first_place = first
        if not self._room.is_set():
            self._update_room()
        return removed

    def head(self, count: int) -> list[ReceivedMessage]:
        """The first messages that are not done with."""
        return list(islice(self, count))

    async def wait_for_room(self) -> None:
        await self._room.wait()

    def has_room(self) -> bool:
        return self._room.is_set()

    def has_room_for(self, messages: int, size: int) -> bool:
        """Whether so much more fits, and the program lets the queue be pulled."""
        limits = self._limits
        return (
            self._room.is_set()
            and self.active.is_set()
            and len(self._held) + messages <= limits.messages
            and self.bytes + size <= limits.bytes
        )

    def pause(self) -> None:
        if not self.dropped:
            self.active.clear()

    def resume(self) -> None:
        self.active.set()

    def drop(self) -> None:
        """Whoever waits to pull it is let go."""
        self.dropped = True
        self.pending.clear()
        self.active.set()
        self._room.set()

    def _update_room(self) -> None:
        limits, held = self._limits, self._held
        full = (
            len(held) > limits.messages
            or self.bytes > limits.bytes
            or (bool(held) and self._last_held - held[self._first_place].queue_offset > limits.span)
        )
        if full:
            self._room.clear()
        else:
            self._room.set()
