"""What nobody acknowledged in time is handed out again: copied to the group's retry topic, or to its dead letters.

One reader for each revive queue. It reads checkpoints and acks in order and keeps the checkpoints until their time is over for
sure: the timer has delivered all that was due two seconds after the end of the lease. (Java's broker concludes it from what else
comes out of the queue, which takes a second or so longer.) So a message is back two to four seconds after its lease ended, and
an ack counts as long as it is not back.

The position of the reader is that of the last checkpoint it is done with, saved with the consumer offsets under Java's name: a
restart, of this broker or of Apache's, goes on behind it. Messages that were handed out again are acknowledged in the revive
queue, and checkpoints that were done are known when the timer delivers them a second time: so a crash between two saves does
not make a message come back twice.

Apache's broker hands a message out for ever. Here one that was handed out as often as its group allows
(`retryMaxTimes`) goes to the dead letters, as it does for a consumer that pulls.

Java: PopReviveService
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from typing import TYPE_CHECKING, Any, Final

from orbitmq.broker import names, retry_topics, statistics
from orbitmq.broker.compaction import read_as_served
from orbitmq.broker.leases.checkpoints import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CHECKPOINT_TAG,
    Ack,
    read_ack,
    read_checkpoint,
)
from orbitmq.broker.own_queues import read_batch
from orbitmq.broker.sending import attempt_after, without_wishes
from orbitmq.errors import BodyError, MessageError, RequestFailed, StorageError
from orbitmq.message import properties as keys
from orbitmq.message.properties import MAX_PROPERTIES_BYTES, encode_properties
from orbitmq.message.record import decode_raw, decode_record
from orbitmq.protocol.lease_texts import normal_topic, retry_topic_v1, retry_topic_v2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from orbitmq.broker.compaction import CompactedTopics
    from orbitmq.broker.consumer_offsets import ConsumerOffsets
    from orbitmq.broker.groups import Groups
    from orbitmq.broker.leases.checkpoints import Checkpoint, LeaseKey
    from orbitmq.broker.leases.lease_log import LeaseLog
    from orbitmq.broker.leases.open_leases import OpenLeases
    from orbitmq.broker.sending import Sending
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.broker.statistics import Statistics
    from orbitmq.broker.topics import Topics
    from orbitmq.clock import Clock
    from orbitmq.message.message import StoredMessage
    from orbitmq.message.record import RawRecord
    from orbitmq.storage.store import Store

logger = logging.getLogger(__name__)

GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"  # under which the readers' positions are saved, as in Java
_AFTER_END_MS: Final = 2000
_BATCH: Final = 32
_READS_PER_TURN: Final = 32  # then the event loop serves others
_CHECKPOINTS_PER_TURN: Final = 64
_REMEMBERED: Final = 10_000  # checkpoints that are done, of each queue
_MARKS_BYTES: Final = 512  # of a message that comes back, at most, with the handle that its consumer is given


class ReviveQueue:
    """One reader's view: the checkpoints that it has read and is not done with."""

    def __init__(self, queue_id: int, next_offset: int) -> None:
        self.queue_id = queue_id
        self.next_offset = next_offset
        self.checkpoints: dict[LeaseKey, Checkpoint] = {}  # as they lie in the queue
        self._by_end: list[tuple[int, LeaseKey]] = []  # a heap
        self._early: dict[LeaseKey, list[int]] = {}  # acks that came before their checkpoint, oldest first
        self._done: dict[LeaseKey, None] = {}  # oldest first
        self._last_done = next_offset - 1

    @property
    def done_to(self) -> int:
        """The last entry before which nothing is open."""
        first = next(iter(self.checkpoints.values()), None)
        return self._last_done if first is None else first.revive_offset - 1

    def add(self, checkpoint: Checkpoint) -> None:
        key = checkpoint.key
        if key in self._done or key in self.checkpoints:
            return
        self.checkpoints[key] = checkpoint
        heapq.heappush(self._by_end, (checkpoint.revive_ms, key))
        self.ack(key, self._early.pop(key, []))

    def ack(self, key: LeaseKey, offsets: list[int]) -> None:
        """After a restart, what the timer did not know of yet overtakes what it did: an ack may be here first."""
        checkpoint = self.checkpoints.get(key)
        if checkpoint is not None:
            leased = checkpoint.offsets()
            for offset in offsets:
                if offset in leased:
                    checkpoint.bits |= 1 << leased.index(offset)
        elif offsets and key not in self._done:
            self._early.setdefault(key, []).extend(offsets)
            _keep_newest(self._early)

    def next_over(self, before_ms: int) -> Checkpoint | None:
        """The checkpoint whose lease ended first, if that was before then."""
        if not self._by_end or self._by_end[0][0] > before_ms:
            return None
        return self.checkpoints[self._by_end[0][1]]

    def finish(self, key: LeaseKey) -> None:
        checkpoint = self.checkpoints.pop(key, None)
        if checkpoint is not None:
            heapq.heappop(self._by_end)
            self._last_done = max(self._last_done, checkpoint.revive_offset)
        self._done[key] = None
        _keep_newest(self._done)


def _keep_newest(table: dict[LeaseKey, Any]) -> None:
    if len(table) > _REMEMBERED:
        del table[next(iter(table))]


class Reviving:
    def __init__(
        self,
        store: Store,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        lease_log: LeaseLog,
        open_leases: OpenLeases,
        sending: Sending,
        configuration: BrokerConfiguration,
        stats: Statistics,
        clock: Clock,
        compacted: CompactedTopics | None = None,
    ) -> None:
        self._store = store
        self._compacted = compacted
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._open_leases = open_leases
        self._sending = sending
        self._configuration = configuration
        self._stats = stats
        self._clock = clock
        self._lease_log = lease_log
        self._topic = lease_log.topic
        self.timer_done_until_ms: Callable[[], int] = clock.now_ms
        self._mark: tuple[int, int] | None = (
            None  # what the timer has delivered until when, and where the log ended then
        )
        self.queues = [self._opened(queue_id) for queue_id in range(lease_log.queues)]

    async def run(self) -> None:
        failing = False
        while True:
            await asyncio.sleep(self._configuration.settings.revive_interval / 1000)
            try:
                await self.round()
            except StorageError as error:
                if not failing:
                    logger.warning("leases that are over wait: %s", error)
                failing = True
            else:
                failing = False

    async def round(self) -> None:
        """Read what is new, and hand out again what is over."""
        if self._mark is None:
            self._mark = (self.timer_done_until_ms(), self._store.log.end)
        done_ms, log_end = self._mark
        self._store.dispatch()
        if self._store.dispatched_offset < log_end:
            return  # what the timer delivered until then cannot be read yet
        self._mark = None
        for queue in self.queues:
            while self._read(queue):
                await _others_turn()
            while self._revive(queue, done_ms):
                await self._topics.settle()
                await _others_turn()

    def lag(self) -> list[tuple[int, int, int]]:
        """Of each queue: its id, the messages that are not done, and how late the first of them is in ms."""
        now_ms = self._clock.now_ms()
        figures = []
        for queue in self.queues:
            high = self._store.queue_range(self._topic, queue.queue_id).max_offset
            first = next(iter(queue.checkpoints.values()), None)
            done = first.revive_offset if first is not None else queue.next_offset
            late_ms = max(0, now_ms - first.revive_ms) if first is not None else 0
            figures.append((queue.queue_id, max(0, high - done), late_ms))
        return figures

    # ---- reading

    def _opened(self, queue_id: int) -> ReviveQueue:
        """A reader behind what was done before the last stop, which it knows the newest of."""
        done = self._offsets.get(GROUP, self._topic, queue_id)
        end = self._store.queue_range(self._topic, queue_id).max_offset
        # Not behind the end, whatever the file says: nothing that is still to come would ever be read.
        queue = ReviveQueue(queue_id, 0 if done is None else max(0, min(done + 1, end)))
        offset = max(0, queue.next_offset - _REMEMBERED)
        while offset < queue.next_offset:
            messages, result = read_batch(self._store, self._topic, queue_id, offset, _BATCH)
            for message in messages:
                if message.properties.get(keys.TAGS) == CHECKPOINT_TAG and message.queue_offset < queue.next_offset:
                    with contextlib.suppress(BodyError):
                        queue.finish(read_checkpoint(message.body).key)
            if result.next_offset <= offset:
                break
            offset = result.next_offset
        return queue

    def _read(self, queue: ReviveQueue) -> bool:
        """Whether there may be more."""
        for _ in range(_READS_PER_TURN):
            messages, result = read_batch(self._store, self._topic, queue.queue_id, queue.next_offset, _BATCH)
            if not result.count:
                if result.next_offset <= queue.next_offset or result.max_offset == 0:
                    return False
                queue.next_offset = result.next_offset  # what lay there was deleted
                continue
            for message in messages:
                self._take(queue, message)
            queue.next_offset = result.next_offset
        return True

    def _take(self, queue: ReviveQueue, message: StoredMessage) -> None:
        tag = message.properties.get(keys.TAGS)
        try:
            if tag == CHECKPOINT_TAG:
                checkpoint = read_checkpoint(message.body)
                checkpoint.revive_offset = message.queue_offset
                queue.add(checkpoint)
                self._count_read(checkpoint.topic, checkpoint.group, "CK", queue.queue_id)
            elif tag in (ACK_TAG, BATCH_ACK_TAG):
                ack = read_ack(message.body)
                self._count_read(ack.topic, ack.group, "ACK", queue.queue_id)
                queue.ack(ack.key(self._configuration.settings.broker_name), ack.offsets())
        except BodyError as error:
            logger.error("skipped entry %d of revive queue %d: %s", message.queue_offset, queue.queue_id, error)

    def _count_read(self, topic: str, group: str, kind: str, queue_id: int) -> None:
        self._stats.counter(statistics.REVIVE_OUT_NUMS, f"{topic}@{group}@{kind}@{queue_id}").add(1)

    # ---- reviving

    def _revive(self, queue: ReviveQueue, done_ms: int) -> bool:
        """Whether there may be more."""
        for _ in range(_CHECKPOINTS_PER_TURN):
            checkpoint = queue.next_over(done_ms - _AFTER_END_MS)
            if checkpoint is None:
                return False
            lease = self._open_leases.get(checkpoint.key)
            # What is acknowledged counts from that moment on, however late its entry comes through the timer.
            acked = checkpoint.bits | (lease.acked if lease is not None else 0)
            if not self._hand_out_again(queue.queue_id, checkpoint, acked):
                return True
            self._open_leases.close(checkpoint.key)
            queue.finish(checkpoint.key)
            if queue.done_to >= 0:
                self._offsets.commit(GROUP, self._topic, queue.queue_id, queue.done_to)
        return True

    def _hand_out_again(self, queue_id: int, checkpoint: Checkpoint, acked: int) -> bool:
        """False when a topic was made for it and has to be kept first: after a kill nobody would know of it, and of what lies in it.

        StorageError when the store cannot take a message now. Either way what was copied before is marked, and not copied again.
        """
        topic, group = checkpoint.topic, checkpoint.group
        if self._topics.get(normal_topic(topic, group)) is None or self._groups.get(group) is None:
            return True
        if not self._is_our_own(checkpoint):
            logger.error("skipped a lease of %s: it is of broker %s", topic, checkpoint.broker_name)
            return True
        if self._is_of_a_deleted_topic(checkpoint):
            return True
        for index, offset in enumerate(checkpoint.offsets()):
            if acked >> index & 1:
                continue
            found = read_as_served(self._store, self._compacted, topic, checkpoint.queue_id, offset, 1)
            if not found.count or found.queue_offsets[0] != offset:
                continue  # its file has expired, or a later message has replaced it
            try:
                message = decode_record(found.buffers[0])
                goal = self.topic_again(checkpoint, message.reconsume_times)
                if self._make_if_need_be(goal, group):
                    return False
                if goal.startswith(names.DLQ_PREFIX):
                    self._put_to_dead_letters(goal, checkpoint, message)
                else:
                    self._put_to_retry_topic(goal, checkpoint, message)
            except (MessageError, RequestFailed) as error:  # it, or the retry topic's name, is refused for good
                logger.error("gave up message %d of %s, which cannot be handed out again: %s", offset, topic, error)
            checkpoint.bits |= 1 << index
            self._lease_log.write_done(_done(checkpoint, offset), queue_id)
        return True

    def unacked(self, checkpoint: Checkpoint, acked: set[int]) -> Iterator[RawRecord]:
        """The messages of a lease that are to be handed out again, as they stand in their topic."""
        if not self._is_our_own(checkpoint) or self._is_of_a_deleted_topic(checkpoint):
            return
        for index, offset in enumerate(checkpoint.offsets()):
            if checkpoint.bits >> index & 1 or offset in acked:
                continue
            found = read_as_served(self._store, self._compacted, checkpoint.topic, checkpoint.queue_id, offset, 1)
            if found.count and found.queue_offsets[0] == offset:
                try:
                    yield decode_raw(found.buffers[0])
                except MessageError as error:
                    logger.error("gave up a message of %s that cannot be read: %s", checkpoint.topic, error)

    def _is_our_own(self, checkpoint: Checkpoint) -> bool:
        """Whether it speaks of messages in this store, also if that was under another name: nobody else has them."""
        name = checkpoint.broker_name
        is_as_now = name in ("", self._configuration.settings.broker_name)
        return is_as_now or self._topics.get(names.members_topic(name)) is not None

    def _is_of_a_deleted_topic(self, checkpoint: Checkpoint) -> bool:
        """Whether the topic was deleted since: if it was made again, other messages have those numbers.

        By where the lease stands in the log, whatever clocks say. Where nobody knows, what comes twice is better than what is lost.
        """
        deleted_at = self._store.deletions().get(checkpoint.topic)
        if deleted_at is None:
            return False
        leased_at = self._lease_log.leased_at(checkpoint.key)
        return bool(leased_at) and max(leased_at) < deleted_at

    def topic_again(self, checkpoint: Checkpoint, reconsume_times: int) -> str:
        """Where a message is handed out the next time: the group's retry topic, or its dead letters."""
        config = self._groups.get(checkpoint.group)
        if config is not None and 0 <= config.retry_max_times <= reconsume_times:
            return names.dead_letter_topic(checkpoint.group)
        return self._retry_topic(checkpoint)

    def _retry_topic(self, checkpoint: Checkpoint) -> str:
        topic, group = checkpoint.topic, checkpoint.group
        if not topic.startswith(names.RETRY_PREFIX):
            newer = self._configuration.settings.enable_retry_topic_v2
            return retry_topics.goal(self._groups, group, topic, prefers_newer=newer)
        origin = normal_topic(topic, group)
        is_anothers = topic == retry_topic_v1(group, origin) and retry_topics.is_of_group(self._groups, topic)
        return retry_topic_v2(group, origin) if is_anothers else topic

    def _make_if_need_be(self, topic: str, group: str) -> bool:
        """Whether it was not there. RequestFailed if there can be no such topic."""
        if self._topics.get(topic) is not None:
            return False
        self._topics.create_internal(topic, 1)
        if topic.startswith(names.RETRY_PREFIX) and self._offsets.get(group, topic, 0) is None:
            self._offsets.commit(group, topic, 0, 0)
        return True

    def _put_to_retry_topic(self, topic: str, checkpoint: Checkpoint, message: StoredMessage) -> None:
        marks = return_marks(checkpoint, message.reconsume_times, message.properties, len(message.raw_properties))
        self._put(topic, message, {**without_wishes(message.properties), **marks})
        self._stats.counter(statistics.REVIVE_RETRY_NUMS, f"{checkpoint.topic}@{checkpoint.group}").add(1)

    def _put_to_dead_letters(self, topic: str, checkpoint: Checkpoint, message: StoredMessage) -> None:
        origin = normal_topic(checkpoint.topic, checkpoint.group)
        properties = without_wishes(message.properties)
        properties.setdefault(keys.RETRY_TOPIC, origin)
        properties.setdefault(keys.DLQ_ORIGIN_TOPIC, origin)
        properties.setdefault(keys.ORIGIN_MESSAGE_ID, message.offset_id)
        properties.setdefault(keys.DLQ_ORIGIN_MESSAGE_ID, message.offset_id)
        self._stats.counter(statistics.DLQ_PUT_NUMS, f"{origin}@{checkpoint.group}").add(1)
        self._put(topic, message, properties)

    def _put(self, topic: str, message: StoredMessage, properties: dict[str, str]) -> None:
        appended = self._store.append(
            topic,
            0,
            message.body,
            encode_properties(properties),
            message.born_at_ms,
            message.born_host,
            message.flag,
            message.sys_flag,
            attempt_after(message.reconsume_times),
        )
        self._sending.count(topic, 1, appended.end - appended.commit_log_offset)


def return_marks(
    checkpoint: Checkpoint, reconsume_times: int, properties: Mapping[str, str], properties_bytes: int
) -> dict[str, str]:
    """What a message that comes back says of it: when it was leased first, and, if there is room for it, from which topic."""
    first_ms = properties.get(keys.FIRST_POP_TIME) if reconsume_times else None
    marks = {keys.FIRST_POP_TIME: first_ms or str(checkpoint.pop_time_ms)}
    origin = normal_topic(checkpoint.topic, checkpoint.group)
    has_room = properties_bytes + len(origin) + _MARKS_BYTES <= MAX_PROPERTIES_BYTES
    if has_room and not origin.startswith(names.RETRY_PREFIX):  # of what was sent back that says where it is from
        marks[keys.RETRY_TOPIC] = origin
    return marks


async def _others_turn() -> None:
    """Give way to other work: there may be a lot of this."""
    await asyncio.sleep(0)


def _done(checkpoint: Checkpoint, offset: int) -> Ack:
    return Ack(
        offset=offset,
        broker_name=checkpoint.broker_name,
        group=checkpoint.group,
        pop_time_ms=checkpoint.pop_time_ms,
        queue_id=checkpoint.queue_id,
        start_offset=checkpoint.start_offset,
        topic=checkpoint.topic,
    )
