"""What a timer message asks for.

    TIMER_DELAY_SEC, TIMER_DELAY_MS   so long after the broker takes it
    TIMER_DELIVER_MS                  at that moment

Of several the first in this order counts; a delay level (DELAY) beats them all. A moment that has passed means now.

Java: HookUtils.handleScheduleMessage
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.broker import names
from orbitmq.errors import RequestFailed
from orbitmq.message import properties as keys
from orbitmq.message.properties import extend_properties
from orbitmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from orbitmq.broker.settings import Settings

REQUESTS: Final = (keys.TIMER_DELAY_SECONDS, keys.TIMER_DELAY_MS, keys.TIMER_DELIVER_MS)

NO_LIMIT: Final = 2**31 - 1  # of messages for one moment: what a slot can count

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_LARGEST: Final = 2**63 - 1


class Place(NamedTuple):
    """Where a message is stored, and with which properties, when its sender asked for more than that."""

    topic: str
    queue_id: int
    properties: str
    due_ms: int = 0  # of a timer message


def park_timer(
    topic: str,
    queue_id: int,
    properties: str,
    parsed: Mapping[str, str],
    settings: Settings,
    now_ms: int,
    is_congested: Callable[[int], bool],
) -> Place | None:
    """Where a timer message waits, and the properties that say where it belongs; None for one that asks for no delay.

    RequestFailed where it asks for what cannot be.
    """
    if topic == names.TIMER_TOPIC or keys.TIMER_OUT_MS in parsed or parsed.keys().isdisjoint(REQUESTS):
        return None
    if not settings.timer_wheel_enable:
        raise RequestFailed(
            ResponseCode.SYSTEM_ERROR,
            "accurate timer message is not enabled, timerWheelEnable is false",
            hint="start the broker with timerWheelEnable=true, or use one of the delay levels (property DELAY)",
        )
    asked_ms = _asked_ms(parsed, settings, now_ms)
    if asked_ms <= now_ms:
        if keys.TIMER_DELETE_UNIQUE_KEY in parsed:
            raise _illegal(settings, "it recalls a message whose time has passed")
        return None
    if asked_ms - now_ms > settings.timer_max_delay_sec * 1000:
        raise _illegal(settings, f"it asks for a delay of {asked_ms - now_ms} ms")
    due_ms = slot_ms(asked_ms, settings.timer_precision_ms)
    if keys.TIMER_DELETE_UNIQUE_KEY not in parsed and is_congested(due_ms):  # a recall makes room
        limit = settings.timer_congest_num_each_slot
        raise RequestFailed(
            ResponseCode.SYSTEM_ERROR,
            f"timer message is under flow control, max num limit is {limit * 2} or the current value is greater than {limit}"
            f" and less than {limit * 2}, trigger random flow control",
            hint="spread messages over more moments; timerCongestNumEachSlot is the limit",
        )
    added = {keys.TIMER_OUT_MS: str(due_ms), keys.REAL_TOPIC: topic, keys.REAL_QUEUE_ID: str(queue_id)}
    return Place(names.TIMER_TOPIC, 0, extend_properties(properties, parsed, added), due_ms)


def slot_ms(asked_ms: int, precision_ms: int) -> int:
    """The slot that is over at the moment asked for, or as soon as one is after it."""
    return (asked_ms - 1) // precision_ms * precision_ms


def _asked_ms(parsed: Mapping[str, str], settings: Settings, now_ms: int) -> int:
    key = next(key for key in REQUESTS if key in parsed)
    text = parsed[key]
    if _NUMBER.fullmatch(text) is None or abs(int(text)) > _LARGEST:
        raise _illegal(settings, f"{key}={text[:30]!r} is not a number")
    if key == keys.TIMER_DELIVER_MS:
        return int(text)
    return now_ms + int(text) * (1000 if key == keys.TIMER_DELAY_SECONDS else 1)


def _illegal(settings: Settings, reason: str) -> RequestFailed:
    return RequestFailed(
        ResponseCode.MESSAGE_ILLEGAL,
        "timer message illegal, the delay time should not be bigger than the max delay "
        f"{settings.timer_max_delay_sec * 1000}ms; or if set del msg, the delay time should be bigger than the current "
        f"time: {reason}",
        hint="timerMaxDelaySec is the limit",
    )
