"""Queues that a broker keeps for itself, read by itself: half messages and their decisions, leases and their acks.

What damage to the disk made unreadable is skipped and reported. The others' place in the queue is known from its index, so one
bad record costs its message, and neither those behind it nor the start of the broker.

How far it is in them is kept with the consumer offsets, under system groups, as in Java. To clients those positions are closed: one
that is moved would lose the leases or transactions of everybody.

Java: PopReviveService.decodeMsgList and its likes, which skip and log
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from orbitmq.broker import names
from orbitmq.errors import MessageError, RequestFailed
from orbitmq.message.record import decode_record, decode_records
from orbitmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orbitmq.message.message import StoredMessage
    from orbitmq.storage.reading import ReadResult
    from orbitmq.storage.store import Store

logger = logging.getLogger(__name__)


def check_position_is_open(group: str, topic: str) -> None:
    """RequestFailed where a position is the broker's own, which no client may move."""
    if names.is_system_group(group) and names.is_closed(topic):
        raise RequestFailed(
            ResponseCode.NO_PERMISSION,
            f"the position of {group[:300]} in {topic[:300]} is the broker's own",
            hint="read the topic as another group",
        )


class Batch(NamedTuple):
    messages: Sequence[StoredMessage]  # those that can be read
    result: ReadResult


def read_batch(store: Store, topic: str, queue_id: int, offset: int, most: int) -> Batch:
    result = store.read(topic, queue_id, offset, most)
    return Batch(readable(store, topic, queue_id, result), result)


def readable(store: Store, topic: str, queue_id: int, result: ReadResult) -> list[StoredMessage]:
    """The messages of `result`, which was read from that queue."""
    try:
        return [message for buffer in result.buffers for message in decode_records(buffer)]
    except MessageError:
        return [message for offset in result.queue_offsets for message in _one(store, topic, queue_id, offset)]


def _one(store: Store, topic: str, queue_id: int, offset: int) -> Iterator[StoredMessage]:
    found = store.read(topic, queue_id, offset, 1)
    try:
        if found.buffers and found.queue_offsets[0] == offset:
            yield decode_record(found.buffers[0])
    except MessageError as error:
        logger.error("skipped message %d of queue %d of %s, which cannot be read: %s", offset, queue_id, topic, error)
