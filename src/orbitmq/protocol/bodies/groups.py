"""Clients and consumer groups: heartbeats, locks, group settings. Java: HeartbeatData, SubscriptionGroupConfig, ..."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from orbitmq.protocol.bodies.base import Body
from orbitmq.protocol.bodies.topics import DataVersion

# Position is the ordinal, which C++ clients send in place of the name.
CONSUME_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
MESSAGE_MODELS: Final = ("BROADCASTING", "CLUSTERING")
CONSUME_FROM: Final = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


def _named(value: str | int, names: tuple[str, ...]) -> str:
    """Java writes `CLUSTERING`, Go `Clustering`, C++ the ordinal."""
    if isinstance(value, int) or value.isdigit():
        return names[int(value)] if 0 <= int(value) < len(names) else names[0]
    return value.upper()


class QueueKey(Body):
    """One queue, as JSON knows it. Java: MessageQueue"""

    broker_name: str
    queue_id: int
    topic: str

    def __hash__(self) -> int:
        return hash((self.broker_name, self.queue_id, self.topic))


class Subscription(Body):
    """Java: SubscriptionData"""

    topic: str
    sub_string: str = "*"
    tags_set: list[str] = []
    code_set: list[int] = []
    sub_version: int = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


class ProducerData(Body):
    group_name: str


class ConsumerData(Body):
    group_name: str
    consume_type: str | int = "CONSUME_PASSIVELY"
    message_model: str | int = "CLUSTERING"
    consume_from_where: str | int = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[Subscription] = []
    unit_mode: bool = False

    def __post_init__(self) -> None:
        self.consume_type = _named(self.consume_type, CONSUME_TYPES)
        self.message_model = _named(self.message_model, MESSAGE_MODELS)
        self.consume_from_where = _named(self.consume_from_where, CONSUME_FROM)


class Heartbeat(Body):
    """Java: HeartbeatData"""

    client_id: str = msgspec.field(name="clientID")  # capital ID here, unlike elsewhere
    producer_data_set: list[ProducerData] = []
    consumer_data_set: list[ConsumerData] = []
    heartbeat_fingerprint: int = 0
    without_sub: bool = False


class CheckClient(Body):
    """Java: CheckClientRequestBody"""

    subscription_data: Subscription
    client_id: str = ""
    group: str = ""
    namespace: str | None = None


class ConsumerIds(Body):
    """Java: GetConsumerListByGroupResponseBody"""

    consumer_id_list: list[str] = []


class GroupList(Body):
    group_list: list[str] = []


class LockQueues(Body):
    """Java: LockBatchRequestBody, UnlockBatchRequestBody"""

    client_id: str
    consumer_group: str
    mq_set: list[QueueKey] = []
    only_this_broker: bool = False


class QueuesLocked(Body):
    """Java: LockBatchResponseBody"""

    lock_ok_mq_set: list[QueueKey] = msgspec.field(name="lockOKMQSet", default_factory=list)


class GroupConfig(Body):
    """Java: SubscriptionGroupConfig"""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    subscription_data_set: list[dict[str, Any]] | None = None
    attributes: dict[str, str] = {}


class GroupTable(Body):
    """Java: SubscriptionGroupWrapper"""

    data_version: DataVersion
    subscription_group_table: dict[str, GroupConfig] = {}
    forbidden_table: dict[str, dict[str, int]] = {}


class ClientConnection(Body):
    """Java: Connection (of ConsumerConnection and ProducerConnection)"""

    client_id: str
    client_addr: str
    language: str
    version: int


class ConsumerConnection(Body):
    connection_set: list[ClientConnection] = []
    subscription_table: dict[str, Subscription] = {}
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    differing_clients: list[str] | None = None  # ours: members that do not subscribe to what the first does


class ProducerConnection(Body):
    connection_set: list[ClientConnection] = []


class ProducerInfo(Body):
    client_id: str
    remote_ip: str = msgspec.field(name="remoteIP")
    language: str
    version: int
    last_update_timestamp: int


class ProducerTable(Body):
    """Java: ProducerTableInfo"""

    data: dict[str, list[ProducerInfo]] = {}
