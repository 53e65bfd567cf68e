"""Real time that a test can push forward, so that delays pass without waiting."""

from __future__ import annotations

import time


class MovableClock:
    def __init__(self) -> None:
        self.ahead_ms = 0  # of real time

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms

    def advance(
        self, *, ms: int = 0, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0
    ) -> None:
        """From now on it is that much later. Time never goes back."""
        step_ms = ms + round(1000 * (seconds + 60 * minutes + 3600 * hours + 86400 * days))
        if step_ms < 0:
            raise ValueError("a test's clock goes forward only")
        self.ahead_ms += step_ms
