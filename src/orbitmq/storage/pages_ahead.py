"""Has the pages of a file in memory before they are written to, so that appending does not wait for them.

The first store into a page of a mapped file makes the kernel find and clear it, and several megabytes behind it while it is at it:
milliseconds in which an appender stands still. A thread reads that part of the file beforehand, which costs the same but nobody's
time.

Java: DefaultMappedFile.warmMappedFile, which does it for a whole file at once
"""

from __future__ import annotations

import logging
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Final

from orbitmq.errors import StorageError

if TYPE_CHECKING:
    from orbitmq.storage.open_files import MappedFile

logger = logging.getLogger(__name__)

AHEAD_BYTES: Final = 16 << 20  # a fifteenth of a second at 200,000 messages of 1 KB a second
STEP_BYTES: Final = 4 << 20  # written before more is asked for


class PagesAhead:
    """`want` belongs to the thread that appends."""

    def __init__(self) -> None:
        self._wanted: SimpleQueue[tuple[MappedFile, int, int] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._file: MappedFile | None = None
        self._asked_to = 0  # the part of the file before this was asked for

    def want(self, file: MappedFile, position: int) -> int:
        """Writing goes on at `position`. Returns at once: the position from where on to ask again."""
        if file is not self._file:
            self._file, self._asked_to = file, position
        end = min(position + AHEAD_BYTES, file.size)
        if end > self._asked_to:
            if self._thread is None:
                self._thread = Thread(target=self._run, name="orbitmq-pages-ahead", daemon=True)
                self._thread.start()
            self._wanted.put((file, self._asked_to, end))
            self._asked_to = end
        return min(position + STEP_BYTES, file.size)

    def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._wanted.put(None)
            thread.join()

    def _run(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            file, start, end = wanted
            try:
                file.read_in(start, end)
            except StorageError as error:
                # Whoever needs these bytes will be told; here nobody does yet.
                logger.warning("could not have pages ready: %s", error)
