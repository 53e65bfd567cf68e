"""Where a group begins in a queue. Java: RebalancePushImpl.computePullFromWhere"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from orbitmq.client import questions
from orbitmq.client.names import RETRY_PREFIX

if TYPE_CHECKING:
    from orbitmq.client.cluster import Cluster
    from orbitmq.client.consumer_options import Start
    from orbitmq.client.offsets import Offsets
    from orbitmq.message import QueueRef


async def first_offset(cluster: Cluster, offsets: Offsets, queue: QueueRef, start: Start) -> int:
    """Where the group left off; a group that never was here begins at `start`."""
    stored = await offsets.stored(queue)
    if stored is not None and stored >= 0:
        return stored
    if queue.topic.startswith(RETRY_PREFIX):
        return 0  # what is to be delivered again is never too old
    return await offset_of(cluster, queue, start)


async def offset_of(cluster: Cluster, queue: QueueRef, start: Start) -> int:
    """What `start` means in this queue now."""
    if isinstance(start, datetime):
        return await questions.offset_at(cluster, queue, int(start.timestamp() * 1000))
    if start == "earliest":
        return await questions.min_offset(cluster, queue)
    return await questions.max_offset(cluster, queue)
