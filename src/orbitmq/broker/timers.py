"""Timer messages: put on the wheel as they come, delivered when their moment is over.

    timer topic  ->  wheel  ->  the topic the message is for
                       └─────>  the timer topic again, if the way is longer than the wheel's window

A message that was stored before its moment is on the wheel before that moment's slot fires, so a recall that was answered
counts. What cannot be delivered now is tried until it can: nothing is given up.

Java: TimerMessageStore
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.broker import names, statistics
from orbitmq.broker.durability import until_durable
from orbitmq.broker.histograms import DELAY_LATENCY, ON_DISK
from orbitmq.broker.timer_requests import NO_LIMIT
from orbitmq.errors import MessageError, StorageError
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
from orbitmq.tasks import set_within

if TYPE_CHECKING:
    import random
    from array import array
    from collections.abc import Iterator

    from orbitmq.broker.sending import Sending
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.broker.statistics import Statistics
    from orbitmq.broker.timer_counts import TimerCounts
    from orbitmq.clock import Clock
    from orbitmq.message.record import RawRecord
    from orbitmq.storage.checkpoint import TimerCheckpoint
    from orbitmq.storage.store import Store
    from orbitmq.storage.timer_store import DueSlot, TimerStore

logger = logging.getLogger(__name__)

QUEUE: Final = 0  # of the timer topic
_TIMER_TOPIC: Final = names.TIMER_TOPIC.encode()
NEVER_WAITED: Final = 2**63 - 1  # Java's mark of a message that was late before it could be put on the wheel
SPANS_SECONDS: Final = (5, 60, 300, 900, 3600, 14_400, 28_800, 86_400)

_LONGEST_SLEEP_SECONDS: Final = 0.1  # while something waits: an injected clock may jump
_AFTER_FAILURE_SECONDS: Final = 0.1
# What comes so soon after others waits for more. It is on the wheel before its slot fires all the same.
_TOGETHER_SECONDS: Final = 0.01
_PUT_PER_TURN: Final = 256
_PUT_TOGETHER: Final = 1024
_FIRED_PER_TURN: Final = 256

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


PutElsewhere = Callable[["str", "RawRecord", int, bool], Awaitable[bool]]
"""Goal, message, when it was put on the wheel, whether it has further to go. False: nobody took it."""


class _Ready(NamedTuple):
    """A message of the timer topic that can be put on the wheel."""

    queue_offset: int
    timer: Timer
    goal: str
    asked_seconds: int


class Timers:
    def __init__(
        self,
        wheel: TimerStore,
        counts: TimerCounts,
        store: Store,
        sending: Sending,
        configuration: BrokerConfiguration,
        stats: Statistics,
        clock: Clock,
        randomness: random.Random,
    ) -> None:
        self.wheel = wheel
        self.counts = counts  # of messages on the wheel
        self._store = store
        self._sending = sending
        self._configuration = configuration
        self._stats = stats
        self._clock = clock
        self._random = randomness
        self._delays = stats.histogram(DELAY_LATENCY)
        self._arrived = asyncio.Event()
        self._arrived.set()
        self._firing: DueSlot | None = None  # delivered up to `_next` of its units
        self._next = 0
        self._recalled: dict[str, RawRecord] = {}  # in the slot that fires
        self._stand_in = (0, 0)  # a slave in this master's place fired all slots before this, of its log up to there
        self._goals: dict[bytes, tuple[str, int]] = {}  # topics that messages are for, and Java's hashes of them
        low, high = store.queue_range(names.TIMER_TOPIC, QUEUE)
        if wheel.queue_offset > high:  # killed when the log was cut, before the wheel was told
            wheel.log_was_cut(store.log.end, high, store.log.last_stored_at_ms)
        wheel.queue_offset = max(wheel.queue_offset, low)

    # ---- for others

    def message_arrived(self) -> None:
        """A message came into the timer topic."""
        self._arrived.set()

    def is_congested(self, due_ms: int) -> bool:
        """Whether one more message for that moment is to be refused. Java: isReject"""
        limit = self._configuration.settings.timer_congest_num_each_slot
        if limit == NO_LIMIT:
            return False
        count = self.wheel.count_at(due_ms)
        if count <= limit:
            return False
        return count >= 2 * limit or self._random.randrange(1000) > 1000 * (count - limit) / (limit + 0.1)

    @property
    def read_behind_ms(self) -> int:
        """How late the slot is that fires next; 0 where nothing waits for it."""
        if not self.wheel.is_waiting:
            return 0
        return max(0, self._clock.now_ms() - (self.wheel.read_tick + 1) * self.wheel.precision_ms)

    @property
    def queue_behind(self) -> int:
        """Messages of the timer topic that are not on the wheel yet."""
        return max(0, self._store.queue_range(names.TIMER_TOPIC, QUEUE).max_offset - self.wheel.queue_offset)

    @property
    def queue_behind_ms(self) -> int:
        """How long the first of them waits already; 0 where there is none."""
        if not self.queue_behind:
            return 0
        stored_ms = self._store.stored_at_ms(names.TIMER_TOPIC, QUEUE, self.wheel.queue_offset)
        return max(0, self._clock.now_ms() - stored_ms) if stored_ms is not None else 0

    def done_until_ms(self) -> int:
        """Whatever was stored before this moment and was due before it is delivered."""
        now_ms = self._clock.now_ms()
        fired_ms = self.wheel.read_tick * self.wheel.precision_ms if self.wheel.is_waiting or self._firing else now_ms
        if not self.queue_behind:
            return min(fired_ms, now_ms)
        taken_ms = self._store.stored_at_ms(names.TIMER_TOPIC, QUEUE, self.wheel.queue_offset)
        return min(fired_ms, now_ms, taken_ms if taken_ms is not None else now_ms)

    def spread(self) -> list[tuple[int, int]]:
        """Of each span of time: its end in seconds from now, and how many messages are due in it."""
        now_ms = self._clock.now_ms()
        starts = (0, *SPANS_SECONDS)
        return [
            (stop, self.wheel.count_between(now_ms + start * 1000, now_ms + stop * 1000))
            for start, stop in zip(starts, SPANS_SECONDS, strict=False)
        ]

    # ---- on a slave

    async def follow(self, master: TimerCheckpoint) -> None:
        """Put on the wheel what the master has on its own, and pass over what it has delivered. The log must hold all of that."""
        wheel = self.wheel
        high = self._store.queue_range(names.TIMER_TOPIC, QUEUE).max_offset
        queue_offset = min(master.master_queue_offset or master.queue_offset, high)
        while wheel.queue_offset < queue_offset:
            most = min(_PUT_PER_TURN, queue_offset - wheel.queue_offset)
            entries = self._store.queue_entries(names.TIMER_TOPIC, QUEUE, wheel.queue_offset, most)
            now_ms = self._clock.now_ms()
            timers = [timer for offset, size, _ in entries or () if (timer := self._copied(offset, size, now_ms))]
            if wheel.put_many(timers, now_ms) < len(timers):
                return  # no room: what is missing is put when this broker is the master
            wheel.queue_offset += len(entries) if entries else most
            await asyncio.sleep(0)
        if wheel.follow_to(master.read_until_ms):
            await self.save()

    def log_was_cut(self, since_ms: int) -> None:
        """What was on the wheel behind its end is no timer any more. A start must not find it there either, so that is saved."""
        high = self._store.queue_range(names.TIMER_TOPIC, QUEUE).max_offset
        self.wheel.log_was_cut(self._store.log.end, high, since_ms)
        self._save(self.wheel.mark_to_save())

    def _copied(self, commit_log_offset: int, size: int, now_ms: int) -> Timer | None:
        """What of the master's timer topic belongs on the wheel."""
        if self.wheel.was_put(commit_log_offset):
            return None
        message = self._message(commit_log_offset, size)
        timer = self._asked(message, size) if message is not None else None
        return timer if timer is not None and not self.wheel.is_over(timer.due_ms, now_ms) else None

    # ---- by a slave in its master's place, and after its return

    async def fire_elsewhere(self, put: PutElsewhere) -> None:
        """What is due, put one after the other; what cannot be put now ends the round, and begins the next."""
        if not await self._put_waiting_elsewhere(put):
            return
        while (firing := self.wheel.due(self._clock.now_ms())) is not None:
            recalled = self._recalls(firing) if firing.has_recalls else {}
            for number in range(firing.fired, len(firing.positions)):
                if not number % _FIRED_PER_TURN:
                    await asyncio.sleep(0)  # much of it needs nobody to answer, but others want the event loop too
                unit = self.wheel.log.unit(firing.positions[number])
                message = self._message(unit.commit_log_offset, unit.size) if unit is not None else None
                if (
                    unit is None
                    or message is None
                    or _only_recalls(unit)
                    or self._is_taken_back(unit, message, recalled)
                ):
                    continue
                goal, rolls = self._goal(message)[0], bool(unit.kind & ROLL)
                if not await put(goal, message, unit.put_at_ms, rolls):
                    return
                self.counts.add(goal, 1 if unit.kind & RECALL else -1)
                self.wheel.note(number + 1)
            self.wheel.fired(firing)

    async def _put_waiting_elsewhere(self, put: PutElsewhere) -> bool:
        """False: not all of them are on the wheel."""
        wheel = self.wheel
        low, high = self._store.queue_range(names.TIMER_TOPIC, QUEUE)
        wheel.queue_offset = max(wheel.queue_offset, low)
        while wheel.queue_offset < high:
            entries = self._store.queue_entries(names.TIMER_TOPIC, QUEUE, wheel.queue_offset, _PUT_PER_TURN) or []
            for commit_log_offset, size, _ in entries:
                message = self._message(commit_log_offset, size)
                timer = self._asked(message, size) if message is not None else None
                now_ms = self._clock.now_ms()
                if message is not None and timer is not None and not wheel.was_put(commit_log_offset):
                    goal, _ = self._goal(message)
                    if not wheel.is_over(timer.due_ms, now_ms):
                        if not wheel.put_many([timer], now_ms):
                            return False
                        self.counts.add(goal, -1 if timer.recall else 1)
                    elif not timer.recall and not await put(goal, message, NEVER_WAITED, False):
                        return False
                wheel.queue_offset += 1
            if not entries:
                return False
            await asyncio.sleep(0)
        return True

    def due_for(self, goal: str, start_ms: int, stop_ms: int) -> Iterator[RawRecord]:
        """Messages for that topic that are on the wheel for that time."""
        topic_hash = java_hash(goal)
        for unit in self.wheel.units_between(start_ms, stop_ms):
            if unit.topic_hash == topic_hash:
                message = self._message(unit.commit_log_offset, unit.size)
                if message is not None and self._goal(message)[0] == goal:
                    yield message

    def take_back(self, slave: TimerCheckpoint, log_end: int) -> None:
        """What a slave, whose log ends there, fired in this master's place is not fired again."""
        self._stand_in = max(self._stand_in, (slave.read_until_ms // self.wheel.precision_ms, log_end))

    def _fired_elsewhere(self, due_ms: int, commit_log_offset: int) -> bool:
        tick, log_end = self._stand_in
        return commit_log_offset < log_end and due_ms // self.wheel.precision_ms < tick

    # ---- the work

    async def run(self) -> None:
        """Put on the wheel what comes and deliver what is due, for ever."""
        now, put_at = asyncio.get_running_loop().time, -_TOGETHER_SECONDS
        while True:
            self._arrived.clear()
            before = self.wheel.queue_offset
            wait_seconds = self.turn()
            if self.wheel.queue_offset != before:
                put_at = now()
            if wait_seconds == 0:
                await asyncio.sleep(0)  # more is to be done, but others want the event loop too
                continue
            if await set_within(self._arrived, wait_seconds) and now() - put_at < _TOGETHER_SECONDS:
                await asyncio.sleep(_TOGETHER_SECONDS)

    def turn(self) -> float | None:
        """A piece of the work; seconds until there is more, None when nothing waits."""
        settings = self._configuration.settings
        try:
            if not settings.timer_stop_enqueue and self._put_waiting():
                return 0
            if not settings.timer_stop_dequeue and self._fire():
                return 0
        except StorageError as error:
            logger.warning("timer messages wait, the store cannot take them now: %s", error)
            return _AFTER_FAILURE_SECONDS
        return _LONGEST_SLEEP_SECONDS if self.wheel.is_waiting else None

    async def save(self) -> None:
        """Make durable what was done so far; then a restart goes on from there."""
        mark = self.wheel.mark_to_save()
        if mark == self.wheel.checkpoint:
            return  # an idle broker wakes no thread
        # A slot has fired for good when what it delivered is on the device, not before.
        await until_durable(self._store, self._store.log.end)
        await asyncio.to_thread(self._save, mark)

    def stop(self) -> None:
        """Everything to disk; what cannot be saved is done again after the next start."""
        try:
            self._store.flush()
            self._save(self.wheel.mark_to_save())
        except StorageError as error:
            logger.error("cannot save the timers: %s", error)
        finally:
            self.wheel.close()

    def _save(self, mark: TimerCheckpoint) -> None:
        self.wheel.save(mark, self._clock.now_ms())
        self.counts.save()

    # ---- onto the wheel

    def _put_waiting(self) -> bool:
        """Whether there may be more."""
        wheel = self.wheel
        low, high = self._store.queue_range(names.TIMER_TOPIC, QUEUE)
        wheel.queue_offset = max(wheel.queue_offset, low)
        if wheel.queue_offset >= high:
            return False
        now_ms = self._clock.now_ms()
        if self._put_together(now_ms):
            return True
        entries = self._store.queue_entries(names.TIMER_TOPIC, QUEUE, wheel.queue_offset, _PUT_PER_TURN) or []
        ready: list[_Ready] = []
        end = wheel.queue_offset
        for number, (commit_log_offset, size, _) in enumerate(entries, end):
            message = self._message(commit_log_offset, size)
            timer = self._asked(message, size) if message is not None else None
            if message is not None and timer is not None and not wheel.was_put(commit_log_offset):
                goal, _ = self._goal(message)
                asked_seconds = (timer.due_ms - message.born_at_ms) // 1000
                if not wheel.is_over(timer.due_ms, now_ms):
                    ready.append(_Ready(number, timer, goal, asked_seconds))
                elif ready:
                    break  # the next turn begins with it, so that it is not delivered twice should these not be put
                else:
                    if not timer.recall and not self._fired_elsewhere(timer.due_ms, commit_log_offset):
                        self._deliver(message, NEVER_WAITED, roll=False)
                    self._taken(goal, asked_seconds)
            end = number + 1
            if not ready:
                wheel.queue_offset = end
        put = wheel.put_many([each.timer for each in ready], now_ms)
        for _, timer, goal, asked_seconds in ready[:put]:
            self._taken(goal, asked_seconds)
            self.counts.add(goal, -1 if timer.recall else 1)
        wheel.queue_offset = end if put == len(ready) else ready[put].queue_offset
        wheel.note(self._next if self._firing is not None else 0)
        return True

    def _put_together(self, now_ms: int) -> bool:
        """The quick way; False if the first of them has to be looked at."""
        wheel = self.wheel
        entries = self._store.packed_entries(names.TIMER_TOPIC, QUEUE, wheel.queue_offset, _PUT_TOGETHER)
        put = wheel.put_together(entries, _TIMER_TOPIC, self._store.log, now_ms)
        if not put.messages:
            return False
        for goal, asked_seconds, messages in put.waits:
            self._taken(goal, asked_seconds, messages)
            self.counts.add(goal, messages)
        wheel.queue_offset += put.messages
        wheel.note(self._next if self._firing is not None else 0)
        return True

    def _taken(self, goal: str, asked_seconds: int, messages: int = 1) -> None:
        self._stats.counter(statistics.TIMER_ENQUEUE_NUMS, goal).add(messages)
        self._delays.record(asked_seconds, goal, *ON_DISK.values(), times=messages)

    def _asked(self, message: RawRecord, size: int) -> Timer | None:
        """What a message of the timer topic asks for; None, and said, when it does not say when or where."""
        properties = message.properties
        due_ms = property_number(_find_due(properties), -1, LONG_DIGITS)
        goal, topic_hash = self._goal(message)
        if not goal or due_ms < 0 or property_number(_find_queue(properties), -1) < 0:
            logger.error(
                "skipped a message of the timer topic at %d: it does not say when or where", message.commit_log_offset
            )
            return None
        return Timer(due_ms, message.commit_log_offset, size, topic_hash, recall=_find_recalled(properties) is not None)

    def _goal(self, message: RawRecord) -> tuple[str, int]:
        """The topic that a message is for, and Java's hash of it."""
        topic = _find_topic(message.properties) or b""
        goal = self._goals.get(topic)
        if goal is None:
            if len(self._goals) >= _GOALS_REMEMBERED:
                self._goals.clear()
            name = topic.decode("utf-8", "replace")
            goal = self._goals[topic] = (name, java_hash(name))
        return goal

    # ---- off the wheel

    def _fire(self) -> bool:
        """Whether there may be more."""
        if self._firing is None:
            self._firing = self.wheel.due(self._clock.now_ms())
            if self._firing is None:
                return False
            self._next = self._firing.fired
            self._recalled = self._recalls(self._firing) if self._firing.has_recalls else {}
        positions = self._firing.positions
        stop = min(len(positions), self._next + _FIRED_PER_TURN)
        while self._next < stop:
            if not self._recalled and not self._stand_in[1] and self._send_on(positions, stop):
                continue
            unit = self.wheel.log.unit(positions[self._next])
            if unit is not None and not _only_recalls(unit):
                self._fire_unit(unit)
            self._next += 1
            self.wheel.note(self._next)
        if stop == len(positions):
            self._slot_is_done(self._firing)
        return True

    def _slot_is_done(self, firing: DueSlot) -> None:
        for message in self._recalled.values():  # found nothing to take back
            self.counts.add(self._goal(message)[0], 1)
        self._recalled = {}
        self._firing = None
        self.wheel.fired(firing)

    def _recalls(self, due: DueSlot) -> dict[str, RawRecord]:
        found = {}
        for position in due.positions:
            unit = self.wheel.log.unit(position)
            if unit is None or not _only_recalls(unit):
                continue
            message = self._message(unit.commit_log_offset, unit.size)
            if message is not None:
                found[(_find_recalled(message.properties) or b"").decode("utf-8", "replace")] = message
        return found

    def _fire_unit(self, unit: TimerUnit) -> None:
        message = self._message(unit.commit_log_offset, unit.size)
        if message is None:
            return
        topic, _ = self._goal(message)
        if self._is_taken_back(unit, message, self._recalled):
            return
        if not self._fired_elsewhere(unit.fires_ms, unit.commit_log_offset):
            self._deliver(message, unit.put_at_ms, roll=bool(unit.kind & ROLL))
        self.counts.add(topic, 1 if unit.kind & RECALL else -1)

    def _is_taken_back(self, unit: TimerUnit, message: RawRecord, recalled: dict[str, RawRecord]) -> bool:
        """Recalled by its sender, or not the message that the unit is of. A recall counts once."""
        if unit.kind & ROLL:
            return False
        if self._is_of_another(unit, message):
            return True
        unique_key = (_find_unique_key(message.properties) or b"").decode("utf-8", "replace") if recalled else ""
        return bool(recalled) and recalled.pop(recall_key(self._goal(message)[0], unique_key), None) is not None

    def _send_on(self, positions: array[int], stop: int) -> bool:
        """Deliver some of a slot the quick way; False if the next one has to be looked at."""
        wheel = self.wheel
        wheel.note(self._next)  # which slot that is; its units are noted one by one
        sent = self._store.sending_on.timers(
            positions, self._next, stop, wheel.log.files, _TIMER_TOPIC, wheel.precision_ms, wheel.place_of_fired()
        )
        for topic, messages, size in sent.by_topic:
            self._sending.count(topic, messages, size)
            self._stats.counter(statistics.TIMER_DEQUEUE_NUMS, topic).add(messages)
            self.counts.add(topic, -messages)
        self._next += sent.messages
        wheel.note(self._next)
        return sent.messages > 0

    def _is_of_another(self, unit: TimerUnit, message: RawRecord) -> bool:
        """Whether the log was cut since the unit was put, and has a later timer at that place. That one has a unit of its own."""
        due_ms = property_number(_find_due(message.properties), -1, LONG_DIGITS)
        precision_ms = self.wheel.precision_ms
        return due_ms // precision_ms > unit.fires_ms // precision_ms

    def _message(self, commit_log_offset: int, size: int) -> RawRecord | None:
        """None if there is none: its file has expired, or the log of a former slave was cut before it."""
        record = self._store.log.read(commit_log_offset, size)
        try:
            message = decode_raw(record) if record is not None else None
        except MessageError as error:
            logger.error("dropped a timer message that cannot be read: %s", error)
            return None
        return message if message is not None and message.topic == names.TIMER_TOPIC else None

    def _deliver(self, message: RawRecord, put_at_ms: int, *, roll: bool) -> None:
        """StorageError when the store cannot take it now."""
        goal, _ = self._goal(message)
        topic, queue_id = message.topic, message.queue_id
        now_ms = self._clock.now_ms()
        if roll:
            turns = property_number(_find_turns(message.properties), 0)
            told = _TOLD_AND_ROLLED % (put_at_ms, now_ms, turns + 1)
        else:
            topic, queue_id = goal, property_number(_find_queue(message.properties), 0)
            told = _TOLD % (put_at_ms, now_ms)
        size = self._append(topic, queue_id, message, _told(message.properties, told))
        self._sending.count(topic, 1, size)
        self._stats.counter(statistics.TIMER_DEQUEUE_NUMS, goal).add(1)

    def _append(self, topic: str, queue_id: int, message: RawRecord, properties: bytes) -> int:
        """The size of the record; 0 if it can never be stored, which is said."""
        # What it is told of its wait may be too much for the record.
        for attempt in (properties, message.properties):
            try:
                appended = self._store.append(
                    topic,
                    queue_id,
                    message.body,
                    attempt,
                    message.born_at_ms,
                    message.born_host,
                    message.flag,
                    message.sys_flag,
                    message.reconsume_times,
                )
            except MessageError as error:
                refusal = error
            else:
                return appended.end - appended.commit_log_offset
        logger.error("dropped a timer message of %s: %s", topic, refusal)
        return 0


def recall_key(topic: str, unique_key: str) -> str:
    return f"{topic}+{unique_key}"


def _told(properties: bytes, told: bytes) -> bytes:
    if _MAY_BE_TOLD.search(properties) is None and properties.endswith(b"\x02"):
        return properties + told
    return encode_properties({**decode_properties(properties), **decode_properties(told)})  # it rolled before


def _only_recalls(unit: TimerUnit) -> bool:
    return bool(unit.kind & RECALL) and not unit.kind & ROLL
