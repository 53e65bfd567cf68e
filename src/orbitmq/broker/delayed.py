"""Messages that wait: one queue per delay level, each in the order of its delivery times.

Every level has the same delay for all its messages, so the first that is not due yet says when to look again.

Java: ScheduleMessageService
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Final

from orbitmq.broker import names
from orbitmq.broker.saved_table import SavedTable
from orbitmq.errors import MessageError, StorageError
from orbitmq.message import properties as keys
from orbitmq.message.record import decode_records
from orbitmq.storage.reading import ReadStatus
from orbitmq.storage.tables import DataVersion, DelayTable
from orbitmq.tasks import set_within

if TYPE_CHECKING:
    from orbitmq.broker.sending import Sending
    from orbitmq.clock import Clock
    from orbitmq.message.message import StoredMessage
    from orbitmq.storage.json_file import JsonFile
    from orbitmq.storage.store import Store

logger = logging.getLogger(__name__)

_LONGEST_SLEEP_SECONDS: Final = 0.1  # while something waits: an injected clock may jump
_AFTER_FAILURE_SECONDS: Final = 0.1
_BATCH: Final = 32
_BATCHES_PER_TURN: Final = 8
_QUEUE_ID: Final = re.compile(r"[0-9]{1,9}")


class DelayedMessages:
    def __init__(self, file: JsonFile[DelayTable], store: Store, sending: Sending, clock: Clock) -> None:
        table = file.load()
        self.version = table.data_version
        self._unknown = table.unknown
        self._store = store
        self._sending = sending
        self._clock = clock
        self._arrived = asyncio.Event()
        self._saved = SavedTable(file, self._snapshot)
        self._offsets = {
            level: self._corrected(level, table.offset_table.get(level, 0))
            for level in range(1, len(store.config.delay_levels_ms) + 1)
        }
        self._arrived.set()

    def message_arrived(self) -> None:
        """A message was parked."""
        self._arrived.set()

    def take_over(self, table: DelayTable) -> None:
        """A slave delivers nothing, but knows how far its master has come."""
        self._offsets.update((level, offset) for level, offset in table.offset_table.items() if level in self._offsets)

    def progress(self) -> dict[int, tuple[int, int]]:
        """Of each level in use: the next offset to deliver, and where its queue ends."""
        ends = {level: self._store.queue_range(names.DELAY_TOPIC, level - 1).max_offset for level in self._offsets}
        return {level: (offset, ends[level]) for level, offset in self._offsets.items() if ends[level] > 0}

    def table(self) -> DelayTable:
        return self._snapshot()

    async def run(self) -> None:
        """Deliver what is due, for ever."""
        while True:
            wait_seconds = self.deliver_due()
            longest = None if wait_seconds is None else min(wait_seconds, _LONGEST_SLEEP_SECONDS)
            await set_within(self._arrived, longest)
            self._arrived.clear()

    def deliver_due(self) -> float | None:
        """Deliver everything that is due; seconds until the next is, or None when nothing waits."""
        waits = [self._deliver_level(level) for level in self._offsets]
        return min((wait for wait in waits if wait is not None), default=None)

    async def save(self) -> None:
        await self._saved.save_or_log()

    def _deliver_level(self, level: int) -> float | None:
        delay_ms = self._store.config.delay_levels_ms[level - 1]
        for _ in range(_BATCHES_PER_TURN):
            result = self._store.read(names.DELAY_TOPIC, level - 1, self._offsets[level], _BATCH)
            if result.status is not ReadStatus.FOUND:
                if result.next_offset > self._offsets[level]:
                    self._offsets[level] = result.next_offset  # what lay there was deleted
                    continue
                return None
            try:
                for buffer in result.buffers:
                    for message in decode_records(buffer):
                        now_ms = self._clock.now_ms()
                        # A clock that was set back must not hold a message longer than its delay.
                        due_ms = min(message.stored_at_ms + delay_ms, now_ms + delay_ms)
                        if due_ms > now_ms:
                            return (due_ms - now_ms) / 1000
                        if not self._deliver(message):
                            return _AFTER_FAILURE_SECONDS
                        self._offsets[level] = message.queue_offset + 1
            except MessageError as error:
                logger.error("skipped a message of delay level %d that cannot be read: %s", level, error)
                self._offsets[level] += 1
        return 0.0  # more may be due, but others want the event loop too

    def _deliver(self, message: StoredMessage) -> bool:
        """False when the store cannot take it now. What can never be delivered is dropped, and said so."""
        topic = message.properties.get(keys.REAL_TOPIC)
        queue_id = message.properties.get(keys.REAL_QUEUE_ID, "")
        if not topic or _QUEUE_ID.fullmatch(queue_id) is None or topic == names.HALF_TOPIC:
            logger.error("dropped a delayed message at %d: it does not say where it belongs", message.commit_log_offset)
            return True
        try:
            appended = self._store.append(
                topic,
                int(queue_id),
                message.body,
                message.raw_properties,
                message.born_at_ms,
                message.born_host,
                message.flag,
                message.sys_flag,
                message.reconsume_times,
            )
        except StorageError as error:
            logger.warning("cannot deliver a delayed message of %s now: %s", topic, error)
            return False
        except MessageError as error:
            logger.error("dropped a delayed message of %s: %s", topic, error)
            return True
        self._sending.count(topic, 1, appended.end - appended.commit_log_offset)
        return True

    def _corrected(self, level: int, offset: int) -> int:
        low, high = self._store.queue_range(names.DELAY_TOPIC, level - 1)
        return min(max(offset, low), high)

    def _snapshot(self) -> DelayTable:
        self.version = DataVersion(counter=self.version.counter + 1, timestamp=self._clock.now_ms())
        return DelayTable(data_version=self.version, offset_table=dict(self._offsets), unknown=self._unknown)
