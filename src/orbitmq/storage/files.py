"""The disk, behind one small protocol. No other module opens, maps, syncs, renames or lists a file.

    Disk    allocate / map / create_sparse / open / read / replace / rename / remove / list / stat / lock / sync

What it gives out to read and write by is in open_files.py.

What the rest of the store relies on:
- `allocate` reserves every block, so a full disk is an ordinary error (StoreFull) and never a SIGBUS on a later store
  into the map. The file appears under its name complete or not at all.
- Memory stays readable after `remove`: the map lives as long as somebody holds a view of it.
- `sync` waits for the device without holding the interpreter lock, and covers what was stored through the map.

Java: MappedFileQueue, UtilAll.getDiskPartitionSpaceUsedPercent, MixAll.string2File
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat as stat_bits
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from orbitmq.storage.open_files import DescriptorPool, FileLock, MappedFile, PlainFile, measure, storage_error

_OPEN_DESCRIPTORS: Final = 512  # of plain files, at once; below the usual soft limit of 1024
_MOST_NAME_BYTES: Final = 255  # of a file or folder, with every usual file system


def is_file_name(name: str) -> bool:
    """Whether a file or folder can be called so: what is named by others, as a topic is, has to be asked before it is stored."""
    try:
        encoded = name.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return 0 < len(encoded) <= _MOST_NAME_BYTES and name not in (".", "..") and "/" not in name and "\0" not in name


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
        self._pool = DescriptorPool(open_plain_files)

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
        room = measure(path)
        used, usable = room.f_blocks - room.f_bfree, room.f_bavail
        return -(-used * 100 // (used + usable)) if used + usable else 0

    def room(self, path: Path) -> Room:
        measured = measure(path)
        return Room(measured.f_blocks * measured.f_frsize, measured.f_bfree * measured.f_frsize)


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
