"""Pulling. Java: PullMessageRequestHeader, PullMessageResponseHeader"""

from __future__ import annotations

from typing import Final

from orbitmq.protocol.headers.base import Header
from orbitmq.protocol.integers import Int32, Int64

PULL_COMMIT_OFFSET: Final = 1
PULL_SUSPEND: Final = 2
PULL_SUBSCRIPTION: Final = 4
PULL_CLASS_FILTER: Final = 8
PULL_LITE: Final = 16


class PullMessage(Header):
    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64 = 0
    suspend_timeout_millis: Int64 = 0
    subscription: str | None = None
    sub_version: Int64 = 0
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None
    proxy_froward_client_id: str | None = None  # the protocol's spelling
    bname: str | None = None
    bulk_bytes: Int32 | None = None  # ours; Apache's brokers pass over it: "as much as this, I read whole queues"


class PullResult(Header):
    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    offset_delta: Int64 | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None


class PullForbidden(Header):
    forbidden_type: Int32
