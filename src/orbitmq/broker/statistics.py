"""Counters by name and key, with what they were a minute, an hour and a day ago. Java: BrokerStatsManager, StatsItem

Counting is an addition to two integers. Windows begin with samples taken every ten seconds, ten minutes and hour, and end with the
newest of them all, so that a day knows of what was counted ten seconds ago; Java's ends with the last full hour.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.broker.histograms import Histogram, HistogramKind, MessageSizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.clock import Clock

TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE: Final = "TOPIC_PUT_SIZE"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
SEND_BACK_NUMS: Final = "SNDBCK_PUT_NUMS"
BROKER_PUT_NUMS: Final = "BROKER_PUT_NUMS"
BROKER_GET_NUMS: Final = "BROKER_GET_NUMS"
BROKER_GET_MISSES: Final = "BROKER_GET_MISSES"  # pulls that found nothing; Java counts them elsewhere
DLQ_PUT_NUMS: Final = "DLQ_PUT_NUMS"
TIMER_ENQUEUE_NUMS: Final = "TIMER_ENQUEUE_NUMS"  # these four only in Java's metrics
TIMER_DEQUEUE_NUMS: Final = "TIMER_DEQUEUE_NUMS"
COMMIT_NUMS: Final = "TRANSACTION_COMMIT_NUMS"
ROLLBACK_NUMS: Final = "TRANSACTION_ROLLBACK_NUMS"
GROUP_CK_NUMS: Final = "GROUP_CK_NUMS"  # batches leased
GROUP_ACK_NUMS: Final = "GROUP_ACK_NUMS"
BROKER_CK_NUMS: Final = "BROKER_CK_NUMS"
BROKER_ACK_NUMS: Final = "BROKER_ACK_NUMS"
# In Java only in its metrics. Keys: topic@group@CK or ACK, with the revive queue behind it for what was read; topic@group.
REVIVE_IN_NUMS: Final = "POP_REVIVE_IN_NUMS"
REVIVE_OUT_NUMS: Final = "POP_REVIVE_OUT_NUMS"
REVIVE_RETRY_NUMS: Final = "POP_REVIVE_RETRY_NUMS"

SAMPLE_SECONDS: Final = 10
_STEPS_OF_HOUR: Final = 60  # every tenth minute, in samples of ten seconds
_STEPS_OF_DAY: Final = 360  # every hour


class Sample(NamedTuple):
    at_ms: int
    value: int
    times: int


class Window(NamedTuple):
    """What happened in a span of time. Java: BrokerStatsItem"""

    total: int = 0
    per_second: float = 0.0
    per_time: float = 0.0


class Counter:
    __slots__ = ("_day", "_hour", "_minute", "times", "value")

    def __init__(self) -> None:
        self.value = 0
        self.times = 0
        self._minute: deque[Sample] = deque(maxlen=7)
        self._hour: deque[Sample] = deque(maxlen=7)
        self._day: deque[Sample] = deque(maxlen=25)

    def add(self, value: int, times: int = 1) -> None:
        self.value += value
        self.times += times

    def sample(self, at_ms: int, number: int) -> None:
        sample = Sample(at_ms, self.value, self.times)
        for window, steps in ((self._minute, 1), (self._hour, _STEPS_OF_HOUR), (self._day, _STEPS_OF_DAY)):
            if not window:  # a moment ago there was nothing yet
                window.append(Sample(at_ms - SAMPLE_SECONDS * 1000, 0, 0))
            if number % steps == 0:
                window.append(sample)

    def minute(self) -> Window:
        return self._window(self._minute)

    def hour(self) -> Window:
        return self._window(self._hour)

    def day(self) -> Window:
        return self._window(self._day)

    def _window(self, samples: deque[Sample]) -> Window:
        if not samples:
            return Window()
        first, last = samples[0], self._minute[-1]
        total, times, elapsed_ms = last.value - first.value, last.times - first.times, last.at_ms - first.at_ms
        return Window(total, total * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0, total / times if times > 0 else 0.0)


class Statistics:
    def __init__(self, clock: Clock) -> None:
        self.started_ms = clock.now_ms()
        self._clock = clock
        self._samples = 0
        self.all_counters: dict[tuple[str, str], Counter] = {}
        self._forgotten: Tally[str] = Tally()
        self._histograms: dict[HistogramKind, Histogram] = {}
        self._message_sizes: dict[str, MessageSizes] = {}  # by topic

    def counter(self, name: str, key: str) -> Counter:
        counter = self.all_counters.get((name, key))
        if counter is None:
            counter = self.all_counters[name, key] = Counter()
        return counter

    def find(self, name: str, key: str) -> Counter | None:
        return self.all_counters.get((name, key))

    def histogram(self, kind: HistogramKind) -> Histogram:
        histogram = self._histograms.get(kind)
        if histogram is None:
            histogram = self._histograms[kind] = Histogram(kind)
        return histogram

    def histograms(self) -> list[Histogram]:
        return list(self._histograms.values())

    def message_sizes(self, topic: str) -> MessageSizes:
        sizes = self._message_sizes.get(topic)
        if sizes is None:
            sizes = self._message_sizes[topic] = MessageSizes()
        return sizes

    def total(self, name: str, is_counted: Callable[[str], bool] = lambda _key: True) -> int:
        """Over all keys, also those forgotten since, but for keys that are not to be counted."""
        return self._forgotten[name] + sum(c.value for key, c in self.counters(name) if is_counted(key))

    def counters(self, name: str) -> list[tuple[str, Counter]]:
        """Of all keys."""
        return [(key, counter) for (counted, key), counter in self.all_counters.items() if counted == name]

    def forget(self, key: str) -> None:
        """A topic or group is gone: so are its counters, alone and as part of `topic@group`."""
        for name, known in [item for item in self.all_counters if key in item[1].split("@")]:
            self._forgotten[name] += self.all_counters.pop((name, known)).value
        for histogram in self._histograms.values():
            histogram.forget(key)
        self._message_sizes.pop(key, None)

    def sample(self) -> None:
        """Called every `SAMPLE_SECONDS`."""
        now_ms = self._clock.now_ms()
        for counter in self.all_counters.values():
            counter.sample(now_ms, self._samples)
        self._samples += 1
