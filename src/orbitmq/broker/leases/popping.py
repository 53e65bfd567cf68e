"""Popping: which messages a group is leased, from which queues, and what is remembered of it.

One pop looks at all read queues of the topic, beginning at a random one, or at the one it names; and at the group's retry topic
of that topic, first in one of five pops, else when there is room left. What a queue gives is one checkpoint. Once that is
stored, the group's position in the queue moves behind it: others go on from there, and what is not acknowledged comes back
by way of the retry topic.

Java: PopMessageProcessor
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.broker import names, retry_topics, statistics
from orbitmq.broker.compaction import range_as_served, read_as_served
from orbitmq.broker.leases.checkpoints import Checkpoint
from orbitmq.broker.own_queues import readable
from orbitmq.broker.subscriptions import Wanted
from orbitmq.errors import StorageError
from orbitmq.message import properties as keys
from orbitmq.message.properties import encode_properties
from orbitmq.message.record import encode_stored
from orbitmq.protocol.headers.leases import ANY_QUEUE, START_AT_MIN
from orbitmq.protocol.lease_texts import (
    ORDERED_REVIVE_QUEUE,
    Handle,
    kind_of,
    offsets_entry,
    retry_topic_v1,
    retry_topic_v2,
    start_entry,
)
from orbitmq.storage.reading import ReadStatus

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

    from orbitmq.broker.compaction import CompactedTopics
    from orbitmq.broker.consumer_offsets import ConsumerOffsets
    from orbitmq.broker.groups import Groups
    from orbitmq.broker.leases.lease_log import LeaseLog
    from orbitmq.broker.leases.open_leases import OpenLeases
    from orbitmq.broker.leases.ordered import OrderedLeases
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.broker.statistics import Statistics
    from orbitmq.broker.topics import Topics
    from orbitmq.clock import Clock
    from orbitmq.protocol.headers.leases import PeekMessage, PopMessage
    from orbitmq.storage.reading import ReadResult
    from orbitmq.storage.store import QueueRange, Store

# Where a group cannot be: it goes on where the queue says.
_MISPLACED: Final = frozenset(
    {ReadStatus.OFFSET_TOO_SMALL, ReadStatus.OFFSET_OVERFLOW_BADLY, ReadStatus.OFFSET_FOUND_NULL}
)
_EVERYTHING: Final = Wanted()
# Nothing for this group up to the next offset.
_PASSED_OVER: Final = frozenset({ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.MESSAGE_WAS_REMOVING})


class Popped:
    """What one pop took."""

    __slots__ = ("count", "counts", "end", "offsets", "parts", "pop_time_ms", "rest", "revive_queue", "starts")

    def __init__(self, pop_time_ms: int, revive_queue: int) -> None:
        self.pop_time_ms = pop_time_ms
        self.revive_queue = revive_queue
        self.parts: list[memoryview] = []
        self.count = 0
        self.rest = 0  # messages that are there and were not taken
        self.starts: list[str] = []
        self.offsets: list[str] = []
        self.counts: list[str] = []
        self.end = 0  # of the log, with what was written for it


class Popping:
    def __init__(
        self,
        store: Store,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        lease_log: LeaseLog,
        open_leases: OpenLeases,
        ordered: OrderedLeases,
        configuration: BrokerConfiguration,
        stats: Statistics,
        clock: Clock,
        randomness: random.Random,
        compacted: CompactedTopics | None = None,
    ) -> None:
        self._store = store
        self._compacted = compacted
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._lease_log = lease_log
        self._open_leases = open_leases
        self._ordered = ordered
        self._configuration = configuration
        self._stats = stats
        self._clock = clock
        self._random = randomness
        self._pops = 0
        self._drawn: int | None = None  # by one who then left the pop to `pop`

    def pop(self, header: PopMessage, wishes: Wanted) -> Popped:
        settings = self._configuration.settings
        chance = self.draw()
        next_queue = self.next_revive_queue()
        popped = Popped(self._clock.now_ms(), ORDERED_REVIVE_QUEUE if header.order else next_queue)
        retry_first = chance < settings.pop_from_retry_probability
        if retry_first and not header.order:
            self._pop_retries(header, wishes, popped, chance)
        queue_ids = list(self._queues(header.topic, header.queue_id, chance))
        for number, queue_id in enumerate(queue_ids):
            if popped.count >= header.max_msg_nums and not header.order and not self._offsets.has_resets:
                popped.rest += self._left_in(header, queue_ids[number:])
                break
            self._pop_queue(header, wishes, popped, header.topic, queue_id)
        if not retry_first and not header.order and popped.count < header.max_msg_nums:
            self._pop_retries(header, wishes, popped, chance)
        return popped

    def draw(self) -> int:
        """A percentage, which decides about retries, and where a pop begins."""
        if self._drawn is None:
            return self._random.randrange(100)
        drawn, self._drawn = self._drawn, None
        return drawn

    def put_back(self, chance: int) -> None:
        """It was drawn, and decided nothing."""
        self._drawn = chance

    def next_revive_queue(self) -> int:
        self._pops += 1
        return (self._pops - 1) % self._configuration.settings.revive_queue_num

    def peek(self, header: PeekMessage) -> tuple[list[memoryview], int]:
        """What a pop would give, as it is stored, and how much is there; nothing is leased."""
        group, chance = header.consumer_group, self.draw()
        places = [(header.topic, queue_id) for queue_id in self._queues(header.topic, header.queue_id, chance)]
        wishes = _EVERYTHING
        for retries in self.retry_topics(group, header.topic)[:1]:
            places += [(retries, queue_id) for queue_id in self._queues(retries, ANY_QUEUE, chance)]
            wishes = retry_topics.own_only(self._groups, self._topics, group, header.topic, retries, wishes)
        parts: list[memoryview] = []
        count = rest = 0
        for topic, queue_id in places:
            low, high = self._range(topic, queue_id)
            offset = min(max(self.next_offset(group, topic, queue_id), low), high)
            rest += high - offset
            if count < header.max_msg_nums and offset < high:
                wanted = _EVERYTHING if topic == header.topic else wishes
                result = self._read(topic, queue_id, offset, header.max_msg_nums - count, wanted)
                parts += result.buffers
                count += result.count
        return parts, rest

    def next_offset(self, group: str, topic: str, queue_id: int) -> int:
        """Where a group goes on; at the beginning if it never was there."""
        committed = self._offsets.get(group, topic, queue_id)
        return self._range(topic, queue_id).min_offset if committed is None else committed

    def waiting_messages(self, group: str, topic: str, queue_id: int) -> int:
        return self._store.queue_range(topic, queue_id).max_offset - self.next_offset(group, topic, queue_id)

    def retry_topics(self, group: str, topic: str) -> list[str]:
        """Those that are, the one that is written to first."""
        settings = self._configuration.settings
        older, newer = retry_topic_v1(group, topic), retry_topic_v2(group, topic)
        wanted = [older, newer]  # the latter is there if it was written to before, for whatever reason
        if settings.enable_retry_topic_v2:
            wanted = [newer, older] if settings.retrieve_message_from_pop_retry_topic_v1 else [newer]
        elif retry_topics.is_of_group(self._groups, older):
            wanted = [newer, older]
        return [name for name in wanted if self._topics.get(name) is not None]

    def _queues(self, topic: str, queue_id: int, chance: int) -> Iterable[int]:
        if queue_id != ANY_QUEUE:
            return (queue_id,)
        config = self._topics.get(topic)
        count = config.read_queue_nums if config is not None else 0
        return ((chance + index) % count for index in range(count))

    def _pop_retries(self, header: PopMessage, wishes: Wanted, popped: Popped, chance: int) -> None:
        """Of two retry topics, messages of one: the answer's texts would not tell their queues apart in old clients."""
        group, before = header.consumer_group, popped.count
        found = self.retry_topics(group, header.topic)
        first = chance % len(found) if found else 0
        for topic in found[first:] + found[:first]:
            own = retry_topics.own_only(self._groups, self._topics, group, header.topic, topic, wishes)
            for queue_id in self._queues(topic, ANY_QUEUE, chance):
                self._pop_queue(header, own, popped, topic, queue_id)
            if popped.count > before:
                return

    def _pop_queue(self, header: PopMessage, wishes: Wanted, popped: Popped, topic: str, queue_id: int) -> None:
        group = header.consumer_group
        if self._is_over_threshold(topic, group, queue_id):
            popped.rest += self.waiting_messages(group, topic, queue_id)
            return
        offset = self._start_offset(header, topic, queue_id)
        if header.order and self._ordered.is_blocked(topic, group, queue_id, header.attempt_id):
            return  # an ack will wake who waits; what lies here must not
        if popped.count >= header.max_msg_nums:
            popped.rest += self._store.queue_range(topic, queue_id).max_offset - offset
            return
        wanted = header.max_msg_nums - popped.count
        result = self._read(topic, queue_id, offset, wanted, wishes)
        if result.status in _MISPLACED:
            offset = result.next_offset
            self._offsets.commit(group, topic, queue_id, offset)
            result = self._read(topic, queue_id, offset, wanted, wishes)
        if result.count:
            try:
                self._take(header, popped, topic, queue_id, offset, result)
            except StorageError:
                if not popped.count:
                    raise
                return  # what was leased of other queues is given all the same
        elif result.status in _PASSED_OVER:
            self._offsets.commit(group, topic, queue_id, result.next_offset)
        popped.rest += max(0, result.max_offset - result.next_offset)

    def _left_in(self, header: PopMessage, queue_ids: list[int]) -> int:
        """What `_pop_queue` would find there and not take."""
        known = self._offsets.queues(header.consumer_group, header.topic)
        left = 0
        for queue_id, end in zip(queue_ids, self._store.queue_ends(header.topic, queue_ids), strict=True):
            offset = known.get(queue_id, -1)
            left += end - (offset if offset >= 0 else self._start_offset(header, header.topic, queue_id))
        return left

    def _take(
        self, header: PopMessage, popped: Popped, topic: str, queue_id: int, offset: int, result: ReadResult
    ) -> None:
        group = header.consumer_group
        offsets = list(result.queue_offsets)
        if header.order:
            popped.counts += self._ordered.lease(
                topic, group, queue_id, offsets, popped.pop_time_ms, header.invisible_time, header.attempt_id
            )
            self._offsets.commit(group, topic, queue_id, offset)
        else:
            checkpoint = Checkpoint(
                broker_name=self._configuration.settings.broker_name,
                group=group,
                differences=[queue_offset - offset for queue_offset in offsets],
                invisible_ms=header.invisible_time,
                count=len(offsets),
                pop_time_ms=popped.pop_time_ms,
                queue_id=queue_id,
                start_offset=offset,
                topic=topic,
            )
            popped.end = self._lease_log.write_checkpoint(checkpoint, popped.revive_queue, result.next_offset)
            self._open_leases.add(checkpoint)
            self._stats.counter(statistics.GROUP_CK_NUMS, f"{header.topic}@{group}").add(1)
            self._stats.counter(statistics.BROKER_CK_NUMS, self._configuration.settings.broker_cluster_name).add(1)
            self._offsets.commit(group, topic, queue_id, result.next_offset)
        popped.starts.append(start_entry(topic, queue_id, offset))
        popped.offsets.append(offsets_entry(topic, queue_id, offsets))
        popped.count += result.count
        is_retry = topic != header.topic
        if is_retry and not self._configuration.settings.pop_response_return_actual_retry_topic:
            popped.parts += self._as_of_topic(header, popped, topic, queue_id, offset, result)
        else:
            popped.parts += result.buffers
        name = f"{topic}@{group}"
        self._stats.counter(statistics.GROUP_GET_NUMS, name).add(result.count)
        self._stats.counter(statistics.GROUP_GET_SIZE, name).add(result.total_bytes)
        self._stats.counter(statistics.BROKER_GET_NUMS, self._configuration.settings.broker_cluster_name).add(
            result.count
        )

    def _as_of_topic(
        self, header: PopMessage, popped: Popped, topic: str, queue_id: int, start: int, result: ReadResult
    ) -> Iterable[memoryview]:
        """Messages of a retry topic as their consumer knows them: of the topic itself, with their handle in them."""
        broker_name = self._configuration.settings.broker_name
        for message in readable(self._store, topic, queue_id, result):
            handle = Handle(
                start, popped.pop_time_ms, header.invisible_time, popped.revive_queue,
                kind_of(topic), broker_name, message.queue_id, message.queue_offset,
            )  # fmt: skip
            if keys.POP_CHECK_POINT in message.properties:  # made up by who sent it
                told = {key: value for key, value in message.properties.items() if key != keys.POP_CHECK_POINT}
                message.raw_properties = encode_properties(told)
            added = f"{keys.POP_CHECK_POINT}\x01{handle.text()}\x02".encode()
            ended = not message.raw_properties or message.raw_properties.endswith(b"\x02")
            message.raw_properties += added if ended else b"\x02" + added
            message.topic = header.topic
            yield memoryview(encode_stored(message))

    def _read(self, topic: str, queue_id: int, offset: int, max_count: int, wishes: Wanted = _EVERYTHING) -> ReadResult:
        return read_as_served(self._store, self._compacted, topic, queue_id, offset, max_count, wishes)

    def _range(self, topic: str, queue_id: int) -> QueueRange:
        return range_as_served(self._store, self._compacted, topic, queue_id)

    def _is_over_threshold(self, topic: str, group: str, queue_id: int) -> bool:
        settings = self._configuration.settings
        return settings.enable_pop_message_threshold and (
            self._open_leases.in_flight(topic, group, queue_id) > settings.pop_inflight_message_threshold
        )

    def _start_offset(self, header: PopMessage, topic: str, queue_id: int) -> int:
        group = header.consumer_group
        reset = self._offsets.take_reset(group, topic, queue_id)
        if reset is not None:
            self._ordered.clear(topic, group, queue_id)
            self._offsets.commit(group, topic, queue_id, reset)
            return reset
        committed = self._offsets.get(group, topic, queue_id)
        if committed is None:
            committed = self._first_offset(header, topic, queue_id)
            self._offsets.commit(group, topic, queue_id, committed)
        return committed

    def _first_offset(self, header: PopMessage, topic: str, queue_id: int) -> int:
        """Where a new group begins: with the first message, or with the last, unless all of them are recent."""
        low, high = self._range(topic, queue_id)
        if header.init_mode == START_AT_MIN or topic.startswith(names.RETRY_PREFIX):
            return low
        if self._configuration.settings.init_pop_offset_by_check_msg_in_mem and low <= 0 < high:
            first = self._read(topic, queue_id, 0, 1)
            if first.status is ReadStatus.FOUND and not first.far_behind:
                return 0
        return max(high - 1, 0)
