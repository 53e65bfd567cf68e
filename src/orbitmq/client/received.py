"""A message as a consumer gets it: what was sent, where it was stored, and how to say that it is done with.

Java: MessageExt
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from orbitmq.message import Message, QueueRef, StoredMessage
from orbitmq.message.moments import moment_at
from orbitmq.message.properties import decode_properties
from orbitmq.message.record import decode_record

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from types import TracebackType

    from orbitmq.client.process_queue import ProcessQueue
    from orbitmq.message.record import BriefRecord


class Settler(Protocol):
    """Takes messages back from who handled them."""

    def ack(self, messages: list[ReceivedMessage]) -> None: ...

    async def retry(self, messages: list[ReceivedMessage], delay_level: int) -> None: ...

    def report(self, messages: list[ReceivedMessage], error: Exception) -> int:
        """Tell of a failed handler; the delay level it wishes for."""
        ...


class ReceivedMessage(Message):
    """A message from a queue. It stays this consumer's until it is acked or given back."""

    __slots__ = (
        "_answer",
        "_at",
        "_properties",
        "_raw_properties",
        "_stored",
        "attempt",
        "held_bytes",
        "holder",
        "place",
        "queue",
        "queue_offset",
        "taken_at",
    )

    def __init__(
        self, stored: StoredMessage, topic: str, body: bytes, queue: QueueRef, holder: ProcessQueue | None = None
    ) -> None:
        self.topic = topic  # of a message that is delivered again: where it was first sent
        self.body = body
        self.flag = stored.flag
        self.queue = queue
        self.queue_offset = stored.queue_offset
        self.attempt = stored.reconsume_times + 1
        self.holder = holder
        self.place = -1  # among those its holder has: see there
        self.held_bytes = 0  # what its holder counts it for
        self.taken_at = 0.0  # by the event loop's clock; 0: still waiting
        self._stored: StoredMessage | None = stored
        self._properties: dict[str, str] | None = stored.properties
        self._raw_properties = stored.raw_properties
        self._answer = b""
        self._at = 0

    @property
    def properties(self) -> dict[str, str]:
        """Whatever travels beside the body, by name."""
        properties = self._properties
        if properties is None:
            properties = self._properties = decode_properties(self._raw_properties)
        return properties

    @properties.setter
    def properties(self, properties: dict[str, str]) -> None:
        self._properties = properties

    @property
    def stored(self) -> StoredMessage:
        """The record as the broker keeps it."""
        stored = self._stored
        if stored is None:
            stored = self._stored = decode_record(self._answer, self._at)
            self._answer = b""
        return stored

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
        return moment_at(self.stored.born_at_ms)

    @property
    def stored_at(self) -> datetime:
        """When the broker stored it, by the broker's clock."""
        return moment_at(self.stored.stored_at_ms)

    def ack(self) -> None:
        """Done: it will not come again. Later calls change nothing."""
        settler = self._settler()
        if settler is not None:
            settler.ack([self])

    async def retry(self, delay_level: int = 0) -> None:
        """Give it back, to be delivered again after a while: level 1 is a second, 0 the broker's choice, -1 never."""
        settler = self._settler()
        if settler is not None:
            await settler.retry([self], delay_level)

    def process(self) -> Processing:
        """`async with message.process():` acks when the block ends, and retries when it raises. The exception is logged, not
        passed on, so that one bad message does not end the loop that reads them; cancellation is, and settles nothing.
        """
        return Processing(self)

    def _settler(self) -> Settler | None:
        """Who takes it back; None for one that was only looked at."""
        return None if self.holder is None else self.holder.settler

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
        settler = message._settler()
        if settler is not None:
            await message.retry(settler.report([message], error))
        return True


def received_briefly(
    answer: bytes, records: Iterable[BriefRecord], topic: str, queue: QueueRef, holder: ProcessQueue | None
) -> list[ReceivedMessage]:
    """Messages of which only that is decoded which every handler looks at; the rest is when somebody asks."""
    messages: list[ReceivedMessage] = []
    append = messages.append
    for at, flag, queue_offset, reconsume_times, body, raw_properties in records:
        message: ReceivedMessage = _new(ReceivedMessage)
        message.topic = topic
        message.body = body
        message.flag = flag
        message.queue = queue
        message.queue_offset = queue_offset
        message.attempt = reconsume_times + 1
        message.holder = holder
        message.place = -1
        message.held_bytes = 0
        message.taken_at = 0.0
        message._stored = None
        message._properties = None
        message._raw_properties = raw_properties
        message._answer = answer
        message._at = at
        append(message)
    return messages


_new = ReceivedMessage.__new__
