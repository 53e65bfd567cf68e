"""What the broker remembers besides messages, as Java's broker keeps it in `config/`.

    topics.json              TopicTable           topic -> queues, permissions, attributes
    subscriptionGroup.json   GroupTable           consumer group -> how it may consume
    consumerOffset.json      OffsetTable          topic@group -> queue -> next offset to consume
    lmqConsumerOffset.json   OffsetTable          the same, in its place where light queues are on, and light queue@group
    delayOffset.json         DelayTable           delay level -> next offset of its queue
    consumerFilter.json      FilterTable          topic -> group -> its SQL filter
    consumerOrderInfo.json   OrderTable           topic@group -> queue -> what an ordered lease has out
    messageRequestMode.json  RequestModeTable     topic -> group -> pull or lease
    topicQueueMapping.json   QueueMappingTable    static topics: which broker holds which logical queue
    timermetrics             TimerCountTable      messages waiting in the timer, by topic
    transactionMetrics       HalfCountTable       half messages, by topic

Java: TopicConfigManager, SubscriptionGroupManager, ConsumerOffsetManager, LmqConsumerOffsetManager,
ScheduleMessageService, ConsumerFilterManager, ConsumerOrderInfoManager, MessageRequestModeManager,
TopicQueueMappingManager, TimerMetrics, TransactionMetrics
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from orbitmq.storage.java_object import JavaObject

field = msgspec.field

TOPICS: Final = "topics.json"
GROUPS: Final = "subscriptionGroup.json"
OFFSETS: Final = "consumerOffset.json"
LIGHT_OFFSETS: Final = "lmqConsumerOffset.json"
DELAYS: Final = "delayOffset.json"
FILTERS: Final = "consumerFilter.json"
ORDERS: Final = "consumerOrderInfo.json"
REQUEST_MODES: Final = "messageRequestMode.json"
QUEUE_MAPPINGS: Final = "topicQueueMapping.json"
TIMER_COUNTS: Final = "timermetrics"
HALF_COUNTS: Final = "transactionMetrics"
COMPACTED: Final = "position-checkpoint"  # in compaction/


class DataVersion(JavaObject):
    counter: int = 0
    state_version: int = 0
    timestamp: int = 0


class TopicConfig(JavaObject):
    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)


class TopicTable(JavaObject):
    data_version: DataVersion = field(default_factory=DataVersion)
    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)


class RetryPolicy(JavaObject):
    type: str = "CUSTOMIZED"
    exponential_retry_policy: dict[str, Any] | None = None
    customized_retry_policy: dict[str, Any] | None = None


class GroupConfig(JavaObject):
    group_name: str
    attributes: dict[str, str] = field(default_factory=dict)
    broker_id: int = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_message_orderly: bool = False
    consume_timeout_minute: int = 15
    group_retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    group_sys_flag: int = 0
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: int = 16
    retry_queue_nums: int = 1
    subscription_data_set: list[dict[str, Any]] | None = None
    which_broker_when_consume_slowly: int = 1


class GroupTable(JavaObject):
    data_version: DataVersion = field(default_factory=DataVersion)
    forbidden_table: dict[str, dict[str, int]] = field(default_factory=dict)
    subscription_group_table: dict[str, GroupConfig] = field(default_factory=dict)


class OffsetTable(JavaObject):
    data_version: DataVersion = field(default_factory=DataVersion)
    offset_table: dict[str, dict[int, int]] = field(default_factory=dict)
    lmq_offset_table: dict[str, int] | None = None  # of groups that read light queues; in lmqConsumerOffset.json only


class DelayTable(JavaObject):
    data_version: DataVersion = field(default_factory=DataVersion)
    offset_table: dict[int, int] = field(default_factory=dict)


class BloomData(JavaObject):
    bit_num: int = 0
    bit_pos: list[int] = field(default_factory=list)


class FilterData(JavaObject):
    consumer_group: str
    topic: str
    expression: str
    expression_type: str = "SQL92"
    born_time: int = 0
    dead_time: int = 0
    client_version: int = 0
    bloom_filter_data: BloomData | None = None


class TopicFilters(JavaObject):
    topic: str
    group_filter_data: dict[str, FilterData] = field(default_factory=dict)


class FilterTable(JavaObject):
    filter_data_by_topic: dict[str, TopicFilters] = field(default_factory=dict)


class OrderInfo(JavaObject):
    pop_time: int = 0
    invisible_ms: int | None = field(default=None, name="i")
    offsets: list[int] = field(default_factory=list, name="o")  # the first, then differences from it
    next_visible_ms: dict[int, int] | None = field(default=None, name="ot")
    consumed_counts: dict[int, int] | None = field(default=None, name="oc")
    last_consumed_ms: int = field(default=0, name="l")
    acknowledged_bits: int = field(default=0, name="cm")
    attempt_id: str | None = field(default=None, name="a")


class OrderTable(JavaObject):
    table: dict[str, dict[int, OrderInfo]] = field(default_factory=dict)


class RequestMode(JavaObject):
    topic: str
    consumer_group: str
    mode: str = "PULL"
    pop_share_queue_num: int = 0


class RequestModeTable(JavaObject):
    message_request_mode_map: dict[str, dict[str, RequestMode]] = field(default_factory=dict)


class QueueMappingItem(JavaObject):
    gen: int = 0
    queue_id: int = 0
    bname: str = ""
    logic_offset: int = 0
    start_offset: int = 0
    end_offset: int = -1
    time_of_start: int = -1
    time_of_end: int = -1


class QueueMapping(JavaObject):
    topic: str
    bname: str = ""
    scope: str = "__global__"
    total_queues: int = 0
    epoch: int = 0
    dirty: bool = False
    curr_id_map: dict[int, int] = field(default_factory=dict)
    hosted_queues: dict[int, list[QueueMappingItem]] = field(default_factory=dict)


class QueueMappingTable(JavaObject):
    data_version: DataVersion = field(default_factory=DataVersion)
    topic_queue_mapping_info_map: dict[str, QueueMapping] = field(default_factory=dict)


class TopicCount(JavaObject):
    count: int = 0
    time_stamp: int = 0


class TimerCountTable(JavaObject):
    data_version: DataVersion = field(default_factory=DataVersion)
    timing_count: dict[str, TopicCount] = field(default_factory=dict)


class HalfCountTable(JavaObject):
    data_version: DataVersion = field(default_factory=DataVersion)
    transaction_count: dict[str, TopicCount] = field(default_factory=dict)


class CompactedTable(JavaObject):
    """Java: CompactionPositionMgr"""

    queue_offset_map: dict[str, int] = field(default_factory=dict)  # `topic_queue` -> last queue offset looked at
