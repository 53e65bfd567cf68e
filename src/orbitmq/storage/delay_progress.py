"""How far each delay level is at this moment, for a start after the process was killed.

    config/delayprogress    4096 bytes

    offset  size  field
    0       8     magic
    8 * n   8     of level n: the offset of the next message to deliver, plus 1; 0: not known

`delayOffset.json`, which Apache's broker reads and writes too, is saved every ten seconds. What was delivered since would be
delivered once more after a kill. So every delivery is noted here, unsynced: a killed process leaves it in the page cache, and
after a power cut, when the delivered messages themselves may be gone, nobody looks at it. With a write pool they may be gone after a
kill too: then only where the process began is noted.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from orbitmq.storage.checkpoint import FILE_BYTES, CheckpointFile

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.storage.files import Disk

NAME: Final = "delayprogress"
_NUMBER: Final = struct.Struct(">q")
_MAGIC: Final = 0x4F52424444454C59
_NUMBERS: Final = struct.Struct(f">{FILE_BYTES // _NUMBER.size}q")


class DelayProgress:
    def __init__(self, disk: Disk, path: Path) -> None:
        self._file = CheckpointFile(disk, path)

    def read(self) -> dict[int, int]:
        """Next offsets by level, of those that are known."""
        magic, *offsets = _NUMBERS.unpack(self._file.read(FILE_BYTES, 0))
        return {level: offset - 1 for level, offset in enumerate(offsets, 1) if offset > 0} if magic == _MAGIC else {}

    def begin(self, offsets: dict[int, int]) -> None:
        """Forget what was noted before; these count now."""
        numbers = [offsets.get(level, -1) + 1 for level in range(1, FILE_BYTES // _NUMBER.size)]
        self._file.note(_NUMBERS.pack(_MAGIC, *numbers), 0)

    def note(self, level: int, offset: int) -> None:
        if level < FILE_BYTES // _NUMBER.size:
            self._file.note(_NUMBER.pack(offset + 1), level * _NUMBER.size)

    def place(self, level: int) -> memoryview | None:
        """Where `note` puts its number, which is one more than the offset; None of a level that has no place."""
        at = level * _NUMBER.size
        return self._file.place(_NUMBER.size, at) if at < FILE_BYTES else None

    def close(self) -> None:
        self._file.close()
