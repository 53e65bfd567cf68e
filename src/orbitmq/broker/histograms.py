"""How figures spread: counted between fixed bounds, by label. Java: BrokerMetricsManager (its histograms)

For what happens seldom, or is read from a message anyway. How long requests took is kept in `transport/request_times.py`, how
large messages are in `MessageSizes`, which costs a small message one comparison.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orbitmq.clock import Clock


ON_DISK: Final = {"storage_type": "local", "storage_medium": "disk"}


class HistogramKind(NamedTuple):
    name: str
    help_text: str
    bounds: tuple[int, ...]
    labels: tuple[str, ...]


_CREATE_MS: Final = (10, 100, 1000, 3000, 5000)
TOPIC_CREATE_TIME: Final = HistogramKind(
    "rocketmq_topic_create_execution_time_milliseconds",
    "How long operators waited for a topic.",
    _CREATE_MS,
    ("invocation_status", "is_system"),
)
GROUP_CREATE_TIME: Final = HistogramKind(
    "rocketmq_consumer_group_create_execution_time_milliseconds",
    "How long operators waited for a group.",
    _CREATE_MS,
    ("invocation_status",),
)
# In seconds, whatever Apache's name says.
FINISH_LATENCY: Final = HistogramKind(
    "rocketmq_finish_message_latency_milliseconds",
    "Seconds from a half message's birth to its commit.",
    (5, 60, 600, 3600, 43_200, 86_400),
    ("topic",),
)
DELAY_LATENCY: Final = HistogramKind(
    "rocketmq_delay_message_latency_seconds",
    "For how long timer messages are to wait.",
    (60, 600, 3600, 43_200, 86_400, 259_200),
    ("topic", *ON_DISK),
)


class Spread(NamedTuple):
    """Of the figures under one set of labels: how many lie between bounds (the last: above all), and their sum."""

    counts: Sequence[int]
    total: float


class Histogram:
    def __init__(self, kind: HistogramKind) -> None:
        self.kind = kind
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._totals: dict[tuple[str, ...], int] = {}

    def record(self, value: int, *labels: str, times: int = 1) -> None:
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = [0] * (len(self.kind.bounds) + 1)
        counts[bisect_left(self.kind.bounds, value)] += times
        self._totals[labels] = self._totals.get(labels, 0) + value * times

    def spreads(self) -> Iterator[tuple[dict[str, str], Spread]]:
        for labels, counts in self._counts.items():
            yield dict(zip(self.kind.labels, labels, strict=True)), Spread(counts, self._totals[labels])

    def forget(self, label: str) -> None:
        for labels in [labels for labels in self._counts if label in labels]:
            del self._counts[labels], self._totals[labels]

    @contextmanager
    def timed(self, clock: Clock, *more_labels: str) -> Iterator[None]:
        """The milliseconds that the block takes, under whether it came to its end."""
        started_ms, status = clock.now_ms(), "failure"
        try:
            yield
            status = "success"
        finally:
            self.record(clock.now_ms() - started_ms, status, *more_labels)


class MessageSizes:
    """How many of a topic's messages were larger than each bound; how many there are, others count."""

    BOUNDS: Final = (1 << 10, 1 << 12, 1 << 19, 1 << 20, 1 << 21, 1 << 22)
    __slots__ = ("larger",)

    def __init__(self) -> None:
        self.larger = [0] * len(self.BOUNDS)

    def note(self, size: int, messages: int = 1) -> None:
        """Messages up to the first bound need no note, and those up to the second are one more in `larger[0]`."""
        for number in range(bisect_left(self.BOUNDS, size)):
            self.larger[number] += messages

    def spread(self, messages: int, size: int) -> Spread:
        at_least = [messages, *self.larger, 0]
        return Spread([more - less for more, less in pairwise(at_least)], size)
