"""Files that get their name when they are whole, on any file system of Arrow's; on local disks a power cut does not take them back.

    .<name>.<its own>.tmp    while it is written: readers of lakes pass over names that begin with a dot
    <name>                   whole, its bytes on the device

A name is durable once its folder is synced, and every folder above that was new. A folder that is made here is synced into the one
above at once; whoever names many files syncs their folders once, behind the last of them (`sync_folders`). Object stores and HDFS keep
what they have confirmed; there is nothing to sync.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyarrow import fs

from orbitmq.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable

# Said by file systems that have no links, such as FAT and some of FUSE.
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
# Said of folders by file systems that cannot sync one, and of those that we may write into and not read.
_NO_SYNC: Final = (errno.EINVAL, errno.ENOTSUP, errno.EACCES)

_NOT_IN_NAMES: Final = re.compile(r"^[._]|[/%]")  # readers pass over names that begin with a dot or a low line


class NewFile:
    """`path` is below `root`. A context: what ends well is kept, and its name durable."""

    def __init__(self, files: fs.FileSystem, root: str, path: str, *, is_shared: bool = False) -> None:
        """`is_shared`: others may be writing it, too, and the first to be done has it."""
        self._files = files
        self._root = root
        self._named = path
        self._path = f"{root}/{path}"
        self._is_local = isinstance(files, fs.LocalFileSystem)
        self._is_shared = is_shared
        self.is_ours = True
        folder, _, name = self._path.rpartition("/")
        # With a name of its own: a worker that was given up may still be writing the same file.
        self.temporary = f"{folder}/.{name}.{uuid.uuid4().hex}.tmp"
        self.below = self.temporary.removeprefix(f"{root}/")
        try:
            make_folder(files, folder)
            self.stream = files.open_output_stream(self.temporary)
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error}") from error

    def __enter__(self) -> Any:
        return self.stream

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.discard()
        else:
            self.keep()
            sync_folders(self._files, self._root, [self._named])

    def keep(self) -> None:
        """Under its name, its bytes durable. The name itself is so when its folder is synced."""
        self.stream.close()
        try:
            if self._is_local:
                _sync(self.temporary)
            if self._is_shared and self._is_local:
                self._link()
            else:
                self._files.move(self.temporary, self._path)
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error}") from error

    def discard(self) -> None:
        self.stream.close()
        with suppress(FileNotFoundError):  # who runs the batch again has removed it
            self._files.delete_file(self.temporary)

    def _link(self) -> None:
        """Unlike a move, it does not replace what has the name."""
        try:
            os.link(self.temporary, self._path)
        except FileExistsError:
            self.is_ours = False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self._files.move(self.temporary, self._path)
            return
        self._files.delete_file(self.temporary)


def as_file_name(text: str) -> str:
    """The same for what cannot be part of a path, or would be hidden: `urllib.parse.unquote` undoes it."""
    return _NOT_IN_NAMES.sub(lambda found: f"%{ord(found[0]):02X}", text)


def sync_folders(files: fs.FileSystem, root: str, paths: Iterable[str]) -> None:
    """The names of files below `root`, and of the folders they are in, are durable."""
    if not isinstance(files, fs.LocalFileSystem):
        return
    top = Path(root)
    folders = {top}
    for path in paths:
        below = Path(path).parent
        folders |= {top / folder for folder in (below, *below.parents)}
    for folder in folders:
        _sync_folder(folder)


def sync_new_files(files: fs.FileSystem, root: str, folder: str, known: set[str]) -> None:
    """What another library wrote into a folder below `root`, beside the names that were known before."""
    if not isinstance(files, fs.LocalFileSystem):
        return
    new = sorted(file_names(files, f"{root}/{folder}") - known)
    for name in new:
        try:
            _sync(f"{root}/{folder}/{name}")
        except FileNotFoundError:
            continue  # a passing one of somebody else's
        except OSError as error:
            raise StorageError(f"cannot sync {root}/{folder}/{name}: {error}") from error
    if new:
        sync_folders(files, root, [f"{folder}/{new[0]}"])


def file_names(files: fs.FileSystem, folder: str) -> set[str]:
    where = fs.FileSelector(folder, allow_not_found=True)
    return {info.base_name for info in files.get_file_info(where) if info.is_file}


def make_folder(files: fs.FileSystem, folder: str) -> None:
    if isinstance(files, fs.LocalFileSystem):
        _make_folder(Path(folder))
    else:
        files.create_dir(folder, recursive=True)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    try:
        _sync(str(folder))
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise StorageError(f"cannot sync {folder}: {error}") from error


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
