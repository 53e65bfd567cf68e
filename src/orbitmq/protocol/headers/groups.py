"""Clients and their groups, both ways. Java: UnregisterClientRequestHeader, NotifyConsumerIdsChangedRequestHeader, ..."""

from __future__ import annotations

import msgspec

from orbitmq.protocol.headers.base import Header
from orbitmq.protocol.integers import Int32, Int64


class HeartbeatTaken(Header):
    """Java: the extension fields of a heartbeat's answer"""

    supports_v2: bool = msgspec.field(name="IS_SUPPORT_HEART_BEAT_V2", default=True)
    subscription_changed: bool = msgspec.field(name="IS_SUB_CHANGE", default=True)


class UnregisterClient(Header):
    client_id: str = msgspec.field(name="clientID")  # capital ID here, unlike elsewhere
    producer_group: str | None = None
    consumer_group: str | None = None
    bname: str | None = None


class ConsumerGroup(Header):
    """Java: GetConsumerListByGroupRequestHeader, NotifyConsumerIdsChangedRequestHeader, GetConsumerConnectionList..."""

    consumer_group: str


class ResetOffset(Header):
    """Code 220 to clients, 222 from tools. Java: ResetOffsetRequestHeader"""

    topic: str
    group: str
    timestamp: Int64
    is_force: bool = False
    queue_id: Int32 = -1
    offset: Int64 | None = None


class ConsumerStatus(Header):
    """Code 221 to clients, 223 from tools. Java: GetConsumerStatusRequestHeader"""

    topic: str
    group: str
    client_addr: str | None = None


class ConsumerRunningInfo(Header):
    """Java: GetConsumerRunningInfoRequestHeader"""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeDirectly(Header):
    """Java: ConsumeMessageDirectlyResultRequestHeader"""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
