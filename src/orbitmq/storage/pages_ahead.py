"""Has the pages of a file in memory before they are written to, so that appending does not wait for them.

The first store into a page of a mapped file makes the kernel find and clear it, and several megabytes behind it while it is at it:
milliseconds in which an appender stands still. A thread reads that part of the file beforehand, which costs the same but nobody's
time. Where it is late all the same, the appender waits for one page: the system is told not to bring more of a file that is appended to.

While much is written that is not enough. The first store into a page, and the first after it was written back, also tells the file system
of it. That waits for a journal that is being committed, and pauses who stores faster than the disk writes: tens of milliseconds each
time. So the thread stores to these pages as well, and it is the thread that waits. Pages that were stored to are written back, whether
anything came to stand in them or not: so this is done for files that are synced now and then, and as far as is filled in a moment.

What is written by calls of the system, and not stored through the map, needs no pages cleared for it. Where that is most of what comes,
nobody has any ready. Nor has anybody while little is written: a page alone is found and cleared in microseconds, and sixteen megabytes of them
would be in every broker's way that starts, for a handful of messages. (On a virtual machine that hands its free memory back to its host they
were a sixth of a second.)

Java: DefaultMappedFile.warmMappedFile, which does it for a whole file at once
"""

from __future__ import annotations

import logging
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.errors import StorageError

if TYPE_CHECKING:
    from orbitmq.clock import Clock
    from orbitmq.storage.open_files import MappedFile

logger = logging.getLogger(__name__)

AHEAD_BYTES: Final = 16 << 20  # a fifteenth of a second at 200,000 messages of 1 KB a second
READ_BYTES: Final = 4 << 20  # at once
STEP_BYTES: Final = 1 << 20  # written before more is asked for
BUSY_STEP_MS: Final = 100  # a step that took no longer: 10 MB a second
STORABLE_MS: Final = 50  # what will be written in that time, if it goes on like this


class _Wanted(NamedTuple):
    file: MappedFile
    position: int
    storable_bytes: int  # behind it; the rest need only be in memory


class PagesAhead:
    """`want` belongs to the thread that appends."""

    def __init__(self, clock: Clock | None = None) -> None:
        """Without a clock, pages are read and no more, however little is written."""
        self._clock = clock
        self._calls: SimpleQueue[bool] = SimpleQueue()  # whether to go on
        self._thread: Thread | None = None
        self._wanted: _Wanted | None = None  # last; what was wanted before is of no use any more
        self._last_step_ms = 0
        self._file: MappedFile | None = None  # the thread's: what it reads, and how far it got
        self._read_to = 0

    def want(self, file: MappedFile, position: int, *, is_stored_to: bool = True) -> int:
        """Writing goes on at `position`, mostly by stores or mostly without. Returns at once: the position from where on to ask again."""
        before = self._wanted
        if before is None or before.file is not file:
            # Who stores to a page before it is ready waits for that page, not for eight megabytes.
            file.read_ahead(position, enabled=False)
            if before is not None:
                before.file.read_ahead(enabled=True)
        storable_bytes = self._storable_bytes()
        self._wanted = _Wanted(file, position, storable_bytes)
        if is_stored_to and (storable_bytes or self._clock is None):
            self._call()
        return min(position + STEP_BYTES, file.size)

    def _call(self) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._run, name="orbitmq-pages-ahead", daemon=True)
            self._thread.start()
        if self._calls.empty():
            self._calls.put(True)

    def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._calls.put(False)
            thread.join()

    def _storable_bytes(self) -> int:
        """0 if so little is written that nothing is worth it."""
        if self._clock is None:
            return 0
        now_ms = self._clock.now_ms()
        took_ms, self._last_step_ms = now_ms - self._last_step_ms, now_ms
        if not 0 <= took_ms <= BUSY_STEP_MS:
            return 0
        return STEP_BYTES + STEP_BYTES * STORABLE_MS // max(took_ms, 1)

    def _run(self) -> None:
        while self._calls.get():
            wanted = self._wanted
            assert wanted is not None, "it is set before the call"
            try:
                self._have_ready(*wanted)
            except StorageError as error:
                # Whoever needs these bytes will be told; here nobody does yet.
                logger.warning("could not have pages ready: %s", error)

    def _have_ready(self, file: MappedFile, position: int, storable_bytes: int) -> None:
        if file is not self._file:
            self._file, self._read_to = file, 0
        self._read_to = max(self._read_to, position)
        end = min(position + AHEAD_BYTES, file.size)
        if end - self._read_to >= READ_BYTES or end == file.size > self._read_to:
            file.read_in(self._read_to, end)
            self._read_to = end
        # Also those that were storable before: they may have been written back since. But in memory they must be.
        storable_to = min(position + storable_bytes, self._read_to)
        if storable_to > position:
            file.make_storable(position, storable_to)
