"""A disk that fails on request: it loses what was not synced, fills up, or cannot sync.

It is the real disk with a notebook. For every file the notebook holds the bytes of its last sync, and for every
directory the names of its last sync; `crash` makes the directory look as the notebook says. Between "everything since
the last sync is lost" and "everything reached the disk" lies what real kernels do: any subset of the dirty pages made
it. Pass a Random to `crash` and each dirty page survives or not by the toss of a coin.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orbitmq.storage.files import FileStat, LocalDisk, Room
from orbitmq.storage.open_files import PAGE_BYTES, FileLock, MappedFile, PlainFile, storage_error

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random


@dataclass(slots=True)
class _Node:
    """A file, whatever it is called: what is certainly on the device."""

    durable: bytes = b""


@dataclass(slots=True)
class Faults:
    """Turn these while the store runs."""

    space_left: int | None = None
    """Bytes that can still be allocated or written to new blocks; None is plenty."""
    steps_until_full: int | None = None
    """The disk is full from this many space-taking operations on, whatever their size."""
    sync_fails: bool = False
    """Every sync of file contents fails with EIO."""
    reserve_fails: bool = False
    """Giving blocks to a part of a file fails with EIO."""
    used_percent: int | None = None
    """What the disk says of itself; None is the truth."""
    steps_taken: int = field(default=0, init=False)

    def take_space(self, size: int, path: Path) -> None:
        self.steps_taken += 1
        full = self.steps_until_full is not None and self.steps_taken > self.steps_until_full
        if full or (self.space_left is not None and size > self.space_left):
            raise storage_error("write", path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        if self.space_left is not None:
            self.space_left -= size

    def before_reserve(self, size: int, path: Path) -> None:
        if self.reserve_fails:
            raise storage_error("allocate", path, OSError(errno.EIO, os.strerror(errno.EIO)))
        self.take_space(size, path)

    def before_sync(self, path: Path) -> None:
        if self.sync_fails:
            raise storage_error("sync", path, OSError(errno.EIO, os.strerror(errno.EIO)))


class _FaultyMappedFile(MappedFile):
    __slots__ = ("disk", "node")

    disk: FaultyDisk
    node: _Node

    def reserve(self, start: int, size: int) -> None:
        self.disk.faults.before_reserve(size, self.path)
        super().reserve(start, size)

    def sync(self) -> None:
        with self.disk.syncing:
            self.disk.faults.before_sync(self.path)
            super().sync()
            self.node.durable = bytes(self.memory)


class _FaultyPlainFile(PlainFile):
    __slots__ = ("disk", "node")

    disk: FaultyDisk
    node: _Node

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self.disk.faults.take_space(len(data), self.path)
        super().pwrite(data, offset)

    def sync(self) -> None:
        with self.disk.syncing:
            self.disk.faults.before_sync(self.path)
            super().sync()
            self.node.durable = self.pread(self.size, 0)


class FaultyDisk:
    """A `Disk`. Everything it touches must lie under `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.faults = Faults()
        self.syncing = threading.RLock()  # a power cut is a moment: while it is made, no thread syncs one file more
        self._disk = LocalDisk()
        self._boot_id = _next_boot_id()
        self._nodes: dict[Path, _Node] = {}
        self._durable_names: dict[Path, _Node] = {}
        for path in _plain_files(root):
            self._nodes[path] = self._durable_names[path] = _Node(path.read_bytes())

    def crash(self, random: Random | None = None) -> None:
        """Make the directory what a power cut now would leave. The store that used it must be thrown away unclosed.

        Without `random` everything not synced is lost; with it, each page of 4096 bytes that differs between the live
        file and its last sync survives or not by chance.
        """
        with self.syncing:
            durable = dict(self._durable_names)  # a copy: a thread that is still at work may change it
            images = {path: _image(path, node, random) for path, node in durable.items()}
            for path in _plain_files(self.root):
                path.unlink()  # a new inode: maps the dead store still holds must not reach the new files
            self._nodes = {}
            for path, image in images.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(image)
                self._nodes[path] = _Node(image)
            self._durable_names = dict(self._nodes)
        self._boot_id = _next_boot_id()
        self.faults = Faults()

    def power_cut_image(self, folder: Path, random: Random | None = None) -> Path:
        """What a power cut now would leave, by chance as `crash` does, put somewhere else: whoever uses this disk goes on."""
        with self.syncing:
            for path, node in dict(self._durable_names).items():
                copy = folder / path.relative_to(self.root)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(_image(path, node, random))
        return folder

    def allocate(self, path: Path, size: int, *, reserve: int | None = None) -> MappedFile:
        self.faults.take_space(size if reserve is None else reserve, path)
        file = self._disk.allocate(path, size, reserve=reserve)
        node = self._nodes[path] = _Node(bytes(size))
        self.sync_directory(path.parent)
        return self._watched_map(file, node, writable=True)

    def map(self, path: Path, *, writable: bool = False) -> MappedFile:
        return self._watched_map(self._disk.map(path, writable=writable), self._nodes[path], writable=writable)

    def create_sparse(self, path: Path, size: int) -> PlainFile:
        self.faults.take_space(0, path)
        self._disk.create_sparse(path, size).close()
        self._nodes[path] = _Node(bytes(size))
        return self.open(path, writable=True)

    def open(self, path: Path, *, writable: bool = False) -> PlainFile:
        self._disk.open(path, writable=writable).close()
        file = _FaultyPlainFile(path, self._disk._pool, writable=writable)
        file.disk, file.node = self, self._nodes[path]
        return file

    def read(self, path: Path) -> bytes:
        return self._disk.read(path)

    def replace(self, path: Path, data: bytes, *, keep: Path | None = None) -> None:
        self.faults.take_space(len(data), path)
        self.faults.before_sync(path)
        self._disk.replace(path, data, keep=keep)
        if keep is not None and path in self._nodes:
            self._nodes[keep] = self._nodes[path]
        self._nodes[path] = _Node(data)
        self.sync_directory(path.parent)

    def rename(self, old: Path, new: Path) -> None:
        self._disk.rename(old, new)
        self._nodes[new] = self._nodes.pop(old)
        self.sync_directory(old.parent)
        self.sync_directory(new.parent)

    def remove(self, path: Path) -> None:
        self._disk.remove(path)
        self._nodes.pop(path, None)

    def remove_directory(self, path: Path) -> None:
        self._disk.remove_directory(path)

    def make_directory(self, path: Path) -> None:
        self._disk.make_directory(path)

    def list(self, path: Path) -> list[FileStat]:
        return self._disk.list(path)

    def stat(self, path: Path) -> FileStat | None:
        return self._disk.stat(path)

    def sync_directory(self, path: Path) -> None:
        self._disk.sync_directory(path)
        for name in [name for name in self._durable_names if name.parent == path]:
            del self._durable_names[name]
        self._durable_names.update({name: node for name, node in self._nodes.items() if name.parent == path})

    def lock(self, path: Path, content: bytes) -> FileLock | None:
        lock = self._disk.lock(path, content)
        self._nodes[path] = self._durable_names[path] = _Node(content)
        return lock

    def lock_owner(self, path: Path) -> int | None:
        return self._disk.lock_owner(path)

    def page_cache_id(self, path: Path) -> str:
        return self._boot_id

    def used_percent(self, path: Path) -> int:
        pretended = self.faults.used_percent
        return self._disk.used_percent(path) if pretended is None else pretended

    def room(self, path: Path) -> Room:
        return self._disk.room(path)

    def _watched_map(self, file: MappedFile, node: _Node, *, writable: bool) -> MappedFile:
        watched = _FaultyMappedFile(file.path, os.dup(file._descriptor), file.size, writable=writable)
        watched.disk, watched.node = self, node
        file.close()
        return watched


_boots = itertools.count(1)


def _next_boot_id() -> str:
    """Another one for each disk and each crash, also across processes."""
    return f"boot {os.getpid()}.{next(_boots)}"


def _plain_files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def _image(path: Path, node: _Node, random: Random | None) -> bytes:
    live = path.read_bytes() if path.exists() else b""
    if random is None or len(live) != len(node.durable):
        return node.durable
    pages = range(0, len(live), PAGE_BYTES)
    return b"".join((live if random.random() < 0.5 else node.durable)[page : page + PAGE_BYTES] for page in pages)
