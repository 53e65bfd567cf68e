"""How far each group has come in each queue.

With light queues on, the table is kept in lmqConsumerOffset.json. Groups that read light queues (`%LMQ%...`) have a table of their
own there, one number each: a light queue is a single queue.

The file also says how long the commit log was when its last commit was made. Leases are in the log, so after a crash the positions of
groups that lease are brought up to date from there (leases/positions.py). Java's broker does not know that member, and drops it.

The other way round, the log must be on the device as far as the positions speak of it before they are. Else a power cut could
take leases and leave the position behind them, and nobody would be given those messages again.

Java: ConsumerOffsetManager, LmqConsumerOffsetManager
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from orbitmq.broker import names
from orbitmq.broker.saved_table import SavedTable
from orbitmq.errors import StorageError
from orbitmq.storage.tables import DataVersion, OffsetTable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.clock import Clock
    from orbitmq.storage.json_file import JsonFile

logger = logging.getLogger(__name__)

_AT = "@"
_LIGHT_QUEUE = 0
_LOG_END: Final = "orbitmqLogEnd"


async def _at_once() -> None:
    """Where there is no log to wait for."""


class ConsumerOffsets:
    """Offsets are "next to consume". A pending reset hides a group's commits until it has been taken up."""

    def __init__(self, file: JsonFile[OffsetTable], configuration: BrokerConfiguration, clock: Clock) -> None:
        table = file.load()
        self.version = table.data_version
        self._offsets = table.offset_table  # `topic@group` -> queue -> offset
        self._light = table.lmq_offset_table or {}  # `topic@group` -> offset
        self._has_light_queues = configuration.settings.enable_lmq
        self._unknown = table.unknown
        found = self._unknown.pop(_LOG_END, None)
        # Of the last commit in the file; None: not known, as in a file that Java's broker wrote.
        self.saved_log_end: int | None = found if isinstance(found, int) else None if self._offsets else 0
        self.log_end: Callable[[], int | None] = lambda: self.saved_log_end  # a slave's is what its master said
        self.until_log_is_safe: Callable[[], Awaitable[None]] = _at_once  # all of it; StorageError if it never will be
        # By topic, group and queue. Compiled pulls look into both themselves.
        self.resets: dict[tuple[str, str, int], int] = {}
        self.pulled_to: dict[tuple[str, str, int], int] = {}
        self._configuration = configuration
        self._clock = clock
        self._commits = self._saved_commits = 0
        self._saving = asyncio.Lock()
        self._safe_table = table
        self._saved = SavedTable(file, lambda: self._safe_table)

    # ---- committed

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """None, also where a client committed less than zero: then the group has not begun, to Apache's broker as well."""
        if self.is_light(group):
            offset = self._light.get(f"{topic}{_AT}{group}", -1)
        else:
            offset = self._offsets.get(f"{topic}{_AT}{group}", {}).get(queue_id, -1)
        return offset if offset >= 0 else None

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Stored as it is, also when it goes back: a consumer may have its reasons."""
        if self.is_light(group):
            self._light[f"{topic}{_AT}{group}"] = offset
        else:
            self._offsets.setdefault(f"{topic}{_AT}{group}", {})[queue_id] = offset
        self._commits += 1
        if self._commits % self._configuration.settings.consumer_offset_update_version_step == 0:
            self._bump()

    def queues(self, group: str, topic: str) -> dict[int, int]:
        if self.is_light(group):
            offset = self._light.get(f"{topic}{_AT}{group}")
            return {} if offset is None else {_LIGHT_QUEUE: offset}
        return self._offsets.get(f"{topic}{_AT}{group}", {})

    def topics_of(self, group: str) -> list[str]:
        return [topic for topic, of in map(_parts, self._offsets) if of == group]

    def groups_of(self, topic: str) -> list[str]:
        return [group for of, group in map(_parts, self._offsets) if of == topic]

    def clone(self, source: str, target: str, topic: str) -> None:
        queues = self._offsets.get(f"{topic}{_AT}{source}")
        if queues is not None:
            self._offsets[f"{topic}{_AT}{target}"] = dict(queues)

    def take_over(self, table: OffsetTable, log_end: int, *, forget_own: bool = False) -> None:
        """A slave has the offsets of its master, which know of all leases before `log_end`; the next regular save writes them.

        And no others: what the master has no more spoke of a topic that was deleted, and may have been made again since. Those of a
        former master may speak of messages that its successor does not have.
        """
        if forget_own or table.lmq_offset_table is not None:
            self._light.clear()
        self._offsets.clear()
        self.saved_log_end = log_end
        self._offsets.update(table.offset_table)
        self._light.update(table.lmq_offset_table or {})
        self.version = table.data_version

    def begin_acting(self) -> None:
        """From now on these offsets are newer than the master's, and say so."""
        self._bump()

    def take_back(self, table: OffsetTable, end_of: Callable[[str, int], int], *, but_of: str = "") -> None:
        """What a slave took in this master's place. Its word counts if it is the newer; else whichever is further.

        `end_of` a queue here bounds it: a master may have lost what its slave still has. A group to leave alone can be named.
        """
        is_newer = table.data_version.counter > self.version.counter
        for key, queues in table.offset_table.items():
            topic, group = _parts(key)
            if not topic or group == but_of:
                continue
            own = self._offsets.setdefault(key, {})
            for queue_id, offset in queues.items():
                theirs = min(offset, end_of(topic, queue_id))
                own[queue_id] = theirs if is_newer else max(theirs, own.get(queue_id, 0))
        for key, offset in (table.lmq_offset_table or {}).items():
            topic, _ = _parts(key)
            if topic:
                theirs = min(offset, end_of(topic, _LIGHT_QUEUE))
                self._light[key] = theirs if is_newer else max(theirs, self._light.get(key, 0))
        self._commits += 1
        if is_newer:
            self.version = table.data_version
            self._bump()

    def forget_topic(self, topic: str) -> None:
        for table in (self._offsets, self._light):
            for key in [key for key in table if _parts(key)[0] == topic]:
                del table[key]
        self._forget_passing(lambda key: key[0] == topic)

    def forget_group(self, group: str) -> None:
        for table in (self._offsets, self._light):
            for key in [key for key in table if _parts(key)[1] == group]:
                del table[key]
        self._forget_passing(lambda key: key[1] == group)

    def _forget_passing(self, is_gone: Callable[[tuple[str, str, int]], bool]) -> None:
        """A reset that nobody has taken up would send whoever comes under that name later past messages."""
        for table in (self.resets, self.pulled_to):
            for key in [key for key in table if is_gone(key)]:
                del table[key]

    def minimum(self, topic: str, filtered_groups: set[str]) -> dict[int, int]:
        """The smallest offset of each queue over all groups but the filtered."""
        lowest: dict[int, int] = {}
        for key, queues in self._offsets.items():
            of, group = _parts(key)
            if of == topic and group not in filtered_groups:
                for queue_id, offset in queues.items():
                    lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        return lowest

    # ---- where a reset sends a group next

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.resets[topic, group, queue_id] = offset
        self.commit(group, topic, queue_id, offset)

    @property
    def has_resets(self) -> bool:
        return bool(self.resets)

    def pending_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        return self.resets.get((topic, group, queue_id)) if self.resets else None

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset to send the group to, once."""
        return self.resets.pop((topic, group, queue_id), None) if self.resets else None

    # ---- where it last pulled to (memory only)

    def note_pull(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        self.pulled_to[topic, group, queue_id] = next_offset

    def pulled(self, group: str, topic: str, queue_id: int) -> int | None:
        return self.pulled_to.get((topic, group, queue_id))

    def table(self) -> OffsetTable:
        return self._snapshot()

    async def save(self) -> None:
        async with self._saving:
            table = self._to_save()
            try:
                await self.until_log_is_safe()
            except StorageError as error:
                logger.error("the consumer offsets are not saved: %s", error)
                return
            self._safe_table = table
            await self._saved.save_or_log()

    def _bump(self) -> None:
        self.version = DataVersion(counter=self.version.counter + 1, timestamp=self._clock.now_ms())

    def _snapshot(self) -> OffsetTable:
        offsets = {key: dict(queues) for key, queues in self._offsets.items()}
        light = dict(self._light) if self._has_light_queues else None
        return OffsetTable(
            data_version=self.version, offset_table=offsets, lmq_offset_table=light, unknown=self._unknown
        )

    def _to_save(self) -> OffsetTable:
        if self._commits != self._saved_commits:
            self._saved_commits, self.saved_log_end = self._commits, self.log_end()
        table = self._snapshot()
        if self.saved_log_end is not None:
            table.unknown = {**table.unknown, _LOG_END: self.saved_log_end}
        return table

    def is_light(self, group: str) -> bool:
        return self._has_light_queues and group.startswith(names.LIGHT_PREFIX)


def _parts(key: str) -> tuple[str, str]:
    """Topic and group. Keys of three parts belong to Apache's proxy; they are kept and otherwise left alone."""
    topic, _, group = key.partition(_AT)
    return (topic, group) if _AT not in group else ("", "")
