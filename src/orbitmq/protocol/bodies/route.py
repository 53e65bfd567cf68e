"""Where a topic's queues are, and who the brokers are. Java: TopicRouteData, BrokerData, QueueData, ClusterInfo"""

from __future__ import annotations

from orbitmq.protocol.bodies.base import Body
from orbitmq.protocol.bodies.topics import TopicQueueMapping
from orbitmq.protocol.integers import Int32, Int64


class QueueData(Body, gc=False):  # brokers bring ten thousand at once, and none can be part of a cycle
    """The queues that one broker has of a topic."""

    broker_name: str
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = 6
    topic_sys_flag: Int32 = 0


class BrokerData(Body):
    """A master and its slaves: one name, an address for each broker id (0 is the master)."""

    cluster: str
    broker_name: str
    broker_addrs: dict[Int64, str] = {}
    enable_acting_master: bool = False
    zone_name: str | None = None


class TopicRoute(Body):
    broker_datas: list[BrokerData] = []
    queue_datas: list[QueueData] = []
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: dict[str, TopicQueueMapping] | None = None


class ClusterInfo(Body):
    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}


class BrokerMembers(Body):
    """Java: BrokerMemberGroup"""

    cluster: str
    broker_name: str
    broker_addrs: dict[Int64, str] = {}


class BrokerMembersBody(Body):
    """Java: GetBrokerMemberGroupResponseBody"""

    broker_member_group: BrokerMembers


class KvTable(Body):
    """Java: KVTable"""

    table: dict[str, str] = {}
