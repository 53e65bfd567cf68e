"""Pulling. Java: PullMessageRequestHeader, PullMessageResponseHeader"""

from __future__ import annotations

from typing import Final

from orbitmq.protocol.headers.base import Header

PULL_COMMIT_OFFSET: Final = 1
PULL_SUSPEND: Final = 2
PULL_SUBSCRIPTION: Final = 4
PULL_CLASS_FILTER: Final = 8
PULL_LITE: Final = 16


class PullMessage(Header):
    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int
    sys_flag: int
    commit_offset: int = 0
    suspend_timeout_millis: int = 0
    subscription: str | None = None
    sub_version: int = 0
    expression_type: str | None = None
    max_msg_bytes: int | None = None
    request_source: int | None = None
    proxy_froward_client_id: str | None = None  # the protocol's spelling
    bname: str | None = None


class PullResult(Header):
    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int
    offset_delta: int | None = None
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None
    forbidden_type: int | None = None


class PullForbidden(Header):
    forbidden_type: int
