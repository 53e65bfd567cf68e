"""Offsets: committed ones, and those of a queue. Java: QueryConsumerOffsetRequestHeader and its kin"""

from __future__ import annotations

from orbitmq.protocol.headers.base import Header


class QueryConsumerOffset(Header):
    consumer_group: str
    topic: str
    queue_id: int
    set_zero_if_not_found: bool | None = None
    bname: str | None = None


class UpdateConsumerOffset(Header):
    consumer_group: str
    topic: str
    queue_id: int | None = None
    commit_offset: int | None = None
    bname: str | None = None


class SearchOffset(Header):
    """Java: SearchOffsetRequestHeader"""

    topic: str
    queue_id: int
    timestamp: int
    boundary_type: str | None = None  # lower (default) or upper
    bname: str | None = None


class QueueName(Header):
    """One queue of a topic. Java: GetMaxOffsetRequestHeader, GetMinOffset..., GetEarliestMsgStoretime..."""

    topic: str
    queue_id: int
    committed: bool | None = None
    bname: str | None = None


class OffsetFound(Header):
    offset: int


class TimestampFound(Header):
    timestamp: int
