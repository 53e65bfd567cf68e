"""What happened when: sends by the second, and the faults beside them."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field


@dataclass(slots=True)
class Second:
    acked: int = 0
    failed: int = 0
    slowest_ms: float = 0.0


@dataclass(slots=True)
class Event:
    kind: str
    target: str
    begun: float
    ended: float


@dataclass(slots=True)
class Timeline:
    started: float = field(default_factory=time.monotonic)
    started_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    seconds: dict[int, Second] = field(default_factory=lambda: defaultdict(Second))
    events: list[Event] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)

    def now(self) -> float:
        return time.monotonic() - self.started

    def at_ms(self, wall_ms: int) -> float:
        """The moment that the clock on the wall calls so."""
        return (wall_ms - self.started_ms) / 1000

    def sent(self, began: float, *, acked: bool) -> None:
        second = self.seconds[int(self.now())]
        if acked:
            taken_ms = (self.now() - began) * 1000
            second.acked += 1
            second.slowest_ms = max(second.slowest_ms, taken_ms)
            self.latencies_ms.append(taken_ms)
        else:
            second.failed += 1
