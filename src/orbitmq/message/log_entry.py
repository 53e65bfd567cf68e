"""What the indexes need to know of a record, and taking it from many records at once."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from orbitmq.message.record import MAGIC_V1, SIZE_AND_MAGIC, USUAL_HEAD_BYTES, decode_entry
from orbitmq.message.sysflags import HOSTS_MASK

if TYPE_CHECKING:
    from collections.abc import Iterable

# Its queue (topic and queue id), its offset in the log, its size, its offset in the queue, sysFlag, store time, properties.
# A plain tuple, because one is made and taken apart for every message.
LogEntry = tuple[tuple[str, int], int, int, int, int, int, bytes]

# All records of a batch, which lie together, as one: their size together, the offset of the first in the queue; in place of properties
# the records themselves.
BatchEntry = tuple[tuple[str, int], int, int, int, int, int, memoryview]

# Size, magic, queue id, queue offset, sysFlag, store time and body length; where they stand with IPv4 hosts.
_USUAL_HEAD: Final = struct.Struct(">ii4xi4xq8xi16xq20xi")


def entries_at(memory: memoryview, positions: Iterable[int], start: int) -> list[LogEntry]:
    """Of the records that begin at these positions, which must be whole ones; `start` is the log offset of `memory`."""
    entries: list[LogEntry] = []
    topics: dict[bytes, str] = {}
    unpack = _USUAL_HEAD.unpack_from
    for position in positions:
        size, magic, queue_id, queue_offset, sys_flag, stored_at_ms, body_bytes = unpack(memory, position)
        if magic != MAGIC_V1 or sys_flag & HOSTS_MASK:
            entries.append(_entry_at(memory, position, start))
            continue
        behind_body = memory[position + USUAL_HEAD_BYTES + body_bytes : position + size].tobytes()
        topic_end = 1 + behind_body[0]
        text = behind_body[1:topic_end]
        topic = topics.get(text)
        if topic is None:
            topic = topics[text] = text.decode("utf-8", "replace")
        entries.append(
            (
                (topic, queue_id),
                start + position,
                size,
                queue_offset,
                sys_flag,
                stored_at_ms,
                behind_body[topic_end + 2 :],
            )
        )
    return entries


def single_entries(entry: LogEntry | BatchEntry) -> list[LogEntry]:
    """Of each of its records."""
    queue, offset, size, queue_offset, sys_flag, stored_at_ms, content = entry
    if isinstance(content, bytes):
        return [(queue, offset, size, queue_offset, sys_flag, stored_at_ms, content)]
    positions = [0]
    while (end := positions[-1] + SIZE_AND_MAGIC.unpack_from(content, positions[-1])[0]) < size:
        positions.append(end)
    return entries_at(content, positions, offset)


def _entry_at(memory: memoryview, position: int, start: int) -> LogEntry:
    record = decode_entry(memory, position, start + position)
    return (
        (record.topic, record.queue_id),
        record.commit_log_offset,
        record.size,
        record.queue_offset,
        record.sys_flag,
        record.stored_at_ms,
        record.properties,
    )
