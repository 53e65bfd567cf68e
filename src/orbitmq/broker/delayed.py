"""Messages that wait: one queue per delay level, each in the order of its delivery times.

Every level has the same delay for all its messages, so the first that is not due yet says when to look again, and who comes
behind it need not be looked at before. A level that is given another meaning while the broker runs keeps its order: what waits in
it is delivered when it was to be, or sooner if the level is shorter now. A level that is no more is still emptied.

Java: ScheduleMessageService
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from orbitmq.broker import names
from orbitmq.broker.durability import until_durable
from orbitmq.broker.saved_table import SavedTable
from orbitmq.errors import MessageError, StorageError
from orbitmq.message import properties as keys
from orbitmq.message.properties import property_finder, property_number
from orbitmq.message.record import decode_raw
from orbitmq.storage.lock import LastExit
from orbitmq.storage.tables import DataVersion, DelayTable
from orbitmq.tasks import set_within

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from orbitmq.broker.sending import Sending
    from orbitmq.clock import Clock
    from orbitmq.message.record import RawRecord
    from orbitmq.storage.delay_progress import DelayProgress
    from orbitmq.storage.json_file import JsonFile
    from orbitmq.storage.store import Store

logger = logging.getLogger(__name__)

_LONGEST_SLEEP_SECONDS: Final = 0.1  # while something waits: an injected clock may jump
_AFTER_FAILURE_SECONDS: Final = 0.1
# What is due so soon after others were delivered waits for more. (Java looks ten times a second.)
_TOGETHER_SECONDS: Final = 0.01
_BATCH: Final = 256
_HOUR_MS: Final = 3_600_000
_AT_ONCE: Final = 0
_DELAY_TOPIC: Final = names.DELAY_TOPIC.encode()

_find_topic: Final = property_finder(keys.REAL_TOPIC)
_find_queue: Final = property_finder(keys.REAL_QUEUE_ID)


class DelayedMessages:
    def __init__(
        self,
        file: JsonFile[DelayTable],
        progress: DelayProgress,
        store: Store,
        sending: Sending,
        clock: Clock,
    ) -> None:
        table = file.load()
        self.version = table.data_version
        self._unknown = table.unknown
        self._progress = progress
        # What is delivered into a write pool is not in a file yet, and dies with the process: its note must not outlive it.
        self._notes_deliveries = not store.config.write_pool_buffers
        self._store = store
        self._sending = sending
        self._clock = clock
        self._arrived = asyncio.Event()
        self._deliveries = 0  # so far
        self._saved = SavedTable(file, self._durable_snapshot)
        noted = progress.read() if store.last_exit is LastExit.KILLED else {}
        in_use = {queue_id + 1 for _, queue_id in store.queue_ranges(names.DELAY_TOPIC)}
        self._offsets = {
            level: self._corrected(level, max(table.offset_table.get(level, 0), noted.get(level, 0)))
            for level in sorted({*range(1, len(store.delay_levels_ms) + 1), *in_use})
        }
        self._durable_offsets = dict(self._offsets)
        progress.begin(self._offsets)
        # Levels in which something waits, and when to look at them again.
        self._look_at_ms = dict.fromkeys(self._offsets, _AT_ONCE)
        self._arrived.set()
        self._warn_of_long_levels()

    def message_arrived(self, queue_id: int) -> None:
        """A message was parked. Where others wait already, it is not due before them."""
        level = queue_id + 1
        if level not in self._look_at_ms:
            self._look_at_ms[level] = _AT_ONCE
            self._arrived.set()

    def change_levels(self, levels_ms: tuple[int, ...]) -> None:
        """From now on the levels mean this."""
        self._store.delay_levels_ms = levels_ms
        for level in range(1, len(levels_ms) + 1):
            self._offsets.setdefault(level, self._corrected(level, 0))
        self._look_at_ms = dict.fromkeys(self._offsets, _AT_ONCE)
        self._arrived.set()
        self._warn_of_long_levels()

    def _warn_of_long_levels(self) -> None:
        kept_ms = self._store.config.keep_hours * _HOUR_MS
        long = [level for level, delay_ms in enumerate(self._store.delay_levels_ms, 1) if delay_ms >= kept_ms]
        if long:
            logger.warning(
                "delay level %d waits longer than files are kept (fileReservedTime), as %d levels do: messages may expire in them",
                long[0],
                len(long),
            )

    def take_over(self, table: DelayTable) -> None:
        """A slave delivers nothing, but knows how far its master has come."""
        self._offsets.update(
            table.offset_table
        )  # also of levels that only the master has: their messages come here too
        self._progress.begin(self._offsets)  # it may be less than what this broker noted as a master

    def take_back(self, table: DelayTable) -> None:
        """What a slave delivered in this master's place is not delivered again."""
        for level, offset in table.offset_table.items():
            self._offsets[level] = max(self._offsets.get(level, 0), self._corrected(level, offset))

    async def deliver_elsewhere(self, put: Callable[[str, RawRecord], Awaitable[bool]]) -> None:
        """By a slave in its master's place: what is due, of each level until somebody does not take it."""
        for level in list(self._offsets):
            while (due := self._first_due(level)) is not None:
                topic = (_find_topic(due.properties) or b"").decode("utf-8", "replace")
                if topic and topic != names.HALF_TOPIC and not await put(topic, due):
                    break
                self._offsets[level] += 1

    def _first_due(self, level: int) -> RawRecord | None:
        """Passes over what cannot be read."""
        while True:
            low, high = self._store.queue_range(names.DELAY_TOPIC, level - 1)
            self._offsets[level] = max(self._offsets[level], low)
            if self._offsets[level] >= high:
                return None
            entries = self._store.queue_entries(names.DELAY_TOPIC, level - 1, self._offsets[level], 1)
            message = self._read(level, *entries[0][:2]) if entries else None
            if message is not None:
                is_due = self._due_ms(message, entries[0][2] if entries else 0, level) <= self._clock.now_ms()
                return message if is_due else None
            self._offsets[level] += 1

    def progress(self) -> dict[int, tuple[int, int]]:
        """Of each level in use: the next offset to deliver, and where its queue ends."""
        ends = {level: self._store.queue_range(names.DELAY_TOPIC, level - 1).max_offset for level in self._offsets}
        return {level: (offset, ends[level]) for level, offset in self._offsets.items() if ends[level] > 0}

    def table(self) -> DelayTable:
        return self._snapshot(self._offsets)

    async def run(self) -> None:
        """Deliver what is due, for ever."""
        while True:
            before = self._deliveries
            wait_seconds = self.deliver_due()
            if wait_seconds == 0:
                await asyncio.sleep(0)  # more is due, but others want the event loop too
            elif self._deliveries != before:
                await asyncio.sleep(_TOGETHER_SECONDS)
            else:
                longest = None if wait_seconds is None else min(wait_seconds, _LONGEST_SLEEP_SECONDS)
                await set_within(self._arrived, longest)
                self._arrived.clear()

    def deliver_due(self) -> float | None:
        """Deliver what is due, up to some hundred of a level; seconds until there is more, or None when nothing waits."""
        failed = False
        for level, look_at_ms in list(self._look_at_ms.items()):
            now_ms = self._clock.now_ms()
            # A clock that was set back must not hold a message longer than its delay.
            if now_ms < look_at_ms <= now_ms + self._delay_ms(level):
                continue
            try:
                again_ms = self._deliver_level(level)
            except StorageError as error:
                logger.warning("messages of delay level %d wait, the store cannot take them now: %s", level, error)
                failed = True
                continue
            if again_ms is None:
                del self._look_at_ms[level]
            else:
                self._look_at_ms[level] = again_ms
        if failed:
            return _AFTER_FAILURE_SECONDS
        now_ms = self._clock.now_ms()
        first_ms = min(self._look_at_ms.values(), default=None)
        return None if first_ms is None else max(0, first_ms - now_ms) / 1000

    async def save(self) -> None:
        """What was delivered has to be on the device before a file there says that it was."""
        offsets = dict(self._offsets)
        try:
            await until_durable(self._store, self._store.log.end)
        except StorageError as error:
            logger.error("the delay offsets are not saved: %s", error)
            return
        self._durable_offsets = offsets
        await self._saved.save_or_log()

    def close(self) -> None:
        self._progress.close()

    def _delay_ms(self, level: int) -> int:
        """Of a level that is no more, the delay of the highest."""
        levels = self._store.delay_levels_ms
        return levels[min(level, len(levels)) - 1]

    def _deliver_level(self, level: int) -> int | None:
        """When to look again, or None when nothing waits."""
        low, high = self._store.queue_range(names.DELAY_TOPIC, level - 1)
        self._offsets[level] = max(self._offsets.get(level, 0), low)  # what lay there was deleted
        if self._offsets[level] >= high:
            return None
        first, count = self._offsets[level], min(high - self._offsets[level], _BATCH)
        entries: list[tuple[int, int, int]] = []
        done = 0
        while done < count:
            if sent := self._send_on(level, count - done):
                done += sent
                continue
            entries = entries or self._store.queue_entries(names.DELAY_TOPIC, level - 1, first, count) or []
            physical, size, due_code = entries[done]
            message = self._read(level, physical, size)
            if message is not None:
                due_ms = self._due_ms(message, due_code, level)
                if due_ms > self._clock.now_ms():
                    return due_ms
                self._deliver(message)
            self._delivered(level)
            done += 1
        return _AT_ONCE  # more may be due, but others want the event loop too

    def _read(self, level: int, commit_log_offset: int, size: int) -> RawRecord | None:
        record = self._store.log.read(commit_log_offset, size)
        try:
            return decode_raw(record) if record is not None else None
        except MessageError as error:
            logger.error("skipped a message of delay level %d that cannot be read: %s", level, error)
            return None

    def _due_ms(self, message: RawRecord, due_code: int, level: int) -> int:
        due_ms = min(message.stored_at_ms, self._clock.now_ms()) + self._delay_ms(level)
        # A smaller code is no time: where its entry is extended, an address.
        return min(due_ms, due_code) if due_code >= message.stored_at_ms else due_ms

    def _send_on(self, level: int, most: int) -> int:
        """Deliver what is due the quick way, and how many that were; 0 if the first that waits is not due, or has to be looked at."""
        if not self._store.sending_on.is_compiled:
            return 0
        offset = self._offsets[level]
        entries = self._store.packed_entries(names.DELAY_TOPIC, level - 1, offset, most)
        progress = self._progress.place(level) if self._notes_deliveries else None
        sent = self._store.sending_on.delayed(entries, _DELAY_TOPIC, self._clock.now_ms(), progress, offset + 1)
        for topic, messages, size in sent.by_topic:
            self._sending.count(topic, messages, size)
        self._offsets[level] = offset + sent.messages
        self._deliveries += sent.messages
        return sent.messages

    def _delivered(self, level: int) -> None:
        self._offsets[level] += 1
        self._deliveries += 1
        if self._notes_deliveries:
            self._progress.note(level, self._offsets[level])

    def _deliver(self, message: RawRecord) -> None:
        """StorageError when the store cannot take it now. What can never be delivered is dropped, and said so."""
        topic = (_find_topic(message.properties) or b"").decode("utf-8", "replace")
        queue_id = property_number(_find_queue(message.properties), -1)
        if not topic or queue_id < 0 or topic == names.HALF_TOPIC:
            logger.error("dropped a delayed message at %d: it does not say where it belongs", message.commit_log_offset)
            return
        try:
            appended = self._store.append(
                topic,
                queue_id,
                message.body,
                message.properties,
                message.born_at_ms,
                message.born_host,
                message.flag,
                message.sys_flag,
                message.reconsume_times,
            )
        except MessageError as error:
            logger.error("dropped a delayed message of %s: %s", topic, error)
            return
        self._sending.count(topic, 1, appended.end - appended.commit_log_offset)

    def _corrected(self, level: int, offset: int) -> int:
        low, high = self._store.queue_range(names.DELAY_TOPIC, level - 1)
        return min(max(offset, low), high)

    def _durable_snapshot(self) -> DelayTable:
        return self._snapshot(self._durable_offsets)

    def _snapshot(self, offsets: dict[int, int]) -> DelayTable:
        self.version = DataVersion(counter=self.version.counter + 1, timestamp=self._clock.now_ms())
        return DelayTable(data_version=self.version, offset_table=dict(offsets), unknown=self._unknown)
