"""What `msg send` does: read messages from wherever they come, send them, say where they are."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import click
import msgspec

from orbitmq.cli.progress import progress
from orbitmq.client.client import Client
from orbitmq.errors import MessageError
from orbitmq.message import Message
from orbitmq.message.properties import RESERVED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import IO

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


class Line(msgspec.Struct, kw_only=True):
    """A message as one line of JSON; what `dlq export` and `-o json` write can be read."""

    body: str = ""
    body_encoding: str = "utf-8"
    tag: str = ""
    keys: list[str] = []
    properties: dict[str, str] = {}
    order_key: str | None = None


class Outgoing(msgspec.Struct, frozen=True):
    message: Message
    order_key: str | None
    delay: timedelta | None = None


def receipt_row(receipt: Receipt) -> ReceiptRow:
    return ReceiptRow(
        id=receipt.message_id,
        offset_id=receipt.offset_id,
        topic=receipt.queue.topic,
        broker=receipt.queue.broker_name,
        queue=receipt.queue.queue_id,
        offset=receipt.queue_offset,
        status=str(receipt.status),
    )


def read_lines(source: IO[bytes], style: str) -> Iterator[Line]:
    """`lines`: a message a line; `json`: an object a line; `whole`: all of it is one message."""
    if style == "whole":
        data = source.read()
        yield Line(body=base64.b64encode(data).decode(), body_encoding="base64")
        return
    for number, raw in enumerate(source, 1):
        text = raw.rstrip(b"\r\n")
        if not text:
            continue
        if style == "lines":
            yield Line(body=base64.b64encode(text).decode(), body_encoding="base64")
            continue
        try:
            yield msgspec.json.decode(text, type=Line)
        except msgspec.MsgspecError as error:
            raise MessageError(
                f"line {number} is no message: {error}",
                hint='write {"body": "...", "tag": "...", "keys": ["..."], "properties": {"k": "v"}}',
            ) from None


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """What the options say about every message."""

    topic: str
    tag: str = ""
    keys: Sequence[str] = ()
    properties: dict[str, str] = {}
    order_key: str | None = None
    delay: timedelta | None = None

    def fill(self, line: Line) -> Outgoing:
        body = base64.b64decode(line.body) if line.body_encoding == "base64" else line.body.encode()
        own = {name: value for name, value in line.properties.items() if name not in RESERVED}
        message = Message(
            self.topic,
            body,
            tag=line.tag or self.tag,
            keys=[*line.keys, *self.keys],
            properties={**own, **self.properties},
        )
        return Outgoing(message, line.order_key or self.order_key, self.delay)


async def send_all(
    session: Session, messages: Iterable[Outgoing], queue: QueueRef | None, total: int | None
) -> list[Receipt]:
    """In the order given, many on their way at once. After a failure the count of those sent is told."""
    receipts: list[Receipt] = []
    waiting: list[Outgoing] = []
    try:
        async with Client(session.config) as client, client.producer(PRODUCER_GROUP) as producer:
            with progress("sending", total) as advance:
                for message in messages:
                    waiting.append(message)
                    if len(waiting) == _AT_ONCE:
                        receipts += await _sent(producer, waiting, queue)
                        advance(len(waiting))
                        waiting = []
                receipts += await _sent(producer, waiting, queue)
                advance(len(waiting))
    except Exception:
        if receipts:
            click.echo(f"{len(receipts)} messages were sent before it failed", err=True)
        raise
    return receipts


async def _sent(producer: Producer, messages: list[Outgoing], queue: QueueRef | None) -> list[Receipt]:
    """Those of one order key one after the other, the others side by side."""
    if queue is not None or any(one.order_key is not None for one in messages):
        return [
            await producer.send_message(one.message, order_key=one.order_key, queue=queue, delay=one.delay)
            for one in messages
        ]
    return await asyncio.gather(*(producer.send_message(one.message, delay=one.delay) for one in messages))
