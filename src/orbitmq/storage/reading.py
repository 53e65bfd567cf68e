"""Reading a queue: entries from its index, records from the log, in as few pieces as possible, nothing copied (or, compiled, what is small).

Java: DefaultMessageStore.getMessage, isTheBatchFull, GetMessageStatus, GetMessageResult
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from orbitmq.accelerated import compiled
from orbitmq.storage.entry_log import NOWHERE_SIZE
from orbitmq.storage.queue_extension import LAST_EXTENSION_ADDRESS
from orbitmq.storage.queue_index import ENTRY, QueueIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from collections.abc import Set as AbstractSet

    from orbitmq.storage.commit_log import CommitLog
    from orbitmq.storage.config import StorageConfig
    from orbitmq.storage.queue_extension import ExtensionUnit, QueueExtensions
    from orbitmq.storage.queue_table import AnyQueue, QueueTable

MAX_READ_BYTES: Final = 128 << 20
LEAST_READ_BYTES: Final = 100  # Java takes no smaller limit
_NO_LIMIT: Final = 1 << 31


class ReadStatus(Enum):
    """Named as in Java, whose clients see the name in the response's remark."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"

    __hash__ = object.__hash__  # each is one object; Enum's own is two calls, and every pull looks its code up


class ReadResult(msgspec.Struct):
    status: ReadStatus
    next_offset: int  # where the reader should go on
    min_offset: int = 0
    max_offset: int = 0
    count: int = 0  # messages
    total_bytes: int = 0
    buffers: Sequence[memoryview] = ()  # whole records; adjacent ones share a buffer
    queue_offsets: Sequence[int] = ()  # of each record, in the order of the buffers
    far_behind: bool = False  # older than what page cache is likely to hold: better read from a slave


# Commit-log offset, size, tag hash, queue offset and number of messages of a record.
_Entry = tuple[int, int, int, int, int]


class _Limits(NamedTuple):
    """How much one read gives, whatever was asked for. Old messages are given in smaller pieces: they may have to come from disk."""

    bytes_in_memory: int
    count_in_memory: int
    bytes_on_disk: int
    count_on_disk: int


class QueueReader:
    """Any thread may read: a queue's entries are copied under the table's lock, records are never changed."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        extensions: QueueExtensions,
        config: StorageConfig,
        memory_bytes: int,
    ) -> None:
        self._log = log
        self._queues = queues
        self._extensions = extensions
        self._config = config
        self.recent_bytes = memory_bytes * config.memory_percent // 100
        self._loops = compiled("reads")
        self.usual = _Limits(
            config.max_read_bytes_in_memory,
            config.max_read_count_in_memory,
            config.max_read_bytes_on_disk,
            config.max_read_count_on_disk,
        )
        self.bulk = _Limits(config.max_bulk_read_bytes, _NO_LIMIT, config.max_read_bytes_in_memory, _NO_LIMIT)

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int = 32,
        max_bytes: int = MAX_READ_BYTES,
        tag_codes: AbstractSet[int] | None = None,
        accept: Callable[[memoryview], bool] | None = None,
        may_want: Callable[[ExtensionUnit], bool] | None = None,
        *,
        bulk: bool = False,
    ) -> ReadResult:
        """Records of a queue from `offset` on: at least one if any is there, whatever its size.

        `tag_codes` keeps messages whose tag hash is among them; `accept` decides by the record itself. `bulk`: for who
        reads whole queues, and is not held to the portions that keep many consumers from waiting for each other.
        """
        queue = self._queues.queues.get((topic, queue_id))
        if queue is None:
            return ReadResult(ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0)
        max_bytes = min(max(max_bytes, LEAST_READ_BYTES), MAX_READ_BYTES)
        plain = tag_codes is None and accept is None
        # Without a filter every entry counts, so there is no need to look at more than are wanted.
        limit = max(1, max_count) if plain else max(self._config.max_filtered_entries, max_count)
        with self._queues.lock:
            low, high = queue.min_offset, queue.next_offset
            if not low <= offset < high:
                return _outside(offset, low, high)
            if type(queue) is QueueIndex:
                data = queue.entries(offset, limit)
                if not data:
                    return ReadResult(ReadStatus.OFFSET_FOUND_NULL, queue.next_file_offset(offset), low, high)
                entries: Iterable[_Entry] = ()
            else:
                data, entries = b"", _batch_entries(queue, offset, limit)
        result = ReadResult(ReadStatus.NO_MATCHED_MESSAGE, offset, low, high)
        limits = self.bulk if bulk else self.usual
        if data:
            if plain and self._collect_plain(result, data, max_count, max_bytes, limits):
                return result
            entries = ((*entry, number, 1) for number, entry in enumerate(ENTRY.iter_unpack(data), offset))
        accept_code = None if tag_codes is None else self._code_filter(topic, queue_id, tag_codes)
        if may_want is not None:
            accept_code = self._extension_filter(topic, queue_id, may_want)
        self._collect(result, entries, max_count, max_bytes, limits, accept_code, accept)
        return result

    def _collect_plain(self, result: ReadResult, data: bytes, max_count: int, max_bytes: int, limits: _Limits) -> bool:
        """The common case, quickly: no filter, recent records, all there. False leaves `result` as it was."""
        physical, _, _ = ENTRY.unpack_from(data)
        log_end = self._log.end
        if log_end - physical > self.recent_bytes:
            return False
        segment = self._log.files.segment_of(physical)
        if segment is None:
            return False
        memory, base, top = segment.memory, segment.start, segment.end
        buffers: list[memoryview] = []
        limit = min(max_bytes, limits.bytes_in_memory)
        most = max(1, min(max_count, limits.count_in_memory))
        gathered = self._loops and self._loops.gather(data, memory, base, min(top, log_end), limit, most)
        if gathered:
            _found(result, *gathered)
            return True
        run_start = run_end = physical
        total = count = 0
        for physical, size, _ in ENTRY.iter_unpack(data):
            if count and (total + size > limit or count >= most):
                break
            if physical != run_end:
                if run_end > run_start:
                    buffers.append(memory[run_start - base : run_end - base])
                if not base <= physical < top:
                    segment = self._log.files.segment_of(physical)
                    if segment is None:
                        return False
                    memory, base, top = segment.memory, segment.start, segment.end
                run_start = run_end = physical
            run_end += size
            if run_end > top or run_end > log_end:
                return False
            total += size
            count += 1
        buffers.append(memory[run_start - base : run_end - base])
        _found(result, count, total, buffers)
        return True

    def _collect(
        self,
        result: ReadResult,
        entries: Iterable[_Entry],
        max_count: int,
        max_bytes: int,
        limits: _Limits,
        accept_code: Callable[[int], bool] | None,
        accept: Callable[[memoryview], bool] | None,
    ) -> None:
        """Every case, in Java's order of tests."""
        buffers: list[memoryview] = []
        queue_offsets: list[int] = []
        log_end = self._log.end
        skip_to = physical = -1  # records of a deleted file: pass over all its entries
        for physical, size, code, queue_offset, messages in entries:
            behind_bytes = log_end - physical
            if result.count and self._is_full(result, size, messages, max_count, max_bytes, limits, behind_bytes):
                break
            result.next_offset = queue_offset + messages
            if size == NOWHERE_SIZE or physical < skip_to:
                continue
            if accept_code is not None and not accept_code(code):
                if not result.count:
                    result.status = ReadStatus.NO_MATCHED_MESSAGE
                continue
            record = self._log.read(physical, size)
            if record is None:
                if not result.count:
                    result.status = ReadStatus.MESSAGE_WAS_REMOVING
                skip_to = self._log.next_file(physical)
                continue
            if accept is not None and not accept(record):
                if not result.count:
                    result.status = ReadStatus.NO_MATCHED_MESSAGE
                continue
            buffers.append(record)
            queue_offsets.append(queue_offset)
            result.count += messages
            result.total_bytes += size
            result.status = ReadStatus.FOUND
            skip_to = -1
        result.buffers = buffers
        result.queue_offsets = queue_offsets
        result.far_behind = physical >= 0 and log_end - physical > self.recent_bytes

    def _is_full(
        self,
        result: ReadResult,
        size: int,
        messages: int,
        max_count: int,
        max_bytes: int,
        limits: _Limits,
        behind_bytes: int,
    ) -> bool:
        if result.count + messages > max_count or result.total_bytes + size > max_bytes:
            return True
        if behind_bytes <= self.recent_bytes:
            return result.total_bytes + size > limits.bytes_in_memory or result.count >= limits.count_in_memory
        return result.total_bytes + size > limits.bytes_on_disk or result.count >= limits.count_on_disk

    def _extension_filter(
        self, topic: str, queue_id: int, may_want: Callable[[ExtensionUnit], bool]
    ) -> Callable[[int], bool]:
        def accept(code: int) -> bool:
            unit = self._extensions.read(topic, queue_id, code) if code <= LAST_EXTENSION_ADDRESS else None
            return unit is None or may_want(unit)

        return accept

    def _code_filter(self, topic: str, queue_id: int, tag_codes: AbstractSet[int]) -> Callable[[int], bool]:
        def accept(code: int) -> bool:
            if code <= LAST_EXTENSION_ADDRESS:
                unit = self._extensions.read(topic, queue_id, code)
                if unit is None:
                    return True  # unknown is not unwanted: the consumer compares the tag itself
                code = unit.tags_code
            return _as_int32(code) in tag_codes

        return accept


def _found(result: ReadResult, count: int, total_bytes: int, buffers: list[memoryview]) -> None:
    """All of the first `count` entries."""
    first = result.next_offset
    result.status = ReadStatus.FOUND
    result.next_offset = first + count
    result.count = count
    result.total_bytes = total_bytes
    result.buffers = buffers
    result.queue_offsets = range(first, first + count)


def _as_int32(value: int) -> int:
    """Java compares the low 32 bits, as a signed number."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _outside(offset: int, low: int, high: int) -> ReadResult:
    if high == 0:
        return ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
    if offset < low:
        return ReadResult(ReadStatus.OFFSET_TOO_SMALL, low, low, high)
    if offset == high:
        return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
    return ReadResult(ReadStatus.OFFSET_OVERFLOW_BADLY, high, low, high)


def _batch_entries(queue: AnyQueue, offset: int, limit: int) -> list[_Entry]:
    assert not isinstance(queue, QueueIndex)
    return [
        (entry.physical, entry.size, entry.tags_code, entry.base, entry.messages)
        for entry in queue.entries_from(offset, limit)
    ]
