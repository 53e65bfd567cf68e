"""What brokers, clients and tools ask a name server. Java: `protocol.header.namesrv` and friends"""

from __future__ import annotations

import msgspec

from orbitmq.protocol.headers.base import Header
from orbitmq.protocol.integers import Int32, Int64


class PutKvConfig(Header):
    """Java: PutKVConfigRequestHeader"""

    namespace: str
    key: str
    value: str


class KvConfigKey(Header):
    """Names one KV item, to read or delete it. Java: GetKVConfigRequestHeader, DeleteKVConfigRequestHeader"""

    namespace: str
    key: str


class KvConfigValue(Header):
    """Java: GetKVConfigResponseHeader"""

    value: str | None = None


class KvNamespace(Header):
    """Java: GetKVListByNamespaceRequestHeader"""

    namespace: str


class RegisterBroker(Header):
    """Java: RegisterBrokerRequestHeader"""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None  # absent: a broker from before acting masters
    compressed: bool = False
    body_crc32: Int32 = 0
    zone_name: str | None = msgspec.field(default=None, name="__ZONE_NAME")


class BrokerRegistered(Header):
    """For a slave: where its master is. Java: RegisterBrokerResponseHeader"""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnregisterBroker(Header):
    """Java: UnRegisterBrokerRequestHeader"""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersion(Header):
    """Java: QueryDataVersionRequestHeader"""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class DataVersionVerdict(Header):
    """Java: QueryDataVersionResponseHeader"""

    changed: bool


class BrokerHeartbeat(Header):
    """The fields a name server reads; a controller reads more. Java: BrokerHeartbeatRequestHeader"""

    cluster_name: str
    broker_addr: str
    broker_name: str | None = None


class GetRoute(Header):
    """Java: GetRouteInfoRequestHeader"""

    topic: str
    accept_standard_json_only: bool | None = None
    zone_name: str | None = msgspec.field(default=None, name="__ZONE_NAME")
    zone_mode: bool | None = msgspec.field(default=None, name="__ZONE_MODE")


class BrokerName(Header):
    """Java: WipeWritePermOfBrokerRequestHeader, AddWritePermOfBrokerRequestHeader"""

    broker_name: str


class WritePermissionWiped(Header):
    """Java: WipeWritePermOfBrokerResponseHeader"""

    wipe_topic_count: Int32


class WritePermissionAdded(Header):
    """Java: AddWritePermOfBrokerResponseHeader"""

    add_topic_count: Int32


class DeleteTopic(Header):
    """Java: DeleteTopicFromNamesrvRequestHeader"""

    topic: str
    cluster_name: str | None = None


class RegisterTopic(Header):
    """Java: RegisterTopicRequestHeader"""

    topic: str


class ClusterName(Header):
    """Java: GetTopicsByClusterRequestHeader"""

    cluster: str


class MemberGroup(Header):
    """Java: GetBrokerMemberGroupRequestHeader"""

    cluster_name: str
    broker_name: str


class MinBrokerIdChanged(Header):
    """Sent by the name server to a broker's replicas. Java: NotifyMinBrokerIdChangeRequestHeader"""

    min_broker_id: Int64 | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None
