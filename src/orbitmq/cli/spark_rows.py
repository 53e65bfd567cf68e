"""What `spark stats`, `spark trace` and `spark dlq` print, field by field; the order is that of the rows that Spark gives."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

S = TypeVar("S", bound=msgspec.Struct)


class TopicVolume(msgspec.Struct, frozen=True):
    topic: str
    messages: int
    bytes: int  # of their bodies
    average: float  # bytes of a body
    first: datetime  # stored
    last: datetime


class TagVolume(msgspec.Struct, frozen=True):
    topic: str
    tag: str | None
    messages: int
    bytes: int


class HourVolume(msgspec.Struct, frozen=True):
    hour: datetime  # its beginning
    topic: str
    messages: int
    bytes: int


class QueueSkew(msgspec.Struct, frozen=True):
    """How even the queues of a topic are."""

    topic: str
    queues: int  # that hold messages
    fewest: int  # messages in a queue
    most: int
    skew: float  # the fullest queue against the average


class LargeMessage(msgspec.Struct, frozen=True):
    topic: str
    bytes: int
    id: str | None
    broker: str
    queue: int
    offset: int


class Volumes(msgspec.Struct, frozen=True):
    """What topics, stores and archives hold, in numbers."""

    topics: list[TopicVolume]
    tags: list[TagVolume]
    hours: list[HourVolume]
    queues: list[QueueSkew]
    largest: list[LargeMessage]


class StageLatency(msgspec.Struct, frozen=True):
    """How long one stage in the life of messages takes."""

    stage: str  # produce, deliver, consume
    topic: str | None  # null when no trace of the send is left
    group: str
    messages: int
    failed: int
    p50_ms: int | None
    p95_ms: int | None
    p99_ms: int | None
    max_ms: int | None


class DeadLetterCount(msgspec.Struct, frozen=True):
    """The dead letters of a group with the same origin and tag."""

    origin_topic: str | None
    tag: str | None
    messages: int
    first: datetime  # given up
    last: datetime
    example_id: str | None


def typed(row_type: type[S], rows: Iterable[Sequence[Any]]) -> list[S]:
    names = row_type.__struct_fields__
    return [msgspec.convert(dict(zip(names, row, strict=True)), row_type) for row in rows]
