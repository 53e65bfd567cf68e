"""A message that is ours for a while. Java: MessageExt with the property POP_CK

A batch that its topic keeps as one record has one lease: its messages come one by one, and the lease ends with the last ack.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from orbitmq.errors import OrbitError
from orbitmq.message import Message

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta
    from types import TracebackType

    from orbitmq.client.received import ReceivedMessage
    from orbitmq.client.watching import Watch, Watchers
    from orbitmq.message import StoredMessage
    from orbitmq.protocol.lease_texts import Handle

logger = logging.getLogger(__name__)


class Lease:
    """What the broker knows of, and the messages it is for: nearly always one."""

    __slots__ = ("changing", "ends_at", "handle", "open")

    def __init__(self, handle: Handle, ends_at: float, offsets: Iterable[int]) -> None:
        self.handle = handle  # what the broker wants to see; another one after each extension
        self.ends_at = ends_at  # by the event loop's clock
        self.open = set(offsets)  # in the queue, of those that are not acked
        self.changing = asyncio.Lock()  # a request must name the handle that the one before was answered with


class Landlord(Protocol):
    """Who leased the message to us."""

    async def end_lease(self, message: LeasedMessage) -> None: ...

    async def change_lease(self, message: LeasedMessage, duration: timedelta) -> None: ...


class LeasedMessage(Message):
    """A message that nobody else gets before its lease ends. Unless it is acked by then, it comes again, perhaps elsewhere."""

    __slots__ = ("_landlord", "_lease", "_received", "_watch", "attempt", "queue", "queue_offset", "stored")

    def __init__(self, received: ReceivedMessage, topic: str, lease: Lease, landlord: Landlord) -> None:
        stored = received.stored
        self.topic = topic
        self.flag = stored.flag
        self.properties = stored.properties
        self.queue = received.queue
        self.queue_offset = stored.queue_offset
        self.stored: StoredMessage = stored
        self._received = received
        self.attempt = stored.reconsume_times + 1
        self._lease = lease
        self._landlord = landlord
        self._watch: Watch | None = None

    @property
    def handle(self) -> Handle:
        """What the broker wants to see; another one after each extension."""
        return self._lease.handle

    @property
    def body(self) -> bytes:
        """As its producer gave it. Stored compressed it is inflated here, each time if it is large."""
        return self._received.body

    @body.setter
    def body(self, body: bytes) -> None:
        self._received.body = body

    @property
    def message_id(self) -> str:
        """The id its producer gave it."""
        return self.stored.message_id

    @property
    def leased_until(self) -> datetime:
        """When others may get it, by the broker's clock."""
        return datetime.fromtimestamp((self.handle.pop_time_ms + self.handle.invisible_ms) / 1000, UTC)

    async def ack(self) -> None:
        """Done: it will not come again. Returns when the broker knows; RequestFailed when it knows of no such lease.

        Of a batch that is kept as one record the broker hears with the last ack; until then all of it may come again.
        """
        await self._landlord.end_lease(self)

    async def extend(self, duration: timedelta) -> None:
        """Let the lease end so long from now, later or sooner than it would; of a batch in one record, the lease of all."""
        await self._landlord.change_lease(self, duration)

    def _hand_out(self, watchers: Watchers) -> None:
        """It is about to be handed out."""
        self._watch = watchers.begin([self._received])

    def _handled(self, error: BaseException | None) -> None:
        """It is about to be acked, or comes again because of `error`. Hooks hear of the first of these."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.end(error)

    def process(self) -> LeaseProcessing:
        """`async with message.process():` acks when the block ends. What it raises is logged, not passed on, and the message
        comes again when its lease ends; the same if the broker does not take the ack. Cancellation is passed on.
        """
        return LeaseProcessing(self)

    def __repr__(self) -> str:
        return (
            f"LeasedMessage({self.topic!r}, {self.queue.broker_name}/{self.queue.queue_id}@{self.queue_offset}, "
            f"attempt={self.attempt}, body={len(self.body)} bytes)"
        )


class LeaseProcessing:
    """See `LeasedMessage.process`."""

    __slots__ = ("_message",)

    def __init__(self, message: LeasedMessage) -> None:
        self._message = message

    async def __aenter__(self) -> LeasedMessage:
        return self._message

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            try:
                await self._message.ack()
            except OrbitError as failure:
                logger.warning("%r is not acked, and comes again when its lease ends: %s", self._message, failure)
            return False
        self._message._handled(error)
        if not isinstance(error, Exception):
            return False
        logger.error("%r failed, and comes again when its lease ends", self._message, exc_info=error)
        return True
