"""Moments as people write them: 2026-11-15 10:30, 10:30, 15m, now, or milliseconds since 1970. Lengths of time: 90s, 5m, 2h, 1d."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import click

from orbitmq.clock import SystemClock

if TYPE_CHECKING:
    from orbitmq.clock import Clock

_AGO: Final = re.compile(r"-?(\d+(?:\.\d+)?)\s*(s|m|h|d)(?:\s+ago)?")
_LENGTH: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_CLOCK_TIME: Final = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_FIRST_MS: Final = 100_000_000_000  # smaller numbers are seconds
_MEANT: Final = (
    "write 2026-11-15T10:30:00, '2026-11-15 10:30', 10:30 (today), 15m (ago; s, m, h, d), now, or epoch milliseconds"
)


def parse_moment(text: str, clock: Clock) -> datetime:
    """ValueError says what would have been understood. Without a zone, local time is meant."""
    text = text.strip()
    now = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
    if text.lower() == "now":
        return now
    if found := _AGO.fullmatch(text):
        return now - timedelta(**{_UNITS[found[2]]: float(found[1])})
    if text.isascii() and text.isdigit():
        number = int(text)
        return datetime.fromtimestamp(number / 1000 if number >= _FIRST_MS else number, UTC)
    try:
        if found := _CLOCK_TIME.fullmatch(text):
            hour, minute, second = (int(part or 0) for part in found.groups())
            return now.astimezone().replace(hour=hour, minute=minute, second=second, microsecond=0)
        return datetime.fromisoformat(_without_hash(text)).astimezone()
    except ValueError:
        raise ValueError(f"{text!r} is no time: {_MEANT}") from None


def _without_hash(text: str) -> str:
    """mqadmin writes 2026-11-15#10:30:00:000."""
    found = re.fullmatch(r"(\d{4}-\d{2}-\d{2})#(\d{2}:\d{2}:\d{2}):(\d{3})", text)
    return f"{found[1]} {found[2]}.{found[3]}" if found is not None else text


def parse_duration(text: str) -> timedelta:
    found = _LENGTH.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no length of time: write 90s, 5m, 2h or 1d")
    return timedelta(**{_UNITS[found[2]]: float(found[1])})


def duration(context: click.Context, parameter: click.Parameter, value: str | None) -> timedelta | None:
    """The callback of an option whose value is a length of time."""
    try:
        return None if value is None else parse_duration(value)
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(str(error), ctx=context, param=parameter) from None


def epoch_ms(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp() * 1000)


def moment(context: click.Context, parameter: click.Parameter, value: str | None) -> datetime | None:
    """The callback of an option whose value is a moment."""
    try:
        return None if value is None else parse_moment(value, SystemClock())
    except (ValueError, OverflowError, OSError) as error:
        raise click.BadParameter(str(error), ctx=context, param=parameter) from None
