"""The SQL92 filters that groups registered by heartbeat, and the bits by which a message says which of them it matches.

Kept in consumerFilter.json, in Java's form: a group's bits are only good for messages stored after its filter was registered, and
that moment must survive a restart.

Java: ConsumerFilterManager, CommitLogDispatcherCalcBitMap
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.broker.saved_table import SavedTable
from orbitmq.broker.sql_filter import compile_filter
from orbitmq.broker.sql_filter.bloom import BloomFilter
from orbitmq.broker.subscriptions import SQL92
from orbitmq.errors import RequestFailed
from orbitmq.message.properties import decode_properties
from orbitmq.storage.tables import BloomData, FilterData, FilterTable, TopicFilters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.clock import Clock
    from orbitmq.protocol.bodies.groups import Subscription
    from orbitmq.storage.json_file import JsonFile
    from orbitmq.storage.queue_extension import ExtensionUnit

_PRESUMED_DEAD_MS: Final = 30_000  # after a restart, until the next heartbeat


class ConsumerFilters:
    def __init__(self, file: JsonFile[FilterTable], configuration: BrokerConfiguration, clock: Clock) -> None:
        settings = configuration.settings
        self._bloom = BloomFilter(settings.max_error_rate_of_bloom_filter, settings.expect_consumer_num_use_filter)
        self._configuration = configuration
        self._clock = clock
        table = file.load()
        self._unknown = table.unknown
        self._topics = table.filter_data_by_topic if self._is_ours(table) else {}
        self._presume_dead()
        self._saved = SavedTable(file, self._snapshot)

    def register(self, group: str, subscriptions: Iterable[Subscription]) -> None:
        """What a group's heartbeat says. A filter that does not parse is left to the pull to complain about."""
        now_ms, named = self._clock.now_ms(), set()
        for subscription in subscriptions:
            topic = subscription.topic
            named.add(topic)
            if subscription.expression_type == SQL92 and subscription.sub_string:
                self._register(topic, group, subscription.sub_string, subscription.sub_version, now_ms)
        for topic, filters in self._topics.items():
            data = filters.group_filter_data.get(group)
            if data is not None and topic not in named and data.dead_time < data.born_time:
                data.dead_time = now_ms

    def unregister(self, group: str) -> None:
        """Nobody of the group is there any more."""
        for filters in self._topics.values():
            data = filters.group_filter_data.get(group)
            if data is not None and data.dead_time < data.born_time:
                data.dead_time = self._clock.now_ms()

    def bitmap(self, topic: str, properties: bytes) -> bytes:
        """Which of the topic's groups a message matches; empty where bits are not asked for."""
        filters = self._topics.get(topic)
        if (
            filters is None
            or not filters.group_filter_data
            or not self._configuration.settings.enable_calc_filter_bit_map
        ):
            return b""
        decoded = decode_properties(properties)
        return self._bloom.bitmap(
            data.bloom_filter_data.bit_pos
            for data in filters.group_filter_data.values()
            if data.bloom_filter_data is not None and compile_filter(data.expression).matches(decoded)
        )

    def may_want(self, topic: str, group: str, expression: str | None) -> Callable[[ExtensionUnit], bool] | None:
        """How to tell by its bits that a group does not want a message; None if nothing is known of this filter."""
        filters = self._topics.get(topic)
        data = filters.group_filter_data.get(group) if filters is not None else None
        if data is None or data.expression != expression or data.bloom_filter_data is None:
            return None
        bloom, positions, born_ms = self._bloom, data.bloom_filter_data.bit_pos, data.born_time

        def test(unit: ExtensionUnit) -> bool:
            return unit.stored_at_ms <= born_ms or bloom.holds(unit.bitmap, positions)

        return test

    async def save(self) -> None:
        self._forget_dead()
        await self._saved.save_or_log()

    def _register(self, topic: str, group: str, expression: str, version: int, now_ms: int) -> None:
        filters = self._topics.setdefault(topic, TopicFilters(topic=topic))
        known = filters.group_filter_data.get(group)
        if known is not None and (version <= known.client_version or known.expression == expression):
            if version >= known.client_version and known.dead_time >= known.born_time:
                known.dead_time = 0  # back again; messages were marked for it all the time
            known.client_version = max(version, known.client_version)
            return
        try:
            compile_filter(expression)
        except RequestFailed:
            filters.group_filter_data.pop(group, None)
            return
        filters.group_filter_data[group] = FilterData(
            consumer_group=group,
            topic=topic,
            expression=expression,
            born_time=now_ms,
            client_version=version,
            bloom_filter_data=BloomData(bit_num=self._bloom.bits, bit_pos=self._bloom.positions(f"{group}#{topic}")),
        )

    def _is_ours(self, table: FilterTable) -> bool:
        """Bits of another geometry would mean something else, so none of the file counts then."""
        return all(
            data.bloom_filter_data is not None
            and data.bloom_filter_data.bit_num == self._bloom.bits
            and len(data.bloom_filter_data.bit_pos) == self._bloom.hashes
            for filters in table.filter_data_by_topic.values()
            for data in filters.group_filter_data.values()
        )

    def _presume_dead(self) -> None:
        dead_ms = self._clock.now_ms() - _PRESUMED_DEAD_MS
        for filters in self._topics.values():
            for group, data in list(filters.group_filter_data.items()):
                data.unknown.pop("dead", None)
                try:
                    compile_filter(data.expression)
                except RequestFailed:
                    del filters.group_filter_data[group]
                if data.dead_time == 0:
                    data.dead_time = max(dead_ms, data.born_time)

    def _forget_dead(self) -> None:
        span_ms = self._configuration.settings.filter_data_clean_time_span
        now_ms = self._clock.now_ms()
        for topic, filters in list(self._topics.items()):
            for group, data in list(filters.group_filter_data.items()):
                if data.dead_time >= data.born_time and now_ms - data.dead_time >= span_ms:
                    del filters.group_filter_data[group]
            if not filters.group_filter_data:
                del self._topics[topic]

    def _snapshot(self) -> FilterTable:
        topics = {
            topic: TopicFilters(topic=topic, group_filter_data=dict(filters.group_filter_data), unknown=filters.unknown)
            for topic, filters in self._topics.items()
        }
        return FilterTable(filter_data_by_topic=topics, unknown=self._unknown)
