"""How far groups have come in their topics: for tools, for metrics, and to protect the broker from slow readers.

Java: parts of AdminBrokerProcessor, ConsumerLagCalculator, BrokerController.protectBroker
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from orbitmq.broker import statistics
from orbitmq.protocol.bodies.groups import QueueKey
from orbitmq.protocol.bodies.offsets import ConsumeStats, OffsetLag

if TYPE_CHECKING:
    from orbitmq.broker.clients import Clients
    from orbitmq.broker.consumer_offsets import ConsumerOffsets
    from orbitmq.broker.groups import Groups
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.broker.statistics import Statistics
    from orbitmq.broker.topics import Topics
    from orbitmq.storage.store import Store

logger = logging.getLogger(__name__)


class Backlog(NamedTuple):
    messages: int
    in_flight: int  # fetched and not consumed
    oldest_stored_ms: int | None  # of what is not consumed; None if all is
    oldest_unfetched_ms: int | None


class Progress:
    """Looks at the tables of others; keeps nothing."""

    def __init__(
        self,
        store: Store,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        clients: Clients,
        stats: Statistics,
        configuration: BrokerConfiguration,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._clients = clients
        self._stats = stats
        self._configuration = configuration

    def topics_of(self, group: str) -> list[str]:
        """Topics the group has offsets for. While it is online, only those it subscribes to count."""
        return [topic for topic in self._offsets.topics_of(group) if self.is_read_by(group, topic)]

    def is_read_by(self, group: str, topic: str) -> bool:
        members = self._clients.consumers(group)
        return members is None or not members.subscriptions or topic in members.subscriptions

    def of_topic(self, group: str, topic: str) -> ConsumeStats | None:
        """None if there is no such topic."""
        config = self._topics.get(topic)
        if config is None:
            return None
        broker_name = self._configuration.settings.broker_name
        lags = {
            QueueKey(broker_name=broker_name, queue_id=queue_id, topic=topic): self._lag(group, topic, queue_id)
            for queue_id in range(config.read_queue_nums)
        }
        counter = self._stats.find(statistics.GROUP_GET_NUMS, f"{topic}@{group}")
        return ConsumeStats(lags, counter.minute().per_second if counter is not None else 0.0)

    def backlog(self, group: str, topic: str) -> Backlog:
        """What of a topic a group has still to consume, over all queues it has an offset for."""
        waiting = in_flight = 0
        unconsumed_since: list[int] = []
        unfetched_since: list[int] = []
        for queue_id, committed in self._offsets.queues(group, topic).items():
            low, high = self._store.queue_range(topic, queue_id)
            next_offset = min(max(committed, low), high)
            fetched = min(max(self._offsets.pulled(group, topic, queue_id) or 0, next_offset), high)
            waiting += high - next_offset
            in_flight += fetched - next_offset
            unconsumed_since += self._stored_at(topic, queue_id, next_offset, high)
            unfetched_since += self._stored_at(topic, queue_id, fetched, high)
        return Backlog(waiting, in_flight, min(unconsumed_since, default=None), min(unfetched_since, default=None))

    def _stored_at(self, topic: str, queue_id: int, offset: int, end: int) -> list[int]:
        at_ms = self._store.stored_at_ms(topic, queue_id, offset) if offset < end else None
        return [] if at_ms is None else [at_ms]

    def behind_bytes(self, group: str) -> int:
        """How much of the log lies between the next message of the group, wherever it is furthest behind, and the end."""
        end = self._store.log.end
        starts = [end]
        for topic in self.topics_of(group):
            for queue_id, offset in self._offsets.queues(group, topic).items():
                low, high = self._store.queue_range(topic, queue_id)
                entries = self._store.queue_entries(topic, queue_id, max(offset, low), 1) if offset < high else None
                if entries:
                    starts.append(entries[0][0])
        return end - min(starts)

    def protect_broker(self) -> None:
        """Let groups that are hopelessly behind read no more: what they want is no longer in memory."""
        settings = self._configuration.settings
        if not settings.disable_consume_if_consumer_read_slowly:
            return
        for group in list(self._clients.consumer_groups()):
            behind = self.behind_bytes(group)
            if behind > settings.consumer_fallbehind_threshold:
                logger.error("group %s is %d bytes behind: it may not consume until it is enabled again", group, behind)
                self._groups.disable(group)

    def _lag(self, group: str, topic: str, queue_id: int) -> OffsetLag:
        committed = self._offsets.get(group, topic, queue_id) or 0
        pulled = self._offsets.pulled(group, topic, queue_id)
        last_ms = self._store.stored_at_ms(topic, queue_id, committed - 1) if committed > 0 else None
        return OffsetLag(
            broker_offset=self._store.queue_range(topic, queue_id).max_offset,
            consumer_offset=committed,
            pull_offset=max(committed, pulled or 0),
            last_timestamp=last_ms or 0,
        )
