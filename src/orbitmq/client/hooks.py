"""Looking over a producer's or consumer's shoulder: what tracing and metrics build on.

A hook sees every message before and after; it may add properties before a send. It runs on the event loop, so it must be
quick. What it raises is the caller's to see; around a handler, which nobody calls, it is logged once, and the message is handled
all the same. Java: SendMessageHook, EndTransactionHook, ConsumeMessageHook, DefaultRecallMessageTraceHook
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orbitmq.client.receipts import Receipt
    from orbitmq.client.received import ReceivedMessage
    from orbitmq.errors import OrbitError


class Sending:
    """One send: what goes out, and what became of it."""

    __slots__ = (
        "began_at",
        "body",
        "context",
        "error",
        "group",
        "properties",
        "receipt",
        "seconds",
        "store_address",
        "topic",
    )

    def __init__(self, group: str, topic: str, body: bytes, properties: dict[str, str]) -> None:
        self.group = group
        self.topic = topic
        self.body = body
        self.properties = properties  # may be added to before the send
        self.receipt: Receipt | None = None
        self.error: OrbitError | None = None
        self.began_at = 0.0  # by the event loop's clock
        self.seconds = 0.0  # from its beginning to the answer
        self.store_address = ""  # the broker that answered, or that was sent what needs no answer
        self.context: dict[str, object] = {}  # for what a hook wants to find again afterwards


class TransactionEnd:
    """How a transaction was decided: by the program, or by its check when a broker asked."""

    __slots__ = ("committed", "from_check", "group", "message_id", "properties", "store_address", "topic")

    def __init__(
        self,
        group: str,
        topic: str,
        message_id: str,
        properties: Mapping[str, str],
        committed: bool | None,
        store_address: str,
        *,
        from_check: bool,
    ) -> None:
        self.group = group
        self.topic = topic
        self.message_id = message_id
        self.properties = properties
        self.committed = committed  # False: rolled back; None: not known yet
        self.store_address = store_address  # the broker that is told; empty when it has no master now
        self.from_check = from_check


class Recall:
    """A delayed message that was to be taken back, and whether it was."""

    __slots__ = ("error", "group", "message_id", "region", "topic")

    def __init__(self, group: str, topic: str, message_id: str, region: str, error: OrbitError | None) -> None:
        self.group = group
        self.topic = topic
        self.message_id = message_id
        self.region = region  # of the broker; empty when it refused
        self.error = error


class Consuming:
    """One call of a handler, the messages it got, and how it ended; without a handler, one message until it was settled."""

    __slots__ = ("context", "error", "group", "messages", "seconds")

    def __init__(self, group: str, messages: Sequence[ReceivedMessage]) -> None:
        self.group = group
        self.messages = messages
        self.error: BaseException | None = None
        self.seconds = 0.0
        self.context: dict[str, object] = {}  # for what a hook wants to find again afterwards


class SendHook:
    """Override what you need."""

    def before_send(self, sending: Sending) -> None:
        """The message is complete but not encoded yet."""

    def after_send(self, sending: Sending) -> None:
        """`receipt` or `error` is set; neither after a one-way send that went out. Every send that a hook saw begin ends here."""

    def after_transaction(self, end: TransactionEnd) -> None:
        """The transaction is decided, and its broker is about to hear of it."""

    def after_recall(self, recall: Recall) -> None:
        """The broker has answered."""


class ConsumeHook:
    """Override what you need."""

    def before_consume(self, consuming: Consuming) -> None:
        """The handler is about to be called, or the message handed out."""

    def after_consume(self, consuming: Consuming) -> None:
        """The handler returned, or raised `error`; or the message is about to be acked, or given back because of `error`."""
