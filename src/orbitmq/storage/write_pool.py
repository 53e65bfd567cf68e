"""Appending into plain memory, copied to the mapped files a few times a second. Optional; for disks that stall.

An append then never waits for page cache that the kernel is writing back. The price: what was not copied yet dies with the
process, and nobody can read it before. One buffer stands for one file; when all are in use, appends go straight to the map.

Java: TransientStorePool, DefaultMappedFile.commit
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orbitmq.storage.segmented_log import Segment


class _Begun:
    """A file being written to, or written and not yet copied."""

    __slots__ = ("buffer", "complete", "segment")

    def __init__(self, segment: Segment, buffer: memoryview | None) -> None:
        self.segment = segment
        self.buffer = buffer  # None: appends go to the map itself
        self.complete = False


class WritePool:
    """`write_to` belongs to the appending thread; `commit` may come from any."""

    def __init__(self, buffers: int, segment_bytes: int) -> None:
        self.committed = 0  # everything before this log offset is in the files, for all to read
        self._segment_bytes = segment_bytes
        self._unused = buffers  # not made yet: memory is taken when it is first needed
        self._free: list[memoryview] = []
        self._begun: deque[_Begun] = deque()
        self._committing = Lock()

    def write_to(self, segment: Segment, start: int) -> memoryview:
        """The memory to append to, from log offset `start` on; what was begun before is complete."""
        if self._begun:
            self._begun[-1].complete = True
        else:
            self.committed = start
        buffer = self._take()
        self._begun.append(_Begun(segment, buffer))
        return segment.memory if buffer is None else buffer

    def commit(self, end: int) -> None:
        """Copy what was appended up to log offset `end`."""
        with self._committing:
            while self._begun:
                begun = self._begun[0]
                segment = begun.segment
                upto = segment.end if begun.complete else min(end, segment.end)
                if upto > self.committed:
                    if begun.buffer is not None:
                        _copy(begun.buffer, segment.memory, self.committed - segment.start, upto - segment.start)
                    self.committed = upto
                if not begun.complete:
                    return
                self._begun.popleft()
                if begun.buffer is not None:
                    self._free.append(begun.buffer)

    def _take(self) -> memoryview | None:
        if self._free:
            return self._free.pop()
        if self._unused:
            self._unused -= 1
            return memoryview(bytearray(self._segment_bytes))
        return None


def _copy(source: memoryview, target: memoryview, start: int, end: int) -> None:
    """The first eight bytes last: a process killed half way leaves nothing that looks like a record."""
    body = min(start + 8, end)
    target[body:end] = source[body:end]
    target[start:body] = source[start:body]
