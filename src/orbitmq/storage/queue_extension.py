"""What a queue entry has no room for: tag hash, store time and a filter bitmap, in files of their own. Read only.

    <directory>/<topic>/<queue id>/<20 digits>

    offset  size  field
    0       2     size of the unit; -1: the rest of the file is empty
    2       8     tag hash
    10      8     stored at, ms
    18      2     bitmap length, then the bitmap

Apache's broker writes them with enableConsumeQueueExt; the queue entry then holds an address instead of the tag hash.
We write tag hashes, and read what is there.

Java: ConsumeQueueExt
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.errors import StorageError
from orbitmq.storage.segmented_log import segment_name

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

# Entry values up to this are addresses, higher ones tag hashes. Java: ConsumeQueueExt.MAX_ADDR
LAST_EXTENSION_ADDRESS: Final = -(2**31) - 1


class ExtensionUnit(NamedTuple):
    tags_code: int
    stored_at_ms: int
    bitmap: bytes


class QueueExtensions:
    """Of all queues. Files are opened when first needed."""

    def __init__(self, disk: Disk, config: StorageConfig) -> None:
        self._disk = disk
        self._path = config.queue_extensions_path
        self._file_bytes = config.queue_extension_file_bytes
        self._files: dict[tuple[str, int, int], PlainFile | None] = {}

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
            self._files[key] = self._disk.open(path) if self._disk.stat(path) is not None else None
        return self._files[key]
