"""What tools are told by a broker, besides topics, groups and offsets. Java: `remoting.protocol.body`"""

from __future__ import annotations

import msgspec

from orbitmq.protocol.bodies.base import Body
from orbitmq.protocol.bodies.groups import QueueKey, Subscription


class StatsWindow(Body):
    """Java: BrokerStatsItem"""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


class StatsData(Body):
    """Java: BrokerStatsData"""

    stats_minute: StatsWindow
    stats_hour: StatsWindow
    stats_day: StatsWindow


class TimeSpan(Body):
    """Of one queue: when its messages were stored, and how far a group is behind. Java: QueueTimeSpan"""

    message_queue: QueueKey
    min_time_stamp: int
    max_time_stamp: int
    consume_time_stamp: int
    delay_time: int
    min_time_stamp_str: str
    max_time_stamp_str: str
    consume_time_stamp_str: str


class TimeSpans(Body):
    """Java: QueryConsumeTimeSpanBody"""

    consume_time_span_set: list[TimeSpan] = []


class CorrectionOffsets(Body):
    """Java: QueryCorrectionOffsetBody"""

    correction_offsets: dict[int, int] = {}


class QueueEntry(Body):
    """Java: ConsumeQueueData"""

    physic_offset: int
    physic_size: int
    tags_code: int
    eval: bool = False


class QueueEntries(Body):
    """Java: QueryConsumeQueueResponseBody"""

    min_queue_index: int
    max_queue_index: int
    queue_data: list[QueueEntry] = []
    subscription_data: Subscription | None = None
    filter_data: str | None = None


class GroupSubscription(Body):
    """Java: QuerySubscriptionResponseBody"""

    group: str
    topic: str | None = None
    subscription_data: Subscription | None = None


class GroupReadable(Body):
    """Whether a group may read a topic. Java: GroupForbidden"""

    group: str
    topic: str
    readable: bool


class HaConnection(Body):
    """Java: HARuntimeInfo.HAConnectionRuntimeInfo"""

    addr: str = ""
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0


class HaClientStatus(Body):
    """Java: HARuntimeInfo.HAClientRuntimeInfo"""

    activated: bool = False
    master_addr: str | None = None
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0
    max_offset: int = 0
    transferred_byte_in_second: int = 0


class HaStatus(Body):
    """Java: HARuntimeInfo"""

    master: bool = True
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    ha_connection_info: list[HaConnection] = []
    ha_client_runtime_info: HaClientStatus = msgspec.field(default_factory=HaClientStatus)


class ColdDataInfo(Body):
    """Java: ColdDataCgCtrService.getColdDataFlowCtrInfo"""

    runtime_table: dict[str, int] = {}
    config_table: dict[str, int] = {}
    cg_cold_read_threshold: int = 0
    global_cold_read_threshold: int = 0
    global_acc: int = 0
