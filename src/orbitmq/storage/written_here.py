"""Whether the log of a store may end with what no other broker has: the file `written-here`.

It is there from when a broker opens the store as a master, and so writes the log itself, until one that opened it as a slave has
compared the log with its master's, what that does not have is cut off, durably, and the positions of groups are its master's, too.
A slave that only ever copied has none.

Java has no such file, and passes over this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.storage.files import Disk

NAME: Final = "written-here"


def is_written_here(disk: Disk, directory: Path) -> bool:
    return disk.stat(directory / NAME) is not None


def mark_written_here(disk: Disk, directory: Path) -> None:
    """Before a master writes anything. Durable on return."""
    if not is_written_here(disk, directory):
        disk.replace(directory / NAME, b"")


def mark_a_copy(disk: Disk, directory: Path) -> None:
    """Only after what was cut off is gone from the disk: a power cut must not bring it back unmarked."""
    disk.remove(directory / NAME)
