"""How much may be sent when it is to be so many bytes a second, on average and to the byte, however late each moment comes."""

from __future__ import annotations

from typing import Final

_LATE_SECONDS: Final = 0.5  # what was due longer ago is sent later, not more at a time


class Allowance:
    """Of one receiver. Times are the event loop's."""

    __slots__ = ("_at", "_due")

    def __init__(self) -> None:
        self._due = 0.0  # bytes
        self._at = 0.0

    def due(self, bytes_per_second: int, now: float) -> int:
        """What could not be sent in time, as the sender or the receiver was busy, still is."""
        grown = self._due + bytes_per_second * (now - self._at)
        self._due, self._at = min(grown, bytes_per_second * _LATE_SECONDS), now
        return max(0, int(self._due))

    def sent(self, size: int) -> None:
        self._due -= size
