"""Wall-clock time, real or driven by a test. Durations on the event loop come from `loop.time()` instead."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """Stands still until told to move."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = start_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, *, ms: int = 0, seconds: float = 0, minutes: float = 0) -> None:
        self._now_ms += ms + round(seconds * 1000 + minutes * 60_000)
