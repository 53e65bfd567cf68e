"""How fast a consumer works, topic by topic: counters that only grow, looked at every ten seconds for an hour.

Java: ConsumerStatsManager, StatsItem, ConsumeStatus
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

EVERY_SECONDS: Final = 10.0
_MINUTE_SECONDS: Final = 60.0
_HOUR_SECONDS: Final = 3600.0
_MS: Final = 1000.0


class TopicFigures:
    """Counters of one topic."""

    __slots__ = ("calls", "done", "failed", "handling_seconds", "pull_seconds", "pulled", "pulls")

    def __init__(self) -> None:
        self.calls = 0  # of the handler
        self.handling_seconds = 0.0
        self.done = 0  # messages
        self.failed = 0  # messages that come again
        self.pulls = 0  # that found something
        self.pull_seconds = 0.0  # from asking to the answer, waiting for messages included
        self.pulled = 0  # messages

    def handled(self, seconds: float, done: int, failed: int) -> None:
        """One call of the handler."""
        self.calls += 1
        self.handling_seconds += seconds
        self.done += done
        self.failed += failed

    def found(self, seconds: float, count: int) -> None:
        """One pull."""
        self.pulls += 1
        self.pull_seconds += seconds
        self.pulled += count

    def now(self) -> _Counters:
        return _Counters(
            self.calls, self.handling_seconds, self.done, self.failed, self.pulls, self.pull_seconds, self.pulled
        )


class _Counters(NamedTuple):
    calls: int = 0
    handling_seconds: float = 0.0
    done: int = 0
    failed: int = 0
    pulls: int = 0
    pull_seconds: float = 0.0
    pulled: int = 0


class Speed(NamedTuple):
    """Of the last minute, but for the failures of the last hour."""

    done_per_second: float
    failed_per_second: float
    handling_ms: float
    pulled_per_second: float
    pull_ms: float
    failed_in_hour: int


class Figures:
    """All topics of one consumer."""

    def __init__(self, now: float) -> None:
        self._topics: dict[str, TopicFigures] = {}
        self._samples: deque[tuple[float, dict[str, _Counters]]] = deque([(now, {})])

    def of(self, topic: str) -> TopicFigures:
        return self._topics.setdefault(topic, TopicFigures())

    def sample(self, now: float) -> None:
        """To be called every ten seconds."""
        self._samples.append((now, {topic: figures.now() for topic, figures in self._topics.items()}))
        while now - self._samples[0][0] > _HOUR_SECONDS:
            self._samples.popleft()

    def speed(self, topic: str, now: float) -> Speed:
        current = self.of(topic).now()
        at, before = next((one for one in self._samples if now - one[0] <= _MINUTE_SECONDS), self._samples[-1])
        then = before.get(topic, _Counters())
        seconds = max(now - at, 1.0)
        calls, pulls = current.calls - then.calls, current.pulls - then.pulls
        return Speed(
            done_per_second=(current.done - then.done) / seconds,
            failed_per_second=(current.failed - then.failed) / seconds,
            handling_ms=_MS * (current.handling_seconds - then.handling_seconds) / calls if calls else 0.0,
            pulled_per_second=(current.pulled - then.pulled) / seconds,
            pull_ms=_MS * (current.pull_seconds - then.pull_seconds) / pulls if pulls else 0.0,
            failed_in_hour=current.failed - self._samples[0][1].get(topic, _Counters()).failed,
        )
