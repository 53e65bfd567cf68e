"""Topics and their versions. Java: DataVersion, TopicConfig, TopicList, TopicConfigSerializeWrapper"""

from __future__ import annotations

from typing import Final

import msgspec

from orbitmq.errors import BodyError
from orbitmq.protocol.bodies.base import Body
from orbitmq.protocol.integers import Int32, Int64, QueueId

PERM_PRIORITY: Final = 8
PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1

SYS_FLAG_UNIT: Final = 1
SYS_FLAG_UNIT_SUB: Final = 2


class DataVersion(Body, gc=False):
    """Which state of a table this is: equal versions mean equal tables."""

    counter: Int64 = 0
    state_version: Int64 = 0
    timestamp: Int64 = 0


class TopicConfig(Body, gc=False):  # brokers bring ten thousand at once, and none can be part of a cycle
    topic_name: str
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: dict[str, str] = {}

    @classmethod
    def from_text(cls, text: str) -> TopicConfig:
        """The form inside a compressed registration: `name read write perm filterType [attributes as JSON]`."""
        parts = text.split(" ", 5)
        if len(parts) < 5:
            raise BodyError(f"topic text {text!r} has {len(parts)} parts; at least 5 are needed")
        names = ("topicName", "readQueueNums", "writeQueueNums", "perm", "topicFilterType")
        try:
            config = msgspec.convert(dict(zip(names, parts, strict=False)), cls, strict=False)
        except msgspec.ValidationError as error:
            raise BodyError(f"topic text {text!r}: {error}") from None
        if len(parts) == 6:
            try:
                config.attributes = msgspec.json.decode(parts[5], type=dict[str, str])
            except msgspec.MsgspecError:
                config.attributes = {}  # as Java: attributes that do not parse are dropped, the topic stays
        return config

    def to_text(self) -> str:
        """`order` and `topic_sys_flag` have no place in this form."""
        attributes = msgspec.json.encode(self.attributes).decode()
        return (
            f"{self.topic_name} {self.read_queue_nums} {self.write_queue_nums} {self.perm} "
            f"{self.topic_filter_type} {attributes}"
        )


class TopicQueueMapping(Body):
    """Which physical queues a static topic has on one broker. Java: TopicQueueMappingInfo"""

    topic: str | None = None
    scope: str | None = None
    total_queues: Int32 = 0
    bname: str | None = None
    epoch: Int64 = 0
    dirty: bool = False
    curr_id_map: dict[QueueId, Int32] = {}


class TopicTable(Body):
    """All topics of a broker. Java: TopicConfigAndMappingSerializeWrapper"""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    mapping_data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    topic_config_table: dict[str, TopicConfig] = {}
    topic_queue_mapping_info_map: dict[str, TopicQueueMapping] = {}


class TopicList(Body):
    topic_list: list[str] = []
    broker_addr: str | None = None
