"""Settling leases: acknowledge a message, or keep it longer.

Consumers acknowledge message by message, dozens at a time. All acks of a lease that come in one turn of the event loop are written as
one entry, and each is answered once that is written: a kill loses no ack that was answered. (Java's PopBufferMergeService may hold them in
memory for ten seconds and more.)

A handle counts only if the broker once gave it to this group. Apache's broker believes any: an extension with a made-up handle
makes it hand out a message that was never leased, an ordered ack moves the group to wherever it says.

Java: AckMessageProcessor, ChangeInvisibleTimeProcessor
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from orbitmq.broker import statistics
from orbitmq.broker.leases.checkpoints import LONGEST_LEASE_MS, MOST_MESSAGES, Ack, Checkpoint, LeaseKey
from orbitmq.errors import OrbitError, RequestFailed, StorageError
from orbitmq.protocol.codes import ResponseCode
from orbitmq.protocol.headers.leases import ChangedInvisibleTime
from orbitmq.protocol.lease_texts import ORDERED_REVIVE_QUEUE, Handle, real_topic

if TYPE_CHECKING:
    from orbitmq.broker.consumer_offsets import ConsumerOffsets
    from orbitmq.broker.leases.lease_log import LeaseLog
    from orbitmq.broker.leases.open_leases import Lease, OpenLeases
    from orbitmq.broker.leases.ordered import OrderedLeases
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.broker.statistics import Statistics
    from orbitmq.clock import Clock
    from orbitmq.protocol.bodies.leases import BatchAck

Told = Callable[[int | OrbitError], None]


class _Gathered:
    """Acks of one lease that came in this turn, and who waits for them to be written."""

    __slots__ = ("invisible_ms", "lease", "offsets", "revive_queue", "told")

    def __init__(self, lease: Lease, revive_queue: int, invisible_ms: int) -> None:
        self.lease = lease
        self.revive_queue = revive_queue
        self.invisible_ms = invisible_ms
        self.offsets: list[int] = []
        self.told: list[Told] = []


class Settling:
    def __init__(
        self,
        offsets: ConsumerOffsets,
        lease_log: LeaseLog,
        open_leases: OpenLeases,
        ordered: OrderedLeases,
        configuration: BrokerConfiguration,
        stats: Statistics,
        clock: Clock,
    ) -> None:
        self._offsets = offsets
        self._lease_log = lease_log
        self._open_leases = open_leases
        self._ordered = ordered
        self._configuration = configuration
        self._stats = stats
        self._clock = clock
        self.gathered: dict[LeaseKey, _Gathered] = {}
        self._call_soon = asyncio.get_running_loop().call_soon
        self.on_free: Callable[[str, str, int], None] = lambda topic, group, queue_id: None

    def ack(self, group: str, topic: str, queue_id: int, offset: int, handle: Handle, told: Told) -> None:
        """`told` hears, now or at the end of this turn, where the log ends with it, 0 when there was nothing to write, or why
        it cannot be written. `topic` is the real one."""
        self._check(handle, queue_id, offset)
        if handle.is_ordered:
            self._ack_ordered(group, topic, queue_id, [offset], handle.pop_time_ms)
            told(0)
            return
        key = (topic, group, queue_id, handle.start_offset, handle.pop_time_ms, handle.broker_name)
        gathered = self.gathered.get(key)
        lease = gathered.lease if gathered is not None else self._genuine(key, [offset])
        bits = lease.bits_of([offset]) if lease is not None else 0
        if lease is None or not bits:
            raise _unknown(key)
        if not bits & ~lease.acked:
            told(0)  # said before
            return
        if gathered is None:
            if not self.gathered:
                self._call_soon(self.write_gathered)
            gathered = self.gathered[key] = _Gathered(lease, handle.revive_queue, handle.invisible_ms)
        if offset not in gathered.offsets:
            gathered.offsets.append(offset)
        gathered.told.append(told)

    def ack_together(self, group: str, topic: str, queue_id: int, offsets: list[int], handle: Handle) -> bool:
        """Acks of one lease by handles that differ in the offset alone, written at once where nothing has to wait for a disk.

        False, and nothing done, if `ack` has more to say about one of them.
        """
        self._check(handle, queue_id, handle.offset)
        key = (topic, group, queue_id, handle.start_offset, handle.pop_time_ms, handle.broker_name)
        lease = self._open_leases.get(key)
        if lease is None or handle.is_ordered or key in self.gathered:
            return False
        bits = lease.bits_of(offsets)
        if bits.bit_count() < len(offsets) or bits & lease.acked:
            return False  # one of another lease, or said before
        self._write(key, lease, offsets, bits, handle.revive_queue, handle.invisible_ms, batch=len(offsets) > 1)
        return True

    def write_gathered(self) -> None:
        """One entry for each lease."""
        leases, self.gathered = self.gathered, {}
        for key, gathered in leases.items():
            outcome: int | OrbitError
            try:
                lease, offsets = gathered.lease, gathered.offsets
                bits, many = lease.bits_of(offsets), len(offsets) > 1
                outcome = self._write(
                    key, lease, offsets, bits, gathered.revive_queue, gathered.invisible_ms, batch=many
                )
            except OrbitError as error:
                outcome = error
            for told in gathered.told:
                told(outcome)

    def ack_batch(self, ack: BatchAck, broker_name: str) -> int:
        topic = real_topic(ack.topic, ack.group, ack.kind)
        name = broker_name or self._configuration.settings.broker_name
        bits = ack.bit_set()
        if ack.revive_queue == ORDERED_REVIVE_QUEUE:
            out = self._ordered.offsets(topic, ack.group, ack.queue_id)
            offsets = [
                offset for offset in out if offset >= ack.start_offset and bits >> (offset - ack.start_offset) & 1
            ]
            self._ack_ordered(ack.group, topic, ack.queue_id, offsets, ack.pop_time_ms)
            return 0
        self._check_writable(ack.revive_queue, ack.invisible_ms)
        key = (topic, ack.group, ack.queue_id, ack.start_offset, ack.pop_time_ms, name)
        lease = self._open_leases.get(key) or self._lease_log.find(key, _asked(ack.start_offset, bits))
        if lease is None:
            raise _unknown(key)
        offsets = [offset for offset in lease.offsets if bits >> (offset - ack.start_offset) & 1]
        return self._ack(key, offsets, ack.revive_queue, ack.invisible_ms, batch=True) if offsets else 0

    def extend(
        self, group: str, topic: str, queue_id: int, offset: int, handle: Handle, invisible_ms: int
    ) -> tuple[ChangedInvisibleTime, int]:
        """What makes the new handle, and where the log ends with it."""
        self._check(handle, queue_id, offset)
        now_ms = self._clock.now_ms()
        if handle.is_ordered:
            if offset < (self._offsets.get(group, topic, queue_id) or 0):
                return ChangedInvisibleTime(), 0  # acknowledged already
            self._require_ordered(group, topic, queue_id, offset, handle.pop_time_ms)
            self._ordered.extend(topic, group, queue_id, offset, now_ms + invisible_ms)
            left_ms = now_ms + invisible_ms - handle.pop_time_ms
            return ChangedInvisibleTime(
                pop_time=handle.pop_time_ms, invisible_time=left_ms, revive_qid=ORDERED_REVIVE_QUEUE
            ), 0
        key = (topic, group, queue_id, handle.start_offset, handle.pop_time_ms, handle.broker_name)
        self._require_open(key, offset)
        checkpoint = Checkpoint(
            broker_name=handle.broker_name,
            group=group,
            differences=[0],
            invisible_ms=invisible_ms,
            count=1,
            # Never that of the lease it replaces, whose ack would count for both.
            pop_time_ms=max(now_ms, handle.pop_time_ms + 1),
            queue_id=queue_id,
            start_offset=offset,
            topic=topic,
        )
        self._lease_log.write_checkpoint(checkpoint, handle.revive_queue)
        self._count(statistics.GROUP_CK_NUMS, statistics.BROKER_CK_NUMS, topic, group, 1)
        self._open_leases.add(checkpoint)
        try:
            end = self._ack(key, [offset], handle.revive_queue, handle.invisible_ms)
        except StorageError:
            # Nobody gets a handle of the new lease; by the old one, which goes on, the message may end yet.
            unknown = self._open_leases.get(checkpoint.key)
            if unknown is not None:
                self._open_leases.settle(unknown, 1)
            raise
        answer = ChangedInvisibleTime(
            pop_time=checkpoint.pop_time_ms, invisible_time=invisible_ms, revive_qid=handle.revive_queue
        )
        return answer, end

    # ---- one lease

    def _ack(
        self, key: LeaseKey, offsets: list[int], revive_queue: int, invisible_ms: int, *, batch: bool = False
    ) -> int:
        lease = self._genuine(key, offsets)
        bits = lease.bits_of(offsets) if lease is not None else 0
        if lease is None or not bits:
            raise _unknown(key)
        if not bits & ~lease.acked:
            return 0  # said before
        return self._write(key, lease, offsets, bits, revive_queue, invisible_ms, batch=batch)

    def _write(
        self,
        key: LeaseKey,
        lease: Lease,
        offsets: list[int],
        bits: int,
        revive_queue: int,
        invisible_ms: int,
        *,
        batch: bool,
    ) -> int:
        topic, group, queue_id, start, pop_time_ms, broker_name = key
        ack = Ack(
            offset=-1 if batch else offsets[0],
            offset_list=offsets if batch else None,
            broker_name=broker_name,
            group=group,
            pop_time_ms=pop_time_ms,
            queue_id=queue_id,
            start_offset=start,
            topic=topic,
        )
        end = self._lease_log.write_ack(ack, revive_queue, pop_time_ms + invisible_ms)
        self._open_leases.settle(lease, bits)
        self._count(statistics.GROUP_ACK_NUMS, statistics.BROKER_ACK_NUMS, topic, group, len(offsets))
        return end

    def _require_open(self, key: LeaseKey, offset: int) -> None:
        """What is acknowledged, be it in this turn, would come back by a new lease of it; so would what has a newer handle, and twice."""
        gathered = self.gathered.get(key)
        lease = gathered.lease if gathered is not None else self._genuine(key, [offset])
        bits = lease.bits_of([offset]) if lease is not None else 0
        if lease is None or not bits:
            raise _unknown(key)
        is_acked = bits & lease.acked or (gathered is not None and offset in gathered.offsets)
        # A lease from before a restart comes out of the log without its acks.
        if is_acked or (self._open_leases.get(key) is None and self._lease_log.is_acked(key, offset)):
            raise RequestFailed(
                ResponseCode.MESSAGE_ILLEGAL,
                f"message {offset} of {key[0][:300]}, queue {key[2]}, is acknowledged, or was extended before",
                hint="show the handle of its last extension",
            )

    def _genuine(self, key: LeaseKey, asked: list[int]) -> Lease | None:
        return self._open_leases.get(key) or self._lease_log.find(key, asked)

    def _check(self, handle: Handle, queue_id: int, offset: int) -> None:
        settings = self._configuration.settings
        if handle.broker_name != settings.broker_name:
            raise RequestFailed(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the handle is of broker {handle.broker_name[:100]!r}, this is {settings.broker_name}",
                hint="settle a lease at the broker that gave it",
            )
        if (handle.queue_id, handle.offset) != (queue_id, offset):
            raise RequestFailed(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the handle is of message {handle.offset} in queue {handle.queue_id}, not {offset} in {queue_id}",
            )
        if not handle.is_ordered:
            self._check_writable(handle.revive_queue, handle.invisible_ms)

    def _check_writable(self, revive_queue: int, invisible_ms: int) -> None:
        """What is written of a lease says where it is looked for and when it ends. Nothing is written of an ordered one, which may be
        extended beyond the longest."""
        if not 0 <= revive_queue < self._lease_log.queues:
            raise RequestFailed(ResponseCode.MESSAGE_ILLEGAL, f"there is no revive queue {revive_queue}")
        if not 0 <= invisible_ms <= LONGEST_LEASE_MS:  # it would never be due
            raise RequestFailed(ResponseCode.MESSAGE_ILLEGAL, f"no lease lasts {invisible_ms} ms")

    def _count(self, of_group: str, of_broker: str, topic: str, group: str, times: int) -> None:
        self._stats.counter(of_group, f"{topic}@{group}").add(times)
        self._stats.counter(of_broker, self._configuration.settings.broker_cluster_name).add(times)

    # ---- ordered

    def _ack_ordered(self, group: str, topic: str, queue_id: int, offsets: list[int], pop_time_ms: int) -> None:
        for offset in offsets:
            if offset < (self._offsets.get(group, topic, queue_id) or 0):
                continue  # acknowledged already
            self._require_ordered(group, topic, queue_id, offset, pop_time_ms)
            next_offset = self._ordered.ack(topic, group, queue_id, offset)
            if self._offsets.pending_reset(group, topic, queue_id) is None:
                self._offsets.commit(group, topic, queue_id, next_offset)
        self._count(statistics.GROUP_ACK_NUMS, statistics.BROKER_ACK_NUMS, topic, group, len(offsets))
        if not self._ordered.is_blocked(topic, group, queue_id):
            self.on_free(topic, group, queue_id)

    def _require_ordered(self, group: str, topic: str, queue_id: int, offset: int, pop_time_ms: int) -> None:
        if not self._ordered.holds(topic, group, queue_id, offset, pop_time_ms):
            raise RequestFailed(
                ResponseCode.MESSAGE_ILLEGAL,
                f"group {group} does not have message {offset} of {topic}, queue {queue_id}, by this handle",
                hint="its time may be over, and the message leased to another",
            )


def _asked(start_offset: int, bits: int) -> list[int]:
    """What a batch ack speaks of, as far as one lease can hold it."""
    offsets: list[int] = []
    while bits and len(offsets) < MOST_MESSAGES:
        lowest = bits & -bits
        offsets.append(start_offset + lowest.bit_length() - 1)
        bits ^= lowest
    return offsets


def _unknown(key: LeaseKey) -> RequestFailed:
    topic, group, queue_id, start, pop_time_ms, _ = key
    return RequestFailed(
        ResponseCode.MESSAGE_ILLEGAL,
        f"group {group[:130]} was leased no such message of {topic[:300]}, queue {queue_id}: start {start}, time {pop_time_ms}",
        hint="show the handle that came with the message, or the one of its last extension",
    )
