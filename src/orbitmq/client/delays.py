"""Delay levels: the waits a broker offers for a message, counted from 1. Java: MessageStoreConfig.messageDelayLevel"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from orbitmq.errors import MessageError

# What brokers have unless they were told otherwise.
LEVEL_SECONDS: Final = (
    1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip

_LEVELS: Final = {timedelta(seconds=seconds): level for level, seconds in enumerate(LEVEL_SECONDS, 1)}


def delay_level(delay: timedelta) -> int:
    """The level that is exactly this long."""
    level = _LEVELS.get(delay)
    if level is None:
        raise MessageError(
            f"no delay level is {delay.total_seconds():g} s long",
            hint="the levels are 1s 5s 10s 30s 1m to 10m by the minute, 20m 30m 1h 2h; or give delay_level=",
        )
    return level
