"""When a message is to be delivered: by the broker's timer (5.x), or after one of its delay levels, counted from 1 (all).

Java: Message.setDelayTimeMs, setDeliverTimeMs, setDelayTimeLevel; MessageStoreConfig.messageDelayLevel
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, SupportsIndex

from orbitmq.errors import MessageError
from orbitmq.message import properties as names

if TYPE_CHECKING:
    from collections.abc import Mapping

# What brokers have unless they were told otherwise.
LEVEL_SECONDS: Final = (
    1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip

_MAX_LEVEL: Final = 0x7FFF_FFFF  # Java's brokers read it as an int
_LEVELS: Final = {timedelta(seconds=seconds): level for level, seconds in enumerate(LEVEL_SECONDS, 1)}
_WAITING: Final = frozenset({
    names.DELAY, names.TIMER_DELAY_SECONDS, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS,
})  # fmt: skip
_LEVEL_HINT: Final = "its levels are 1s 5s 10s 30s 1m to 10m by the minute, 20m 30m 1h 2h; any delay needs a 5.x broker"


def is_delayed(properties: Mapping[str, str]) -> bool:
    return not _WAITING.isdisjoint(properties)


def check_delay(delay: timedelta | None, deliver_at: datetime | None, properties: Mapping[str, str]) -> None:
    """MessageError for more than one delay, and for what cannot be meant."""
    if (delay is not None and deliver_at is not None) or is_delayed(properties):
        raise MessageError("a message has one delay", hint="give delay=, deliver_at= or delay_level=")
    if delay is not None and not isinstance(delay, timedelta):
        raise MessageError(f"delay is {delay!r}, which is no timedelta", hint="timedelta(seconds=5), say")
    if deliver_at is not None and not isinstance(deliver_at, datetime):
        raise MessageError(f"deliver_at is {deliver_at!r}, which is no datetime", hint="delay= takes a timedelta")
    if delay is not None and delay <= timedelta(0):
        raise MessageError(f"a delay of {delay.total_seconds():g} s is none", hint="leave it out to deliver at once")
    if deliver_at is not None and deliver_at.tzinfo is None:
        raise MessageError(
            "deliver_at has no time zone", hint="datetime.now(UTC) + ..., or .astimezone() for local time"
        )


def check_level(level: int) -> None:
    if not isinstance(level, SupportsIndex) or isinstance(level, bool) or not 0 <= level <= _MAX_LEVEL:
        raise MessageError(
            f"delay levels count from 1, not {level!r}", hint="a level above the last counts as the last"
        )


def timer_property(delay: timedelta | None, deliver_at: datetime | None) -> tuple[str, str]:
    """What asks a broker's timer for exactly this."""
    if deliver_at is not None:
        return names.TIMER_DELIVER_MS, str(round(deliver_at.timestamp() * 1000))
    assert delay is not None
    return names.TIMER_DELAY_MS, str(round(delay.total_seconds() * 1000))


def level_property(delay: timedelta | None) -> tuple[str, str]:
    """The level that is exactly this long, for brokers without a timer."""
    if delay is None:
        raise MessageError("a 4.x broker delivers at no given moment", hint=_LEVEL_HINT)
    level = _LEVELS.get(delay)
    if level is None:
        raise MessageError(f"no delay level of a 4.x broker is {delay.total_seconds():g} s long", hint=_LEVEL_HINT)
    return names.DELAY, str(level)
