"""Messages of the timer topic: when each is due, where it belongs, which other it recalls.

    TIMER_OUT_MS            the moment
    REAL_TOPIC, REAL_QID    where it is for
    TIMER_DEL_UNIQKEY       recalls that one: `topic+unique key`, if it is for the same topic itself
    TIMER_ROLL_TIMES        turns it has made already, where its way is longer than the wheel's window

Java: TimerMessageStore
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final

from orbitmq.broker import names
from orbitmq.errors import MessageError
from orbitmq.message import properties as keys
from orbitmq.message.properties import (
    LONG_DIGITS,
    decode_properties,
    encode_properties,
    property_finder,
    property_number,
)
from orbitmq.message.record import decode_raw
from orbitmq.message.tags import java_hash
from orbitmq.storage.timer_log import RECALL, ROLL, TimerUnit
from orbitmq.storage.timer_store import Timer

if TYPE_CHECKING:
    from orbitmq.message.record import RawRecord
    from orbitmq.storage.commit_log import CommitLog
    from orbitmq.storage.timer_store import DueSlot, TimerStore

    Recalls = dict[tuple[str, str], RawRecord]  # by the topic that they are for, and what they recall

logger = logging.getLogger(__name__)

_find_due: Final = property_finder(keys.TIMER_OUT_MS)
_find_topic: Final = property_finder(keys.REAL_TOPIC)
_find_queue: Final = property_finder(keys.REAL_QUEUE_ID)
_find_recalled: Final = property_finder(keys.TIMER_DELETE_UNIQUE_KEY)
_find_unique_key: Final = property_finder(keys.UNIQUE_KEY)
_find_turns: Final = property_finder(keys.TIMER_ROLL_TIMES)
_GOALS_REMEMBERED: Final = 10_000

# What a message is told of its wait.
_TOLD: Final = f"{keys.TIMER_ENQUEUE_MS}\x01%d\x02{keys.TIMER_DEQUEUE_MS}\x01%d\x02".encode()
_TOLD_AND_ROLLED: Final = _TOLD + f"{keys.TIMER_ROLL_TIMES}\x01%d\x02".encode()
_MAY_BE_TOLD: Final = re.compile(f"{keys.TIMER_ENQUEUE_MS}|{keys.TIMER_DEQUEUE_MS}|{keys.TIMER_ROLL_TIMES}".encode())


class TimerMessages:
    def __init__(self, log: CommitLog, wheel: TimerStore) -> None:
        self._log = log
        self._wheel = wheel
        self._goals: dict[bytes, tuple[str, int]] = {}  # topics that messages are for, and Java's hashes of them

    def at(self, commit_log_offset: int, size: int) -> RawRecord | None:
        """None if there is none: its file has expired, or the log of a former slave was cut before it."""
        record = self._log.read(commit_log_offset, size)
        try:
            message = decode_raw(record) if record is not None else None
        except MessageError as error:
            logger.error("dropped a timer message that cannot be read: %s", error)
            return None
        return message if message is not None and message.topic == names.TIMER_TOPIC else None

    def asked(self, message: RawRecord, size: int) -> Timer | None:
        """What a message of the timer topic asks for; None, and said, when it does not say when or where."""
        properties = message.properties
        due_ms = property_number(_find_due(properties), -1, LONG_DIGITS)
        goal, topic_hash = self.goal(message)
        if not goal or due_ms < 0 or property_number(_find_queue(properties), -1) < 0:
            logger.error(
                "skipped a message of the timer topic at %d: it does not say when or where", message.commit_log_offset
            )
            return None
        return Timer(due_ms, message.commit_log_offset, size, topic_hash, recall=_find_recalled(properties) is not None)

    def goal(self, message: RawRecord) -> tuple[str, int]:
        """The topic that a message is for, and Java's hash of it."""
        topic = _find_topic(message.properties) or b""
        goal = self._goals.get(topic)
        if goal is None:
            if len(self._goals) >= _GOALS_REMEMBERED:
                self._goals.clear()
            name = topic.decode("utf-8", "replace")
            goal = self._goals[topic] = (name, java_hash(name))
        return goal

    def recalls(self, due: DueSlot) -> Recalls:
        """Those of a slot. Anybody may send one to a topic of their own: it counts for messages of that topic alone."""
        found: Recalls = {}
        for position in due.positions if due.has_recalls else ():
            unit = self._wheel.log.unit(position)
            if unit is None or not only_recalls(unit):
                continue
            message = self.at(unit.commit_log_offset, unit.size)
            if message is not None:
                recalled = (_find_recalled(message.properties) or b"").decode("utf-8", "replace")
                found[self.goal(message)[0], recalled] = message
        return found

    def is_taken_back(self, unit: TimerUnit, message: RawRecord, recalled: Recalls) -> bool:
        """Recalled by its sender, or not the message that the unit is of. A recall counts once."""
        if unit.kind & ROLL:
            return False
        if self._is_of_another(unit, message):
            return True
        if not recalled:
            return False
        topic = self.goal(message)[0]
        unique_key = (_find_unique_key(message.properties) or b"").decode("utf-8", "replace")
        return recalled.pop((topic, recall_key(topic, unique_key)), None) is not None

    def _is_of_another(self, unit: TimerUnit, message: RawRecord) -> bool:
        """Whether the log was cut since the unit was put, and has a later timer at that place. That one has a unit of its own."""
        due_ms = property_number(_find_due(message.properties), -1, LONG_DIGITS)
        precision_ms = self._wheel.precision_ms
        return due_ms // precision_ms > unit.fires_ms // precision_ms


def recall_key(topic: str, unique_key: str) -> str:
    return f"{topic}+{unique_key}"


def only_recalls(unit: TimerUnit) -> bool:
    return bool(unit.kind & RECALL) and not unit.kind & ROLL


def goal_queue(message: RawRecord) -> int:
    return property_number(_find_queue(message.properties), 0)


def told_of_its_wait(properties: bytes, put_at_ms: int, now_ms: int, *, rolls: bool) -> bytes:
    """The properties of a message that leaves the wheel, perhaps for another turn."""
    if rolls:
        told = _TOLD_AND_ROLLED % (put_at_ms, now_ms, property_number(_find_turns(properties), 0) + 1)
    else:
        told = _TOLD % (put_at_ms, now_ms)
    if _MAY_BE_TOLD.search(properties) is None and properties.endswith(b"\x02"):
        return properties + told
    return encode_properties({**decode_properties(properties), **decode_properties(told)})  # it rolled before
