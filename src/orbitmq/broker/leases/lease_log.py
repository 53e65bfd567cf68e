"""Where leases are kept: checkpoints and acks, written when they happen, read when the lease is over.

Each is a timer message to the revive topic. A checkpoint arrives there a second before its lease ends, its acks when it ends,
so whoever reads the topic in order meets a checkpoint before its acks, and both about when they matter. What is already due is
written to the revive topic at once.

Apache's broker can in addition hold both in memory for ten seconds and merge them there (`enablePopBufferMerge`, off by
default). This one always writes: one record for up to 32 messages is cheap, and then the log alone says what is leased: the
position of a group may move on as soon as its checkpoint is stored, and a crash loses no lease and no ack.

Java: PopMessageProcessor.buildCkMsg, AckMessageProcessor.appendAck
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from orbitmq.broker import names, statistics
from orbitmq.broker.leases.checkpoints import (
    ACK_TAG,
    CHECKPOINT_TAG,
    Ack,
    Checkpoint,
    LeaseKey,
    read_ack,
    read_checkpoint,
)
from orbitmq.broker.leases.open_leases import Lease
from orbitmq.broker.timer_requests import slot_ms
from orbitmq.errors import BodyError, MessageError
from orbitmq.message import properties as keys
from orbitmq.message.record import decode_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.broker.statistics import Statistics
    from orbitmq.clock import Clock
    from orbitmq.message.message import StoredMessage
    from orbitmq.storage.store import Store

NEXT_OFFSET: Final = "ORBITMQ_NEXT"  # a property of checkpoints, for after a crash; Java's broker passes it over
BEFORE_ACKS_MS: Final = 1000  # how long before the end of its lease a checkpoint arrives
_MOST_FOUND: Final = 64


class LeaseLog:
    def __init__(
        self, store: Store, configuration: BrokerConfiguration, stats: Statistics, clock: Clock, store_host: bytes
    ) -> None:
        self._store = store
        self._configuration = configuration
        self._stats = stats
        self._clock = clock
        self.store_host = store_host
        self.topic = names.revive_topic(configuration.settings.broker_cluster_name)
        self.queues = configuration.settings.revive_queue_num  # in which leases may be

    def look_into(self, queues: int) -> None:
        """There were more once: leases of then are still in those, or on their way there."""
        used = (queue_id + 1 for _, queue_id in self._store.queue_ranges(self.topic))
        self.queues = max(self.queues, queues, *used)

    def settle_at(self, store_host: bytes) -> None:
        self.store_host = store_host

    def write_checkpoint(self, checkpoint: Checkpoint, revive_queue: int, next_offset: int | None = None) -> int:
        """Where the log ends with it. `next_offset`: where its group goes on, unless it goes on where it was."""
        self._stats.counter(statistics.REVIVE_IN_NUMS, f"{checkpoint.topic}@{checkpoint.group}@CK").add(1)
        properties = _properties(CHECKPOINT_TAG, checkpoint.unique_key())
        if next_offset is not None:
            properties += f"{NEXT_OFFSET}\x01{next_offset}\x02"
        deliver_ms = checkpoint.revive_ms - BEFORE_ACKS_MS
        return self._write(revive_queue, properties, checkpoint.to_json(), deliver_ms)

    def write_ack(self, ack: Ack, revive_queue: int, revive_ms: int) -> int:
        self._stats.counter(statistics.REVIVE_IN_NUMS, f"{ack.topic}@{ack.group}@ACK").add(1)
        return self._write(revive_queue, _properties(ack.tag, ack.unique_key()), ack.to_json(), revive_ms)

    def write_done(self, ack: Ack, revive_queue: int) -> int:
        """As an ack, at once: these messages were handed out again, and are not to be once more."""
        return self._write(revive_queue, _properties(ack.tag, ack.unique_key()), ack.to_json(), None)

    def find(self, key: LeaseKey, asked: list[int]) -> Lease | None:
        """A lease whose checkpoint was written once; None when there never was one, or its record has expired.

        A store that keeps no keys cannot tell, so there a lease of what is `asked` for is believed.
        """
        if not self._store.config.key_index:
            return Lease(key, asked)
        for message in self._written_as(_checkpoint_name(key)):
            try:
                return Lease(key, read_checkpoint(message.body).offsets())
            except BodyError:
                continue  # another record may tell
        return None

    def is_acked(self, key: LeaseKey, offset: int) -> bool:
        """Whether an ack of that message was written, alone or with others, or a mark that it was handed out again."""
        topic, group, queue_id, _, pop_time, broker = key
        for number in (offset, -1):  # -1: of a batch
            for message in self._written_as(f"{topic}@{queue_id}@{number}@{group}@{pop_time}@{broker}@{ACK_TAG}"):
                with contextlib.suppress(BodyError):
                    ack = read_ack(message.body)
                    if ack.key(broker) == key and offset in ack.offsets():
                        return True
        return False

    def leased_at(self, key: LeaseKey) -> list[int]:
        """Where the log ended when that lease was given; more than one place if the clock was set back, none if nobody knows any more."""
        return [
            message.commit_log_offset
            for message in self._written_as(_checkpoint_name(key))
            if keys.TIMER_DEQUEUE_MS not in message.properties  # a later copy, which the timer made
        ]

    def _written_as(self, unique_key: str) -> Iterator[StoredMessage]:
        for where in (names.TIMER_TOPIC, self.topic):
            for record in self._store.find_by_key(where, unique_key, _MOST_FOUND).records:
                try:
                    message = decode_record(record)
                except MessageError:
                    continue
                if message.properties.get(keys.REAL_TOPIC, self.topic) != self.topic:
                    continue  # somebody's timer message that only looks like one
                if message.properties.get(keys.UNIQUE_KEY) == unique_key:
                    yield message

    def _write(self, revive_queue: int, properties: str, body: bytes, deliver_ms: int | None) -> int:
        """To the revive topic, or to the timer on its way there. However full a moment is, what a lease needs is taken."""
        now_ms = self._clock.now_ms()
        topic, queue_id = self.topic, revive_queue
        if deliver_ms is not None:
            properties += f"{keys.TIMER_DELIVER_MS}\x01{deliver_ms}\x02"
            if deliver_ms > now_ms:
                due_ms = slot_ms(deliver_ms, self._configuration.settings.timer_precision_ms)
                properties += (
                    f"{keys.TIMER_OUT_MS}\x01{due_ms}\x02{keys.REAL_TOPIC}\x01{topic}\x02"
                    f"{keys.REAL_QUEUE_ID}\x01{queue_id}\x02"
                )
                topic, queue_id = names.TIMER_TOPIC, 0
        return self._store.append(topic, queue_id, body, properties.encode(), now_ms, self.store_host).end


def _checkpoint_name(key: LeaseKey) -> str:
    topic, group, queue_id, start, pop_time, broker = key
    return f"{topic}@{queue_id}@{start}@{group}@{pop_time}@{broker}@{CHECKPOINT_TAG}"


def _properties(tag: str, unique_key: str) -> str:
    """Names of topics, groups and brokers hold no separators, so there is nothing to check."""
    return f"{keys.TAGS}\x01{tag}\x02{keys.UNIQUE_KEY}\x01{unique_key}\x02"
