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
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.broker import names, statistics
from orbitmq.broker.durability import until_durable
from orbitmq.broker.histograms import DELAY_LATENCY, ON_DISK
from orbitmq.broker.timer_messages import TimerMessages, goal_queue, only_recalls, told_of_its_wait
from orbitmq.broker.timer_requests import NO_LIMIT
from orbitmq.errors import MessageError, StorageError
from orbitmq.storage.timer_log import RECALL, ROLL
from orbitmq.tasks import set_within

if TYPE_CHECKING:
    import random
    from array import array

    from orbitmq.broker.sending import Sending
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.broker.statistics import Statistics
    from orbitmq.broker.timer_counts import TimerCounts
    from orbitmq.broker.timer_messages import Recalls
    from orbitmq.clock import Clock
    from orbitmq.message.record import RawRecord
    from orbitmq.storage.checkpoint import TimerCheckpoint
    from orbitmq.storage.store import Store
    from orbitmq.storage.timer_log import TimerUnit
    from orbitmq.storage.timer_store import DueSlot, Timer, TimerStore

logger = logging.getLogger(__name__)

QUEUE: Final = 0  # of the timer topic
_TIMER_TOPIC: Final = names.TIMER_TOPIC.encode()
NEVER_WAITED: Final = 2**63 - 1  # Java's mark of a message that was late before it could be put on the wheel
SPANS_SECONDS: Final = (5, 60, 300, 900, 3600, 14_400, 28_800, 86_400)

_LONGEST_SLEEP_SECONDS: Final = 0.1  # while something waits: an injected clock may jump
_AFTER_FAILURE_SECONDS: Final = 0.1
_AFTER_SURPRISE_SECONDS: Final = 1.0
# What comes so soon after others waits for more. It is on the wheel before its slot fires all the same.
_TOGETHER_SECONDS: Final = 0.01
PUT_PER_TURN: Final = 256
_PUT_TOGETHER: Final = 1024
FIRED_PER_TURN: Final = 256


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
        self.messages = TimerMessages(store.log, wheel)
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
        self._recalled: Recalls = {}  # in the slot that fires
        self._stand_in = (0, 0)  # a slave in this master's place fired all slots before this, of its log up to there
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

    def log_was_cut(self, since_ms: int) -> None:
        """What was on the wheel behind its end is no timer any more. A start must not find it there either, so that is saved."""
        high = self._store.queue_range(names.TIMER_TOPIC, QUEUE).max_offset
        self.wheel.log_was_cut(self._store.log.end, high, since_ms)
        self._save(self.wheel.mark_to_save())

    # ---- after a slave was in this master's place

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
            fires_first = self.wheel.must_fire_first(self._clock.now_ms())
            if not settings.timer_stop_enqueue and not fires_first and self._put_waiting():
                return 0
            if not settings.timer_stop_dequeue and self._fire():
                return 0
        except StorageError as error:
            logger.warning("timer messages wait, the store cannot take them now: %s", error)
            return _AFTER_FAILURE_SECONDS
        except Exception:  # leases live by this loop, and other messages: it goes on, whatever one of them does to it
            logger.exception("timer messages wait, one cannot be handled")
            return _AFTER_SURPRISE_SECONDS
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
        entries = self._store.queue_entries(names.TIMER_TOPIC, QUEUE, wheel.queue_offset, PUT_PER_TURN) or []
        ready: list[_Ready] = []
        end = wheel.queue_offset
        for number, (commit_log_offset, size, _) in enumerate(entries, end):
            message = self.messages.at(commit_log_offset, size)
            timer = self.messages.asked(message, size) if message is not None else None
            if message is not None and timer is not None and not wheel.was_put(commit_log_offset):
                goal, _ = self.messages.goal(message)
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
        # The first on an idle wheel may be of weeks ago. Then it fires before others come, which its slot could be for as well.
        together = ready if wheel.is_waiting else ready[:1]
        put = wheel.put_many([each.timer for each in together], now_ms)
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

    # ---- off the wheel

    def _fire(self) -> bool:
        """Whether there may be more."""
        if self._firing is None:
            self._firing = self.wheel.due(self._clock.now_ms())
            if self._firing is None:
                return False
            self._next = self._firing.fired
            self._recalled = self.messages.recalls(self._firing)
        positions = self._firing.positions
        stop = min(len(positions), self._next + FIRED_PER_TURN)
        while self._next < stop:
            if not self._recalled and not self._stand_in[1] and self._send_on(positions, stop):
                continue
            unit = self.wheel.log.unit(positions[self._next])
            if unit is not None and not only_recalls(unit):
                self._fire_unit(unit)
            self._next += 1
            self.wheel.note(self._next)
        if stop == len(positions):
            self._slot_is_done(self._firing)
        return True

    def _slot_is_done(self, firing: DueSlot) -> None:
        for message in self._recalled.values():  # found nothing to take back
            self.counts.add(self.messages.goal(message)[0], 1)
        self._recalled = {}
        self._firing = None
        self.wheel.fired(firing)

    def _fire_unit(self, unit: TimerUnit) -> None:
        message = self.messages.at(unit.commit_log_offset, unit.size)
        if message is None:
            return
        topic, _ = self.messages.goal(message)
        if self.messages.is_taken_back(unit, message, self._recalled):
            return
        if not self._fired_elsewhere(unit.fires_ms, unit.commit_log_offset):
            self._deliver(message, unit.put_at_ms, roll=bool(unit.kind & ROLL))
        self.counts.add(topic, 1 if unit.kind & RECALL else -1)

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

    def _deliver(self, message: RawRecord, put_at_ms: int, *, roll: bool) -> None:
        """StorageError when the store cannot take it now."""
        goal, _ = self.messages.goal(message)
        topic, queue_id = message.topic, message.queue_id
        now_ms = self._clock.now_ms()
        if not roll:
            topic, queue_id = goal, goal_queue(message)
        size = self._append(
            topic, queue_id, message, told_of_its_wait(message.properties, put_at_ms, now_ms, rolls=roll)
        )
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
