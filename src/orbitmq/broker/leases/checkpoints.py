"""What the revive topic holds: checkpoints, one for each batch that was leased, and acks of its messages.

    tag ck     {"so": start, "d": offsets minus start, "pt": popTime, "it": invisibleTime, "t": topic, "q": queue, "c": group, ...}
    tag ack    {"ao": offset, "so", "pt", "t", "q", "c", "bn"}
    tag bAck   the same with "aol": offsets in place of one

An ack belongs to the checkpoint with the same topic, group, queue, start, pop time and broker.

Java: PopCheckPoint, AckMsg, BatchAckMsg
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from orbitmq import fastjson
from orbitmq.errors import BodyError, RequestFailed
from orbitmq.protocol.codes import ResponseCode
from orbitmq.protocol.integers import Int32, Int64

CHECKPOINT_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"

MOST_MESSAGES: Final = 32  # of one checkpoint: Java keeps their acks in an int
LONGEST_LEASE_MS: Final = 3 * 24 * 3600 * 1000  # what the timer takes

T = TypeVar("T", "Checkpoint", "Ack")

LeaseKey = tuple[str, str, int, int, int, str]
"""Topic, group, queue, start offset, pop time, broker."""

_LONG_NAMES: Final = {
    "ackOffset": "ao",
    "startOffset": "so",
    "consumerGroup": "c",
    "topic": "t",
    "queueId": "q",
    "popTime": "pt",
    "brokerName": "bn",
    "ackOffsetList": "aol",
    "cId": "c",
}


class Checkpoint(msgspec.Struct, kw_only=True):
    """Members in the order in which Java writes them."""

    bits: Int32 = msgspec.field(name="bm", default=0)
    broker_name: str = msgspec.field(name="bn", default="")
    group: str = msgspec.field(name="c")
    differences: list[int] = msgspec.field(name="d", default_factory=list)
    invisible_ms: Int64 = msgspec.field(name="it")
    count: int = msgspec.field(name="n")
    pop_time_ms: Int64 = msgspec.field(name="pt")
    queue_id: Int32 = msgspec.field(name="q")
    revive_offset: Int64 = msgspec.field(name="ro", default=0)
    put_again: str | None = msgspec.field(name="rp", default=None)
    start_offset: Int64 = msgspec.field(name="so")
    topic: str = msgspec.field(name="t")

    @property
    def key(self) -> LeaseKey:
        return (self.topic, self.group, self.queue_id, self.start_offset, self.pop_time_ms, self.broker_name)

    @property
    def revive_ms(self) -> int:
        """When its messages may be handed out again."""
        return self.pop_time_ms + self.invisible_ms

    def offsets(self) -> list[int]:
        """Of its messages. Old brokers wrote only how many there are, one behind the other. Whoever wrote more than can be lies."""
        start, count = self.start_offset, min(max(0, self.count), MOST_MESSAGES)
        differences = self.differences or range(count)
        return [start + difference for difference in differences[:count]]

    def unique_key(self) -> str:
        topic, group, queue_id, start, pop_time, broker = self.key
        return f"{topic}@{queue_id}@{start}@{group}@{pop_time}@{broker}@{CHECKPOINT_TAG}"

    def to_json(self) -> bytes:
        return _encode(
            _Written(
                self.bits,
                self.broker_name,
                self.group,
                self.differences,
                self.invisible_ms,
                self.count,
                self.pop_time_ms,
                self.queue_id,
                self.revive_ms,
                self.revive_offset,
                msgspec.UNSET if self.put_again is None else self.put_again,
                self.start_offset,
                self.topic,
            )
        )


class _Written(msgspec.Struct):
    """A checkpoint as Java writes it: members in the order of their names, with what follows from the others."""

    bm: int
    bn: str
    c: str
    d: list[int]
    it: int
    n: int
    pt: int
    q: int
    reviveTime: int  # noqa: N815 - Java's spelling
    ro: int
    rp: str | msgspec.UnsetType
    so: int
    t: str


_encode: Final = msgspec.json.Encoder().encode


class Ack(msgspec.Struct, kw_only=True, omit_defaults=True):
    offset: Int64 = msgspec.field(name="ao")  # -1 where there is a list
    offset_list: list[int] | None = msgspec.field(name="aol", default=None)
    broker_name: str = msgspec.field(name="bn", default="")
    group: str = msgspec.field(name="c")
    pop_time_ms: Int64 = msgspec.field(name="pt")
    queue_id: Int32 = msgspec.field(name="q")
    start_offset: Int64 = msgspec.field(name="so")
    topic: str = msgspec.field(name="t")

    @property
    def tag(self) -> str:
        return ACK_TAG if self.offset_list is None else BATCH_ACK_TAG

    def offsets(self) -> list[int]:
        return [self.offset] if self.offset_list is None else self.offset_list

    def key(self, our_name: str) -> LeaseKey:
        """Acks of old brokers do not name the broker."""
        broker_name = self.broker_name or our_name
        return (self.topic, self.group, self.queue_id, self.start_offset, self.pop_time_ms, broker_name)

    def unique_key(self) -> str:
        """Of a batch, too, as Java's: its offset is -1."""
        return (
            f"{self.topic}@{self.queue_id}@{self.offset}@{self.group}@{self.pop_time_ms}@{self.broker_name}@{ACK_TAG}"
        )

    def to_json(self) -> bytes:
        return _encode(self)


# As both brokers write them; what these refuse is read with the tolerance of Java's JSON.
_decode_checkpoint: Final = msgspec.json.Decoder(Checkpoint).decode
_decode_ack: Final = msgspec.json.Decoder(Ack).decode


def check_duration(invisible_ms: int) -> None:
    """RequestFailed when no lease can last so long."""
    if not 0 <= invisible_ms <= LONGEST_LEASE_MS:
        raise RequestFailed(
            ResponseCode.INVALID_PARAMETER, f"invisibleTime {invisible_ms} is not from 0 ms to three days"
        )


def read_checkpoint(body: bytes) -> Checkpoint:
    """BodyError when it is none."""
    try:
        return _decode_checkpoint(body)
    except msgspec.MsgspecError:
        return _read(body, Checkpoint)


def read_ack(body: bytes) -> Ack:
    try:
        return _decode_ack(body)
    except msgspec.MsgspecError:
        return _read(body, Ack)


def _read(body: bytes, shape: type[T]) -> T:
    members = fastjson.loads(body)
    if not isinstance(members, dict):
        raise BodyError(f"{shape.__name__}: no object")
    short = {_LONG_NAMES.get(name, name): value for name, value in members.items() if value is not None}
    try:
        return msgspec.convert(short, shape, strict=False)
    except msgspec.ValidationError as error:
        raise BodyError(f"{shape.__name__}: {error}") from None
