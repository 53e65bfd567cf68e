"""Settling many leases at once, and who leases which queues.

Java: BatchAckMessageRequestBody, QueryAssignmentRequestBody, QueryAssignmentResponseBody, SetMessageRequestModeRequestBody
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

import msgspec

from orbitmq import fastjson
from orbitmq.errors import BodyError
from orbitmq.protocol.bodies.base import Body
from orbitmq.protocol.bodies.groups import QueueKey
from orbitmq.protocol.integers import Int32, Int64

_SHORT_NAMES: Final = {
    "consumerGroup": "c",
    "topic": "t",
    "retry": "r",
    "startOffset": "so",
    "queueId": "q",
    "reviveQueueId": "rq",
    "popTime": "pt",
    "invisibleTime": "it",
    "bitSet": "b",
}


MOST_ACKS: Final = 10_000  # each of a lease, which is one of up to 32 messages


class BatchAck(Body):
    """Some of the messages that were leased together. Java: BatchAck"""

    group: str = msgspec.field(name="c")
    topic: str = msgspec.field(name="t")
    start_offset: Int64 = msgspec.field(name="so")
    queue_id: Int32 = msgspec.field(name="q")
    revive_queue: Int32 = msgspec.field(name="rq")
    pop_time_ms: Int64 = msgspec.field(name="pt")
    invisible_ms: Int64 = msgspec.field(name="it")
    kind: str = msgspec.field(name="r", default="0")
    bits: str = msgspec.field(name="b", default="")  # of offsets minus start, the lowest first, in base64

    def bit_set(self) -> int:
        try:
            return int.from_bytes(base64.b64decode(self.bits, validate=True), "little")
        except (binascii.Error, ValueError) as error:
            raise BodyError(f"the bits of a batch ack cannot be read: {error}") from None


class BatchAcks(Body):
    broker_name: str = ""
    acks: list[BatchAck] = []

    @classmethod
    def from_json(cls, data: bytes) -> BatchAcks:
        """Members may have their long names, too."""
        members = fastjson.loads(data)
        if not isinstance(members, dict):
            raise BodyError("a batch ack is no object")
        acks = members.get("acks") or []
        if not isinstance(acks, list) or not all(isinstance(ack, dict) for ack in acks):
            raise BodyError("the acks of a batch ack are no list of objects")
        if len(acks) > MOST_ACKS:
            raise BodyError(f"a batch of {len(acks)} acks: up to {MOST_ACKS} are taken at once")
        try:
            return BatchAcks(
                broker_name=str(members.get("brokerName") or ""),
                acks=[msgspec.convert(_with_short_names(ack), BatchAck, strict=False) for ack in acks],
            )
        except msgspec.ValidationError as error:
            raise BodyError(f"batch ack: {error}") from None


def _with_short_names(ack: dict[str, Any]) -> dict[str, Any]:
    return {_SHORT_NAMES.get(name, name): value for name, value in ack.items() if value is not None}


def encode_bits(bits: int) -> str:
    return base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


class QueryAssignment(Body):
    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str = "AVG"
    message_model: str = "CLUSTERING"


class QueueAssignment(Body):
    """Java: MessageQueueAssignment"""

    message_queue: QueueKey
    mode: str = "PULL"


class Assignments(Body):
    """None: the broker cannot tell, and the client keeps what it has."""

    message_queue_assignments: list[QueueAssignment] | None = None
