"""Files while they are open: as memory, by pread and pwrite, and as a lock. And what a failed system call means.

    MappedFile    a whole file as memory; the append path writes `mapped.memory[a:b] = data`
    PlainFile     the same file through pread and pwrite; descriptors are pooled, so ten thousand of them are fine
    FileLock      held by this process, and by no other

They are given out by a `Disk` (files.py).

Java: DefaultMappedFile
"""

from __future__ import annotations

import errno
import mmap
import os
from collections import deque
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, ClassVar, Final, cast

from orbitmq.accelerated import compiled
from orbitmq.errors import StorageError, StoreFull

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PAGE_BYTES: Final = 4096

_ZEROES: Final = bytes(1 << 20)
_READ_IN_BYTES: Final = 1 << 17
_READ_IN_PIECES: Final = 64
_LEAST_LET_GO_BYTES: Final = 16 * PAGE_BYTES
_LET_GO_BYTES: Final = 1 << 20  # at once: nobody else computes meanwhile
_MOST_PARTS: Final = 1024  # IOV_MAX

_HINTS: Final = {
    errno.ENOENT: "is the store directory the right one?",
    errno.EACCES: "check the owner and mode of the store directory",
    errno.EPERM: "check the owner and mode of the store directory",
    errno.ENOTDIR: "a part of the path is a file: name another folder",
    errno.EROFS: "the file system is mounted read-only",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files (fs.file-max)",
    errno.ENOMEM: "raise vm.max_map_count or free memory",
    errno.EIO: "the device failed; look at the kernel log before trusting it again",
}


def storage_error(action: str, path: Path, cause: OSError) -> StorageError:
    """The store's error for a failed system call: what was tried, on which file, why, and what to do."""
    reason = cause.strerror or str(cause)
    if cause.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(
            f"cannot {action} {path}: {reason}{_room_left(path)}",
            hint="free disk space, or keep messages for fewer hours",
        )
    return StorageError(f"cannot {action} {path}: {reason}", hint=_HINTS.get(cause.errno or 0, ""))


def _room_left(path: Path) -> str:
    try:
        room = measure(path)
    except StorageError:
        return ""
    free, total = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    return f", {free / (1 << 20):,.1f} of {total / (1 << 20):,.1f} MiB are free"


def _read_in(descriptor: int, start: int, end: int) -> None:
    """All of it, into memory that nobody looks at. The descriptor is closed."""
    # Many pieces into one buffer by one call: a thread that comes back often competes for the interpreter lock.
    pieces = [bytearray(_READ_IN_BYTES)] * _READ_IN_PIECES
    try:
        for at in range(start, end, _READ_IN_BYTES * _READ_IN_PIECES):
            os.preadv(descriptor, pieces[: -(-(end - at) // _READ_IN_BYTES)], at)
    finally:
        os.close(descriptor)


def clear_pages(memory: memoryview | bytearray) -> None:
    """Zeroes, from the back: who is killed meanwhile leaves the start, which says how far reaches what must not be looked into.

    Only where something stands: a store into a hole of a file that Java left sparse may find the disk full, and kill us.
    """
    for start in range((len(memory) - 1) // PAGE_BYTES * PAGE_BYTES, -1, -PAGE_BYTES):
        end = min(start + PAGE_BYTES, len(memory))
        blank = _ZEROES[: end - start]
        if bytes(memory[start:end]) != blank:
            memory[start:end] = blank


class MappedFile:
    """A file as memory. `close` gives the descriptor back; the memory goes when the last view of it does."""

    __slots__ = ("_descriptor", "_reader", "_sync_lock", "memory", "path", "size")

    def __init__(self, path: Path, descriptor: int, size: int, *, writable: bool) -> None:
        self.path = path
        self.size = size
        self._descriptor = descriptor
        self._reader = -1
        self._sync_lock = Lock()
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self.memory: memoryview = memoryview(mmap.mmap(descriptor, size, access=access)) if size else memoryview(b"")

    def sync(self) -> None:
        """Return once everything stored so far is on the device. Does nothing on a closed file."""
        with self._sync_lock:
            if self._descriptor < 0:
                return
            try:
                os.fdatasync(self._descriptor)
            except OSError as cause:
                raise storage_error("sync", self.path, cause) from cause

    def reserve(self, start: int, size: int) -> None:
        """Give blocks to a range of a file that was allocated in part, so that storing there cannot fail. Not to a closed one."""
        with self._sync_lock:
            if self._descriptor < 0:
                return
            descriptor = os.dup(self._descriptor)
        try:
            os.posix_fallocate(descriptor, start, size)
        except OSError as cause:
            raise storage_error("allocate", self.path, cause) from cause
        finally:
            os.close(descriptor)

    def write(self, parts: Sequence[bytes | bytearray | memoryview], position: int) -> None:
        """What storing all of `parts`, one behind the other, through the map would do; much at once costs less so. Not on a closed file."""
        size = sum(map(len, parts))
        if len(parts) > _MOST_PARTS:
            parts = [b"".join(parts)]
        try:
            written = os.pwritev(self._descriptor, parts, position)
            while written < size:
                rest = memoryview(b"".join(parts))[written:]
                written += os.pwrite(self._descriptor, rest, position + written)
        except OSError as cause:
            raise storage_error("write", self.path, cause) from cause

    def warm_up(self) -> None:
        """Write zeroes over the whole (new) file, so that appending meets neither page faults nor block conversion."""
        try:
            for start in range(0, self.size, len(_ZEROES)):
                os.pwrite(self._descriptor, _ZEROES[: self.size - start], start)
        except OSError as cause:
            raise storage_error("warm up", self.path, cause) from cause
        self.sync()

    def read_in(self, start: int, end: int) -> None:
        """Have the pages of [start, end) in memory, which waits for them but changes nothing. Not on a closed file."""
        pages = compiled("pages")
        with self._sync_lock:
            if self._descriptor < 0:
                return
            try:
                if self._reader < 0:
                    # The system knows of this one that it reads on and on, whatever is looked at through the map meanwhile. Then
                    # it brings megabytes as one large page, which are mapped with one fault.
                    self._reader = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
                # A sync must not wait for this, nor this for a sync.
                descriptor = os.dup(self._reader) if pages is None else pages.duplicate(self._reader)
            except OSError as cause:
                raise storage_error("open", self.path, cause) from cause
        try:
            if pages is None:
                _read_in(descriptor, start, end)
            else:
                pages.read_in(descriptor, start, end)
        except OSError as cause:
            raise storage_error("read", self.path, cause) from cause

    def make_storable(self, start: int, end: int) -> None:
        """Stores to these pages will need nothing of the system, until they are written back, as they will be: they count as changed.

        By compiled code alone: without it, everybody would wait for the interpreter, and so for the disk.
        """
        pages = compiled("pages")
        if pages is not None and self._descriptor >= 0:
            pages.make_storable(self.memory, start, end)

    def fetch(self, start: int, end: int) -> None:
        """[start, end) is read soon: have it in memory by then. Waits for nothing."""
        self._advise(os.POSIX_FADV_WILLNEED, start, end)

    def let_go(self, start: int, end: int) -> None:
        """Unmap [start, end), to which nobody stores any more. It stays in memory, and is mapped again for who looks at it, many pages at a time.

        A sync costs less then: it takes every page that was stored to through the map out of it, one by one, and interrupts all processors
        for each.
        """
        pages = compiled("pages")
        start, end = -(-start // PAGE_BYTES) * PAGE_BYTES, end // PAGE_BYTES * PAGE_BYTES
        if end - start < _LEAST_LET_GO_BYTES or self._descriptor < 0:
            return
        with suppress(OSError):  # the sync does it, then
            if pages is not None:
                pages.let_go(self.memory, start, end)
            else:
                for at in range(start, end, _LET_GO_BYTES):
                    self._unmap(at, min(at + _LET_GO_BYTES, end))

    def _unmap(self, start: int, end: int) -> None:
        cast("mmap.mmap", self.memory.obj).madvise(mmap.MADV_DONTNEED, start, end - start)

    def forget(self, start: int, end: int) -> None:
        """[start, end) is on the device and not needed soon: the memory it takes can be another's. It stays readable."""
        start, end = -(-start // PAGE_BYTES) * PAGE_BYTES, end // PAGE_BYTES * PAGE_BYTES
        if start < end:
            self._unmap(start, end)  # the system keeps what is mapped
            self._advise(os.POSIX_FADV_DONTNEED, start, end)

    def _advise(self, advice: int, start: int, end: int) -> None:
        with self._sync_lock:
            if self._descriptor < 0:
                return
            descriptor = os.dup(self._descriptor)
        try:
            os.posix_fadvise(descriptor, start, end - start, advice)
        except OSError as cause:
            raise storage_error("advise on", self.path, cause) from cause
        finally:
            os.close(descriptor)

    def read_ahead(self, start: int = 0, *, enabled: bool) -> None:
        """Whether the system should read on when a page behind `start` is needed: good for catching up, bad for looking around."""
        start = start // PAGE_BYTES * PAGE_BYTES
        if start < self.size:
            advice = mmap.MADV_NORMAL if enabled else mmap.MADV_RANDOM
            with suppress(OSError):  # too many maps to make two of one; who appends goes on without
                cast("mmap.mmap", self.memory.obj).madvise(advice, start, self.size - start)

    def close(self) -> None:
        with self._sync_lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
            if self._reader >= 0:
                os.close(self._reader)
                self._reader = -1


class DescriptorPool:
    """Keeps the number of open plain files bounded by closing those opened longest ago."""

    __slots__ = ("_limit", "_lock", "_open")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = Lock()
        self._open: deque[PlainFile] = deque()

    def opened(self, file: PlainFile) -> None:
        with self._lock:
            self._open.append(file)
            surplus = [self._open.popleft() for _ in range(len(self._open) - self._limit)]
        for old in surplus:
            if not old.release_if_idle():
                with self._lock:
                    self._open.append(old)

    def closed(self, file: PlainFile) -> None:
        with self._lock:
            if file in self._open:
                self._open.remove(file)


class PlainFile:
    """Random access by pread and pwrite. The descriptor may be closed behind the scenes and is reopened on use."""

    __slots__ = ("_descriptor", "_lock", "_pool", "_writable", "path")

    def __init__(self, path: Path, pool: DescriptorPool, *, writable: bool, descriptor: int = -1) -> None:
        self.path = path
        self._pool = pool
        self._writable = writable
        self._descriptor = descriptor
        self._lock = Lock()
        if descriptor >= 0:
            pool.opened(self)

    def pread(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""
        try:
            with self._lock:
                return os.pread(self._opened(), size, offset)
        except OSError as cause:
            raise storage_error("read", self.path, cause) from cause

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """All of `data` at `offset`. Reading goes on meanwhile: a writer may have to wait for the disk, and has a descriptor of its own."""
        try:
            with self._lock:
                descriptor = os.dup(self._opened())
            try:
                written = os.pwrite(descriptor, data, offset)
                while written < len(data):
                    written += os.pwrite(descriptor, memoryview(data)[written:], offset + written)
            finally:
                os.close(descriptor)
        except OSError as cause:
            raise storage_error("write", self.path, cause) from cause

    def next_data(self, offset: int) -> int:
        """Where something may have been written, from `offset` on; the file's size if nowhere. What is skipped are holes, so zeroes."""
        try:
            with self._lock:
                descriptor = self._opened()
                try:
                    return os.lseek(descriptor, offset, os.SEEK_DATA)
                except OSError as cause:
                    if cause.errno == errno.ENXIO:
                        return os.fstat(descriptor).st_size
                    if cause.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                        return offset  # a file system that does not know its holes
                    raise
        except OSError as cause:
            raise storage_error("look for data in", self.path, cause) from cause

    def truncate(self, size: int) -> None:
        try:
            with self._lock:
                os.ftruncate(self._opened(), size)
        except OSError as cause:
            raise storage_error("resize", self.path, cause) from cause

    def sync(self) -> None:
        """Everything written so far to the device. Reading goes on meanwhile: the wait is on a descriptor of its own."""
        try:
            with self._lock:
                descriptor = os.dup(self._opened())
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as cause:
            raise storage_error("sync", self.path, cause) from cause

    @property
    def size(self) -> int:
        try:
            with self._lock:
                return os.fstat(self._opened()).st_size
        except OSError as cause:
            raise storage_error("stat", self.path, cause) from cause

    def close(self) -> None:
        self._pool.closed(self)
        with self._lock:
            self._release()

    def release_if_idle(self) -> bool:
        """Give the descriptor back unless somebody is using it right now; the next use reopens the file."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._release()
        finally:
            self._lock.release()
        return True

    def _opened(self) -> int:
        if self._descriptor < 0:
            self._descriptor = os.open(self.path, (os.O_RDWR if self._writable else os.O_RDONLY) | os.O_CLOEXEC)
            self._pool.opened(self)
        return self._descriptor

    def _release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class FileLock:
    """An exclusive POSIX lock on the first byte of a file, held until `release` or the end of the process.

    Such a lock belongs to the process and goes when it closes *any* descriptor of the file, so a second attempt from
    the same process must be refused without opening the file: hence the table of locks held.
    """

    __slots__ = ("_descriptor", "_identity", "path")

    _held: ClassVar[set[tuple[int, int]]] = set()

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        status = os.fstat(descriptor)
        self._identity = (status.st_dev, status.st_ino)
        self._held.add(self._identity)

    @classmethod
    def held_here(cls, status: os.stat_result) -> bool:
        """Whether this process holds the lock of that file."""
        return (status.st_dev, status.st_ino) in cls._held

    def release(self) -> None:
        if self._descriptor >= 0:
            self._held.discard(self._identity)
            os.close(self._descriptor)
            self._descriptor = -1


def measure(path: Path) -> os.statvfs_result:
    """Of the file system that `path` is on, or will be."""
    probe = path
    while not probe.exists() and probe != probe.parent:
        probe = probe.parent
    try:
        return os.statvfs(probe)
    except OSError as cause:
        raise storage_error("measure", probe, cause) from cause
