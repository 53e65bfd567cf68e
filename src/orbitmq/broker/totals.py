"""What the broker did in all: rates of the last 10 s, minute and ten minutes, and where the totals stood at midnight.

Java: StoreStatsService, BrokerStats
"""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.broker import statistics

if TYPE_CHECKING:
    from orbitmq.broker.statistics import Statistics
    from orbitmq.broker.topics import Topics
    from orbitmq.clock import Clock

SAMPLE_SECONDS: Final = 1
_WINDOWS_SECONDS: Final = (10, 60, 600)


class Amounts(NamedTuple):
    """Since the start: messages stored, pulls that found and did not find any, messages handed out."""

    put: int = 0
    found: int = 0
    missed: int = 0
    transferred: int = 0


class _Sample(NamedTuple):
    at_ms: int
    amounts: Amounts


class DayTotals(NamedTuple):
    """Messages stored and handed out since the start, without those of system topics."""

    put: int = 0
    transferred: int = 0


class Totals:
    def __init__(self, clock: Clock, stats: Statistics, topics: Topics, cluster: str) -> None:
        self.this_morning = DayTotals()
        self.yesterday_morning = DayTotals()
        self._clock = clock
        self._stats = stats
        self._topics = topics
        self._puts = stats.counter(statistics.BROKER_PUT_NUMS, cluster)
        self._gets = stats.counter(statistics.BROKER_GET_NUMS, cluster)  # messages, and a time for each pull with any
        self._misses = stats.counter(statistics.BROKER_GET_MISSES, cluster)
        self._samples: deque[_Sample] = deque(maxlen=_WINDOWS_SECONDS[-1] + 1)
        self._day = self._today()

    @property
    def all_puts(self) -> int:
        """With system topics."""
        return self._puts.value

    def now(self) -> DayTotals:
        return DayTotals(
            self._stats.total(statistics.TOPIC_PUT_NUMS, lambda topic: not self._topics.is_system(topic)),
            self._stats.total(statistics.GROUP_GET_NUMS, lambda key: not self._topics.is_system(key.partition("@")[0])),
        )

    def sample(self) -> None:
        """Called every `SAMPLE_SECONDS`."""
        amounts = Amounts(self._puts.value, self._gets.times, self._misses.value, self._gets.value)
        self._samples.append(_Sample(self._clock.now_ms(), amounts))
        today = self._today()
        if today != self._day:
            self._day = today
            self.yesterday_morning, self.this_morning = self.this_morning, self.now()

    def rates(self) -> list[tuple[float, float, float, float] | None]:
        """Per second and in the order of `Amounts`, for each window; None for one that is not full yet."""
        return [self._rate(seconds) for seconds in _WINDOWS_SECONDS]

    def _rate(self, seconds: int) -> tuple[float, float, float, float] | None:
        steps = seconds // SAMPLE_SECONDS
        if len(self._samples) <= steps:
            return None
        first, last = self._samples[-steps - 1], self._samples[-1]
        elapsed_seconds = max(1, last.at_ms - first.at_ms) / 1000
        put, found, missed, transferred = (
            (after - before) / elapsed_seconds for before, after in zip(first.amounts, last.amounts, strict=True)
        )
        return put, found, missed, transferred

    def _today(self) -> int:
        """The day at this place, as a number."""
        return datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC).astimezone().toordinal()
