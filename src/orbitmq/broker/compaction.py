"""Topics with `cleanup.policy=COMPACTION`: of each key the latest message is kept, however old it is.

Their messages go through the commit log like all others, and expire there; a copy follows into a queue of its own
(`storage/compacted_queue.py`), which is what consumers of such a topic are served from. From time to time a thread drops what a
later message with the same KEYS has replaced.

Java: CompactionStore, CompactionService
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from orbitmq.broker.durability import until_durable
from orbitmq.broker.subscriptions import Wanted
from orbitmq.errors import RequestFailed, StorageError
from orbitmq.message.properties import KEYS, property_finder
from orbitmq.protocol.codes import ResponseCode
from orbitmq.storage.compacted_queue import CompactedQueue, record_of
from orbitmq.storage.lock import LastExit
from orbitmq.storage.reading import MAX_READ_BYTES
from orbitmq.storage.store import QueueRange
from orbitmq.storage.tables import CompactedTable

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from orbitmq.broker.topics import Topics
    from orbitmq.storage.json_file import JsonFile
    from orbitmq.storage.reading import ReadResult
    from orbitmq.storage.store import Store
    from orbitmq.storage.tables import TopicConfig

logger = logging.getLogger(__name__)

_ATTRIBUTE: Final = "cleanup.policy"
_COMPACTION: Final = "COMPACTION"
_BATCH: Final = 32
_EVERYTHING: Final = Wanted()
_find_keys: Final = property_finder(KEYS)

T = TypeVar("T")


def is_compacted(topic: TopicConfig) -> bool:
    return bool(topic.attributes) and topic.attributes.get(_ATTRIBUTE) == _COMPACTION


def read_as_served(
    store: Store,
    compacted: CompactedTopics | None,
    topic: str,
    queue_id: int,
    offset: int,
    max_count: int,
    wishes: Wanted = _EVERYTHING,
) -> ReadResult:
    """As consumers of the topic see it: from its compacted queue, if it has one."""
    if compacted is not None and compacted.holds(topic, queue_id):
        return compacted.read(topic, queue_id, offset, max_count, MAX_READ_BYTES, *wishes)
    return store.read(topic, queue_id, offset, max_count, MAX_READ_BYTES, *wishes)


def range_as_served(store: Store, compacted: CompactedTopics | None, topic: str, queue_id: int) -> QueueRange:
    """From the first message that can be read: it may have left the commit log long ago."""
    low, high = store.queue_range(topic, queue_id)
    queue = None if compacted is None else compacted.queues.get((topic, queue_id))
    return QueueRange(low if queue is None else min(low, queue.min_offset), high)


def check_key(topic: TopicConfig, properties: str) -> None:
    """RequestFailed for a message that could not replace another."""
    if is_compacted(topic) and not (_find_keys(properties.encode()) or b"").strip():
        raise RequestFailed(
            ResponseCode.MESSAGE_ILLEGAL,
            f"Required message key is missing: topic {topic.topic_name} keeps the latest message of each key",
            hint="set the property KEYS",
        )


class CompactedTopics:
    def __init__(self, file: JsonFile[CompactedTable], store: Store, topics: Topics) -> None:
        table = file.load()
        self._file = file
        self._unknown = table.unknown
        self._compacted_to = table.queue_offset_map
        self._store = store
        self._topics = topics
        self.queues: dict[tuple[str, int], CompactedQueue] = {}  # compiled pulls look into it themselves
        self._followed_to: dict[tuple[str, int], int] = {}
        self._begun_again: dict[tuple[str, int], int] = {}  # how often each queue had when it was looked at last
        self._one_at_a_time = asyncio.Lock()
        self._working: asyncio.Future[Any] | None = None
        self._is_stopping = False
        self._open_all()

    def holds(self, topic: str, queue_id: int) -> bool:
        return (topic, queue_id) in self.queues

    def follow(self, topic: str, queue_id: int) -> None:
        """Messages came into a queue; nothing happens unless its topic is compacted, or was."""
        config = self._topics.get(topic)
        is_wanted = config is not None and is_compacted(config)
        if not (is_wanted or self.queues):
            return
        try:
            self._forget_if_begun_again((topic, queue_id))  # whatever a slave knows of the topic by now
            if is_wanted:
                self._follow(topic, queue_id)
        except StorageError as error:  # the messages are safe in the log; the next arrival tries again
            logger.warning("queue %d of %s cannot be compacted now: %s", queue_id, topic, error)

    def _follow(self, topic: str, queue_id: int) -> None:
        key = (topic, queue_id)
        queue = self.queues.get(key) or self._open(topic, queue_id)
        low, high = self._store.queue_range(topic, queue_id)
        if queue.next_offset > high:
            self._cut_back(key)
        at = max(self._followed_to.get(key, 0), queue.next_offset, low)
        while at < high:
            found = self._store.read(topic, queue_id, at, _BATCH)
            for buffer in found.buffers:
                self._take(queue, buffer)
            if found.next_offset <= at:
                break
            at = found.next_offset
        self._followed_to[key] = at

    def log_was_cut(self) -> None:
        """What a slave has copied, and its master has not, was cut off its log."""
        for key in list(self.queues):
            self._cut_back(key)
            self.follow(*key)

    def _cut_back(self, key: tuple[str, int]) -> None:
        """The numbers behind the end of the queue are given to other messages."""
        low, end = self._store.queue_range(*key)
        queue, name = self.queues[key], _name(*key)
        if queue.next_offset > end:
            if self._compacted_to.get(name, -1) >= end:
                end = low  # values were dropped for some that are gone: what the log still has is copied again
                self._compacted_to[name] = end - 1
                self._save()
            queue.cut(end)
        self._followed_to.pop(key, None)

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int,
        tag_codes: AbstractSet[int] | None = None,
        accept: Callable[[memoryview], bool] | None = None,
        may_want: object = None,
    ) -> ReadResult:
        return self.queues[topic, queue_id].read(offset, max_count, max_bytes, tag_codes, accept)

    def forget_topic(self, topic: str) -> None:
        for key in [key for key in self.queues if key[0] == topic]:
            self._forget(key)
        for key in [key for key in self._begun_again if key[0] == topic]:
            del self._begun_again[key]

    def _forget_if_begun_again(self, key: tuple[str, int]) -> None:
        """The master has deleted the topic, and made it again."""
        if (begun_again := self._store.begun_again(*key)) != self._begun_again.get(key, 0):
            self._begun_again[key] = begun_again
            self._forget(key)

    def _forget(self, key: tuple[str, int]) -> None:
        self._followed_to.pop(key, None)
        if self._compacted_to.pop(_name(*key), None) is not None:
            self._save()  # first: nothing that comes under these numbers was looked at
        if key in self.queues:
            self.queues.pop(key).remove()

    async def compact(self) -> None:
        """One round over all queues. The writing is done by a thread, the exchange here."""
        if not self.queues:
            return
        async with self._one_at_a_time:
            for key, queue in list(self.queues.items()):
                safe_to, compacted_to = queue.next_offset, self._compacted_to.get(_name(*key), -1)
                # A power cut must not take from the log what another is dropped for.
                await until_durable(self._store, self._store.log.end)
                looked_to = await self._in_thread(partial(queue.compact, compacted_to, safe_to))
                if looked_to is not None and queue.exchange():
                    self._compacted_to[_name(*key)] = looked_to
                    logger.info("compacted queue %d of %s up to offset %d", key[1], key[0], looked_to)
            await self._in_thread(self._save)

    async def sync(self) -> None:
        if not self.queues:
            return
        async with self._one_at_a_time:
            await self._in_thread(self._sync)

    async def stop(self) -> None:
        """Return once no thread works on the files any more, and all of them are saved."""
        self._is_stopping = True
        for queue in self.queues.values():
            queue.give_up()
        if self._working is not None:
            await asyncio.wait((self._working,))
        try:
            self._sync()
            self._save()
        except StorageError as error:
            logger.error("cannot save the compacted topics: %s", error)
        finally:
            for queue in self.queues.values():
                queue.close()

    async def _in_thread(self, work: Callable[[], T]) -> T | None:
        """None once the broker stops."""
        if self._is_stopping:
            return None
        # Whoever waits may be cancelled; the thread cannot be, so `stop` has to find it.
        working = self._working = asyncio.ensure_future(asyncio.to_thread(work))
        return await asyncio.shield(working)

    def _take(self, queue: CompactedQueue, buffer: memoryview) -> None:
        """Adjacent records share a buffer."""
        at = 0
        while at < len(buffer):
            size = int.from_bytes(buffer[at : at + 4], "big")
            record = record_of(buffer[at : at + size])
            if record.key.strip():
                queue.put(record)
            at += size

    def _open_all(self) -> None:
        """What is on disk, and what came into the commit log since."""
        path, disk = self._store.config.compaction_path, self._store.disk
        for topic in disk.list(path / "compactionLog"):
            for queue in disk.list(path / "compactionLog" / topic.name):
                if queue.name.isdigit():
                    self._open(topic.name, int(queue.name))
        for key in self._store.queue_ranges():
            if key in self.queues:
                self._cut_back(key)
            self.follow(*key)

    def _open(self, topic: str, queue_id: int) -> CompactedQueue:
        config, name = self._store.config, _name(topic, queue_id)
        path = config.compaction_path
        # What has left the log was synced long before, and what compaction wrote, by it.
        sure_to = max(self._store.queue_range(topic, queue_id).min_offset, self._compacted_to.get(name, -1) + 1)
        queue = self.queues[topic, queue_id] = CompactedQueue(
            self._store.disk,
            path / "compactionLog" / topic / str(queue_id),
            path / "compactionCq" / topic / str(queue_id),
            config.compacted_log_bytes,
            config.compacted_queue_bytes,
            sure_to=sure_to if self._store.last_exit is LastExit.CRASHED else None,
        )
        if queue.looked_to > self._compacted_to.get(name, -1):
            self._compacted_to[name] = queue.looked_to
        return queue

    def _sync(self) -> None:
        for queue in list(self.queues.values()):
            queue.sync()

    def _save(self) -> None:
        self._file.save(CompactedTable(queue_offset_map=dict(self._compacted_to), unknown=self._unknown))


def _name(topic: str, queue_id: int) -> str:
    return f"{topic}_{queue_id}"
