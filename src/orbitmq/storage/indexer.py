"""Follows the commit log and fills the indexes: what makes an appended message findable.

A record gets an entry in its queue (unless it is a half-done or rolled-back transaction), one in each light queue it names,
and its keys go into the key index. Fresh records come from the log's `recent`, as they were appended; older ones are decoded
from the log (`entries_at`), any part of it, as often as one likes, because an index takes nothing twice. A queue whose numbers begin again
does so, too: its topic was deleted and made again.

Consumers wait for queues, so those are filled at once; keys wait until there are many of them, which makes each cheaper, and
until somebody looks for one, or the indexes are flushed.

Readers may see what is indexed, so nothing beyond the confirmed offset is: with synchronous flush, that is what is on disk.

Java: ReputMessageService, CommitLogDispatcherBuildConsumeQueue, CommitLogDispatcherBuildIndex
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, cast

from orbitmq.accelerated import compiled
from orbitmq.errors import StorageError
from orbitmq.message.log_entry import single_entries
from orbitmq.message.properties import (
    DELAY,
    INNER_BASE,
    INNER_NUM,
    KEYS,
    LONG_DIGITS,
    MULTI_DISPATCH,
    MULTI_QUEUE_OFFSET,
    REAL_QUEUE_ID,
    TAGS,
    UNIQUE_KEY,
    property_finder,
    property_number,
)
from orbitmq.message.sysflags import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from orbitmq.message.tags import LONGEST_KNOWN_TAG, MOST_AT_ONCE, tag_code
from orbitmq.storage.commit_log import (
    DELAY_TOPIC,
    LIGHT_QUEUE_ID,
    LIGHT_QUEUE_PREFIX,
    MOST_IN_BATCH,
    NO_QUEUE_ENTRY,
    may_multi_dispatch,
)
from orbitmq.storage.files import is_file_name
from orbitmq.storage.health import RunningFlags
from orbitmq.storage.queue_extension import LAST_EXTENSION_ADDRESS, ExtensionUnit
from orbitmq.storage.queue_index import QueueIndex, QueueRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from orbitmq.message.log_entry import BatchEntry, LogEntry
    from orbitmq.storage.commit_log import CommitLog
    from orbitmq.storage.config import StorageConfig
    from orbitmq.storage.deletions import Deletions
    from orbitmq.storage.health import Health
    from orbitmq.storage.index_file import KeyedRecord
    from orbitmq.storage.key_index import KeyIndex
    from orbitmq.storage.queue_extension import QueueExtensions
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
_HAS_WAITED: Final = f"{REAL_QUEUE_ID}\x01".encode()
_UNIQUE_KEY: Final = f"{UNIQUE_KEY}\x01".encode()
_VALUE_END: Final = 0x02  # as a number: looking for a single byte is quicker than for a text

NEVER: Final = 2**63  # a log offset that is not reached
_REMEMBERED: Final = 10_000  # tags, and kinds of properties
_COPIED_RECORDS: Final = 1024  # that are entered at once
_KEYS_AT_ONCE: Final = 4096  # that room is had for
_MANY: Final = 32  # entries whose keys are not worth keeping for later
_LONGEST_REMEMBERED: Final = 4096  # bytes of properties


class _Likeness:
    """Properties that differ in the unique key alone, as those of most messages do: what is found in one holds for all.

    The key stands at [start, end); `code` is what a queue entry keeps of the tag, `keys` the value of KEYS.
    """

    __slots__ = ("after", "before", "code", "end", "keys", "start")

    def __init__(self, properties: bytes, unique_key: bytes, keys: bytes | None, code: int) -> None:
        self.start = properties.rindex(_UNIQUE_KEY + unique_key) + len(_UNIQUE_KEY)
        self.end = self.start + len(unique_key)
        self.before = properties[: self.start]
        self.after = properties[self.end :]
        self.code = code
        self.keys = keys


class Indexer:
    """Belongs to the thread that appends; `enter_waiting_keys` may come from any."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        keys: KeyIndex | None,
        extensions: QueueExtensions,
        config: StorageConfig,
        health: Health,
        deletions: Deletions,
    ) -> None:
        self.indexed_to = 0  # every record before this log offset is indexed
        self.last_stored_at_ms = 0  # of the last record that was indexed
        self.on_arrival: Callable[[str, int, int], None] | None = None  # topic, queue id, the queue's next offset
        self._log = log
        self._queues = queues
        self._keys = keys
        self._extensions = extensions
        self.filter_bitmap: Callable[[str, bytes], bytes] | None = None  # of a topic and a message's properties
        self.delay_levels_ms = config.delay_levels_ms  # what level 1, 2, ... means now
        self._config = config
        self._health = health
        self._deletions = deletions
        self._tag_codes: dict[bytes | None, int] = {}  # None: a message without a tag
        self._likenesses: dict[int, _Likeness] = {}  # by length of the properties
        self._waiting_keys: list[
            KeyedRecord
        ] = []  # in the queues already; entered when there are many, or one is sought
        self._entering_keys = Lock()
        loops = compiled("indexes")
        # Extensions and light queues ask more of each entry than the compiled loop knows.
        self._loops = None if config.light_queues or config.queue_extensions else loops

    def catch_up(self, confirmed: int) -> None:
        """Index what was appended up to the log offset `confirmed`, then wake whoever waits for its queues."""
        recent = self._log.recent
        if not recent:
            return
        batch: list[LogEntry | BatchEntry]
        if _end(recent[-1]) <= confirmed:
            batch = list(recent)
            recent.clear()
        else:
            batch = []
            while _end(recent[0]) <= confirmed:
                batch.append(recent.popleft())
        self.index(batch)

    def index(self, batch: Sequence[LogEntry | BatchEntry]) -> None:
        """Enter records, in log order; those that are entered already change nothing."""
        if not batch:
            return
        touched = self._enter_queues(batch)
        if len(self._waiting_keys) >= MOST_AT_ONCE:
            self.enter_waiting_keys()
        self._wake(touched)

    def index_copied(self, memory: memoryview, position: int, limit: int, start: int) -> int:
        """Enter the usual records that a slave has copied to `position` of a file and behind it; where the last of them ends.

        The file begins at the log offset `start`. None is entered without a compiled loop, and where the first one is unusual: `index`
        takes that.
        """
        if self._loops is None or not self._may_enter_keys():
            return position
        with self._entering_keys, self._room_for_keys(start + position) as keys:
            if keys is None and self._keys is not None:
                return position
            end, stored_at_ms, runs = self._loops.index_copied(
                memory,
                position,
                limit,
                start,
                _COPIED_RECORDS,
                self._tag_codes,
                self._queues.queues,
                QueueIndex,
                DELAY_TOPIC,
                keys,
            )
        if end == position:
            return position
        touched = [run.queue for run in runs]
        with self._queues.lock:
            for run in runs:
                run.queue.put_packed(run.first, run.packed, run.start, run.end)
            self._queues.touched(touched)
            self.indexed_to = start + end
            self.last_stored_at_ms = stored_at_ms
        self._wake(touched)
        return int(end)

    @property
    def is_compiled(self) -> bool:
        return self._loops is not None

    @property
    def keyed_to(self) -> int:
        """The keys of every record before this log offset are in the key index."""
        return self._keys.resume_offset if self._keys is not None else NEVER

    @property
    def keys_are_kept_out(self) -> bool:
        """By a disk that is full or fails: `retry_keys` before anything is added."""
        return RunningFlags.INDEX_ERROR in self._health.flags

    def retry_keys(self) -> None:
        """Enter the keys that a full disk kept out of the key index. Raises as long as it does so again."""
        self._put_waiting_keys()
        self._health.clear(RunningFlags.INDEX_ERROR)

    def enter_waiting_keys(self) -> None:
        """Make every indexed record findable by its keys; a full disk is reported, not raised.

        After that it is for `retry_keys`.
        """
        if self.keys_are_kept_out:
            return
        try:
            self._put_waiting_keys()
        except StorageError as error:
            # The messages themselves are safe and in their queues. Appending stops until their keys are in as well; those
            # that are in already will not be entered twice.
            self._health.report(RunningFlags.INDEX_ERROR, error)

    def forget_keys(self, offset: int) -> None:
        """The log was cut at `offset`: nothing behind it is found by its keys, now or later."""
        with self._entering_keys:
            self._waiting_keys[:] = [record for record in self._waiting_keys if record[0] < offset]
            if self._keys is not None:
                self._keys.truncate(offset)

    def enter_keys(self, batch: list[LogEntry]) -> None:
        """The keys alone, of records that are in their queues already."""
        for entry in batch:
            self._look_up(entry)
        self.enter_waiting_keys()

    def index_deleted(self, batch: list[LogEntry]) -> None:
        """Records of topics that were deleted: their keys, and light queues, which are topics of their own."""
        with self._queues.lock:
            for entry in batch:
                code = self._look_up(entry)
                if self._config.light_queues and _names_light_queues(entry):
                    self._queues.touched(self._put_light(entry, code))
        self.indexed_to = _end(batch[-1])
        self.last_stored_at_ms = batch[-1][5]

    def _wake(self, touched: Iterable[AnyQueue]) -> None:
        if self.on_arrival is not None:
            for queue in touched:
                self.on_arrival(queue.topic, queue.queue_id, queue.next_offset)

    def _may_enter_keys(self) -> bool:
        """Those that wait come first. False: the disk is full, and they go on waiting."""
        if self._waiting_keys:
            self.enter_waiting_keys()
        return not self.keys_are_kept_out

    def _room_for_keys(self, offset: int) -> AbstractContextManager[Any]:
        if self._keys is None:
            return nullcontext()
        return self._keys.open(offset, _KEYS_AT_ONCE)

    def _enter_queues(self, batch: Sequence[LogEntry | BatchEntry]) -> list[AnyQueue]:
        """Their queues; their keys as well, or among those that wait. Nearly every message comes by here."""
        others: dict[AnyQueue, None] = {}
        with self._queues.lock:
            if self._loops is None:
                # Nobody makes entries of batches where nobody takes them.
                self._enter_all(cast("Sequence[LogEntry]", batch), others)
            else:
                done, keys_wait = 0, len(batch) < _MANY
                while done < len(batch):
                    count = self._enter_usual(self._loops, batch, done, others, keys_wait=keys_wait)
                    if not count:
                        self._enter_all(single_entries(batch[done]), others)  # of a new queue, with a new tag
                        count, keys_wait = 1, True  # perhaps they all have
                    done += count
            touched = list(others)
            self._queues.touched(touched)
            self.indexed_to = _end(batch[-1])
            self.last_stored_at_ms = batch[-1][5]
        return touched

    def _enter_all(self, batch: Sequence[LogEntry], touched: dict[AnyQueue, None]) -> None:
        runs: dict[tuple[str, int], QueueRun] = {}
        known, known_queues, waiting_keys = self._likenesses, self._queues.queues, self._waiting_keys
        has_keys, light_queues = self._keys is not None, self._config.light_queues
        extends = self._config.queue_extensions
        for entry in batch:
            queue, offset, size, queue_offset, sys_flag, stored_at_ms, properties = entry
            like = known.get(len(properties))
            if (
                like is not None
                and properties[: like.start] == like.before
                and properties[like.end :] == like.after
                and _VALUE_END not in (unique_key := properties[like.start : like.end])
                and not sys_flag & NO_QUEUE_ENTRY
                and queue[0] != DELAY_TOPIC
            ):
                code = like.code
                if has_keys:
                    waiting_keys.append((offset, stored_at_ms, queue[0], unique_key, like.keys))
            else:
                code = self._look_up(entry)
                if sys_flag & NO_QUEUE_ENTRY:
                    continue
            run = runs.get(queue)
            if run is None:
                if queue not in known_queues and not is_file_name(queue[0]):  # of a log that others wrote
                    logger.error("the record at %d is in no queue: %.300r cannot be a topic", offset, queue[0])
                    continue
                opened = known_queues.get(queue) or self._queues.open(*queue)
                if type(opened) is not QueueIndex:
                    self._put_batch(opened, entry, code)
                    touched[opened] = None
                    continue
                run = runs[queue] = QueueRun(opened, queue_offset)
            if run.next != queue_offset:
                run.enter()
            kept = code
            if extends and queue_offset >= run.queue.next_offset:
                kept = self._extended(run.queue, stored_at_ms, properties, code)
            run.places.append((offset, size, kept))
            run.next = queue_offset + 1
            if light_queues and _names_light_queues(entry):
                for begun in runs.values():
                    begun.enter()  # a light queue may be among them
                touched.update(dict.fromkeys(self._put_light(entry, code)))
        for run in runs.values():
            run.enter()
            touched[run.queue] = None

    def _enter_usual(
        self,
        loops: Any,
        batch: Sequence[LogEntry | BatchEntry],
        start: int,
        touched: dict[AnyQueue, None],
        *,
        keys_wait: bool,
    ) -> int:
        """What the compiled loop enters from `start` on; how many entries that were. Keys of batches need not wait for more."""
        if self._keys is None:
            return self._enter_compiled(loops, batch, start, touched, None, None)
        is_batch = not isinstance(batch[start][6], bytes)
        if (is_batch or not keys_wait) and self._may_enter_keys():
            with self._entering_keys, self._room_for_keys(batch[start][1]) as keys:
                count = 0 if keys is None else self._enter_compiled(loops, batch, start, touched, keys, None)
            if count:
                return count
        return self._enter_compiled(loops, batch, start, touched, None, self._waiting_keys)

    def _enter_compiled(
        self,
        loops: Any,
        batch: Sequence[LogEntry | BatchEntry],
        start: int,
        touched: dict[AnyQueue, None],
        keys: Any,
        waiting_keys: list[KeyedRecord] | None,
    ) -> int:
        done, runs = loops.usual_entries(
            batch,
            start,
            self._tag_codes,
            self._queues.queues,
            QueueIndex,
            DELAY_TOPIC,
            self.delay_levels_ms,
            keys,
            waiting_keys,
        )
        for run in runs:
            run.queue.put_packed(run.first, run.packed, run.start, run.end)
            touched[run.queue] = None
        return int(done)

    def _extended(self, queue: QueueIndex, stored_at_ms: int, properties: bytes, code: int) -> int:
        """The address of what the entry has no room for; the tag hash itself if that cannot be written."""
        last: int | None = None
        if queue.next_offset > queue.min_offset:
            _, _, last = queue.entry(queue.next_offset - 1)
        bitmap = self.filter_bitmap(queue.topic, properties) if self.filter_bitmap is not None else b""
        known = last if last is not None and last <= LAST_EXTENSION_ADDRESS else None
        try:
            return self._extensions.put(queue.topic, queue.queue_id, ExtensionUnit(code, stored_at_ms, bitmap), known)
        except StorageError as error:
            logger.warning("an entry of %s is kept without its extension: %s", queue.topic, error)
            return code

    def _look_up(self, entry: LogEntry) -> int:
        """Keep the keys of a record to be entered; return what its queue keeps of its tag."""
        (topic, _), offset, _, _, sys_flag, stored_at_ms, properties = entry
        unique_key, keys = _find_unique_key(properties), _find_keys(properties)
        is_rolled_back = sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK
        if (unique_key is not None or keys is not None) and not is_rolled_back and self._keys is not None:
            self._waiting_keys.append((offset, stored_at_ms, topic, unique_key, keys))
        if topic == DELAY_TOPIC:
            level = property_number(_find_delay(properties), 0)
            if level > 0:
                levels = self.delay_levels_ms
                return stored_at_ms + levels[min(level, len(levels)) - 1]
        tags = _find_tags(properties)
        code = self._tag_codes.get(tags)
        if code is None:
            code = 0 if tags is None else tag_code(tags.decode("utf-8", "replace"))
            if tags is None or len(tags) <= LONGEST_KNOWN_TAG:
                if len(self._tag_codes) >= _REMEMBERED:
                    self._tag_codes.clear()
                self._tag_codes[tags] = code
        if len(properties) > _LONGEST_REMEMBERED:
            return code
        # What waits or has waited says so in numbers of its own: nothing else will be like it.
        if unique_key is not None and _HAS_WAITED not in properties and properties.count(_UNIQUE_KEY) == 1:
            self._remember(_Likeness(properties, unique_key, keys, code), len(properties))
        return code

    def _remember(self, like: _Likeness, length: int) -> None:
        if len(self._likenesses) >= _REMEMBERED:
            self._likenesses.clear()
        self._likenesses[length] = like

    def _put_waiting_keys(self) -> None:
        with self._entering_keys:
            count = len(self._waiting_keys)  # the appending thread may add more meanwhile
            if count:
                assert self._keys is not None
                self._keys.put_many(self._waiting_keys[:count])
                del self._waiting_keys[:count]

    def _put_batch(self, queue: AnyQueue, entry: LogEntry, code: int) -> None:
        assert not isinstance(queue, QueueIndex)
        _, offset, size, queue_offset, _, stored_at_ms, properties = entry
        base = property_number(_find_inner_base(properties), -1, LONG_DIGITS)
        count = property_number(_find_inner_num(properties), -1)
        if base >= 0 and 0 <= count <= MOST_IN_BATCH:
            # By its properties alone, which may be another's that it was made of, no record takes the place of others.
            if base == queue_offset or base >= queue.next_offset:
                queue.put(base, offset, size, 0, stored_at_ms, count)
        else:
            queue.put(queue_offset, offset, size, code, stored_at_ms, 1)

    def _put_light(self, entry: LogEntry, code: int) -> list[AnyQueue]:
        _, offset, size, _, _, _, properties = entry
        names = (_find_multi_dispatch(properties) or b"").decode("utf-8", "replace").rstrip(",").split(",")
        numbers = (_find_multi_queue_offset(properties) or b"").rstrip(b",").split(b",")
        if len(names) != len(numbers):
            logger.error("the record at %d names light queues without their offsets", offset)
            return []
        touched: list[AnyQueue] = []
        for name, digits in zip(names, numbers, strict=True):
            number = property_number(digits, -1, LONG_DIGITS)
            if name.startswith(LIGHT_QUEUE_PREFIX) and is_file_name(name) and number >= 0:
                if offset < self._deletions.log_offsets.get(name, 0):
                    continue
                queue = self._queues.open(name, LIGHT_QUEUE_ID)
                # The number may be a producer's word, in a batch that another broker took: it takes no other's place.
                if type(queue) is QueueIndex and (number >= queue.next_offset or queue.is_distrusted):
                    queue.put(number, offset, size, code)
                    touched.append(queue)
        return touched


def _names_light_queues(entry: LogEntry) -> bool:
    (topic, _), _, _, _, sys_flag, _, properties = entry
    return _MULTI_QUEUE_OFFSET in properties and may_multi_dispatch(topic) and not sys_flag & NO_QUEUE_ENTRY


def _end(entry: LogEntry | BatchEntry) -> int:
    return entry[1] + entry[2]
