"""The SQL92 filters that groups registered by heartbeat, and the bits by which a message says which of them it matches.

Kept in consumerFilter.json, in Java's form: a group's bits are only good for messages stored after its filter was registered, and
that moment must survive a restart.

Bits spare reading, nothing else depends on them. So a filter is kept only where bits are made and for topics that exist, and no more of
them than can be read and evaluated without holding others up; a group whose filter is not kept has its messages read instead. (Apache
keeps every one.)

Java: ConsumerFilterManager, CommitLogDispatcherCalcBitMap
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.broker.saved_table import SavedTable
from orbitmq.broker.sql_filter import SqlFilter
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
_MOST_READ_PER_SECOND: Final = 16 << 10  # characters of filters that are new: reading one takes 10 us
_MOST_KEPT: Final = 256 << 10  # characters; a filter in use takes a hundred times its text
_BESIDE_THE_TEXT: Final = 256  # what keeping the shortest filter takes


class ConsumerFilters:
    def __init__(
        self,
        file: JsonFile[FilterTable],
        configuration: BrokerConfiguration,
        clock: Clock,
        is_topic: Callable[[str], bool],
    ) -> None:
        settings = configuration.settings
        self._bloom = BloomFilter(settings.max_error_rate_of_bloom_filter, settings.expect_consumer_num_use_filter)
        self._configuration = configuration
        self._clock = clock
        self._is_topic = is_topic
        self._topics: dict[str, TopicFilters] = {}
        self._topics_of: dict[str, set[str]] = {}  # by group
        self._compiled: dict[tuple[str, str], SqlFilter] = {}  # by topic and group
        self._kept = 0  # characters, and what stands beside them
        self._read, self._read_in_second = 0, 0
        table = file.load()
        self._unknown = table.unknown
        if self._is_ours(table):
            self._take_over(table)
        self._saved = SavedTable(file, self._snapshot)

    def register(self, group: str, subscriptions: Iterable[Subscription]) -> None:
        """What a group's heartbeat says. A filter that does not parse is left to the pull to complain about."""
        settings, now_ms = self._configuration.settings, self._clock.now_ms()
        are_bits_made = settings.enable_property_filter and settings.enable_calc_filter_bit_map
        named = set()
        for subscription in subscriptions:
            topic = subscription.topic
            named.add(topic)
            if are_bits_made and subscription.expression_type == SQL92 and subscription.sub_string:
                self._register(topic, group, subscription.sub_string, subscription.sub_version, now_ms)
        for topic in self._topics_of.get(group, set()) - named:
            self._note_death(topic, group, now_ms)

    def unregister(self, group: str) -> None:
        """Nobody of the group is there any more."""
        for topic in self._topics_of.get(group, ()):
            self._note_death(topic, group, self._clock.now_ms())

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
            for group, data in filters.group_filter_data.items()
            if data.bloom_filter_data is not None and self._compiled[topic, group].matches(decoded)
        )

    def may_want(self, topic: str, group: str, expression: str | None) -> Callable[[ExtensionUnit], bool] | None:
        """How to tell by its bits that a group does not want a message; None if nothing is known of this filter."""
        data = self._find(topic, group)
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
        known = self._find(topic, group)
        if known is not None and (version <= known.client_version or known.expression == expression):
            if version >= known.client_version and known.dead_time >= known.born_time:
                known.dead_time = 0  # back again; messages were marked for it all the time
            known.client_version = max(version, known.client_version)
            return
        if known is not None:
            self._drop(topic, group)
        if not self._is_topic(topic) or not self._may_read(expression, now_ms):
            return
        self._keep(
            FilterData(
                consumer_group=group,
                topic=topic,
                expression=expression,
                born_time=now_ms,
                client_version=version,
                bloom_filter_data=BloomData(
                    bit_num=self._bloom.bits, bit_pos=self._bloom.positions(f"{group}#{topic}")
                ),
            )
        )

    def _may_read(self, expression: str, now_ms: int) -> bool:
        """Whether another one can be read in this second. If not, it is taken when its consumer says it again."""
        second = now_ms // 1000
        if second != self._read_in_second:
            self._read_in_second, self._read = second, 0
        self._read += len(expression)
        return self._read <= _MOST_READ_PER_SECOND

    def _keep(self, data: FilterData) -> None:
        """If it can be read and there is room: those that nobody uses any more make way in their topic."""
        topic, group = data.topic, data.consumer_group
        try:
            compiled = SqlFilter(data.expression)
        except RequestFailed:
            return
        beside = self._topics[topic].group_filter_data if topic in self._topics else {}
        if len(beside) >= self._configuration.settings.expect_consumer_num_use_filter:
            unused = next((other for other, their in beside.items() if their.dead_time >= their.born_time), None)
            if unused is None:
                return
            self._drop(topic, unused)
        if self._kept + _room_for(data) > _MOST_KEPT:
            return
        self._kept += _room_for(data)
        self._topics.setdefault(topic, TopicFilters(topic=topic)).group_filter_data[group] = data
        self._topics_of.setdefault(group, set()).add(topic)
        self._compiled[topic, group] = compiled

    def _drop(self, topic: str, group: str) -> None:
        filters = self._topics[topic].group_filter_data
        self._kept -= _room_for(filters.pop(group))
        del self._compiled[topic, group]
        if not filters:
            del self._topics[topic]
        self._topics_of[group].discard(topic)
        if not self._topics_of[group]:
            del self._topics_of[group]

    def _find(self, topic: str, group: str) -> FilterData | None:
        filters = self._topics.get(topic)
        return None if filters is None else filters.group_filter_data.get(group)

    def _note_death(self, topic: str, group: str, now_ms: int) -> None:
        data = self._find(topic, group)
        if data is not None and data.dead_time < data.born_time:
            data.dead_time = now_ms

    def _is_ours(self, table: FilterTable) -> bool:
        """Bits of another geometry would mean something else, so none of the file counts then."""
        return all(
            data.bloom_filter_data is not None
            and data.bloom_filter_data.bit_num == self._bloom.bits
            and len(data.bloom_filter_data.bit_pos) == self._bloom.hashes
            for filters in table.filter_data_by_topic.values()
            for data in filters.group_filter_data.values()
        )

    def _take_over(self, table: FilterTable) -> None:
        """Of the file, what could be registered today."""
        dead_ms = self._clock.now_ms() - _PRESUMED_DEAD_MS
        for topic, filters in table.filter_data_by_topic.items():
            for group, data in filters.group_filter_data.items():
                data.topic, data.consumer_group = topic, group
                data.unknown.pop("dead", None)
                if data.dead_time == 0:
                    data.dead_time = max(dead_ms, data.born_time)
                self._keep(data)
            if topic in self._topics:
                self._topics[topic].unknown = filters.unknown

    def _forget_dead(self) -> None:
        span_ms = self._configuration.settings.filter_data_clean_time_span
        now_ms = self._clock.now_ms()
        for topic, filters in list(self._topics.items()):
            for group, data in list(filters.group_filter_data.items()):
                if data.dead_time >= data.born_time and now_ms - data.dead_time >= span_ms:
                    self._drop(topic, group)

    def _snapshot(self) -> FilterTable:
        topics = {
            topic: TopicFilters(topic=topic, group_filter_data=dict(filters.group_filter_data), unknown=filters.unknown)
            for topic, filters in self._topics.items()
        }
        return FilterTable(filter_data_by_topic=topics, unknown=self._unknown)


def _room_for(data: FilterData) -> int:
    return len(data.expression) + _BESIDE_THE_TEXT
