"""Offsets: committed ones, and those of a queue. Java: QueryConsumerOffsetRequestHeader and its kin"""

from __future__ import annotations

from orbitmq.protocol.headers.base import Header
from orbitmq.protocol.integers import Int32, Int64


class QueryConsumerOffset(Header):
    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None
    bname: str | None = None


class UpdateConsumerOffset(Header):
    consumer_group: str
    topic: str
    queue_id: Int32 | None = None
    commit_offset: Int64 | None = None
    bname: str | None = None


class SearchOffset(Header):
    """Java: SearchOffsetRequestHeader"""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None  # lower (default) or upper
    bname: str | None = None


class QueueName(Header):
    """One queue of a topic. Java: GetMaxOffsetRequestHeader, GetMinOffset..., GetEarliestMsgStoretime..."""

    topic: str
    queue_id: Int32
    committed: bool | None = None
    bname: str | None = None


class OffsetFound(Header):
    offset: Int64


class TimestampFound(Header):
    timestamp: Int64
