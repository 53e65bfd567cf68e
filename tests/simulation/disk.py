"""Disks in memory. A platter is what a machine has; a `MemoryDisk` is how one process, until it ends, sees it.

What a killed process wrote stays. After a power cut a file has the bytes of its last sync, and of those written since any blocks
that chance picks. Names that were made, changed or removed since the last sync of their directory survive in that order, up to
any of them, as the journals of file systems keep them. (`tests/storage/faulty_disk.py` does the same to real files.)
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Final

from orbitmq.errors import StorageError
from orbitmq.storage.files import FileStat, Room
from orbitmq.storage.open_files import FileLock, MappedFile, PlainFile
from tests.simulation.loop import Killed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from random import Random

    from tests.simulation.loop import Lane

_LARGE: Final = 1 << 20  # from here on a file's memory is taken from the system only where it is written to
_BLOCKS: Final = (512, 4096)  # what a disk, and what a kernel, writes whole


class Inode:
    """A file, whatever it is called."""

    __slots__ = ("data", "dirty", "durable", "modified_ms")

    def __init__(self, size: int) -> None:
        self.data: bytearray | mmap.mmap = bytearray(size) if size < _LARGE else mmap.mmap(-1, size)
        self.durable: bytes | dict[int, bytes] = bytes(size) if size < _LARGE else {}
        self.dirty: set[int] = set()  # pages of a large one
        self.modified_ms = 0

    def sync(self) -> None:
        if isinstance(self.durable, bytes):
            self.durable = bytes(self.data)
        else:
            for page in self.dirty:
                self.durable[page] = bytes(self.data[page * 4096 : page * 4096 + 4096])
            self.dirty.clear()

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        end = offset + len(data)
        if end > len(self.data):
            assert isinstance(self.data, bytearray), "large files have their size from the start"
            self.data = self.data + bytes(end - len(self.data))
        self.data[offset:end] = data
        if not isinstance(self.durable, bytes):
            self.dirty.update(range(offset // 4096, (end - 1) // 4096 + 1))

    def after_power_cut(self, random: Random, kept: float) -> Inode:
        """Of what was not synced, each block is there with probability `kept`."""
        survivor = Inode(0)
        survivor.modified_ms = self.modified_ms
        if not isinstance(self.durable, bytes):
            fresh = mmap.mmap(-1, len(self.data))
            for page, content in self.durable.items():
                fresh[page * 4096 : page * 4096 + len(content)] = content
            for page in sorted(self.dirty):
                if random.random() < kept:
                    fresh[page * 4096 : page * 4096 + 4096] = self.data[page * 4096 : page * 4096 + 4096]
            survivor.data, survivor.durable = fresh, {}
            survivor.dirty = self.dirty | set(self.durable)
            survivor.sync()
            return survivor
        image = bytearray(self.durable)
        if len(self.data) == len(image) and self.data != image:
            block = random.choice(_BLOCKS)
            for at in range(0, len(image), block):
                if self.data[at : at + block] != image[at : at + block] and random.random() < kept:
                    image[at : at + block] = self.data[at : at + block]
        survivor.data, survivor.durable = image, bytes(image)
        return survivor


class Platter:
    """What a machine keeps, with or without a process that uses it."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.files: dict[Path, Inode] = {}
        self.directories: set[Path] = set()
        self.boot = 1
        self.locked: set[Path] = set()
        self.now_ms = now_ms
        self._named: dict[Path, Inode] = {}  # by the last sync of their directories
        self._journal: list[tuple[Path, Inode | None]] = []  # what happened to names since

    def name(self, path: Path, inode: Inode | None) -> None:
        """None: no longer."""
        self._journal.append((path, inode))
        _put(self.files, path, inode)

    def sync_directory(self, path: Path) -> None:
        for name, inode in self._journal:
            if name.parent == path:
                _put(self._named, name, inode)
        self._journal = [change for change in self._journal if change[0].parent != path]

    def process_ended(self) -> None:
        """Files stay as they are; whatever the dead process still holds must not reach them."""
        self.locked.clear()
        for inode in self.files.values():
            if isinstance(inode.data, bytearray):
                inode.data = bytearray(inode.data)

    def power_cut(self, random: Random) -> None:
        kept = random.choice((0.0, 0.0, 0.3, 0.5, 0.8, 1.0))
        for path, inode in self._journal[: random.randrange(len(self._journal) + 1) if kept else 0]:
            _put(self._named, path, inode)
        self._journal.clear()
        self.files = {path: self._named[path].after_power_cut(random, kept) for path in sorted(self._named)}
        self._named = dict(self.files)
        self.directories = {parent for path in self.files for parent in path.parents}
        self.locked.clear()
        self.boot += 1

    def wipe(self) -> None:
        """The disk is lost, another is put in."""
        self.files, self._named, self.directories = {}, {}, set()
        self._journal.clear()
        self.boot += 1


def _put(names: dict[Path, Inode], path: Path, inode: Inode | None) -> None:
    if inode is None:
        names.pop(path, None)
    else:
        names[path] = inode


class MemoryDisk:
    """A `Disk`. Every operation may be a process's last: `die_after(n, end)` ends it before the n-th from now."""

    def __init__(self, platter: Platter, lane: Lane, trace: Callable[..., None]) -> None:
        self.platter = platter
        self._lane = lane
        self._trace = trace
        self._steps_left = 0
        self._end: Callable[[], None] | None = None

    def die_after(self, steps: int, end: Callable[[], None]) -> None:
        self._steps_left, self._end = steps, end

    def live_on(self) -> None:
        self._end = None

    def step(self, action: str, path: Path) -> None:
        if not self._lane.alive:
            raise Killed
        if self._end is not None:
            self._steps_left -= 1
            if self._steps_left <= 0:
                end, self._end = self._end, None
                end()
                raise Killed
        self._trace("disk", action, path)

    # ---- what the store calls

    def allocate(self, path: Path, size: int, *, reserve: int | None = None) -> MappedFile:
        self.make_directory(path.parent)
        self.step("allocate", path)
        if path in self.platter.files:
            raise StorageError(f"cannot allocate {path}: File exists")
        inode = self._new(path, size)
        self.sync_directory(path.parent)
        return _MemoryMap(self, path, inode, writable=True)

    def map(self, path: Path, *, writable: bool = False) -> MappedFile:
        return _MemoryMap(self, path, self._inode(path), writable=writable)

    def create_sparse(self, path: Path, size: int) -> PlainFile:
        self.make_directory(path.parent)
        self.step("create", path)
        if path in self.platter.files:
            raise StorageError(f"cannot create {path}: File exists")
        return _MemoryFile(self, path, self._new(path, size))

    def open(self, path: Path, *, writable: bool = False) -> PlainFile:
        return _MemoryFile(self, path, self._inode(path))

    def read(self, path: Path) -> bytes:
        return bytes(self._inode(path).data)

    def replace(self, path: Path, data: bytes, *, keep: Path | None = None) -> None:
        self.make_directory(path.parent)
        self.step("replace", path)
        fresh = Inode(0)
        fresh.data, fresh.durable, fresh.modified_ms = bytearray(data), bytes(data), self.platter.now_ms()
        files = self.platter.files
        if keep is not None and path in files:
            self.platter.name(keep, files[path])
            self.platter.name(path, None)
            self.step("keep", keep)
        self.platter.name(path, fresh)
        self.sync_directory(path.parent)

    def rename(self, old: Path, new: Path) -> None:
        self.step("rename", old)
        self.platter.name(new, self._inode(old))
        self.platter.name(old, None)
        self.sync_directory(new.parent)
        if old.parent != new.parent:
            self.sync_directory(old.parent)

    def remove(self, path: Path) -> None:
        self.step("remove", path)
        if path in self.platter.files:
            self.platter.name(path, None)

    def remove_directory(self, path: Path) -> None:
        self.step("remove directory", path)
        self.platter.directories.discard(path)

    def make_directory(self, path: Path) -> None:
        self.platter.directories.update((path, *path.parents))

    def list(self, path: Path) -> list[FileStat]:
        files = [
            FileStat(name.name, len(inode.data), inode.modified_ms)
            for name, inode in self.platter.files.items()
            if name.parent == path
        ]
        folders = [
            FileStat(folder.name, 0, 0, is_directory=True)
            for folder in self.platter.directories
            if folder.parent == path and folder != path
        ]
        return sorted(files + folders, key=lambda found: found.name)

    def stat(self, path: Path) -> FileStat | None:
        inode = self.platter.files.get(path)
        if inode is not None:
            return FileStat(path.name, len(inode.data), inode.modified_ms)
        return FileStat(path.name, 0, 0, is_directory=True) if path in self.platter.directories else None

    def sync_directory(self, path: Path) -> None:
        self.step("sync directory", path)
        self.platter.sync_directory(path)

    def lock(self, path: Path, content: bytes) -> FileLock | None:
        self.make_directory(path.parent)
        if path in self.platter.locked:
            return None
        if path not in self.platter.files:
            self._new(path, 0).write(content, 0)
        self.platter.locked.add(path)
        return _MemoryLock(self.platter, path)

    def lock_owner(self, path: Path) -> int | None:
        return 1 if path in self.platter.locked else None

    def page_cache_id(self, path: Path) -> str:
        return f"boot {self.platter.boot}"

    def used_percent(self, path: Path) -> int:
        return 10

    def room(self, path: Path) -> Room:
        return Room(1 << 40, 1 << 39)

    def _inode(self, path: Path) -> Inode:
        inode = self.platter.files.get(path)
        if inode is None:
            raise StorageError(f"cannot open {path}: No such file or directory")
        return inode

    def _new(self, path: Path, size: int) -> Inode:
        inode = Inode(size)
        self.platter.name(path, inode)
        inode.modified_ms = self.platter.now_ms()
        return inode


class _MemoryMap(MappedFile):
    __slots__ = ("_disk", "_inode")

    def __init__(self, disk: MemoryDisk, path: Path, inode: Inode, *, writable: bool) -> None:
        self.path = path
        self.size = len(inode.data)
        self._disk = disk
        self._inode = inode
        memory = memoryview(inode.data)
        self.memory = memory if writable else memory.toreadonly()

    def sync(self) -> None:
        self._disk.step("sync", self.path)
        self._inode.sync()

    def reserve(self, start: int, size: int) -> None:
        self._disk.step("reserve", self.path)

    def warm_up(self) -> None:
        self.sync()

    def read_in(self, start: int, end: int) -> None:
        """It is in memory."""

    def make_storable(self, start: int, end: int) -> None:
        """It always is."""

    def write(self, parts: Sequence[bytes | bytearray | memoryview], position: int) -> None:
        for part in parts:
            self.memory[position : position + len(part)] = part
            position += len(part)

    def fetch(self, start: int, end: int) -> None:
        """It is in memory."""

    def let_go(self, start: int, end: int) -> None:
        """It is memory, and mapped from nowhere."""

    def forget(self, start: int, end: int) -> None:
        """It stays there."""

    def read_ahead(self, start: int = 0, *, enabled: bool) -> None:
        """Nothing is ahead."""

    def close(self) -> None:
        """Nothing to give back: the platter keeps the memory."""


class _MemoryFile(PlainFile):
    __slots__ = ("_disk", "_inode")

    def __init__(self, disk: MemoryDisk, path: Path, inode: Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode

    def pread(self, size: int, offset: int) -> bytes:
        return bytes(self._inode.data[offset : offset + size])

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._disk.step("write", self.path)
        self._inode.write(data, offset)
        self._inode.modified_ms = self._disk.platter.now_ms()

    def next_data(self, offset: int) -> int:
        return offset  # one that does not know its holes

    def truncate(self, size: int) -> None:
        self._disk.step("resize", self.path)
        data = bytes(self._inode.data[:size])
        self._inode.data = bytearray(data + bytes(size - len(data)))

    def sync(self) -> None:
        self._disk.step("sync", self.path)
        self._inode.sync()

    @property
    def size(self) -> int:
        return len(self._inode.data)

    def close(self) -> None:
        """Nothing to give back."""


class _MemoryLock(FileLock):
    __slots__ = ("_platter",)

    def __init__(self, platter: Platter, path: Path) -> None:
        self.path = path
        self._platter = platter

    def release(self) -> None:
        self._platter.locked.discard(self.path)
