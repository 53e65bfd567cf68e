"""The timer wheel of a slave: it holds what its master's holds, and while this slave acts in its master's place, what is due on it
goes elsewhere.

Java: TimerMessageStore, EscapeBridge
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from orbitmq.broker import names
from orbitmq.broker.timer_messages import only_recalls
from orbitmq.broker.timers import FIRED_PER_TURN, NEVER_WAITED, PUT_PER_TURN, QUEUE
from orbitmq.message.tags import java_hash
from orbitmq.storage.timer_log import RECALL, ROLL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orbitmq.broker.timers import Timers
    from orbitmq.clock import Clock
    from orbitmq.message.record import RawRecord
    from orbitmq.storage.checkpoint import TimerCheckpoint
    from orbitmq.storage.store import Store
    from orbitmq.storage.timer_store import Timer

PutElsewhere = Callable[["str", "RawRecord", int, bool], Awaitable[bool]]
"""Goal, message, when it was put on the wheel, whether it has further to go. False: nobody took it."""


class SlaveTimers:
    def __init__(self, timers: Timers, store: Store, clock: Clock) -> None:
        self.wheel = timers.wheel
        self.counts = timers.counts
        self._timers = timers
        self._messages = timers.messages
        self._store = store
        self._clock = clock

    # ---- beside its master

    async def follow(self, master: TimerCheckpoint) -> None:
        """Put on the wheel what the master has on its own, and pass over what it has delivered. The log must hold all of that."""
        wheel = self.wheel
        high = self._store.queue_range(names.TIMER_TOPIC, QUEUE).max_offset
        queue_offset = min(master.master_queue_offset or master.queue_offset, high)
        while wheel.queue_offset < queue_offset:
            most = min(PUT_PER_TURN, queue_offset - wheel.queue_offset)
            entries = self._store.queue_entries(names.TIMER_TOPIC, QUEUE, wheel.queue_offset, most)
            now_ms = self._clock.now_ms()
            timers = [timer for offset, size, _ in entries or () if (timer := self._copied(offset, size, now_ms))]
            if wheel.put_many(timers, now_ms) < len(timers):
                return  # no room: what is missing is put when this broker is the master
            wheel.queue_offset += len(entries) if entries else most
            await asyncio.sleep(0)
        if wheel.follow_to(master.read_until_ms):
            await self._timers.save()

    def _copied(self, commit_log_offset: int, size: int, now_ms: int) -> Timer | None:
        """What of the master's timer topic belongs on the wheel."""
        if self.wheel.was_put(commit_log_offset):
            return None
        message = self._messages.at(commit_log_offset, size)
        timer = self._messages.asked(message, size) if message is not None else None
        return timer if timer is not None and not self.wheel.is_over(timer.due_ms, now_ms) else None

    # ---- in its place

    async def fire_elsewhere(self, put: PutElsewhere) -> None:
        """What is due, put one after the other; what cannot be put now ends the round, and begins the next."""
        if not await self._put_waiting_elsewhere(put):
            return
        while (firing := self.wheel.due(self._clock.now_ms())) is not None:
            recalled = self._messages.recalls(firing)
            for number in range(firing.fired, len(firing.positions)):
                if not number % FIRED_PER_TURN:
                    await asyncio.sleep(0)  # much of it needs nobody to answer, but others want the event loop too
                unit = self.wheel.log.unit(firing.positions[number])
                message = self._messages.at(unit.commit_log_offset, unit.size) if unit is not None else None
                if (
                    unit is None
                    or message is None
                    or only_recalls(unit)
                    or self._messages.is_taken_back(unit, message, recalled)
                ):
                    continue
                goal, rolls = self._messages.goal(message)[0], bool(unit.kind & ROLL)
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
            entries = self._store.queue_entries(names.TIMER_TOPIC, QUEUE, wheel.queue_offset, PUT_PER_TURN) or []
            for commit_log_offset, size, _ in entries:
                message = self._messages.at(commit_log_offset, size)
                timer = self._messages.asked(message, size) if message is not None else None
                now_ms = self._clock.now_ms()
                if message is not None and timer is not None and not wheel.was_put(commit_log_offset):
                    goal, _ = self._messages.goal(message)
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
                message = self._messages.at(unit.commit_log_offset, unit.size)
                if message is not None and self._messages.goal(message)[0] == goal:
                    yield message
