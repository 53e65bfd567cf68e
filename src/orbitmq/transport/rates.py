"""So much a second for everyone, so many a minute in all: the limits that have to do with time."""

from __future__ import annotations

from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.clock import Clock
    from orbitmq.transport.load_limits import LoadLimits, Refusals

_MOST_KNOWN: Final = 10_000  # askers remembered at once; forgetting one gives it a full second anew
_MINUTE_MS: Final = 60_000


class Rates:
    """Requests and bytes a second, for each address or each user. One that was quiet may send a second's worth at once."""

    def __init__(
        self, whose: Literal["address", "user"], limits: Callable[[], LoadLimits], clock: Clock, refusals: Refusals
    ) -> None:
        self._whose = whose
        self._limits = limits
        self._clock = clock
        self._refusals = refusals
        self._of: Callable[[LoadLimits], tuple[int, int]] = attrgetter(
            f"requests_per_second_per_{whose}", f"bytes_per_second_per_{whose}"
        )
        self._left: dict[str, tuple[float, float, int]] = {}  # requests and bytes that are left, and when that was so

        self._figures = (0, 0)
        self.are_limited = False  # looked at before each request, so kept; `refresh` when settings have changed
        self.refresh()

    def refresh(self) -> None:
        figures = self._of(self._limits())
        if figures != self._figures:
            self._figures = figures
            self._left.clear()  # what was owed under other limits
            self.are_limited = any(figures)

    def take(self, who: str, size: int) -> None:
        """RequestFailed when it is too much. A request is never too large by itself: it is paid for afterwards."""
        most_requests, most_bytes = self._figures
        if not most_requests and not most_bytes:
            return
        now_ms = self._clock.now_ms()
        requests, volume, then_ms = self._left.get(who, (most_requests, most_bytes, now_ms))
        passed = max(0, now_ms - then_ms) / 1000
        requests = min(most_requests, requests + passed * most_requests)
        volume = min(most_bytes, volume + passed * most_bytes)
        if len(self._left) >= _MOST_KNOWN:
            self._left.clear()
        self._left[who] = (requests, volume, now_ms)
        if most_requests and requests < 1:
            raise self._too_much("requests", most_requests)
        if most_bytes and volume <= 0:
            raise self._too_much("bytes", most_bytes)
        self._left[who] = (requests - 1, volume - size, now_ms)

    def give_back(self, who: str, size: int) -> None:
        """What was taken for a request that is asked, and paid for, once more."""
        if who in self._left:
            requests, volume, then_ms = self._left[who]
            self._left[who] = (requests + 1, volume + size, then_ms)

    def _too_much(self, what: str, most: int) -> Exception:
        key = f"orbitmq.{what}PerSecondPer{self._whose.capitalize()}"
        return self._refusals.refused(key, most, f"{what} a second of one {self._whose}")


class PerMinute:
    """How many of something may be made in any minute."""

    def __init__(self, key: str, what: str, most: Callable[[], int], clock: Clock, refusals: Refusals) -> None:
        self._key = key
        self._what = what
        self._most = most
        self._clock = clock
        self._refusals = refusals
        self._made_ms: deque[int] = deque()

    def take(self, count: int = 1) -> None:
        """RequestFailed when it would be too many; then none counts as made."""
        most = self._most()
        if not most:
            return
        now_ms, made = self._clock.now_ms(), self._made_ms
        while made and not 0 <= now_ms - made[0] < _MINUTE_MS:
            made.popleft()
        if len(made) + count > most:
            raise self._refusals.refused(self._key, most, f"{self._what} a minute")
        made.extend([now_ms] * count)
