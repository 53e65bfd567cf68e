"""What a queue entry has no room for: tag hash, store time and a filter bitmap, in files of their own.

    <directory>/<topic>/<queue id>/<20 digits>

    offset  size  field
    0       2     size of the unit; -1: the rest of the file is empty
    2       8     tag hash
    10      8     stored at, ms
    18      2     bitmap length, then the bitmap

Written with enableConsumeQueueExt; the queue entry then holds an address instead of the tag hash. Whatever is there is read, also
when they are not written any more. A unit that is lost (files are not synced before queue entries are) costs a look at the
message itself. Files are sparse: there is one set for each queue.

Java: ConsumeQueueExt
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.errors import StorageError
from orbitmq.storage.segmented_log import is_segment_name, segment_name

if TYPE_CHECKING:
    from orbitmq.storage.config import StorageConfig
    from orbitmq.storage.files import Disk
    from orbitmq.storage.open_files import PlainFile

_UNIT: Final = struct.Struct(
    ">h"  # size
    "q"  # tag hash
    "q"  # stored at
    "h"  # bitmap length
)
_ADDRESS_BASE: Final = -(2**63)
_END: Final = struct.pack(">h", -1)
_END_BYTES: Final = 4  # Java leaves as much

# Entry values up to this are addresses, higher ones tag hashes. Java: ConsumeQueueExt.MAX_ADDR
LAST_EXTENSION_ADDRESS: Final = -(2**31) - 1


class ExtensionUnit(NamedTuple):
    tags_code: int
    stored_at_ms: int
    bitmap: bytes


class QueueExtensions:
    """Of all queues. Files are opened when first needed. `read` may come from any thread, the rest belongs to the indexer's."""

    def __init__(self, disk: Disk, config: StorageConfig) -> None:
        self._disk = disk
        self._path = config.queue_extensions_path
        self._file_bytes = config.queue_extension_file_bytes
        self._files: dict[tuple[str, int, int], PlainFile | None] = {}
        self._ends: dict[tuple[str, int], int] = {}  # where each queue's next unit goes

    def put(self, topic: str, queue_id: int, unit: ExtensionUnit, last_address: int | None) -> int:
        """The address of a new unit. `last_address` is what the queue's last entry holds, if it is one."""
        key = (topic, queue_id)
        end = self._ends.get(key)
        if end is None:
            end = self._find_end(topic, queue_id, last_address)
        size = _UNIT.size + len(unit.bitmap)
        start = end - end % self._file_bytes
        if start + self._file_bytes - end < size + _END_BYTES:
            file = self._file(topic, queue_id, start)
            if file is not None and end > start:
                file.pwrite(_END, end - start)
            start = end = start + self._file_bytes
        file = self._file(topic, queue_id, start) or self._create(topic, queue_id, start)
        head = _UNIT.pack(size, unit.tags_code, unit.stored_at_ms, len(unit.bitmap))
        file.pwrite(head + unit.bitmap, end - start)
        self._ends[key] = end + size
        return end + _ADDRESS_BASE

    def delete_below(self, topic: str, queue_id: int, first_address: int) -> int:
        """Remove the files before the one that the queue's first entry leads to; how many went."""
        keep_from = first_address - _ADDRESS_BASE
        removed = 0
        for file in self._disk.list(self._path / topic / str(queue_id)):
            if not is_segment_name(file.name) or int(file.name) + self._file_bytes > keep_from:
                continue
            opened = self._files.pop((topic, queue_id, int(file.name)), None)
            if opened is not None:
                opened.close()
            self._disk.remove(self._path / topic / str(queue_id) / file.name)
            removed += 1
        return removed

    def delete_topic(self, topic: str) -> None:
        for key in [key for key in self._files if key[0] == topic]:
            opened = self._files.pop(key)
            if opened is not None:
                opened.close()
        for place in [place for place in self._ends if place[0] == topic]:
            del self._ends[place]
        for queue in self._disk.list(self._path / topic):
            for file in self._disk.list(self._path / topic / queue.name):
                self._disk.remove(self._path / topic / queue.name / file.name)
            self._disk.remove_directory(self._path / topic / queue.name)
        if self._disk.stat(self._path / topic) is not None:
            self._disk.remove_directory(self._path / topic)

    def read(self, topic: str, queue_id: int, address: int) -> ExtensionUnit | None:
        """The unit an entry leads to; None if it is gone or makes no sense."""
        offset = address - _ADDRESS_BASE
        start = offset - offset % self._file_bytes
        file = self._file(topic, queue_id, start)
        if file is None:
            return None
        try:
            head = file.pread(_UNIT.size, offset - start)
            if len(head) < _UNIT.size:
                return None
            size, tags_code, stored_at_ms, bitmap_bytes = _UNIT.unpack(head)
            if size < _UNIT.size or bitmap_bytes < 0 or size != _UNIT.size + bitmap_bytes:
                return None
            bitmap = file.pread(bitmap_bytes, offset - start + _UNIT.size) if bitmap_bytes else b""
        except StorageError:
            return None
        return ExtensionUnit(tags_code, stored_at_ms, bitmap)

    def close(self) -> None:
        for file in self._files.values():
            if file is not None:
                file.close()
        self._files.clear()

    def _file(self, topic: str, queue_id: int, start: int) -> PlainFile | None:
        key = (topic, queue_id, start)
        if key not in self._files:
            path = self._path / topic / str(queue_id) / segment_name(start)
            self._files[key] = self._disk.open(path, writable=True) if self._disk.stat(path) is not None else None
        return self._files[key]

    def _create(self, topic: str, queue_id: int, start: int) -> PlainFile:
        file = self._disk.create_sparse(self._path / topic / str(queue_id) / segment_name(start), self._file_bytes)
        self._files[topic, queue_id, start] = file
        return file

    def _find_end(self, topic: str, queue_id: int, last_address: int | None) -> int:
        """Behind the unit of the queue's last entry; in a new file where that leads to none."""
        if last_address is not None:
            unit = self.read(topic, queue_id, last_address)
            if unit is not None:
                return last_address - _ADDRESS_BASE + _UNIT.size + len(unit.bitmap)
        files = [file for file in self._disk.list(self._path / topic / str(queue_id)) if is_segment_name(file.name)]
        return int(files[-1].name) + self._file_bytes if files else 0
