"""The texts that carry leases: handles, and where the messages of a pop come from.

    handle (POP_CK)   start popTime invisibleTime reviveQueue kind broker queue offset
    startOffsetInfo   kind queue start; ...
    msgOffsetInfo     kind queue offset,offset,...; ...
    orderCountInfo    kind queue count; kind qo<queue>%<offset> count; ...

`kind` says which topic the queue is of: the topic itself, or one of the two spellings of its retry topic.

Java: ExtraInfoUtil, KeyBuilder
"""

from __future__ import annotations

from typing import Final, NamedTuple

from orbitmq.errors import HeaderError

ORDERED_REVIVE_QUEUE: Final = 999  # in a handle of an ordered lease, which no revive queue knows of

OF_TOPIC: Final = "0"
OF_RETRY_V1: Final = "1"
OF_RETRY_V2: Final = "2"

_RETRY_PREFIX: Final = "%RETRY%"
_PARTS: Final = 8


def retry_topic_v1(group: str, topic: str) -> str:
    return f"{_RETRY_PREFIX}{group}_{topic}"


def retry_topic_v2(group: str, topic: str) -> str:
    return f"{_RETRY_PREFIX}{group}+{topic}"


def kind_of(topic: str) -> str:
    if not topic.startswith(_RETRY_PREFIX):
        return OF_TOPIC
    return OF_RETRY_V2 if "+" in topic else OF_RETRY_V1


def real_topic(topic: str, group: str, kind: str) -> str:
    """The topic whose queue a message of `topic` really lies in."""
    if kind == OF_RETRY_V1:
        return retry_topic_v1(group, topic)
    return retry_topic_v2(group, topic) if kind == OF_RETRY_V2 else topic


def normal_topic(topic: str, group: str) -> str:
    """The inverse of `real_topic`, whatever the kind."""
    for prefix in (f"{_RETRY_PREFIX}{group}+", f"{_RETRY_PREFIX}{group}_"):
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return topic


class Handle(NamedTuple):
    """What a consumer shows to settle or extend the lease of one message."""

    start_offset: int  # of the batch that it was leased with
    pop_time_ms: int
    invisible_ms: int
    revive_queue: int
    kind: str
    broker_name: str
    queue_id: int
    offset: int

    @property
    def is_ordered(self) -> bool:
        return self.revive_queue == ORDERED_REVIVE_QUEUE

    def text(self) -> str:
        return " ".join(map(str, self))


def parse_handle(text: str) -> Handle:
    """HeaderError when it is none. More parts than eight are a proxy's business."""
    parts = text.split(" ")
    try:
        start, pop_time, invisible, revive_queue = (int(part) for part in parts[:4])
        kind, broker_name = parts[4], parts[5]
        queue_id, offset = (int(part) for part in parts[6:_PARTS])
    except (ValueError, IndexError):
        raise HeaderError(f"{text[:200]!r} is no handle of a leased message") from None
    return Handle(start, pop_time, invisible, revive_queue, kind, broker_name, queue_id, offset)


def start_entry(topic: str, queue_id: int, start_offset: int) -> str:
    return f"{kind_of(topic)} {queue_id} {start_offset}"


def offsets_entry(topic: str, queue_id: int, offsets: list[int] | range) -> str:
    return f"{kind_of(topic)} {queue_id} {','.join(map(str, offsets))}"


def queue_count_entry(topic: str, queue_id: int, count: int) -> str:
    return f"{kind_of(topic)} {queue_id} {count}"


def offset_count_entry(topic: str, queue_id: int, offset: int, count: int) -> str:
    return f"{kind_of(topic)} qo{queue_id}%{offset} {count}"
