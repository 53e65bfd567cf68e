"""Ordered leases: of each queue a group has one batch out at a time, and gets the next when all of it is acknowledged.

What a lease leaves unacknowledged is handed out again from its first such message on, so nothing overtakes anything. There is
no checkpoint: the group's position stays at the batch until its messages are acknowledged. Whoever repeats a pop with the
same attempt id, because the answer was lost, gets the same batch again at once.

Java: ConsumerOrderInfoManager, ConsumerOrderInfoLockManager
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from orbitmq.broker.saved_table import SavedTable
from orbitmq.protocol.lease_texts import offset_count_entry, queue_count_entry
from orbitmq.storage.tables import OrderInfo, OrderTable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orbitmq.broker.groups import Groups
    from orbitmq.broker.topics import Topics
    from orbitmq.clock import Clock
    from orbitmq.storage.json_file import JsonFile

_AT: Final = "@"
_FORGOTTEN_AFTER_MS: Final = 24 * 3600 * 1000
_FEW: Final = 64

_Queue = tuple[str, str, int]  # topic, group, queue


class OrderedLeases:
    def __init__(self, file: JsonFile[OrderTable], topics: Topics, groups: Groups, clock: Clock) -> None:
        table = file.load()
        self._table = table.table  # `topic@group` -> queue -> what is out
        self._unknown = table.unknown
        self._topics = topics
        self._groups = groups
        self._clock = clock
        self._saved = SavedTable(file, self._snapshot)
        self._free_at: list[tuple[int, _Queue]] = []  # a heap of when blocked queues may be free
        self._watched: dict[_Queue, int] = {}  # when that is looked at; what the heap says otherwise counts no more
        self.on_free: Callable[[str, str, int], None] = lambda topic, group, queue_id: None
        for key, queues in self._table.items():
            topic, _, group = key.partition(_AT)
            for queue_id, info in queues.items():
                self._watch((topic, group, queue_id), info)

    # ---- leasing

    def is_blocked(self, topic: str, group: str, queue_id: int, attempt_id: str | None = None) -> bool:
        """Whether a batch of this queue is out, its time not over, and this is no repetition of its pop."""
        info = self._find(topic, group, queue_id)
        if info is None or (info.attempt_id is not None and info.attempt_id == attempt_id):
            return False
        return self._clock.now_ms() < _free_ms(info)

    def lease(
        self,
        topic: str,
        group: str,
        queue_id: int,
        offsets: Sequence[int],
        pop_time_ms: int,
        invisible_ms: int,
        attempt_id: str | None,
    ) -> list[str]:
        """Remember what is out now; how often each message was before, as the consumer is told."""
        queues = self._table.setdefault(f"{topic}{_AT}{group}", {})
        before = queues.get(queue_id)
        info = OrderInfo(
            pop_time=pop_time_ms,
            invisible_ms=invisible_ms,
            offsets=[offsets[0], *(offset - offsets[0] for offset in offsets[1:])],
            last_consumed_ms=self._clock.now_ms(),
            attempt_id=attempt_id,
        )
        if before is not None:
            info.consumed_counts = _counts(before, info)
        queues[queue_id] = info
        self._watch((topic, group, queue_id), info)
        counts = info.consumed_counts or {}
        entries = [offset_count_entry(topic, queue_id, offset, count) for offset, count in counts.items()]
        least = min(counts.values()) if len(counts) == len(offsets) else 0
        return [*entries, queue_count_entry(topic, queue_id, least)]

    # ---- settling

    def holds(self, topic: str, group: str, queue_id: int, offset: int, pop_time_ms: int) -> bool:
        """Whether this message is out, by a pop of that time."""
        info = self._find(topic, group, queue_id)
        return info is not None and info.pop_time == pop_time_ms and offset in _offsets(info)

    def offsets(self, topic: str, group: str, queue_id: int) -> list[int]:
        """Of the batch that is out, acknowledged or not."""
        info = self._find(topic, group, queue_id)
        return _offsets(info) if info is not None else []

    def ack(self, topic: str, group: str, queue_id: int, offset: int) -> int:
        """Where the group is then: at the first message that is not acknowledged. Only of a message that is out."""
        info = self._table[f"{topic}{_AT}{group}"][queue_id]
        offsets = _offsets(info)
        info.acknowledged_bits |= 1 << offsets.index(offset)
        self._watch((topic, group, queue_id), info)
        open_offsets = _open(info)
        return open_offsets[0] if open_offsets else offsets[-1] + 1

    def extend(self, topic: str, group: str, queue_id: int, offset: int, until_ms: int) -> None:
        info = self._table[f"{topic}{_AT}{group}"][queue_id]
        info.next_visible_ms = {**(info.next_visible_ms or {}), offset: until_ms}
        self._watch((topic, group, queue_id), info)

    def clear(self, topic: str, group: str, queue_id: int) -> None:
        """The group was sent elsewhere: what is out does not count any more."""
        self._table.get(f"{topic}{_AT}{group}", {}).pop(queue_id, None)

    def forget_topic(self, topic: str) -> None:
        self._forget(lambda of, by: of == topic)

    def forget_group(self, group: str) -> None:
        self._forget(lambda of, by: by == group)

    def _forget(self, is_gone: Callable[[str, str], bool]) -> None:
        """What is out of a topic, or to a group, that is gone blocks no other of the same name."""
        for key in list(self._table):
            topic, _, group = key.partition(_AT)
            if is_gone(topic, group):
                del self._table[key]

    # ---- care

    def free_due(self) -> None:
        """Say which queues have become free because a lease ran out. Called a few times a second."""
        now_ms = self._clock.now_ms()
        while self._free_at and self._free_at[0][0] <= now_ms:
            free_ms, queue = heapq.heappop(self._free_at)
            if self._watched.get(queue) != free_ms:
                continue
            del self._watched[queue]
            info = self._find(*queue)
            if info is not None and _free_ms(info) > now_ms:
                self._watch(queue, info)  # it was extended since
            else:
                self.on_free(*queue)

    async def save(self) -> None:
        self._forget_unused()
        await self._saved.save_or_log()

    def _find(self, topic: str, group: str, queue_id: int) -> OrderInfo | None:
        queues = self._table.get(f"{topic}{_AT}{group}")
        info = queues.get(queue_id) if queues is not None else None
        return info if info is not None and info.offsets else None

    def _watch(self, queue: _Queue, info: OrderInfo) -> None:
        """Look when it may be free. Of an extension nothing is noted until then: there may be any number of them."""
        free_ms = _free_ms(info)
        if self._clock.now_ms() < free_ms < self._watched.get(queue, free_ms + 1):
            self._watched[queue] = free_ms
            heapq.heappush(self._free_at, (free_ms, queue))
            if len(self._free_at) > 2 * len(self._watched) + _FEW:  # the rest is of leases that were made shorter
                self._free_at = [(at_ms, watched) for watched, at_ms in self._watched.items()]
                heapq.heapify(self._free_at)

    def _forget_unused(self) -> None:
        oldest_ms = self._clock.now_ms() - _FORGOTTEN_AFTER_MS
        for key, queues in list(self._table.items()):
            topic_name, _, group = key.partition(_AT)
            topic = self._topics.get(topic_name)
            kept = {
                queue_id: info
                for queue_id, info in queues.items()
                if topic is not None and queue_id < topic.read_queue_nums and _in_use_ms(info) >= oldest_ms
            }
            if kept and self._groups.get(group) is not None:
                self._table[key] = kept
            else:
                del self._table[key]

    def _snapshot(self) -> OrderTable:
        # Written by another thread: what is changed in place is copied here.
        copied = {key: {queue: _copy(info) for queue, info in queues.items()} for key, queues in self._table.items()}
        return OrderTable(table=copied, unknown=self._unknown)


def _copy(info: OrderInfo) -> OrderInfo:
    return OrderInfo(
        pop_time=info.pop_time,
        invisible_ms=info.invisible_ms,
        offsets=info.offsets,
        next_visible_ms=info.next_visible_ms,
        consumed_counts=info.consumed_counts,
        last_consumed_ms=info.last_consumed_ms,
        acknowledged_bits=info.acknowledged_bits,
        attempt_id=info.attempt_id,
        unknown=info.unknown,
    )


def _offsets(info: OrderInfo) -> list[int]:
    first, *rest = info.offsets
    return [first, *(first + difference for difference in rest)]


def _open(info: OrderInfo) -> list[int]:
    return [offset for index, offset in enumerate(_offsets(info)) if not info.acknowledged_bits >> index & 1]


def _free_ms(info: OrderInfo) -> int:
    """When no unacknowledged message of the batch is leased any more."""
    over_ms = info.pop_time + (info.invisible_ms or 0)
    extended = info.next_visible_ms or {}
    return max((extended.get(offset, over_ms) for offset in _open(info)), default=0)


def _in_use_ms(info: OrderInfo) -> int:
    """Until when it was popped or is out. A batch that is renewed may be out for days."""
    return max(info.last_consumed_ms, _free_ms(info) if info.offsets else 0)


def _counts(before: OrderInfo, now: OrderInfo) -> dict[int, int]:
    """How often the messages of `now` were handed out before; a repeated attempt is not another time."""
    known = before.consumed_counts or {}
    if before.attempt_id is not None and before.attempt_id == now.attempt_id:
        return known
    out_before = set(_offsets(before)) if before.offsets else set()
    return {offset: known.get(offset, 0) + 1 for offset in _offsets(now) if offset in out_before}
