"""Values of a wrong type: they show where they are given, not where they are first used, which may be much later or never."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, SupportsIndex

from orbitmq.errors import ConfigError
from orbitmq.message import QueueRef

if TYPE_CHECKING:
    from collections.abc import Iterable


def check_whole(option: str, value: object) -> None:
    # Asked at each poll, too, and Python takes its time to find out about protocols. Numpy's whole numbers are such, too.
    if value.__class__ is not int and not isinstance(value, SupportsIndex):
        raise ConfigError(f"{option} is {value!r}, which is no whole number", hint="give one, such as 10")


def check_seconds(option: str, value: object) -> None:
    if not isinstance(value, Real):
        raise ConfigError(
            f"{option} is {value!r}, which is no number of seconds", hint="give one; a timedelta has total_seconds()"
        )


def queues_given(queues: Iterable[QueueRef]) -> set[QueueRef]:
    """A topic is none, though its letters can be listed."""
    wanted = set(queues)
    if not all(isinstance(queue, QueueRef) for queue in wanted):
        raise ConfigError(f"{queues!r} is no list of queues", hint="give some of those that `assigned` lists")
    return wanted
