"""Which message of a queue was stored at a time: by bisection, since store times grow along a queue.

Java: ConsumeQueue.getOffsetInQueueByTime, BoundaryType
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from orbitmq.message.record import stored_at_ms
from orbitmq.storage.queue_index import QueueIndex

if TYPE_CHECKING:
    from orbitmq.storage.commit_log import CommitLog
    from orbitmq.storage.queue_table import AnyQueue


class Boundary(Enum):
    LOWER = "lower"  # the first message stored at the time or later; behind the last one if there is none
    UPPER = "upper"  # the last message stored at the time or earlier; 0 if there is none


def offset_by_time(log: CommitLog, queue: AnyQueue, at_ms: int, boundary: Boundary) -> int:
    """The caller holds the lock of the queues."""
    limit_ms = at_ms if boundary is Boundary.LOWER else at_ms + 1
    if isinstance(queue, QueueIndex):

        def stored_before(physical: int, size: int) -> bool:
            record = log.read(physical, size)
            return record is None or stored_at_ms(record) < limit_ms

        found = queue.search(stored_before, queue.min_offset)
        if boundary is Boundary.LOWER:
            return found
        return found - 1 if found > queue.min_offset else 0
    number = queue.search(lambda entry: entry.stored_at_ms < limit_ms)
    if boundary is Boundary.LOWER:
        return queue.base_of(number)
    return queue.base_of(number - 1) if number > queue.log.first else 0
