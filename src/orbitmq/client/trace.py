"""Message trace: who sent, stored and handled a message, and how long it took, as records in a topic of their own.

    Pub        ␁time␁region␁group␁topic␁id␁tag␁keys␁broker␁bytes␁cost␁type␁offset id␁success␂
    SubBefore  ␁time␁region␁group␁request␁id␁retries␁keys␂
    SubAfter   ␁request␁id␁cost␁success␁keys␁code␁time␁group␂
    EndTransaction  ␁time␁region␁group␁topic␁id␁tag␁keys␁broker␁type␁id␁decision␁asked␂
    Recall     ␁time␁region␁group␁topic␁id␁success␂

Ask for it with `Tracer(client)` in a producer's or consumer's hooks; tools such as `mqadmin queryMsgTraceById` read it.

Java: AsyncTraceDispatcher, TraceDataEncoder, SendMessageTraceHookImpl, EndTransactionTraceHookImpl, ConsumeMessageTraceHookImpl,
DefaultRecallMessageTraceHook (which Java leaves off unless a system property says otherwise)
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Self

import msgspec

from orbitmq.client.delays import is_delayed
from orbitmq.client.hooks import ConsumeHook, Consuming, Recall, SendHook, Sending, TransactionEnd
from orbitmq.client.names import TRACE_TOPIC, check_topic
from orbitmq.client.namespaces import unwrapped
from orbitmq.errors import ConfigError, OrbitError, RetryLater
from orbitmq.message import Message
from orbitmq.message import properties as names
from orbitmq.message.properties import MAX_PROPERTIES_BYTES
from orbitmq.tasks import is_cancelled

if TYPE_CHECKING:
    from types import TracebackType

    from orbitmq.client.client import Client
    from orbitmq.client.producer import Producer

logger = logging.getLogger(__name__)

_FIELD_END: Final = "\x01"
_RECORD_END: Final = "\x02"
_GROUP: Final = "_INNER_TRACE_PRODUCER"
_NORMAL, _HALF, _TRANSACTION_END, _DELAYED = range(4)  # Java: MessageType
_DECISIONS: Final = {True: "COMMIT_MESSAGE", False: "ROLLBACK_MESSAGE", None: "UNKNOW"}  # Java: LocalTransactionState
_SUCCESS: Final = 0
_EXCEPTION: Final = 2
_FAILED: Final = 4
_MAX_BODY_BYTES: Final = 128_000
_MAX_KEYS_BYTES: Final = MAX_PROPERTIES_BYTES - 1000  # they are one property of the message
_DEFAULT_REGION: Final = "DefaultRegion"


class Trace(msgspec.Struct):
    """One record, and the keys by which it is found."""

    text: str
    keys: list[str]


def sent_trace(sending: Sending, namespace: str, now_ms: int) -> Trace | None:
    """What a producer tells of a message, by its names outside of the namespace; None when its broker wants no traces, or nobody knows
    what became of it.
    """
    receipt = sending.receipt
    if receipt is None and sending.error is None:
        return None  # one-way
    if receipt is not None and not receipt.traceable:
        return None
    properties = sending.properties
    message_id, keys = properties[names.UNIQUE_KEY], properties.get(names.KEYS, "")
    cost_ms = round(sending.seconds * 1000)
    text = _record(
        "Pub",
        now_ms - cost_ms,
        (receipt.region if receipt is not None else "") or _DEFAULT_REGION,
        unwrapped(namespace, sending.group),
        unwrapped(namespace, sending.topic),
        message_id,
        properties.get(names.TAGS, "null"),
        keys or "null",
        sending.store_address,
        len(sending.body),
        cost_ms,
        _DELAYED if is_delayed(properties) else _HALF if names.PREPARED in properties else _NORMAL,
        receipt.offset_id if receipt is not None else "",
        receipt is not None,
    )
    return Trace(text, [message_id, *keys.split()])


def ended_trace(end: TransactionEnd, namespace: str, now_ms: int) -> Trace:
    """What a producer tells of a transaction that was decided."""
    properties = end.properties
    keys = properties.get(names.KEYS, "")
    text = _record(
        "EndTransaction",
        now_ms,
        properties.get(names.REGION) or _DEFAULT_REGION,
        unwrapped(namespace, end.group),
        unwrapped(namespace, end.topic),
        end.message_id,
        properties.get(names.TAGS, "null"),
        keys or "null",
        end.store_address or "null",
        _TRANSACTION_END,
        end.message_id,  # which is a transaction's id, too
        _DECISIONS[end.committed],
        end.from_check,
    )
    return Trace(text, [end.message_id, *keys.split()])


def recalled_trace(recall: Recall, namespace: str, now_ms: int) -> Trace:
    """What a producer tells of a delayed message that it took back, or tried to."""
    text = _record(
        "Recall",
        now_ms,
        recall.region or _DEFAULT_REGION,
        unwrapped(namespace, recall.group),
        unwrapped(namespace, recall.topic),
        recall.message_id,
        recall.error is None,
    )
    return Trace(text, [recall.message_id])


def before_traces(consuming: Consuming, group: str, request_id: str, now_ms: int) -> list[Trace]:
    """What a consumer tells before its handler runs, one record a message."""
    return [
        Trace(
            _record(
                "SubBefore",
                now_ms,
                message.properties.get(names.REGION, _DEFAULT_REGION),
                group,
                request_id,
                message.message_id,
                message.attempt - 1,
                message.properties.get(names.KEYS, "null"),
            ),
            [message.message_id, *message.keys],
        )
        for message in consuming.messages
        if message.properties.get(names.TRACE_ON) != "false"
    ]


def after_traces(consuming: Consuming, group: str, request_id: str, now_ms: int) -> list[Trace]:
    """What it tells afterwards."""
    code = _SUCCESS
    if consuming.error is not None:
        code = _FAILED if isinstance(consuming.error, RetryLater) else _EXCEPTION
    return [
        Trace(
            _record(
                "SubAfter",
                request_id,
                message.message_id,
                round(consuming.seconds * 1000) // max(1, len(consuming.messages)),
                consuming.error is None,
                message.properties.get(names.KEYS, "null"),
                code,
                now_ms,
                group,
            ),
            [message.message_id, *message.keys],
        )
        for message in consuming.messages
        if message.properties.get(names.TRACE_ON) != "false"
    ]


def _record(*fields: object) -> str:
    texts = (str(field).lower() if isinstance(field, bool) else str(field) for field in fields)
    return _FIELD_END.join(texts) + _RECORD_END


def _encoded(trace: Trace) -> bytes:
    return trace.text.encode("utf-8", "replace")  # a lone surrogate becomes "?", as in the message


class Tracer(SendHook, ConsumeHook):
    """Collects traces and sends them in the background; loses some rather than slow anybody down.

    async with Tracer(client) as tracer:
        async with client.producer(group="orders", hooks=[tracer]) as producer: ...
    """

    def __init__(
        self,
        client: Client,
        *,
        topic: str = TRACE_TOPIC,
        batch_size: int = 20,
        every_seconds: float = 5.0,
        max_waiting: int = 2048,
    ) -> None:
        check_topic(topic)
        for name, number in (("batch_size", batch_size), ("every_seconds", every_seconds)):
            if number <= 0:
                raise ConfigError(f"{name} is {number}", hint="give a number above 0")
        self.lost = 0
        """Traces that could not be kept or sent."""
        self._clock = client.config.clock
        self._namespace = client.config.namespace
        self._topic = topic
        self._batch_size = batch_size
        self._every_seconds = every_seconds
        self._max_waiting = max_waiting
        self._waiting: list[Trace] = []
        self._full = asyncio.Event()
        self._closing = False
        self._producer: Producer = client.producer(_GROUP, timeout=5.0)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> Self:
        """Begin to send what hooks collect."""
        await self._producer.start()
        self._task = asyncio.create_task(self._send_now_and_then(), name="message trace")
        return self

    async def close(self) -> None:
        """Send what waits, then end."""
        if self._task is not None:
            self._closing = True
            self._full.set()
            await self._task  # not cancelled: what it is sending would be lost
            self._task = None
        await self._producer.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def after_send(self, sending: Sending) -> None:
        if sending.topic != self._topic:
            trace = sent_trace(sending, self._namespace, self._clock.now_ms())
            if trace is not None:
                self._keep([trace])

    def after_transaction(self, end: TransactionEnd) -> None:
        self._keep([ended_trace(end, self._namespace, self._clock.now_ms())])

    def after_recall(self, recall: Recall) -> None:
        self._keep([recalled_trace(recall, self._namespace, self._clock.now_ms())])

    def before_consume(self, consuming: Consuming) -> None:
        request_id = f"{self._clock.now_ms():X}{id(consuming):X}"
        consuming.context["trace request"] = request_id
        group = unwrapped(self._namespace, consuming.group)
        self._keep(before_traces(consuming, group, request_id, self._clock.now_ms()))

    def after_consume(self, consuming: Consuming) -> None:
        request_id = str(consuming.context["trace request"])
        group = unwrapped(self._namespace, consuming.group)
        self._keep(after_traces(consuming, group, request_id, self._clock.now_ms()))

    def _keep(self, traces: list[Trace]) -> None:
        room = self._max_waiting - len(self._waiting)
        self._waiting += traces[:room]
        self.lost += max(0, len(traces) - room)
        if len(self._waiting) >= self._batch_size:
            self._full.set()

    async def _send_now_and_then(self) -> None:
        while not self._closing:
            try:
                async with asyncio.timeout(self._every_seconds):
                    await self._full.wait()
            except TimeoutError:
                pass
            self._full.clear()
            await self._send_all()

    async def _send_all(self) -> None:
        while self._waiting:
            batch = self._next_batch()
            try:
                await self._send(batch)
            except OrbitError as error:
                if self._closing:  # what is left would be waited for as long, batch by batch
                    batch += self._waiting
                    self._waiting.clear()
                self.lost += len(batch)
                logger.warning("%d message traces are lost: %s", len(batch), error)
            except (Exception, asyncio.CancelledError) as error:
                if is_cancelled():
                    raise
                self.lost += len(batch)
                logger.error("%d message traces are lost: %r", len(batch), error, exc_info=error)

    async def _send(self, batch: list[Trace]) -> None:
        keys = dict.fromkeys(key for trace in batch for key in trace.keys)
        body = b"".join(_encoded(trace) for trace in batch)
        await self._producer.send_message(Message(self._topic, body, keys=[*keys]))

    def _next_batch(self) -> list[Trace]:
        size, count, keys_size = 0, 0, 0
        for trace in self._waiting[: self._batch_size]:
            size += len(_encoded(trace))
            keys_size += sum(len(key.encode("utf-8", "replace")) + 1 for key in trace.keys)
            if count and (size > _MAX_BODY_BYTES or keys_size > _MAX_KEYS_BYTES):
                break
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch
