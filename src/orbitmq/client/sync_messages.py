"""Messages and transactions as the blocking client hands them out: the same names as in the asyncio client, every call waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from orbitmq.client.received import ReceivedMessage as AsyncReceivedMessage
from orbitmq.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta
    from types import TracebackType

    from orbitmq.client.leased import LeasedMessage as AsyncLeasedMessage
    from orbitmq.client.portal import Portal
    from orbitmq.client.receipts import Receipt
    from orbitmq.client.transactions import Transaction as AsyncTransaction
    from orbitmq.message import QueueRef, StoredMessage
    from orbitmq.protocol.lease_texts import Handle

Inner = TypeVar("Inner", bound="AsyncReceivedMessage | AsyncLeasedMessage")
Handed = TypeVar("Handed", bound="ReceivedMessage | LeasedMessage")


class _HandedOut(Message, Generic[Inner]):
    """What both kinds of messages have in common: the message of the asyncio client within, and the way to its loop."""

    __slots__ = ("_portal", "attempt", "inner", "queue", "queue_offset")

    def __init__(self, inner: Inner, entered: Portal) -> None:
        self.topic = inner.topic
        self.flag = inner.flag
        self.properties = inner.properties
        self.queue: QueueRef = inner.queue
        self.queue_offset = inner.queue_offset
        self.attempt = inner.attempt
        self.inner = inner
        self._portal = entered

    @property
    def body(self) -> bytes:
        """As its producer gave it. Stored compressed it is inflated here, each time if it is large."""
        return self.inner.body

    @body.setter
    def body(self, body: bytes) -> None:
        self.inner.body = body

    @property
    def stored(self) -> StoredMessage:
        """The record as the broker keeps it."""
        return self.inner.stored

    @property
    def message_id(self) -> str:
        """The id its producer gave it."""
        return self.inner.message_id

    def __repr__(self) -> str:
        return repr(self.inner)


def handing_out(handler: Callable[[Any], Any], entered: Callable[[], Portal]) -> Callable[[Any], Any]:
    """A blocking handler, given messages whose methods wait; values that it gets in their place stay what they are."""

    def handed_out(given: Any) -> Any:
        return ReceivedMessage(given, entered()) if isinstance(given, AsyncReceivedMessage) else given

    def call(given: Any) -> Any:
        return handler([handed_out(one) for one in given] if isinstance(given, list) else handed_out(given))

    return call


class ReceivedMessage(_HandedOut["AsyncReceivedMessage"]):
    """A message from a queue. It stays this consumer's until it is acked or given back."""

    __slots__ = ()

    @property
    def offset_id(self) -> str:
        """The id that says where it is stored."""
        return self.inner.offset_id

    @property
    def born_at(self) -> datetime:
        """When its producer sent it, by the producer's clock."""
        return self.inner.born_at

    @property
    def stored_at(self) -> datetime:
        """When the broker stored it, by the broker's clock."""
        return self.inner.stored_at

    def ack(self) -> None:
        """Done: it will not come again. Later calls change nothing."""
        self._portal.soon(self.inner.ack)

    def retry(self, delay_level: int = 0) -> None:
        """Give it back, to be delivered again after a while: level 1 is a second, 0 the broker's choice, -1 never."""
        self._portal.run(self.inner.retry(delay_level))

    def process(self) -> Processing[ReceivedMessage]:
        """`with message.process():` acks when the block ends, and retries when it raises an Exception, which is logged."""
        return Processing(self, self._portal)


class LeasedMessage(_HandedOut["AsyncLeasedMessage"]):
    """A message that nobody else gets before its lease ends. Unless it is acked by then, it comes again, perhaps elsewhere."""

    __slots__ = ()

    @property
    def handle(self) -> Handle:
        """What the broker wants to see; another one after each extension."""
        return self.inner.handle

    @property
    def leased_until(self) -> datetime:
        """When others may get it, by the broker's clock."""
        return self.inner.leased_until

    def ack(self) -> None:
        """Done: it will not come again. Returns when the broker knows; RequestFailed when it knows of no such lease."""
        self._portal.run(self.inner.ack())

    def extend(self, duration: timedelta) -> None:
        """Let the lease end so long from now, later or sooner than it would."""
        self._portal.run(self.inner.extend(duration))

    def process(self) -> Processing[LeasedMessage]:
        """`with message.process():` acks when the block ends. What it raises is logged, not passed on, and the message comes
        again when its lease ends; the same if the broker does not take the ack.
        """
        return Processing(self, self._portal)


class Processing(Generic[Handed]):
    """See `process` of either message."""

    __slots__ = ("_message", "_portal")

    def __init__(self, message: Handed, entered: Portal) -> None:
        self._message = message
        self._portal = entered

    def __enter__(self) -> Handed:
        return self._message

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None and isinstance(self._message, ReceivedMessage):
            self._message.ack()  # for which nobody needs to wait
            return False
        return self._portal.run(self._message.inner.process().__aexit__(kind, error, trace))


class Transaction:
    """One half message, until its block ends. See `TransactionProducer.begin`."""

    __slots__ = ("_portal", "inner")

    def __init__(self, inner: AsyncTransaction, entered: Portal) -> None:
        self.inner = inner
        self._portal = entered

    @property
    def receipt(self) -> Receipt:
        """Where the half message is stored; its `message_id` is the one that consumers will see."""
        return self.inner.receipt

    def commit(self) -> None:
        """When the block ends, let consumers have the message."""
        self.inner.commit()

    def roll_back(self) -> None:
        """When the block ends, let the message vanish."""
        self.inner.roll_back()

    def __enter__(self) -> Self:
        self._portal.run(self.inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.run(self.inner.__aexit__(kind, error, trace))
