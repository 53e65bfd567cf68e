"""The disk, behind one small protocol. No other module opens, maps, syncs, renames or lists a file.

    Disk          allocate / map / create_sparse / open / read / replace / rename / remove / list / stat / lock / sync
    MappedFile    a whole file as memory; the append path writes `mapped.memory[a:b] = data`
    PlainFile     the same file through pread and pwrite; descriptors are pooled, so ten thousand of them are fine

What the rest of the store relies on:
- `allocate` reserves every block, so a full disk is an ordinary error (StoreFull) and never a SIGBUS on a later store
  into the map. The file appears under its name complete or not at all.
- Memory stays readable after `remove`: the map lives as long as somebody holds a view of it.
- `sync` waits for the device without holding the interpreter lock, and covers what was stored through the map.

Java: DefaultMappedFile, MappedFileQueue, UtilAll.getDiskPartitionSpaceUsedPercent, MixAll.string2File
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat as stat_bits
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import ClassVar, Final, NamedTuple, Protocol, cast

from orbitmq.errors import StorageError, StoreFull

PAGE_BYTES: Final = 4096

_ZEROES: Final = bytes(1 << 20)
_READ_IN_BYTES: Final = 1 << 17
_READ_IN_PIECES: Final = 64
_OPEN_DESCRIPTORS: Final = 512  # of plain files, at once; below the usual soft limit of 1024

_HINTS: Final = {
    errno.ENOENT: "is the store directory the right one?",
    errno.EACCES: "check the owner and mode of the store directory",
    errno.EPERM: "check the owner and mode of the store directory",
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
        room = _measure(path)
    except StorageError:
        return ""
    free, total = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    return f", {free / (1 << 20):,.1f} of {total / (1 << 20):,.1f} MiB are free"


@dataclass(frozen=True, slots=True)
class FileStat:
    name: str
    size: int
    modified_ms: int
    is_directory: bool = False


class Room(NamedTuple):
    """Bytes of a file system."""

    total: int
    free: int


class MappedFile:
    """A file as memory. `close` gives the descriptor back; the memory goes when the last view of it does."""

    __slots__ = ("_descriptor", "_sync_lock", "memory", "path", "size")

    def __init__(self, path: Path, descriptor: int, size: int, *, writable: bool) -> None:
        self.path = path
        self.size = size
        self._descriptor = descriptor
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
        """Give blocks to a range of a file that was allocated in part, so that storing there cannot fail."""
        try:
            os.posix_fallocate(self._descriptor, start, size)
        except OSError as cause:
            raise storage_error("allocate", self.path, cause) from cause

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
        with self._sync_lock:
            if self._descriptor < 0:
                return
            descriptor = os.dup(self._descriptor)  # a sync must not wait for this, nor this for a sync
        # Many pieces into one buffer by one call: a thread that comes back often competes for the interpreter lock.
        pieces = [bytearray(_READ_IN_BYTES)] * _READ_IN_PIECES
        try:
            for at in range(start, end, _READ_IN_BYTES * _READ_IN_PIECES):
                os.preadv(descriptor, pieces[: -(-(end - at) // _READ_IN_BYTES)], at)
        except OSError as cause:
            raise storage_error("read", self.path, cause) from cause
        finally:
            os.close(descriptor)

    def read_ahead(self, *, enabled: bool) -> None:
        """Whether the system should read on when a page of it is needed: good for catching up, bad for looking around."""
        if self.size:
            cast("mmap.mmap", self.memory.obj).madvise(mmap.MADV_NORMAL if enabled else mmap.MADV_RANDOM)

    def close(self) -> None:
        with self._sync_lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1


class _DescriptorPool:
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

    def __init__(self, path: Path, pool: _DescriptorPool, *, writable: bool, descriptor: int = -1) -> None:
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
        """All of `data` at `offset`."""
        try:
            with self._lock:
                descriptor = self._opened()
                written = os.pwrite(descriptor, data, offset)
                while written < len(data):
                    written += os.pwrite(descriptor, memoryview(data)[written:], offset + written)
        except OSError as cause:
            raise storage_error("write", self.path, cause) from cause

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


class Disk(Protocol):
    """What the store needs of a disk. Every failure is a StorageError that names the path."""

    def allocate(self, path: Path, size: int, *, reserve: int | None = None) -> MappedFile:
        """A new file of exactly `size` zero bytes, all reserved, its name durable; mapped for writing.

        With `reserve` only that many first bytes have blocks; `MappedFile.reserve` the rest before storing there.
        """
        ...

    def map(self, path: Path, *, writable: bool = False) -> MappedFile: ...

    def create_sparse(self, path: Path, size: int) -> PlainFile:
        """A new file of exactly `size` bytes that takes no blocks yet. Write it by `pwrite` only: storing through a
        map into a hole of a full disk kills the process. The name is durable after `sync_directory`."""
        ...

    def open(self, path: Path, *, writable: bool = False) -> PlainFile: ...

    def read(self, path: Path) -> bytes: ...

    def replace(self, path: Path, data: bytes, *, keep: Path | None = None) -> None:
        """The file holds the old content or `data`, at every moment and after any crash; durable on return.

        With `keep` the old file, if any, lives on under that name in the same directory; for a moment it is there only.
        """
        ...

    def rename(self, old: Path, new: Path) -> None:
        """Atomic; durable on return."""
        ...

    def remove(self, path: Path) -> None:
        """Unlink; a file that is already gone is no error. Maps of it stay readable."""
        ...

    def remove_directory(self, path: Path) -> None:
        """An empty one."""
        ...

    def make_directory(self, path: Path) -> None: ...

    def list(self, path: Path) -> list[FileStat]:
        """Sorted by name; a directory that does not exist is empty."""
        ...

    def stat(self, path: Path) -> FileStat | None:
        """None if there is no such file."""
        ...

    def sync_directory(self, path: Path) -> None: ...

    def lock(self, path: Path, content: bytes) -> FileLock | None:
        """Take the lock, creating the file with `content` if need be; None if another process holds it."""
        ...

    def lock_owner(self, path: Path) -> int | None:
        """The process that holds the lock, 0 if it cannot be named, None if nobody does. Opens and writes nothing."""
        ...

    def page_cache_id(self, path: Path) -> str:
        """Changes when what was written there but not synced may be lost: the machine started again, or this is a copy of
        the directory, taken while it was written to. Empty if unknown."""
        ...

    def used_percent(self, path: Path) -> int:
        """Of the file system: used / (used + usable by us), rounded up to a whole percent."""
        ...

    def room(self, path: Path) -> Room:
        """Of the file system that `path` is on."""
        ...


class LocalDisk:
    """The real one."""

    def __init__(self, *, open_plain_files: int = _OPEN_DESCRIPTORS) -> None:
        self._pool = _DescriptorPool(open_plain_files)

    def allocate(self, path: Path, size: int, *, reserve: int | None = None) -> MappedFile:
        self.make_directory(path.parent)
        try:
            descriptor = _allocate(path, size, size if reserve is None else reserve)
        except OSError as cause:
            raise storage_error("allocate", path, cause) from cause
        self.sync_directory(path.parent)
        return _mapped(path, descriptor, writable=True)

    def map(self, path: Path, *, writable: bool = False) -> MappedFile:
        try:
            descriptor = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        except OSError as cause:
            raise storage_error("open", path, cause) from cause
        return _mapped(path, descriptor, writable=writable)

    def create_sparse(self, path: Path, size: int) -> PlainFile:
        self.make_directory(path.parent)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except OSError as cause:
            raise storage_error("create", path, cause) from cause
        try:
            os.ftruncate(descriptor, size)
        except OSError as cause:
            os.close(descriptor)
            path.unlink()
            raise storage_error("create", path, cause) from cause
        return PlainFile(path, self._pool, writable=True, descriptor=descriptor)

    def open(self, path: Path, *, writable: bool = False) -> PlainFile:
        try:
            descriptor = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        except OSError as cause:
            raise storage_error("open", path, cause) from cause
        return PlainFile(path, self._pool, writable=writable, descriptor=descriptor)

    def read(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as cause:
            raise storage_error("read", path, cause) from cause

    def replace(self, path: Path, data: bytes, *, keep: Path | None = None) -> None:
        self.make_directory(path.parent)
        fresh = path.with_name(path.name + ".tmp")
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                written = 0
                while written < len(data):
                    written += os.write(descriptor, memoryview(data)[written:])
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if keep is not None and path.exists():
                path.replace(keep)
            fresh.replace(path)
        except OSError as cause:
            self.remove(fresh)
            raise storage_error("write", path, cause) from cause
        self.sync_directory(path.parent)

    def rename(self, old: Path, new: Path) -> None:
        try:
            old.replace(new)
        except OSError as cause:
            raise storage_error(f"rename to {new.name}", old, cause) from cause
        self.sync_directory(new.parent)
        if old.parent != new.parent:
            self.sync_directory(old.parent)

    def remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as cause:
            raise storage_error("remove", path, cause) from cause

    def remove_directory(self, path: Path) -> None:
        try:
            path.rmdir()
        except OSError as cause:
            raise storage_error("remove", path, cause) from cause

    def make_directory(self, path: Path) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as cause:
            raise storage_error("create directory", path, cause) from cause

    def list(self, path: Path) -> list[FileStat]:
        found = []
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    try:
                        found.append(_file_stat(entry.name, entry.stat()))
                    except FileNotFoundError:
                        continue  # removed while we were listing: a live store
        except FileNotFoundError:
            return []
        except OSError as cause:
            raise storage_error("list", path, cause) from cause
        return sorted(found, key=lambda file: file.name)

    def stat(self, path: Path) -> FileStat | None:
        try:
            return _file_stat(path.name, path.stat())
        except FileNotFoundError:
            return None
        except OSError as cause:
            raise storage_error("stat", path, cause) from cause

    def sync_directory(self, path: Path) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as cause:
            raise storage_error("sync directory", path, cause) from cause

    def lock(self, path: Path, content: bytes) -> FileLock | None:
        self.make_directory(path.parent)
        if path.exists() and FileLock.held_here(path.stat()):
            return None
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as cause:
            raise storage_error("open", path, cause) from cause
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            if os.pread(descriptor, len(content) + 1, 0) != content:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, content, 0)
        except OSError as cause:
            os.close(descriptor)
            if cause.errno in (errno.EACCES, errno.EAGAIN):
                return None
            raise storage_error("lock", path, cause) from cause
        return FileLock(path, descriptor)

    def lock_owner(self, path: Path) -> int | None:
        try:
            status = path.stat()
        except FileNotFoundError:
            return None
        except OSError as cause:
            raise storage_error("stat", path, cause) from cause
        return os.getpid() if FileLock.held_here(status) else _lock_holder(status)

    def page_cache_id(self, path: Path) -> str:
        try:
            boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
            status = path.stat()
        except OSError:
            return ""
        return f"{boot_id} {status.st_dev}:{status.st_ino}"

    def used_percent(self, path: Path) -> int:
        room = _measure(path)
        used, usable = room.f_blocks - room.f_bfree, room.f_bavail
        return -(-used * 100 // (used + usable)) if used + usable else 0

    def room(self, path: Path) -> Room:
        measured = _measure(path)
        return Room(measured.f_blocks * measured.f_frsize, measured.f_bfree * measured.f_frsize)


def _measure(path: Path) -> os.statvfs_result:
    """Of the file system that `path` is on, or will be."""
    probe = path
    while not probe.exists() and probe != probe.parent:
        probe = probe.parent
    try:
        return os.statvfs(probe)
    except OSError as cause:
        raise storage_error("measure", probe, cause) from cause


def _allocate(path: Path, size: int, reserved: int) -> int:
    """A descriptor of a new file at `path` whose first `reserved` bytes have blocks.

    It is filled while it has no name and linked when complete: a kill half way leaves nothing behind, where a file of
    the wrong length would keep a Java broker from starting.
    """
    try:
        descriptor = os.open(path.parent, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o644)
    except OSError as cause:
        if cause.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
        return _allocate_in_place(path, size, reserved)
    try:
        os.ftruncate(descriptor, size)
        os.posix_fallocate(descriptor, 0, reserved)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # A directory descriptor makes os.link use linkat(AT_SYMLINK_FOLLOW), which this way of naming needs.
            os.link(f"/proc/self/fd/{descriptor}", path.name, dst_dir_fd=directory, follow_symlinks=True)
        finally:
            os.close(directory)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _allocate_in_place(path: Path, size: int, reserved: int) -> int:
    """For file systems without nameless files."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(descriptor, size)
        os.posix_fallocate(descriptor, 0, reserved)
    except OSError:
        os.close(descriptor)
        path.unlink()
        raise
    return descriptor


def _mapped(path: Path, descriptor: int, *, writable: bool) -> MappedFile:
    try:
        return MappedFile(path, descriptor, os.fstat(descriptor).st_size, writable=writable)
    except OSError as cause:
        os.close(descriptor)
        raise storage_error("map", path, cause) from cause


def _file_stat(name: str, status: os.stat_result) -> FileStat:
    return FileStat(name, status.st_size, status.st_mtime_ns // 1_000_000, stat_bits.S_ISDIR(status.st_mode))


def _lock_holder(status: os.stat_result) -> int | None:
    """Find the file among the system's locks by device and inode: asking this way disturbs nobody's lock."""
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        locks = Path("/proc/locks").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    for line in locks.splitlines():
        # 1: POSIX  ADVISORY  WRITE 4242 fd:01:131090 0 0
        parts = line.split()
        if len(parts) >= 8 and parts[1] == "POSIX" and parts[5] == wanted:
            return max(0, int(parts[4]))
    return None
