"""After a crash: where groups that lease go on.

Positions are saved every few seconds, as Java's broker does, which after a crash leases once more whatever was leased since.
But every pop leaves a checkpoint in the log, and ours says where the group went on. So the checkpoints that the saved
positions do not know of yet are read again, in their order. What is acknowledged then stays so, crash or not.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from orbitmq.broker import names
from orbitmq.broker.leases.checkpoints import CHECKPOINT_TAG, read_checkpoint
from orbitmq.broker.leases.lease_log import NEXT_OFFSET
from orbitmq.errors import BodyError, MessageError
from orbitmq.message import properties as keys
from orbitmq.message.record import decode_record
from orbitmq.message.tags import tag_code

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orbitmq.broker.consumer_offsets import ConsumerOffsets
    from orbitmq.broker.leases.lease_log import LeaseLog
    from orbitmq.storage.store import Store

logger = logging.getLogger(__name__)

_ENTRIES_AT_ONCE: Final = 1000


def restore_positions(store: Store, lease_log: LeaseLog, offsets: ConsumerOffsets, revive_queues: int) -> None:
    known_to = offsets.saved_log_end
    if known_to is None:
        return
    for topic, deleted_at in store.deletions().items():
        if known_to <= deleted_at:  # made again since, perhaps, and then its numbers begin with 0
            offsets.forget_topic(topic)
    if known_to >= store.log.end:
        return
    queues = [(names.TIMER_TOPIC, 0), *((lease_log.topic, queue_id) for queue_id in range(revive_queues))]
    found = [physical for queue in queues for physical in _checkpoints_from(store, *queue, known_to)]
    moved = set()
    for physical in sorted(found):
        record = store.record_at(physical)
        try:
            message = decode_record(record) if record is not None else None
            if message is None or keys.TIMER_DEQUEUE_MS in message.properties:
                continue  # the timer delivered it: it is an old one, behind newer ones
            if message.properties.get(keys.REAL_TOPIC, lease_log.topic) != lease_log.topic:
                continue  # somebody's timer message that only looks like one
            next_offset = keys.property_number(message.properties.get(NEXT_OFFSET), -1, keys.LONG_DIGITS)
            checkpoint = read_checkpoint(message.body) if next_offset >= 0 else None
        except (MessageError, BodyError) as error:
            logger.error("skipped a checkpoint at %d: %s", physical, error)
            continue
        if checkpoint is not None and physical >= store.deletions().get(checkpoint.topic, 0):
            offsets.commit(checkpoint.group, checkpoint.topic, checkpoint.queue_id, next_offset)
            moved.add((checkpoint.topic, checkpoint.group, checkpoint.queue_id))
    if moved:
        logger.info("%d positions brought up to date from the leases in the log", len(moved))


def _checkpoints_from(store: Store, topic: str, queue_id: int, start: int) -> Iterator[int]:
    """Where checkpoints lie in the log, from `start` on; the newest first."""
    low, high = store.queue_range(topic, queue_id)
    wanted = tag_code(CHECKPOINT_TAG)
    while high > low:
        first = max(low, high - _ENTRIES_AT_ONCE)
        entries = store.queue_entries(topic, queue_id, first, high - first) or []
        for physical, _, code in reversed(entries):
            if physical < start:
                return
            if code == wanted:
                yield physical
        high = first
