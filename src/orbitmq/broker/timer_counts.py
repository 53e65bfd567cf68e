"""How many timer messages wait for each topic, kept across restarts in `timermetrics`. Java: TimerMetrics"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from orbitmq.broker import names
from orbitmq.storage.commit_log import LIGHT_QUEUE_PREFIX
from orbitmq.storage.tables import TimerCountTable, TopicCount

if TYPE_CHECKING:
    from orbitmq.clock import Clock
    from orbitmq.storage.json_file import JsonFile


class TimerCounts:
    def __init__(self, file: JsonFile[TimerCountTable], clock: Clock) -> None:
        table = file.load()
        self._file = file
        self._clock = clock
        self._version = table.data_version
        self._by_topic = table.timing_count
        self._unknown = table.unknown

    def add(self, topic: str, change: int) -> None:
        count = self._by_topic.get(topic)
        if count is None:
            count = self._by_topic[topic] = TopicCount()
        count.count += change
        count.time_stamp = self._version.timestamp = self._clock.now_ms()
        self._version.counter += 1

    def total(self) -> int:
        return sum(count.count for count in self._by_topic.values())

    def by_topic(self) -> dict[str, int]:
        return {topic: count.count for topic, count in self._by_topic.items()}

    def table(self) -> TimerCountTable:
        version, counts = copy(self._version), {topic: copy(count) for topic, count in self._by_topic.items()}
        return TimerCountTable(data_version=version, timing_count=counts, unknown=self._unknown)

    def take_over(self, table: TimerCountTable) -> None:
        """A slave counts what its master counts."""
        self._by_topic, self._version = table.timing_count, table.data_version

    def forget(self, topic: str) -> None:
        self._by_topic.pop(topic, None)

    def forget_all_but(self, known: set[str]) -> None:
        """Of topics that are gone nothing is counted any more. The broker's own stay."""
        for topic in [topic for topic in self._by_topic if topic not in known]:
            if not topic.startswith((names.SYSTEM_TOPIC_PREFIX, LIGHT_QUEUE_PREFIX)):
                self.forget(topic)

    def save(self) -> None:
        self._file.save(self.table())
