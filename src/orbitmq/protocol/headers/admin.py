"""What tools ask a broker. Java: `protocol.header`"""

from __future__ import annotations

import msgspec

from orbitmq.protocol.headers.base import Header
from orbitmq.protocol.integers import Int32, Int64


class TopicName(Header):
    """Java: DeleteTopicRequestHeader, GetTopicStatsInfoRequestHeader, QueryTopicConsumeByWhoRequestHeader, GetTopicConfig..."""

    topic: str
    lo: bool | None = None


class GroupName(Header):
    """Java: GetSubscriptionGroupConfigRequestHeader, QueryTopicsByConsumerRequestHeader"""

    group: str


class ProducerGroup(Header):
    producer_group: str


class CreateTopic(Header):
    topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    default_topic: str = "TBW102"
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: str | None = None
    force: bool = False


class QueryMessage(Header):
    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    unique_key: bool = msgspec.field(name="_UNIQUE_KEY_QUERY", default=False)


class MessagesFound(Header):
    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class ViewMessage(Header):
    offset: Int64
    topic: str | None = None


class ConfigVersion(Header):
    version: str


class DeleteGroup(Header):
    """Java: DeleteSubscriptionGroupRequestHeader"""

    group_name: str
    clean_offset: bool = False
    remove_offset: bool = False  # what 4.9 calls the same thing


class ConsumeStats(Header):
    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class TopicAndGroup(Header):
    """Java: QueryConsumeTimeSpanRequestHeader, QuerySubscriptionByConsumerRequestHeader"""

    group: str
    topic: str | None = None


class CorrectionOffset(Header):
    compare_group: str
    topic: str
    filter_groups: str | None = None


class CloneGroupOffset(Header):
    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class StatsName(Header):
    stats_name: str
    stats_key: str


class BrokerConsumeStats(Header):
    is_order: bool = False


class QueryConsumeQueue(Header):
    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None


class ResumeHalfMessage(Header):
    """Java: ResumeCheckHalfMessageRequestHeader"""

    msg_id: str  # says where it is stored
    topic: str | None = None


class GroupForbidden(Header):
    group: str
    topic: str
    readable: bool | None = None


class RegisterFilterServer(Header):
    filter_server_addr: str


class FilterServerRegistered(Header):
    broker_name: str
    broker_id: Int64


class ReadAheadMode(Header):
    """Code 2004. Java: FIleReadaheadMode"""

    mode: Int32 = msgspec.field(name="READ_AHEAD_MODE")


class MasterFlushOffset(Header):
    """Java: ResetMasterFlushOffsetHeader"""

    master_flush_offset: int


class HaAddresses(Header):
    """Code 906, both ways: a slave asks, its master answers. Java: ExchangeHAInfoRequestHeader, ...ResponseHeader"""

    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None
