"""Who runs on a store directory, and how the last one stopped: the files `lock` and `abort`.

    lock     holds the word "lock"; its first byte is locked (fcntl) by the running process. Java takes the same lock,
             so one kind of broker keeps the other out. Never open this file while holding the lock: closing it again
             would give the lock back.
    abort    exists while a broker runs: found at start, the last one did not stop properly. We write the process id, as
             Java does, and on a second line which boot of the machine and which directory this is. That tells a killed
             process (all it wrote is in the page cache) from a machine that went down (only what was synced is there)
             and from a copy of a running store (files of different moments).

Java: DefaultMessageStore.start, createTempFile; StorePathConfigHelper
"""

from __future__ import annotations

import os
from enum import Enum
from typing import TYPE_CHECKING, Final

from orbitmq.errors import StorageError, StoreLocked

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.storage.files import Disk
    from orbitmq.storage.open_files import FileLock

LOCK_NAME: Final = "lock"
ABORT_NAME: Final = "abort"


class LastExit(Enum):
    CLEAN = "stopped properly"
    KILLED = "the process was killed"
    CRASHED = "the machine went down, another kind of broker was killed, or this is a copy of a running store"


def take_lock(disk: Disk, directory: Path) -> FileLock:
    """Held until released, or until the process ends however it ends."""
    path = directory / LOCK_NAME
    lock = disk.lock(path, b"lock")
    if lock is None:
        owner = disk.lock_owner(path)
        who = f"process {owner}" if owner else "another process"
        raise StoreLocked(
            f"{directory} is in use by {who}",
            hint="stop that broker, or give this one another storePathRootDir; `orbitmq dev --data` names another folder",
        )
    return lock


def last_exit(disk: Disk, directory: Path) -> LastExit:
    path = directory / ABORT_NAME
    if disk.stat(path) is None:
        return LastExit.CLEAN
    try:
        lines = disk.read(path).decode("ascii", "replace").split("\n")
    except StorageError:
        return LastExit.CRASHED
    here = disk.page_cache_id(directory)
    return LastExit.KILLED if len(lines) > 1 and here and lines[1] == here else LastExit.CRASHED


def mark_running(disk: Disk, directory: Path) -> None:
    """From here on a start finds that the last one did not stop properly. Durable on return."""
    disk.replace(directory / ABORT_NAME, f"{os.getpid()}\n{disk.page_cache_id(directory)}\n".encode("ascii"))


def mark_stopped(disk: Disk, directory: Path) -> None:
    """Only when every record has been indexed and every file synced: a Java broker then looks no further."""
    disk.remove(directory / ABORT_NAME)
    disk.sync_directory(directory)
