"""Offsets per queue, where JSON maps are keyed by an object: {{"brokerName":"a","queueId":0,"topic":"t"}:5}

Java: ConsumeStats, TopicStatsTable, ResetOffsetBody, GetConsumerStatusBody
"""

from __future__ import annotations

from typing import Any, Generic, Self, TypeVar

import msgspec

from orbitmq import fastjson
from orbitmq.errors import BodyError
from orbitmq.protocol.bodies.base import Body
from orbitmq.protocol.bodies.groups import QueueKey
from orbitmq.protocol.bodies.topics import DataVersion

V = TypeVar("V")


class QueueMap(Generic[V]):
    """Reading and writing maps keyed by queue; the values are of one type."""

    @staticmethod
    def read(table: Any, value_type: type[V]) -> dict[QueueKey, V]:
        if not isinstance(table, dict):
            raise BodyError("a map keyed by queues is expected")
        try:
            return {_queue(key): msgspec.convert(value, value_type, strict=False) for key, value in table.items()}
        except msgspec.ValidationError as error:
            raise BodyError(f"map keyed by queues: {error}") from None

    @staticmethod
    def write(table: dict[QueueKey, V]) -> dict[fastjson.ObjectKey, Any]:
        return {
            fastjson.ObjectKey(msgspec.to_builtins(key)): msgspec.to_builtins(value) for key, value in table.items()
        }


def _queue(key: Any) -> QueueKey:
    """Bare objects are the usual form; newer fastjson accepts and writes the same text as a string."""
    if isinstance(key, str):
        key = fastjson.loads(key.encode())
    return msgspec.convert(dict(key), QueueKey, strict=False)


class OffsetLag(Body):
    """Java: OffsetWrapper"""

    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int = 0
    last_timestamp: int = 0


class QueueRange(Body):
    """Java: TopicOffset"""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


class ConsumeStats:
    def __init__(self, offsets: dict[QueueKey, OffsetLag], tps: float = 0.0) -> None:
        self.offsets = offsets
        self.tps = tps

    def to_plain(self) -> dict[str, Any]:
        return {"consumeTps": self.tps, "offsetTable": QueueMap.write(self.offsets)}

    def to_json(self) -> bytes:
        return fastjson.dumps(self.to_plain(), bare_int_keys=True)

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        return cls.from_plain(_object(data))

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Self:
        return cls(QueueMap.read(plain.get("offsetTable", {}), OffsetLag), float(plain.get("consumeTps", 0.0)))


class ConsumeStatsList:
    """Of all groups of a broker, topic by topic. Java: ConsumeStatsList"""

    def __init__(self, broker_address: str, groups: dict[str, list[ConsumeStats]]) -> None:
        self.broker_address = broker_address
        self.groups = groups

    def to_json(self) -> bytes:
        lags = [lag for topics in self.groups.values() for topic in topics for lag in topic.offsets.values()]
        plain = {
            "brokerAddr": self.broker_address,
            "consumeStatsList": [
                {group: [topic.to_plain() for topic in topics]} for group, topics in self.groups.items()
            ],
            "totalDiff": sum(lag.broker_offset - lag.consumer_offset for lag in lags),
            "totalInflightDiff": sum(lag.pull_offset - lag.consumer_offset for lag in lags),
        }
        return fastjson.dumps(plain, bare_int_keys=True)

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        plain = _object(data)
        groups = {
            group: [ConsumeStats.from_plain(topic) for topic in topics]
            for entry in plain.get("consumeStatsList", [])
            for group, topics in entry.items()
        }
        return cls(str(plain.get("brokerAddr", "")), groups)


class TopicStats:
    """Java: TopicStatsTable"""

    def __init__(self, ranges: dict[QueueKey, QueueRange], put_tps: float = 0.0) -> None:
        self.ranges = ranges
        self.put_tps = put_tps

    def to_json(self) -> bytes:
        plain = {"offsetTable": QueueMap.write(self.ranges), "topicPutTps": self.put_tps}
        return fastjson.dumps(plain, bare_int_keys=True)

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        plain = _object(data)
        return cls(QueueMap.read(plain.get("offsetTable", {}), QueueRange), float(plain.get("topicPutTps", 0.0)))


class QueueOffsets:
    """Java: ResetOffsetBody"""

    def __init__(self, offsets: dict[QueueKey, int]) -> None:
        self.offsets = offsets

    def to_json(self) -> bytes:
        return fastjson.dumps({"offsetTable": QueueMap.write(self.offsets)}, bare_int_keys=True)

    def to_list_json(self) -> bytes:
        """The form for C++ clients. Java: ResetOffsetBodyForC"""
        rows = [{**msgspec.to_builtins(queue), "offset": offset} for queue, offset in self.offsets.items()]
        return fastjson.dumps({"offsetTable": rows}, bare_int_keys=True)

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        return cls(QueueMap.read(_object(data).get("offsetTable", {}), int))


class ConsumerStatusBody:
    """Java: GetConsumerStatusBody"""

    def __init__(
        self, own: dict[QueueKey, int] | None = None, by_client: dict[str, dict[QueueKey, int]] | None = None
    ) -> None:
        self.own = own or {}
        self.by_client = by_client or {}

    def to_json(self) -> bytes:
        by_client = {client: QueueMap.write(offsets) for client, offsets in self.by_client.items()}
        plain = {"consumerTable": by_client, "messageQueueTable": QueueMap.write(self.own)}
        return fastjson.dumps(plain, bare_int_keys=True)

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        plain = _object(data, fastjson.MAX_TOKENS)  # a broker reads what clients answer
        by_client = {c: QueueMap.read(table, int) for c, table in plain.get("consumerTable", {}).items()}
        return cls(QueueMap.read(plain.get("messageQueueTable", {}), int), by_client)


class OffsetTable(Body):
    """All committed offsets: `topic@group` -> queue id -> next offset. Java: ConsumerOffsetSerializeWrapper"""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    offset_table: dict[str, dict[int, int]] = {}


def _object(data: bytes, max_tokens: int = fastjson.MAX_TOKENS_ASKED_FOR) -> dict[str, Any]:
    plain = fastjson.loads(data, max_tokens=max_tokens)
    if not isinstance(plain, dict):
        raise BodyError("a JSON object is expected")
    return plain
