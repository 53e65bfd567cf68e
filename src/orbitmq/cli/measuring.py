"""What `bench` does: send, read back, count and time."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec

from orbitmq.admin.messages import TopicReader
from orbitmq.admin.sending import PRODUCER_GROUP
from orbitmq.cli.progress import progress
from orbitmq.client import questions
from orbitmq.client.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.admin.session import Session
    from orbitmq.client.producer import Producer
    from orbitmq.message import QueueRef


class BenchRow(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement. Times are those of one request, in milliseconds."""

    what: str  # send or read
    messages: int
    seconds: float
    messages_per_second: float
    megabytes_per_second: float
    median_ms: float
    p99_ms: float
    max_ms: float


async def measure(session: Session, topic: str, count: int, size: int, in_flight: int, *, read: bool) -> list[BenchRow]:
    async with Client(session.config) as client, client.producer(PRODUCER_GROUP, compression=None) as producer:
        await producer.send(topic, b"b" * size)  # opens connections, fetches the route
        starts = await _ends(session, topic)
        with progress("sending", count) as advance:
            sent = await _send(producer, topic, b"b" * size, count, in_flight, advance)
    rows = [_row("send", count, size, *sent)]
    if read:
        with progress("reading", count) as advance:
            rows.append(_row("read", *await _read_back(session, starts, size, advance)))
    return rows


async def _ends(session: Session, topic: str) -> dict[QueueRef, int]:
    queues = await TopicReader(session).queues(topic)
    ends = await asyncio.gather(*(questions.max_offset(session.cluster, queue) for queue in queues))
    return dict(zip(queues, ends, strict=True))


async def _send(
    producer: Producer, topic: str, body: bytes, count: int, in_flight: int, advance: Callable[[int], None]
) -> tuple[float, list[float]]:
    """Seconds in all, and of each send."""
    times: list[float] = []
    left = count

    async def work() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            began = perf_counter()
            await producer.send(topic, body)
            times.append(perf_counter() - began)
            advance(1)

    began = perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(min(in_flight, count)):
            group.create_task(work())
    return perf_counter() - began, times


async def _read_back(
    session: Session, starts: dict[QueueRef, int], size: int, advance: Callable[[int], None]
) -> tuple[int, int, float, list[float]]:
    """Every queue from where it was before to where it ends now."""
    reader = TopicReader(session)
    times: list[float] = []
    found = 0
    ends = await asyncio.gather(*(questions.max_offset(session.cluster, queue) for queue in starts))
    began = perf_counter()
    for (queue, start), end in zip(starts.items(), ends, strict=True):
        offset = start
        while offset < end:
            asked = perf_counter()
            fetched = await reader.fetch(queue, offset, 32)
            offset = fetched.next_offset
            times.append(perf_counter() - asked)
            found += len(fetched)
            advance(len(fetched))
    return found, size, perf_counter() - began, times


def _row(what: str, count: int, size: int, seconds: float, times: list[float]) -> BenchRow:
    times.sort()
    return BenchRow(
        what=what,
        messages=count,
        seconds=round(seconds, 3),
        messages_per_second=round(count / seconds, 1),
        megabytes_per_second=round(count * size / seconds / 1e6, 2),
        median_ms=_ms(times, 0.5),
        p99_ms=_ms(times, 0.99),
        max_ms=_ms(times, 1.0),
    )


def _ms(times: list[float], share: float) -> float:
    return round(times[min(len(times) - 1, int(len(times) * share))] * 1000, 3) if times else 0.0
