"""Follows the commit log and fills the indexes: what makes an appended message findable.

A record gets an entry in its queue (unless it is a half-done or rolled-back transaction), one in each light queue it names,
and its keys go into the key index. Fresh records come from the log's `recent`, as they were appended; older ones are decoded
from the log (`entry_at`), any part of it, as often as one likes, because an index takes nothing twice.

Readers may see what is indexed, so nothing beyond the confirmed offset is: with synchronous flush, that is what is on disk.

Java: ReputMessageService, CommitLogDispatcherBuildConsumeQueue, CommitLogDispatcherBuildIndex
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from orbitmq.errors import StorageError
from orbitmq.message.properties import (
    DELAY,
    INNER_BASE,
    INNER_NUM,
    KEYS,
    MULTI_DISPATCH,
    MULTI_QUEUE_OFFSET,
    TAGS,
    UNIQUE_KEY,
    property_finder,
)
from orbitmq.message.record import decode_entry
from orbitmq.message.tags import tag_code
from orbitmq.storage.commit_log import DELAY_TOPIC, LIGHT_QUEUE_ID, LIGHT_QUEUE_PREFIX, NO_QUEUE_ENTRY, LogEntry
from orbitmq.storage.health import RunningFlags
from orbitmq.storage.queue_index import QueueIndex

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.storage.commit_log import CommitLog
    from orbitmq.storage.config import StorageConfig
    from orbitmq.storage.health import Health
    from orbitmq.storage.key_index import KeyIndex
    from orbitmq.storage.queue_table import AnyQueue, QueueTable

logger = logging.getLogger(__name__)

_find_tags: Final = property_finder(TAGS)
_find_keys: Final = property_finder(KEYS)
_find_unique_key: Final = property_finder(UNIQUE_KEY)
_find_delay: Final = property_finder(DELAY)
_find_inner_num: Final = property_finder(INNER_NUM)
_find_inner_base: Final = property_finder(INNER_BASE)
_find_multi_dispatch: Final = property_finder(MULTI_DISPATCH)
_find_multi_queue_offset: Final = property_finder(MULTI_QUEUE_OFFSET)
_MULTI_QUEUE_OFFSET: Final = MULTI_QUEUE_OFFSET.encode()

NEVER: Final = 2**63  # a log offset that is not reached
_REMEMBERED_TAGS: Final = 10_000


class Indexer:
    """Belongs to the thread that appends."""

    def __init__(
        self, log: CommitLog, queues: QueueTable, keys: KeyIndex | None, config: StorageConfig, health: Health
    ) -> None:
        self.indexed_to = 0  # every record before this log offset is indexed
        self.last_stored_at_ms = 0  # of the last record that was indexed
        self.on_arrival: Callable[[str, int, int], None] | None = None  # topic, queue id, the queue's next offset
        self._log = log
        self._queues = queues
        self._keys = keys
        self._config = config
        self._health = health
        self._tag_codes: dict[bytes | None, int] = {}  # None: a message without a tag
        self._keyless: list[LogEntry] = []  # their keys wait for room on the disk

    def catch_up(self, confirmed: int) -> None:
        """Index what was appended up to the log offset `confirmed`, then wake whoever waits for its queues."""
        recent = self._log.recent
        if not recent:
            return
        newest = recent[-1]
        if newest.commit_log_offset + newest.size <= confirmed:
            batch = list(recent)
            recent.clear()
        else:
            batch = []
            while recent[0].commit_log_offset + recent[0].size <= confirmed:
                batch.append(recent.popleft())
        self.index(batch)

    def index(self, batch: list[LogEntry]) -> None:
        """Enter records, in log order; those that are entered already change nothing."""
        if not batch:
            return
        touched = self._enter_queues(batch)
        self.enter_keys(batch)
        if self.on_arrival is not None:
            for queue in touched:
                self.on_arrival(queue.topic, queue.queue_id, queue.next_offset)

    @property
    def keyed_to(self) -> int:
        """The keys of every record before this log offset are in the key index."""
        return self._keys.resume_offset if self._keys is not None else NEVER

    def retry_keys(self) -> None:
        """Enter the keys that a full disk kept out of the key index. Raises as long as it does so again."""
        if self._keyless:
            self._put_keys(self._keyless)
            self._keyless = []
        self._health.clear(RunningFlags.INDEX_ERROR)

    @staticmethod
    def entry_at(memory: memoryview, position: int, commit_log_offset: int) -> LogEntry:
        record = decode_entry(memory, position, commit_log_offset)
        return LogEntry(
            (record.topic, record.queue_id),
            commit_log_offset,
            record.size,
            record.queue_offset,
            record.sys_flag,
            record.stored_at_ms,
            record.properties,
        )

    def _enter_queues(self, batch: list[LogEntry]) -> set[AnyQueue]:
        touched: set[AnyQueue] = set()
        known, known_codes = self._queues.queues, self._tag_codes
        with self._queues.lock:
            for entry in batch:
                if entry.sys_flag & NO_QUEUE_ENTRY:
                    continue
                queue = known.get(entry.queue) or self._queues.open(*entry.queue)
                code = known_codes.get(_find_tags(entry.properties))
                if code is None or entry.queue[0] == DELAY_TOPIC:
                    code = self._tags_code(entry)
                if type(queue) is QueueIndex:
                    queue.put(entry.queue_offset, entry.commit_log_offset, entry.size, code)
                else:
                    self._put_batch(queue, entry, code)
                touched.add(queue)
                if self._config.light_queues and _MULTI_QUEUE_OFFSET in entry.properties:
                    touched.update(self._put_light(entry, code))
            self._queues.touched(touched)
            last = batch[-1]
            self.indexed_to = last.commit_log_offset + last.size
            self.last_stored_at_ms = last.stored_at_ms
        return touched

    def enter_keys(self, batch: list[LogEntry]) -> None:
        """The keys alone; a full disk is reported, not raised."""
        if self._keys is None:
            return
        if self._keyless:
            self._keyless.extend(batch)
            return
        try:
            self._put_keys(batch)
        except StorageError as error:
            # The messages themselves are safe and in their queues. Appending stops until their keys are in as well; those
            # that are in already will not be entered twice.
            self._health.report(RunningFlags.INDEX_ERROR, error)
            self._keyless.extend(batch)

    def _tags_code(self, entry: LogEntry) -> int:
        if entry.queue[0] == DELAY_TOPIC:
            level = _find_delay(entry.properties)
            if level is not None and level.isdigit() and int(level) > 0:
                levels = self._config.delay_levels_ms
                return entry.stored_at_ms + levels[min(int(level), len(levels)) - 1]
        tags = _find_tags(entry.properties)
        code = 0 if tags is None else tag_code(tags.decode("utf-8", "replace"))
        if len(self._tag_codes) >= _REMEMBERED_TAGS:
            self._tag_codes.clear()
        self._tag_codes[tags] = code
        return code

    def _put_batch(self, queue: AnyQueue, entry: LogEntry, code: int) -> None:
        assert not isinstance(queue, QueueIndex)
        base, count = _find_inner_base(entry.properties), _find_inner_num(entry.properties)
        if base is not None and count is not None and base.isdigit() and count.isdigit():
            queue.put(int(base), entry.commit_log_offset, entry.size, 0, entry.stored_at_ms, int(count))
        else:
            queue.put(entry.queue_offset, entry.commit_log_offset, entry.size, code, entry.stored_at_ms, 1)

    def _put_light(self, entry: LogEntry, code: int) -> list[AnyQueue]:
        names = (_find_multi_dispatch(entry.properties) or b"").decode().split(",")
        offsets = (_find_multi_queue_offset(entry.properties) or b"").decode().split(",")
        if len(names) != len(offsets):
            logger.error("the record at %d names light queues without their offsets", entry.commit_log_offset)
            return []
        touched: list[AnyQueue] = []
        for name, offset in zip(names, offsets, strict=True):
            if name.startswith(LIGHT_QUEUE_PREFIX) and "/" not in name and offset.isdigit():
                queue = self._queues.open(name, LIGHT_QUEUE_ID)
                if type(queue) is QueueIndex:
                    queue.put(int(offset), entry.commit_log_offset, entry.size, code)
                    touched.append(queue)
        return touched

    def _put_keys(self, batch: list[LogEntry]) -> None:
        assert self._keys is not None
        put = self._keys.put
        for entry in batch:
            unique_key, keys = _find_unique_key(entry.properties), _find_keys(entry.properties)
            if unique_key is not None or keys is not None:
                put(
                    entry.commit_log_offset,
                    entry.stored_at_ms,
                    entry.queue[0],
                    unique_key if unique_key is None or unique_key.isascii() else unique_key.decode("utf-8", "replace"),
                    None if keys is None else keys.decode("utf-8", "replace"),
                    entry.sys_flag,
                )
