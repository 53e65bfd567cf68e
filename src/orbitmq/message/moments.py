"""Milliseconds as moments. When a message was born is its producer's word, and some count in other units: none may be too large."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

# A day within what a datetime can be, so that every time zone can show it.
_FIRST_MS: Final = int(datetime(1, 1, 2, tzinfo=UTC).timestamp()) * 1000
_LAST_MS: Final = int(datetime(9999, 12, 30, tzinfo=UTC).timestamp()) * 1000


def moment_at(at_ms: int) -> datetime:
    """The moment, or the nearest there is."""
    return datetime.fromtimestamp(min(max(at_ms, _FIRST_MS), _LAST_MS) / 1000, UTC)
