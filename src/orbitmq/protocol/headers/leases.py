"""Leasing messages: pop, ack, extend, wait. Java: PopMessageRequestHeader, AckMessageRequestHeader, ..."""

from __future__ import annotations

from typing import Final

from orbitmq.protocol.headers.base import Header
from orbitmq.protocol.integers import Int32, Int64

ANY_QUEUE: Final = -1
# Java: ConsumeInitMode
START_AT_MIN: Final = 0
START_AT_MAX: Final = 1


class PopMessage(Header):
    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time: Int64
    poll_time: Int64
    init_mode: Int32
    born_time: Int64 = 0  # 0: when it arrives
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


class PopResult(Header):
    """Java: PopMessageResponseHeader"""

    pop_time: Int64 = 0
    invisible_time: Int64 = 0
    revive_qid: Int32 = 0
    rest_num: Int64 = 0
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class PeekMessage(Header):
    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32


class AckMessage(Header):
    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64


class ChangeInvisibleTime(Header):
    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time: Int64


class ChangedInvisibleTime(Header):
    """Java: ChangeInvisibleTimeResponseHeader"""

    pop_time: Int64 = 0
    invisible_time: Int64 = 0
    revive_qid: Int32 = 0


class Notification(Header):
    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64 = 0
    order: bool = False
    attempt_id: str | None = None


class NotificationResult(Header):
    has_msg: bool = False
    polling_full: bool = False


class PollingInfo(Header):
    consumer_group: str
    topic: str
    queue_id: Int32


class PollingInfoResult(Header):
    polling_num: Int32 = 0
