"""What a power cut would leave of a directory: a disk promises what was synced, and nothing else."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class Synced:
    """Hears every sync of this process: files as long as they were, folders with the names they had."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._lengths: dict[int, int] = {}
        self._names: dict[int, set[str]] = {}
        sync = os.fsync

        def hear(descriptor: int) -> None:
            sync(descriptor)
            status = os.fstat(descriptor)
            self._lengths[status.st_ino] = status.st_size
            if stat.S_ISDIR(status.st_mode):
                self._names[status.st_ino] = set(os.listdir(descriptor))

        monkeypatch.setattr(os, "fsync", hear)

    def lost(self, root: Path) -> list[str]:
        """The files and folders below `root`, itself too, that a power cut might take, whole or in part."""
        lost = []
        for path in (root, *sorted(root.rglob("*"))):
            is_named = path.name in self._names.get(path.parent.stat().st_ino, ())
            is_whole = path.is_dir() or self._lengths.get(path.stat().st_ino) == path.stat().st_size
            if not (is_named and is_whole):
                lost.append(str(path.relative_to(root)))
        return lost
