"""Following a topic: its messages as they come, from all queues, without being part of any group."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal

from orbitmq.admin.messages import MessageRow, TopicReader, message_row
from orbitmq.client import questions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orbitmq.admin.session import Session
    from orbitmq.client.filters import Sql
    from orbitmq.message import QueueRef

Start = Literal["earliest", "latest"] | datetime

_WAIT_SECONDS: Final = 15.0  # that a broker may hold a question with nothing to answer
_AT_ONCE: Final = 32
_AHEAD: Final = 64  # batches read and not shown yet


async def follow(
    session: Session, topic: str, *, start: Start = "latest", wanted: str | Sql | None = None
) -> AsyncIterator[MessageRow]:
    """Messages from `start` on, and then as they come, until the caller stops. Ordered within a queue."""
    reader = TopicReader(session)
    queues = await reader.queues(topic)
    starts = [await _offset(session, queue, start) for queue in queues]
    found: asyncio.Queue[list[MessageRow] | BaseException] = asyncio.Queue(_AHEAD)

    async def read(queue: QueueRef, offset: int) -> None:
        try:
            while True:
                fetched = await reader.fetch(queue, offset, _AT_ONCE, wanted, _WAIT_SECONDS)
                offset = fetched.next_offset
                if fetched.messages:
                    await found.put([message_row(message.stored, queue.broker_name) for message in fetched])
        except Exception as error:
            await found.put(error)

    tasks = [asyncio.create_task(read(*pair)) for pair in zip(queues, starts, strict=True)]
    try:
        while True:
            rows = await found.get()
            if isinstance(rows, BaseException):
                raise rows
            for row in rows:
                yield row
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _offset(session: Session, queue: QueueRef, start: Start) -> int:
    if start == "earliest":
        return await questions.min_offset(session.cluster, queue)
    if isinstance(start, datetime):
        return await questions.offset_at(session.cluster, queue, int(start.timestamp() * 1000))
    return await questions.max_offset(session.cluster, queue)
