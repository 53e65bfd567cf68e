"""Fixed-size mapped files behind one growing offset. The commit log and the timer log live in one each.

    <directory>/00000000000000000000    offsets [0, size)
    <directory>/00000000001073741824    offsets [size, 2 * size)
    ...                                 a file's name is the offset of its first byte, in 20 digits

Every file has its full size from birth. Which bytes of it count is known to the owner, who writes through
`Segment.memory` and tells the log on stopping where it ended. The next file is made ahead of need by a thread, so
that rolling over costs the appender nothing; another has the pages ready that come next (pages_ahead.py).

Java: MappedFileQueue, AllocateMappedFileService
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Final

from orbitmq.errors import StorageError, StoreCorrupt
from orbitmq.storage.pages_ahead import AHEAD_BYTES, STEP_BYTES, PagesAhead
from orbitmq.storage.threads import OwnThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from orbitmq.clock import Clock
    from orbitmq.storage.files import Disk, FileStat
    from orbitmq.storage.open_files import MappedFile
    from orbitmq.storage.threads import Threads

logger = logging.getLogger(__name__)

NAME_DIGITS: Final = 20


def segment_name(start: int) -> str:
    return f"{start:0{NAME_DIGITS}d}"


def is_segment_name(name: str) -> bool:
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


class Segment:
    """One file: offsets [start, end) as `memory`."""

    __slots__ = ("end", "file", "memory", "start")

    def __init__(self, start: int, file: MappedFile) -> None:
        self.start = start
        self.end = start + file.size
        self.file = file
        self.memory = file.memory

    def __repr__(self) -> str:
        return f"Segment({self.start}, {self.file.path})"


class SegmentedLog:
    """Readers may call from any thread and `delete_oldest` from the cleaning one; all else belongs to the owner's."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        segment_bytes: int,
        *,
        writable: bool = True,
        prepare_ahead: bool = False,
        busy_clock: Clock | None = None,
        warm_up: bool = False,
        threads: Threads | None = None,
    ) -> None:
        """Opens what is there; `load_segments` says what is refused. With `prepare_ahead` the next file is made by a thread, and
        the next pages; with `busy_clock` those are all but stored to where much is written (pages_ahead.py)."""
        self.directory = directory
        self.segment_bytes = segment_bytes
        self._disk = disk
        self._warm_up = warm_up
        self._writable = writable
        self._changing = Lock()
        # Replaced as a whole (holding `_changing`), never changed in place: readers need no lock.
        self.segments: tuple[Segment, ...] = load_segments(disk, directory, segment_bytes, writable=writable)
        self._preparer: _Preparer | None = None
        if prepare_ahead and writable:
            self._preparer = _Preparer(self._allocate, self._remove, threads or OwnThreads())
        self._pages = PagesAhead(busy_clock) if prepare_ahead and writable and segment_bytes > STEP_BYTES else None

    @property
    def start(self) -> int:
        """The lowest offset there is a file for; 0 for an empty log. (Java: getMinOffset)"""
        segments = self.segments
        return segments[0].start if segments else 0

    @property
    def end(self) -> int:
        """The end of the last file, written to or not."""
        segments = self.segments
        return segments[-1].end if segments else 0

    @property
    def last(self) -> Segment | None:
        segments = self.segments
        return segments[-1] if segments else None

    def segment_of(self, offset: int) -> Segment | None:
        """The segment that holds `offset`, or None: deleted, not yet there, or in a gap."""
        segments = self.segments
        if not segments:
            return None
        number = (offset - segments[0].start) // self.segment_bytes
        if 0 <= number < len(segments) and segments[number].start <= offset < segments[number].end:
            return segments[number]
        # Only a log with a file missing in the middle comes here with an offset it holds.
        number = bisect_right(segments, offset, key=lambda segment: segment.start) - 1
        return segments[number] if number >= 0 and offset < segments[number].end else None

    def slice(self, offset: int, size: int) -> memoryview | None:
        """A view of [offset, offset + size), cut at the end of its file; None if `offset` is not in the log.

        The view stays valid when the file is deleted, and keeps its memory alive: do not hoard views.
        """
        segment = self.segment_of(offset)
        if segment is None:
            return None
        position = offset - segment.start
        return segment.memory[position : position + size]

    def roll(self) -> Segment:
        """Add the next file and return it. A full disk raises StoreFull and leaves the log as it was."""
        start = self.end
        segment = self._preparer.take(start) if self._preparer else None
        if segment is None:
            segment = self._allocate(start)
        with self._changing:
            self.segments = (*self.segments, segment)
        if self._preparer:
            self._preparer.prepare(segment.end)
        return segment

    def prepare_pages(self, segment: Segment, offset: int, *, is_stored_to: bool = True) -> int:
        """Writing goes on at `offset`: have the pages behind it in memory soon. Returns from where on to ask again."""
        if self._pages is None:
            return segment.end
        return segment.start + self._pages.want(segment.file, offset - segment.start, is_stored_to=is_stored_to)

    def start_at(self, offset: int) -> Segment:
        """The first file of an empty log that does not begin at 0 (a slave that joins late)."""
        assert not self.segments, "only an empty log can be given a start"
        segment = self._allocate(offset - offset % self.segment_bytes)
        self.segments = (segment,)
        if self._preparer:
            self._preparer.prepare(segment.end)
        return segment

    def sync(self, start: int, end: int) -> None:
        """Make [start, end) durable. Nobody stores to it any more."""
        for segment, first, last in self._parts(start, end):
            segment.file.let_go(first, last)
            segment.file.sync()

    def sync_cut(self, end: int) -> None:
        """Make it durable that nothing stands behind `end`, where the log was cut: in its file, and of files behind it."""
        for segment in self.segments:
            if segment.start <= end <= segment.end:
                segment.file.sync()
        self._disk.sync_directory(self.directory)

    def fetch(self, start: int, end: int) -> None:
        """[start, end) is read soon."""
        for segment, first, last in self._parts(start, end):
            segment.file.fetch(first, last)

    def forget(self, start: int, end: int) -> None:
        """[start, end) is durable, and not read soon: it need not stay in memory."""
        for segment, first, last in self._parts(start, end):
            segment.file.forget(first, last)

    def _parts(self, start: int, end: int) -> Iterator[tuple[Segment, int, int]]:
        """The files that hold [start, end), and from where to where in each."""
        for segment in self.segments:
            if segment.start < end and start < segment.end:
                yield segment, max(start, segment.start) - segment.start, min(end, segment.end) - segment.start

    def truncate(self, offset: int) -> None:
        """Drop every file that begins at or after `offset`. Bytes behind it in its own file are the owner's to clear."""
        if self._preparer:
            self._preparer.discard()
        with self._changing:
            dropped = [segment for segment in self.segments if segment.start >= offset]
            self.segments = tuple(segment for segment in self.segments if segment.start < offset)
        # From the end, so that a kill in between leaves a run without a gap.
        for segment in reversed(dropped):
            self._remove(segment)

    def delete_oldest(self) -> Segment | None:
        """Remove the first file unless it is the only one. Views that readers hold of it stay valid."""
        with self._changing:
            if len(self.segments) < 2:
                return None
            oldest = self.segments[0]
            self.segments = self.segments[1:]
        self._remove(oldest)
        return oldest

    def reload(self) -> None:
        """For a log opened for reading: see the files that came and went since."""
        assert not self._writable, "the owner of a log knows its files"
        known = {segment.start: segment for segment in self.segments}
        self.segments = load_segments(self._disk, self.directory, self.segment_bytes, writable=False, known=known)

    def gaps(self) -> list[tuple[int, int]]:
        """Ranges of offsets between the first and the last file that no file holds."""
        segments = self.segments
        pairs = pairwise(segments)
        return [(before.end, after.start) for before, after in pairs if before.end != after.start]

    def stop_preparing(self) -> None:
        """End the threads and remove a file made ahead but not yet used."""
        if self._preparer:
            self._preparer.stop()
        if self._pages:
            self._pages.stop()

    def close(self, written_to: int | None = None) -> None:
        """Give the files back. A clean stop passes `written_to`: files that begin at or after it hold nothing and go."""
        self.stop_preparing()
        if written_to is not None and self._writable:
            self.truncate(max(written_to, self.start + 1))
        for segment in self.segments:
            segment.file.close()

    def _allocate(self, start: int) -> Segment:
        path = self.directory / segment_name(start)
        file = self._disk.allocate(path, self.segment_bytes)
        if self._warm_up:
            try:
                file.warm_up()
            except StorageError:
                file.close()
                self._disk.remove(path)
                raise
        return Segment(start, file)

    def _remove(self, segment: Segment) -> None:
        self._disk.remove(segment.file.path)
        segment.file.close()


def load_segments(
    disk: Disk, directory: Path, segment_bytes: int, *, writable: bool, known: dict[int, Segment] | None = None
) -> tuple[Segment, ...]:
    """The files of a directory, by offset.

    A zero-length last file is what a killed allocation may leave: it is removed. Any other wrong length, and any plain
    file that is no segment, is refused, because Apache's broker refuses it too and because nobody but the owner can say
    what it is. A missing middle file is only logged: what is there is served. A reader passes over what it cannot use.
    """
    files = [file for file in disk.list(directory) if not file.is_directory]
    if files and files[-1].size == 0 and is_segment_name(files[-1].name):
        empty = files.pop()
        if writable:
            logger.warning("removing %s: it is empty, left by an interrupted allocation", directory / empty.name)
            disk.remove(directory / empty.name)
    segments: list[Segment] = []
    for file in files:
        try:
            _check(directory, file, segment_bytes)
            opened = known.get(int(file.name)) if known else None
            path = directory / file.name
            segments.append(opened or Segment(int(file.name), disk.map(path, writable=writable)))
        except StorageError as error:
            if writable:
                raise
            logger.warning("passing over a file of the log: %s", error)
    for before, after in pairwise(segments):
        if before.end != after.start:
            logger.error("%s: no file holds offsets %d to %d", directory, before.end, after.start)
    return tuple(segments)


def _check(directory: Path, file: FileStat, segment_bytes: int) -> None:
    path = directory / file.name
    if not is_segment_name(file.name):
        raise StoreCorrupt(f"{path} is not a segment file", hint="move it out of this directory")
    if file.size != segment_bytes:
        raise StoreCorrupt(
            f"{path} has {file.size} bytes where {segment_bytes} are configured",
            hint="set the file size this store was written with, or see `orbitmq store verify`",
        )


class _Preparer:
    """The thread that makes the next file. One file ahead is enough: a file takes far longer to fill than to make."""

    def __init__(self, allocate: Callable[[int], Segment], remove: Callable[[Segment], None], threads: Threads) -> None:
        self._allocate = allocate
        self._remove = remove
        self._wanted: int | None = None
        self._ready: Segment | None = None
        self._failed_at: int | None = None
        self._stopping = False
        self._rounds = threads.repeat("orbitmq-next-segment", self._make, self._is_due, None)

    def prepare(self, start: int) -> None:
        """Ask for the file at `start`; returns at once."""
        if not self._stopping:
            self._wanted = start
            self._rounds.start()
            self._rounds.wake()

    def take(self, start: int) -> Segment | None:
        """The file at `start` if it was asked for: waits while it is being made; None if it could not be made."""
        if self._wanted is not None:
            self._rounds.finish()
        ready, self._ready = self._ready, None
        self._wanted = self._failed_at = None
        if ready is not None and ready.start != start:
            self._remove(ready)
            return None
        return ready

    def discard(self) -> None:
        """Forget the file made ahead: the log is being cut back."""
        if self._wanted is not None:
            ready = self.take(self._wanted)
            if ready is not None:
                self._remove(ready)

    def stop(self) -> None:
        self.discard()
        self._stopping = True
        self._rounds.stop()

    def _make(self) -> bool:
        start = self._wanted
        assert start is not None, "it is due only then, and whoever changes that waits for the end of the round"
        try:
            segment = self._allocate(start)
            segment.file.read_in(0, min(AHEAD_BYTES, segment.file.size))
        except StorageError as error:
            # The appender tries again when it needs the file, and tells its caller.
            logger.warning("could not prepare the next file: %s", error)
            self._failed_at = start
        else:
            self._ready = segment
        return True

    def _is_due(self) -> bool:
        return self._wanted is not None and self._ready is None and self._failed_at != self._wanted
