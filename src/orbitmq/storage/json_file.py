"""The broker's tables on disk: `config/<name>.json`, the version before it in `<name>.json.bak`.

Saving writes the new version beside the old one, syncs it, keeps the old one as `.bak` and renames: at every moment, and
after any crash, one of the two is whole. Loading takes the first that can be read. One that cannot is kept as `.broken`,
so that the next save does not put it in place of a good `.bak`. One that we may not read stops the start: it may be whole.

We write strict JSON, which Java reads; we read Java's own dialect (orbitmq/fastjson.py).

Java: ConfigManager
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec

from orbitmq.errors import BodyError, StorageError
from orbitmq.fastjson import MAX_TOKENS_ASKED_FOR, loads
from orbitmq.storage.java_object import JavaObject, read_object, write_object

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.storage.files import Disk

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=JavaObject)

_NOT_ITS_FAULT: Final = (PermissionError, NotADirectoryError)  # the file may be whole: nothing is put in its place


class JsonFile(Generic[T]):
    def __init__(self, disk: Disk, path: Path, shape: type[T]) -> None:
        self.path = path
        self._disk = disk
        self._shape = shape
        self._saved = b""

    def load(self) -> T:
        """The table; an empty one if there is none, or none that can be read (Java starts then, too)."""
        for path in (self.path, backup_of(self.path)):
            try:
                table = read_table(self._disk, path, self._shape)
            except (BodyError, StorageError) as error:
                if isinstance(error.__cause__, _NOT_ITS_FAULT):
                    raise
                broken = path.with_name(path.name + ".broken")
                logger.error("%s cannot be read, keeping it as %s: %s", path, broken.name, error)
                self._disk.rename(path, broken)
                continue
            if table is not None:
                return table
        return self._shape()

    def save(self, table: T) -> bool:
        """Durable on return. Writes nothing, and answers False, if the file already says so."""
        data = encode_table(table)
        if data == self._saved:
            return False
        self._disk.replace(self.path, data, keep=backup_of(self.path))
        self._saved = data
        return True


def read_table(disk: Disk, path: Path, shape: type[T]) -> T | None:
    """None if there is no such file. Touches nothing: tools read a running broker's tables with it."""
    if disk.stat(path) is None:
        return None
    data = disk.read(path)
    if not data.strip(b" \t\r\n\0"):
        raise BodyError(f"{path} is empty")
    members = loads(data, max_tokens=MAX_TOKENS_ASKED_FOR)
    if not isinstance(members, dict):
        raise BodyError(f"{path} holds no object")
    return read_object(shape, members)


def read_table_or_backup(disk: Disk, path: Path, shape: type[T]) -> T:
    """As `JsonFile.load`, but touches nothing."""
    for candidate in (path, backup_of(path)):
        try:
            table = read_table(disk, candidate, shape)
        except (BodyError, StorageError):
            continue
        if table is not None:
            return table
    return shape()


def encode_table(table: JavaObject) -> bytes:
    return msgspec.json.format(msgspec.json.encode(write_object(table)), indent=1) + b"\n"


def backup_of(path: Path) -> Path:
    return path.with_name(path.name + ".bak")
