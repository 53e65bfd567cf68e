"""The commit log: every message of a broker, one behind the other, in the order of arrival.

Appending is a critical section without a lock: one thread appends (in the broker, the event loop's). In it, in this order:
the queue offset is looked up, a place is found (a blank record closes a file that has no room), the store time is taken, the
record is written, and only then the queue offset counts as used. The eight bytes that make a record a record are stored last,
so a process killed half way leaves nothing that could be taken for a message. Records are stored through the map, of which the pages
are had ready beforehand; many that come together, as a large batch, by a call of the system, which needs no pages cleared for them. Before
a batch is written, it is noted where (unfinished_batch.py), so that a kill leaves all of it or none.

`recent` holds what was appended and not yet indexed; the indexer takes it from there instead of decoding it again. With a write
pool (write_pool.py) records go to plain memory first, and can be read once `commit` has copied them.

Java: CommitLog
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from typing import TYPE_CHECKING, Final

from orbitmq.accelerated import compiled
from orbitmq.errors import MessageError, StorageError
from orbitmq.message.properties import (
    INNER_BASE,
    INNER_NUM,
    MAX_PROPERTIES_BYTES,
    MULTI_DISPATCH,
    MULTI_DISPATCH_SEPARATOR,
    MULTI_QUEUE_OFFSET,
    WAIT,
    decode_properties,
    encode_properties,
    property_finder,
    property_number,
)
from orbitmq.message.record import (
    BLANK_BYTES,
    REST_OF_USUAL_HEAD,
    SIZE_AND_MAGIC,
    USUAL_HEAD_BYTES,
    TopicField,
    encode_blank,
    encode_record,
    fill_record_crc,
    record_size,
    topic_field,
    with_crc_room,
)
from orbitmq.message.sysflags import BORN_HOST_IPV6, HOSTS_MASK, INNER_BATCH, STORE_HOST_IPV6, TRANSACTION_PREPARED
from orbitmq.storage.appended import AppendCode, Appended, AppendedBatch, out_of_range, refuse_batch, refuse_size
from orbitmq.storage.config import FlushMode
from orbitmq.storage.files import is_file_name
from orbitmq.storage.open_files import clear_pages
from orbitmq.storage.segmented_log import SegmentedLog
from orbitmq.storage.unfinished_batch import UnfinishedBatch
from orbitmq.storage.write_pool import WritePool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orbitmq.clock import Clock
    from orbitmq.message.batch import BatchMember
    from orbitmq.message.log_entry import BatchEntry, LogEntry
    from orbitmq.storage.config import StorageConfig
    from orbitmq.storage.files import Disk
    from orbitmq.storage.segmented_log import Segment
    from orbitmq.storage.threads import Threads

    Bytes = bytes | bytearray | memoryview

LIGHT_QUEUE_PREFIX: Final = "%LMQ%"
LIGHT_QUEUE_ID: Final = 0
DELAY_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
# What waits or was given up there is not meant for consumers yet, or was in its light queues before.
_NO_LIGHT_QUEUES: Final = ("%RETRY%", "%DLQ%", "rmq_sys_", "RMQ_SYS_")
_NO_LIGHT_QUEUES_EITHER: Final = (DELAY_TOPIC, "TRANS_CHECK_MAX_TIME_TOPIC")

_CRC_MASK: Final = 0x7FFFFFFF
_MULTI_DISPATCH_NAME: Final = MULTI_DISPATCH.encode()
_MULTI_QUEUE_OFFSET_NAME: Final = MULTI_QUEUE_OFFSET.encode()
_find_inner_num: Final = property_finder(INNER_NUM)

# Set in prepared and rolled-back records alone: neither has a place in its queue.
NO_QUEUE_ENTRY: Final = TRANSACTION_PREPARED

MOST_IN_BATCH: Final = 0x7FFF  # messages; the index counts them in two bytes
# Each member gets the batch's properties, so a small batch could be a gigabyte of records.
MOST_BATCH_GROWTH: Final = 16  # records of a batch together, as a multiple of the largest body
LARGE_BATCH_BYTES: Final = 16 << 10  # of its records: for less, a call costs more than the stores
_MUCH_BYTES: Final = 64 << 10  # copied at once: a call costs less than the faults of so many new pages
_SPECIAL: Final = HOSTS_MASK | INNER_BATCH | NO_QUEUE_ENTRY
_SHORT: Final = struct.Struct(">h")
_crc32: Final = zlib.crc32
_write_head: Final = REST_OF_USUAL_HEAD.pack_into
_write_size_and_magic: Final = SIZE_AND_MAGIC.pack_into


class CommitLog:
    """Appends come from one thread; `read` and `commit` from any."""

    def __init__(
        self, disk: Disk, config: StorageConfig, clock: Clock, store_host: bytes, threads: Threads | None = None
    ) -> None:
        self.files = SegmentedLog(
            disk,
            config.commit_log_path,
            config.segment_bytes,
            prepare_ahead=config.prepare_next_segment,
            # Each sync writes those pages, too: not where there is one for every few messages.
            busy_clock=clock if config.flush_mode is FlushMode.ASYNC and compiled("pages") is not None else None,
            warm_up=config.warm_up_segments,
            threads=threads,
        )
        self.unfinished = UnfinishedBatch(disk, config.directory)
        self.store_host = store_host
        self.next_queue_offsets: dict[tuple[str, int], int] = {}
        self.recent: deque[LogEntry | BatchEntry] = deque()  # of batches only where `Store.indexes_whole_batches`
        self.end = 0  # of the last record; `place_end` sets it once recovery knows
        self.last_stored_at_ms = 0
        self._now_ms = clock.now_ms
        self._config = config
        self._store_host_flag = STORE_HOST_IPV6 if len(store_host) > 8 else 0
        self.topic_fields: dict[str, TopicField] = {}
        self._light_queues = 0
        self._adds_crc = config.record_crc
        self._adds_properties = config.light_queues or config.record_crc
        self.is_special = self._adds_properties or len(store_host) != 8  # so is every append, then
        self.max_body_bytes = config.max_message_bytes
        self._pool = WritePool(config.write_pool_buffers, config.segment_bytes) if config.write_pool_buffers else None
        self.memory = memoryview(b"")
        self.segment_start = 0
        self._segment_end = 0
        self.prepared_to = 0  # a record that ends before this, with a blank one behind it, can be stored at once
        self._asked_at, self._written_together = 0, 0  # where pages were last asked for, and what needed none since
        self._copied_to: Segment | None = None  # the file that is copied from another broker
        self._unreserved: Segment | None = None  # the file that recovery found, before the first append to it

    def settle_at(self, store_host: bytes) -> None:
        """The address that records from now on say they are stored at."""
        self.store_host = store_host
        self._store_host_flag = STORE_HOST_IPV6 if len(store_host) > 8 else 0
        self.is_special = self._adds_properties or len(store_host) != 8

    @property
    def start(self) -> int:
        return self.files.start

    @property
    def readable_end(self) -> int:
        """Records before this offset can be read; later ones are in the write pool still."""
        return self.end if self._pool is None else self._pool.committed

    @property
    def is_mapped(self) -> bool:
        """Whether records are written where they are read."""
        return self._pool is None

    def commit(self) -> None:
        """Make everything appended so far readable. Any thread may do it; without a write pool there is nothing to do."""
        if self._pool is not None:
            self._pool.commit(self.end)

    def place_end(self, end: int) -> None:
        """Go on appending at `end`: recovery's last word. Files behind it must be gone already."""
        self.end = end
        segment = self.files.last
        if segment is None:
            self.segment_start = self._segment_end = end
        else:
            assert segment.start <= end <= segment.end, f"{end} is not in the last file, {segment}"
            self._write_to(segment)
            # Java leaves files sparse, and a store into a hole of a full disk kills the process. The first append reserves
            # the blocks; until then nothing counts as prepared, so that nothing is stored before.
            self._unreserved = segment
        self.prepared_to = end

    def append(
        self,
        topic: str,
        queue_id: int,
        body: bytes | memoryview,
        properties: bytes,
        born_at_ms: int,
        born_host: bytes,
        flag: int = 0,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> Appended:
        """Write one message. Raises MessageError (it can never be stored) or StoreFull (it cannot be now)."""
        if sys_flag & _SPECIAL or len(born_host) != 8 or self.is_special:
            return self._append_special(
                topic, queue_id, body, properties, born_at_ms, born_host, flag, sys_flag, reconsume_times,
                prepared_transaction_offset,
            )  # fmt: skip
        # Nearly every message comes by here, so this is one straight line; `_append_special` does the same step by step.
        field = self.topic_fields.get(topic) or self._learn_topic(topic)
        body_bytes, properties_bytes = len(body), len(properties)
        if body_bytes > self.max_body_bytes or properties_bytes > MAX_PROPERTIES_BYTES:
            refuse_size(body_bytes, self.max_body_bytes, properties_bytes)
        from_body_on = b"".join((body, field.data, _SHORT.pack(properties_bytes), properties))
        size = USUAL_HEAD_BYTES + len(from_body_on)
        queue = (topic, queue_id)
        queue_offset = self.next_queue_offsets.get(queue, 0)
        at = self.end
        if at + size + BLANK_BYTES > self.prepared_to:
            at = self.make_room(size)
        end = at + size
        stored_at_ms = self._now_ms()
        memory = self.memory
        position = at - self.segment_start
        try:
            _write_head(
                memory, position + BLANK_BYTES, _crc32(body) & _CRC_MASK, queue_id, flag, queue_offset, at, sys_flag,
                born_at_ms, born_host, stored_at_ms, self.store_host, reconsume_times, prepared_transaction_offset, body_bytes,
            )  # fmt: skip
        except struct.error as error:
            raise out_of_range(error) from None
        memory[position + USUAL_HEAD_BYTES : position + size] = from_body_on
        # Until these are in, nothing at `at` looks like a record.
        _write_size_and_magic(memory, position, size, field.magic)
        self.end = end
        self.last_stored_at_ms = stored_at_ms
        self.next_queue_offsets[queue] = queue_offset + 1
        self.recent.append((queue, at, size, queue_offset, sys_flag, stored_at_ms, properties))
        return Appended(at, end, queue_offset, stored_at_ms)

    def _append_special(
        self,
        topic: str,
        queue_id: int,
        body: bytes | memoryview,
        properties: bytes,
        born_at_ms: int,
        born_host: bytes,
        flag: int,
        sys_flag: int,
        reconsume_times: int,
        prepared_transaction_offset: int,
    ) -> Appended:
        """`append` for every kind of message: IPv6 hosts, inner batches, transactions, properties that we add to."""
        field = self.topic_fields.get(topic) or self._learn_topic(topic)
        # Two bits are the record's own layout: what the sender says of them does not count.
        sys_flag = sys_flag & ~HOSTS_MASK | self._store_host_flag
        if len(born_host) > 8:
            sys_flag |= BORN_HOST_IPV6
        queue = (topic, queue_id)
        queue_offset = 0 if sys_flag & NO_QUEUE_ENTRY else self.next_queue_offsets.get(queue, 0)
        taken = 1
        light_queues: list[str] = []
        if sys_flag & INNER_BATCH:
            taken, properties = _number_inner_batch(properties, queue_offset)
        if self._adds_properties:
            light_queues, properties = self._complete(topic, properties)
        if len(body) > self.max_body_bytes or len(properties) > MAX_PROPERTIES_BYTES:
            refuse_size(len(body), self.max_body_bytes, len(properties))
        size = record_size(field, sys_flag, len(body), len(properties))
        at = self.end
        if at + size + BLANK_BYTES > self.prepared_to:
            at = self.make_room(size)
        stored_at_ms = self._now_ms()
        try:
            record = encode_record(
                field, queue_id, flag, queue_offset, at, sys_flag, born_at_ms, born_host, stored_at_ms, self.store_host,
                reconsume_times, prepared_transaction_offset, body, zlib.crc32(body) & _CRC_MASK, properties,
            )  # fmt: skip
        except struct.error as error:
            raise out_of_range(error) from None
        self._write(at, fill_record_crc(record) if self._adds_crc else record)
        self.end = at + size
        self.last_stored_at_ms = stored_at_ms
        if not sys_flag & NO_QUEUE_ENTRY:
            self.next_queue_offsets[queue] = queue_offset + taken
        if light_queues:
            self._advance_light_queues(light_queues)
        self.recent.append((queue, at, size, queue_offset, sys_flag, stored_at_ms, properties))
        return Appended(at, at + size, queue_offset, stored_at_ms)

    def append_batch(
        self,
        topic: str,
        queue_id: int,
        members: Sequence[BatchMember],
        properties: bytes,
        born_at_ms: int,
        born_host: bytes,
        sys_flag: int = 0,
        reconsume_times: int = 0,
    ) -> AppendedBatch:
        """Write all members as records of their own, or none. `properties` are the batch's, added to each member's."""
        if not members:
            raise MessageError("a batch needs at least one message", code=AppendCode.MESSAGE_ILLEGAL)
        field = self.topic_fields.get(topic) or self._learn_topic(topic)
        # Two bits are the record's own layout: what the sender says of them does not count.
        sys_flag = sys_flag & ~HOSTS_MASK | self._store_host_flag
        if len(born_host) > 8:
            sys_flag |= BORN_HOST_IPV6
        most = MOST_BATCH_GROWTH * self.max_body_bytes
        if len(members) * len(properties) > most:  # before they are put together
            refuse_batch(len(members), most)
        member_properties = [_joined(member.properties, properties) for member in members]
        if self._adds_properties:
            member_properties = [self._complete_member(text) for text in member_properties]
        sizes = []
        for member, text in zip(members, member_properties, strict=True):
            sizes.append(record_size(field, sys_flag, len(member.body), len(text)))
            if len(text) > MAX_PROPERTIES_BYTES:
                refuse_size(len(member.body), self.max_body_bytes, len(text))
        total = sum(sizes)
        bodies = sum(len(member.body) for member in members)
        if bodies > self.max_body_bytes:
            refuse_size(bodies, self.max_body_bytes, 0)
        if total > most:
            refuse_batch(len(members), most)
        at = self.end
        if at + total + BLANK_BYTES > self.prepared_to:
            at = self.make_room(total)
        queue = (topic, queue_id)
        first = self.next_queue_offsets.get(queue, 0)
        stored_at_ms = self._now_ms()
        records: list[bytes] = []
        entries: list[LogEntry] = []
        offsets: list[int] = []
        offset = at
        for number, (member, text, size) in enumerate(zip(members, member_properties, sizes, strict=True)):
            try:
                record = encode_record(
                    field, queue_id, member.flag, first + number, offset, sys_flag, born_at_ms, born_host, stored_at_ms,
                    self.store_host, reconsume_times, 0, member.body, zlib.crc32(member.body) & _CRC_MASK, text,
                )  # fmt: skip
            except struct.error as error:
                raise out_of_range(error) from None
            records.append(fill_record_crc(record) if self._adds_crc else record)
            entries.append((queue, offset, size, first + number, sys_flag, stored_at_ms, text))
            offsets.append(offset)
            offset += size
        self._write_batch(at, records, total)
        self.last_stored_at_ms = stored_at_ms
        self.next_queue_offsets[queue] = first + len(members)
        self.recent.extend(entries)
        return AppendedBatch(offsets, offset, first, stored_at_ms)

    def append_copied(self, offset: int, parts: Sequence[bytes | memoryview]) -> None:
        """Write bytes of another broker's log where they stand there: parts that follow each other, of one file. See replica.py"""
        if not self.files.segments:
            self.end = offset
            self._write_to(self.files.start_at(offset))
        elif offset != self.end:
            raise StorageError(f"bytes for offset {offset} cannot follow a log that ends at {self.end}")
        elif self._unreserved is not None:
            self._reserve(self._unreserved)
        if self.end == self._segment_end:
            self._write_to(self.files.roll())
        position, size = offset - self.segment_start, sum(map(len, parts))
        if position + size > len(self.memory):
            raise StorageError(
                f"{size} bytes for offset {offset} reach over the end of a file of {len(self.memory)}",
                hint="give this broker the mappedFileSizeCommitLog of its master",
            )
        segment = self.files.segments[-1]
        if segment is not self._copied_to:
            self._copy_to(segment)
        if size >= _MUCH_BYTES and self.memory is segment.memory:
            segment.file.write(parts, position)
        else:
            for part in parts:
                self.memory[position : position + len(part)] = part
                position += len(part)
        self.end = offset + size

    def write_together(self, at: int, records: Sequence[Bytes]) -> None:
        """Records of a batch, or of several, that follow each other from `at` on, where there is room for them. For who moves `end`
        (and accelerator/).

        A full disk raises StoreFull; nothing is left of them.
        """
        size, position = sum(map(len, records)), at - self.segment_start
        if position < 0 or position + size + BLANK_BYTES > len(self.memory):
            raise StorageError(f"{size} bytes at {at} do not fit into the file that begins at {self.segment_start}")
        self.unfinished.begin(at, at + size)
        try:
            self.files.segments[-1].file.write(records, position)
        except BaseException:
            # Through the map: another call may fail as well. All of it, so that no restart looks into what smaller records leave of it.
            clear_pages(self.memory[position : position + size])
            raise
        finally:
            self.unfinished.finish()
        self._written_together += size

    def _write_batch(self, at: int, records: Sequence[bytes], size: int) -> None:
        if self._pool is None and size >= LARGE_BATCH_BYTES:
            self.write_together(at, records)
        else:
            self._write_one_by_one(at, records, size)
        # Not record by record: who commits the write pool meanwhile would take a part of the batch.
        self.end = at + size

    def _write_one_by_one(self, at: int, records: Sequence[bytes], size: int) -> None:
        self.unfinished.begin(at, at + size)
        try:
            for record in records:
                self._write(at, record)
                at += len(record)
        finally:
            self.unfinished.finish()

    def read(self, offset: int, size: int) -> memoryview | None:
        """The bytes of a record that begins at `offset`; None if they are deleted, or not there yet."""
        if offset + size > self.readable_end:
            return None
        data = self.files.slice(offset, size)
        return data if data is not None and len(data) == size else None

    def next_file(self, offset: int) -> int:
        """Where the file after the one that holds (or held) `offset` begins."""
        return offset - offset % self._config.segment_bytes + self._config.segment_bytes

    def forget_topic(self, topic: str) -> None:
        """The next message of this topic starts its queues at 0 again."""
        known = [queue for queue in self.next_queue_offsets if queue[0] == topic]
        for queue in known:
            del self.next_queue_offsets[queue]
        self.topic_fields.pop(topic, None)
        if topic.startswith(LIGHT_QUEUE_PREFIX):
            self._light_queues -= len(known)

    def set_queue_offsets(self, offsets: dict[tuple[str, int], int]) -> None:
        """What each queue's next message gets, as recovery found it."""
        self.next_queue_offsets = offsets
        self._light_queues = sum(1 for topic, _ in offsets if topic.startswith(LIGHT_QUEUE_PREFIX))

    def with_light_queues(self, topic: str, properties: bytes) -> tuple[list[str], bytes]:
        """The light queues a message goes to as well, and its properties with its numbers there. MessageError: it cannot."""
        if self._config.light_queues and _MULTI_DISPATCH_NAME in properties and may_multi_dispatch(topic):
            return self._number_light_queues(properties)
        return [], properties

    def _complete(self, topic: str, properties: bytes) -> tuple[list[str], bytes]:
        """The same, with what else the settings add."""
        light_queues, properties = self.with_light_queues(topic, properties)
        return light_queues, with_crc_room(properties) if self._config.record_crc else properties

    def _complete_member(self, properties: bytes) -> bytes:
        """As `_complete`. Batches are in no light queue, and a number there is not for producers to give."""
        if self._config.light_queues and _MULTI_QUEUE_OFFSET_NAME in properties:
            decoded = decode_properties(properties)
            decoded.pop(MULTI_QUEUE_OFFSET, None)
            properties = encode_properties(decoded)
        return with_crc_room(properties) if self._config.record_crc else properties

    def _write(self, at: int, record: bytes) -> None:
        # The size and magic go in last: until then, nothing at `at` looks like a record.
        position = at - self.segment_start
        end = position + len(record)
        memory = self.memory
        memory[position + 8 : end] = record[8:]
        memory[position : position + 8] = record[:8]

    def make_room(self, size: int) -> int:
        """Where a record goes for which nothing is prepared yet: in this file, whose pages come next, or in another."""
        if size + BLANK_BYTES > self._config.segment_bytes:
            raise MessageError(
                f"a record of {size} bytes does not fit into a file of {self._config.segment_bytes}",
                hint="raise mappedFileSizeCommitLog, or send smaller messages",
                code=AppendCode.MESSAGE_ILLEGAL,
            )
        if self._unreserved is not None:
            self._reserve(self._unreserved)
        if self.end + size + BLANK_BYTES > self._segment_end:
            self._roll()
        segment = self.files.last
        assert segment is not None, "there is room, so there is a file"
        prepared = segment.end
        if self._pool is None:
            is_stored_to = 2 * self._written_together <= max(0, self.end - self._asked_at)  # most of it, not by calls
            self._asked_at, self._written_together = self.end, 0
            prepared = self.files.prepare_pages(segment, self.end, is_stored_to=is_stored_to)
        self.prepared_to = min(max(prepared, self.end + size + BLANK_BYTES), segment.end)
        return self.end

    def _roll(self) -> None:
        """Begin the next file; a blank record closes the one before."""
        left = self._segment_end - self.end
        position = self.end - self.segment_start
        segment = self.files.roll()  # first: if the disk is full, the log stays as it is
        if left:
            self.memory[position : position + BLANK_BYTES] = encode_blank(left)
        self._write_to(segment)
        self.end = segment.start

    def _reserve(self, segment: Segment) -> None:
        segment.file.reserve(0, segment.file.size)
        self._unreserved = None

    def _write_to(self, segment: Segment) -> None:
        self.memory = segment.memory if self._pool is None else self._pool.write_to(segment, self.end)
        self.segment_start = segment.start
        self._segment_end = segment.end

    def _copy_to(self, segment: Segment) -> None:
        """The system is not to read on where records are looked at: behind them is nothing yet, and it would clear pages for it."""
        if self._copied_to is not None:
            self._copied_to.file.read_ahead(enabled=True)
        segment.file.read_ahead(enabled=False)
        self._copied_to = segment

    def _learn_topic(self, topic: str) -> TopicField:
        if not is_file_name(topic):  # its queues could not be kept, and with them those of nobody
            raise MessageError(f"{topic[:300]!r} cannot be a topic", code=AppendCode.MESSAGE_ILLEGAL)
        try:
            field = topic_field(topic)
        except MessageError as error:
            raise MessageError(error.message, code=AppendCode.MESSAGE_ILLEGAL) from None
        self.topic_fields[topic] = field
        return field

    def _number_light_queues(self, properties: bytes) -> tuple[list[str], bytes]:
        """The light queues this message goes to as well, and the properties that say at which offsets."""
        decoded = decode_properties(properties)
        # To Java, nothing behind the last separator is no name.
        named = decoded.get(MULTI_DISPATCH, "").rstrip(MULTI_DISPATCH_SEPARATOR)
        if not named:
            return [], properties
        names = named.split(MULTI_DISPATCH_SEPARATOR)
        offsets = []
        fresh = 0
        for name in names:
            if not name.startswith(LIGHT_QUEUE_PREFIX) or not is_file_name(name):
                raise MessageError(f"{name[:300]!r} is not a light queue", code=AppendCode.MESSAGE_ILLEGAL)
            known = self.next_queue_offsets.get((name, LIGHT_QUEUE_ID))
            fresh += known is None
            offsets.append(str(known or 0))
        if self._light_queues + fresh > self._config.max_light_queues:
            raise MessageError(
                f"[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]there are {self._light_queues} light queues already",
                hint="raise maxLmqConsumeQueueNum",
                code=AppendCode.SYSTEM_ERROR,
            )
        if len(set(names)) < len(names):
            raise MessageError("a light queue is named twice", code=AppendCode.MESSAGE_ILLEGAL)
        decoded[MULTI_QUEUE_OFFSET] = MULTI_DISPATCH_SEPARATOR.join(offsets)
        decoded.pop(WAIT, None)  # as Java does when it writes the map anew
        return names, encode_properties(decoded)

    def _advance_light_queues(self, names: list[str]) -> None:
        for name in names:
            queue = (name, LIGHT_QUEUE_ID)
            known = self.next_queue_offsets.get(queue)
            self._light_queues += known is None
            self.next_queue_offsets[queue] = (known or 0) + 1


def may_multi_dispatch(topic: str) -> bool:
    """Whether messages of that topic can go to light queues as well; in others, what names them is a producer's word."""
    return not topic.startswith(_NO_LIGHT_QUEUES) and topic not in _NO_LIGHT_QUEUES_EITHER


def _number_inner_batch(properties: bytes, base: int) -> tuple[int, bytes]:
    """How many messages an inner batch holds, and its properties with the queue offset of the first."""
    count = property_number(_find_inner_num(properties), 0)
    if not 0 < count <= MOST_IN_BATCH:
        raise MessageError(
            "an inner batch must say in INNER_NUM how many messages it holds", code=AppendCode.MESSAGE_ILLEGAL
        )
    return count, _joined(properties, f"{INNER_BASE}\x01{base}\x02".encode())


def _joined(first: bytes, second: bytes) -> bytes:
    """Two property texts as one; later entries win."""
    if first and second and not first.endswith(b"\x02"):
        return first + b"\x02" + second
    return first + second
