"""Where the log ended when topics were deleted: the file `deletedTopics.json`.

A deletion removes queues. The records stay in the log until their files expire, and whoever makes queues of the log again would bring
them back: a restart, and everybody after a kill. So a deletion is noted, durably, before anything is removed: what the log has of that topic
before the noted offset is in no queue. What it has behind was sent to a topic that was made again under the same name.

Java keeps no such file, passes over this one, and brings deleted queues back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.storage.java_object import JavaObject
from orbitmq.storage.json_file import JsonFile, read_table_or_backup

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from orbitmq.storage.files import Disk

NAME: Final = "deletedTopics.json"


class DeletedTable(JavaObject):
    log_offsets: dict[str, int] = msgspec.field(default_factory=dict)


class Deletions:
    def __init__(self, disk: Disk, directory: Path) -> None:
        self._file = JsonFile(disk, directory / NAME, DeletedTable)
        self._table = self._file.load()

    @property
    def log_offsets(self) -> Mapping[str, int]:
        """Of each topic, where its last deletion was."""
        return self._table.log_offsets

    def note(self, topic: str, log_start: int, log_end: int) -> None:
        """Durable on return. Those are forgotten of which the log, which begins at `log_start`, has nothing any more."""
        kept = {name: offset for name, offset in self.log_offsets.items() if offset > log_start}
        self._save({**kept, topic: log_end})

    def log_was_cut(self, end: int) -> None:
        """Before anything is written there: what comes behind `end` was not deleted. Durable on return."""
        if any(offset > end for offset in self.log_offsets.values()):
            self._save({name: min(offset, end) for name, offset in self.log_offsets.items() if end > 0})

    def another_log_follows(self, end: int) -> None:
        """As `log_was_cut`, by a slave whose master has something else there: it knows of no deletion behind `end`."""
        if any(offset > end for offset in self.log_offsets.values()):
            self._save({name: offset for name, offset in self.log_offsets.items() if offset <= end})

    def _save(self, log_offsets: dict[str, int]) -> None:
        self._table = DeletedTable(log_offsets=log_offsets, unknown=self._table.unknown)
        self._file.save(self._table)


def read_deletions(disk: Disk, directory: Path) -> Mapping[str, int]:
    """For those who only look."""
    return read_table_or_backup(disk, directory / NAME, DeletedTable).log_offsets
