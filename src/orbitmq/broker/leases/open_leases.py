"""The leases of this process in memory: what a handle is checked against, and which messages are acknowledged already.

The log is what counts. This table only spares reading it: a lease that is not here (from before a restart, or one of too many)
is looked up there.

Java: PopInflightMessageCounter
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orbitmq.broker.leases.checkpoints import Checkpoint, LeaseKey

MOST_LEASES: Final = 100_000  # of batches; beyond it the oldest are known to the log only

_QueueKey = tuple[str, str, int]  # topic, group, queue


class Lease:
    """One batch. `acked` has a bit for each of its messages."""

    __slots__ = ("acked", "key", "offsets")

    def __init__(self, key: LeaseKey, offsets: Sequence[int]) -> None:
        self.key = key
        self.offsets = _compact(offsets)
        self.acked = 0

    def bits_of(self, offsets: list[int]) -> int:
        """Zero when one of them is not of this lease."""
        known = self.offsets
        if isinstance(known, range) and offsets and offsets == list(range(offsets[0], offsets[0] + len(offsets))):
            # One behind the other, as they nearly always come.
            inside = offsets[0] in known and offsets[-1] in known
            return ((1 << len(offsets)) - 1) << (offsets[0] - known.start) if inside else 0
        bits = 0
        for offset in offsets:
            if offset not in self.offsets:
                return 0
            bits |= 1 << self.offsets.index(offset)
        return bits


def _compact(offsets: Sequence[int]) -> Sequence[int]:
    """There may be many of them, and nearly all are one behind the other."""
    if offsets and offsets[-1] - offsets[0] == len(offsets) - 1:
        return range(offsets[0], offsets[-1] + 1)
    return offsets


class OpenLeases:
    def __init__(self) -> None:
        self.leases: dict[LeaseKey, Lease] = {}  # oldest first
        self.in_flight_by_queue: dict[_QueueKey, int] = {}  # messages that are leased and not acknowledged

    def __len__(self) -> int:
        return len(self.leases)

    def add(self, checkpoint: Checkpoint) -> None:
        self.put(checkpoint.key, checkpoint.offsets())

    def put(self, key: LeaseKey, offsets: Sequence[int]) -> None:
        lease = self.leases[key] = Lease(key, offsets)
        queue = key[:3]
        self.in_flight_by_queue[queue] = self.in_flight_by_queue.get(queue, 0) + len(lease.offsets)
        if len(self.leases) > MOST_LEASES:
            self.close(next(iter(self.leases)))

    def get(self, key: LeaseKey) -> Lease | None:
        return self.leases.get(key)

    def settle(self, lease: Lease, bits: int) -> None:
        """These of its messages are acknowledged."""
        new = bits & ~lease.acked
        lease.acked |= bits
        if lease.key in self.leases:
            self._returned(lease.key[:3], new.bit_count())

    def close(self, key: LeaseKey) -> int:
        """Its time is over; the bits of what was acknowledged."""
        lease = self.leases.pop(key, None)
        if lease is None:
            return 0
        self._returned(key[:3], len(lease.offsets) - lease.acked.bit_count())
        return lease.acked

    def in_flight(self, topic: str, group: str, queue_id: int) -> int:
        """Messages of a queue that a group has leased and not acknowledged."""
        return self.in_flight_by_queue.get((topic, group, queue_id), 0)

    def in_flight_of(self, topic: str, group: str) -> int:
        """Over all queues of the topic."""
        return sum(count for (of, by, _), count in self.in_flight_by_queue.items() if of == topic and by == group)

    def forget_topic(self, topic: str) -> None:
        self._forget(lambda key: key[0] == topic)

    def forget_group(self, group: str) -> None:
        self._forget(lambda key: key[1] == group)

    def _forget(self, is_gone: Callable[[LeaseKey], bool]) -> None:
        for key in [key for key in self.leases if is_gone(key)]:
            self.close(key)

    def _returned(self, queue: _QueueKey, messages: int) -> None:
        left = self.in_flight_by_queue.get(queue, 0) - messages
        if left > 0:
            self.in_flight_by_queue[queue] = left
        else:
            self.in_flight_by_queue.pop(queue, None)
