"""When a mode may lose what it acknowledged: around each power cut of a master that neither syncs nor waits for slaves.

A window begins as long before the cut as a flush may be late, and ends when the broker starts again: whatever is answered until then was
answered before the cut. What was answered outside of all windows must be kept, in every mode; docs/guarantees.md has the terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.faults.timeline import Timeline

UNFLUSHED_SECONDS: Final = 11.0  # an asynchronous flush is at most ten late, and a round


@dataclass(slots=True)
class Window:
    begun: float  # by the timeline
    ended: float = float("inf")

    def holds(self, at: float, *, and_before: float = 0.0) -> bool:
        """Or is at most so many seconds before it."""
        return self.begun - and_before <= at <= self.ended


class Losses:
    def __init__(self, timeline: Timeline) -> None:
        self.windows: list[Window] = []
        self._timeline = timeline

    def begin(self) -> Window:
        """From now on nothing is synced any more."""
        window = Window(self._timeline.now() - UNFLUSHED_SECONDS)
        self.windows.append(window)
        return window

    def end(self, window: Window) -> None:
        window.ended = self._timeline.now()

    def may_include(self, answered_at: float) -> bool:
        return any(window.holds(answered_at) for window in self.windows)

    def may_include_ms(self, answered_ms: int, error_ms: int = 0) -> bool:
        """The same by a clock on the wall that may be wrong by so much."""
        at, error = self._timeline.at_ms(answered_ms), error_ms / 1000
        return any(window.begun - error <= at <= window.ended + error for window in self.windows)
