"""Sending as tools do it: a few messages, in order, with receipts that say where they are. Java: SendMessageCommand"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.client.client import Client
from orbitmq.message import Message

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence

    from orbitmq.admin.session import Session
    from orbitmq.client.producer import Producer
    from orbitmq.client.receipts import Receipt
    from orbitmq.message import QueueRef

PRODUCER_GROUP: Final = "ORBITMQ_CLI"
_AT_ONCE: Final = 64


class ReceiptRow(msgspec.Struct, frozen=True, kw_only=True):
    """Where a message that was sent is."""

    id: str
    offset_id: str
    topic: str
    broker: str
    queue: int
    offset: int
    status: str  # SEND_OK, or what was not confirmed in time


class Outgoing(msgspec.Struct, frozen=True):
    message: Message
    order_key: str | None = None
    delay: timedelta | None = None


async def send_all(
    session: Session,
    messages: Sequence[Outgoing],
    *,
    queue: QueueRef | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> list[ReceiptRow]:
    """In the order given, many on their way at once; `advance` as for `send_arriving`."""

    async def batches() -> AsyncIterator[Sequence[Outgoing]]:
        yield messages

    return await send_arriving(session, batches(), queue=queue, advance=advance)


async def send_arriving(
    session: Session,
    batches: AsyncIterable[Sequence[Outgoing]],
    *,
    queue: QueueRef | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> list[ReceiptRow]:
    """Batches of messages as they come. `advance` is told how many more were taken: after a failure, these are."""
    rows: list[ReceiptRow] = []
    async with Client(session.config) as client, client.producer(PRODUCER_GROUP) as producer:
        async for batch in batches:
            for start in range(0, len(batch), _AT_ONCE):
                some = batch[start : start + _AT_ONCE]
                rows.extend(_row(receipt) for receipt in await _sent(producer, some, queue))
                advance(len(some))
    return rows


async def _sent(producer: Producer, messages: Sequence[Outgoing], queue: QueueRef | None) -> list[Receipt]:
    """Those of one order key one after the other, the others side by side."""
    if queue is not None or any(one.order_key is not None for one in messages):
        return [
            await producer.send_message(one.message, order_key=one.order_key, queue=queue, delay=one.delay)
            for one in messages
        ]
    return await asyncio.gather(*(producer.send_message(one.message, delay=one.delay) for one in messages))


def _row(receipt: Receipt) -> ReceiptRow:
    return ReceiptRow(
        id=receipt.message_id,
        offset_id=receipt.offset_id,
        topic=receipt.queue.topic,
        broker=receipt.queue.broker_name,
        queue=receipt.queue.queue_id,
        offset=receipt.queue_offset,
        status=str(receipt.status),
    )
