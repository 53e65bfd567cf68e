"""A message as a consumer gets it: what was sent, where it was stored, and how to say that it is done with.

Java: MessageExt
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from orbitmq.message import Message, QueueRef, StoredMessage

if TYPE_CHECKING:
    from types import TracebackType

    from orbitmq.client.process_queue import ProcessQueue


class Settler(Protocol):
    """Takes messages back from who handled them."""

    def ack(self, messages: list[ReceivedMessage]) -> None: ...

    async def retry(self, messages: list[ReceivedMessage], delay_level: int) -> None: ...

    def report(self, messages: list[ReceivedMessage], error: Exception) -> int:
        """Tell of a failed handler; the delay level it wishes for."""
        ...


class ReceivedMessage(Message):
    """A message from a queue. It stays this consumer's until it is acked or given back."""

    __slots__ = ("attempt", "holder", "queue", "queue_offset", "settler", "stored", "taken_at")

    def __init__(
        self, stored: StoredMessage, topic: str, body: bytes, queue: QueueRef, holder: ProcessQueue | None = None
    ) -> None:
        self.topic = topic  # of a message that is delivered again: where it was first sent
        self.body = body
        self.flag = stored.flag
        self.properties = stored.properties
        self.queue = queue
        self.queue_offset = stored.queue_offset
        self.stored = stored
        self.attempt = stored.reconsume_times + 1
        self.holder = holder
        self.settler: Settler | None = None
        self.taken_at = 0.0  # by the event loop's clock; 0: still waiting

    @property
    def message_id(self) -> str:
        """The id its producer gave it."""
        return self.stored.message_id

    @property
    def offset_id(self) -> str:
        """The id that says where it is stored."""
        return self.stored.offset_id

    @property
    def born_at(self) -> datetime:
        """When its producer sent it, by the producer's clock."""
        return datetime.fromtimestamp(self.stored.born_at_ms / 1000, UTC)

    @property
    def stored_at(self) -> datetime:
        """When the broker stored it, by the broker's clock."""
        return datetime.fromtimestamp(self.stored.stored_at_ms / 1000, UTC)

    def ack(self) -> None:
        """Done: it will not come again. Later calls change nothing."""
        if self.settler is not None:
            self.settler.ack([self])

    async def retry(self, delay_level: int = 0) -> None:
        """Give it back, to be delivered again after a while: level 1 is a second, 0 the broker's choice, -1 never."""
        if self.settler is not None:
            await self.settler.retry([self], delay_level)

    def process(self) -> Processing:
        """`async with message.process():` acks when the block ends, and retries when it raises. The exception is logged, not
        passed on, so that one bad message does not end the loop that reads them; cancellation is, and settles nothing.
        """
        return Processing(self)

    def __repr__(self) -> str:
        return (
            f"ReceivedMessage({self.topic!r}, {self.queue.broker_name}/{self.queue.queue_id}@{self.queue_offset}, "
            f"attempt={self.attempt}, body={len(self.body)} bytes)"
        )


class Processing:
    """See `ReceivedMessage.process`."""

    __slots__ = ("_message",)

    def __init__(self, message: ReceivedMessage) -> None:
        self._message = message

    async def __aenter__(self) -> ReceivedMessage:
        return self._message

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        message = self._message
        if error is None:
            message.ack()
            return False
        if not isinstance(error, Exception):
            return False
        if message.settler is not None:
            await message.retry(message.settler.report([message], error))
        return True
