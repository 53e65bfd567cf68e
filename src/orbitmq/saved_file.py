"""Small files that must survive a crash whole: the new content replaces the old at once, the old is kept as `.bak`.

Java: MixAll.string2File
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def save(path: Path, content: str | bytes, *, keep_old: bool = True, private: bool = False) -> None:
    """OSError when it cannot be written; the file is then as it was. A private one is its owner's alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if keep_old and path.exists():
        _replace(path.with_name(path.name + ".bak"), path.read_bytes(), private=private)
    _replace(path, content.encode() if isinstance(content, str) else content, private=private)


def _replace(path: Path, content: bytes, *, private: bool) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            if private:
                os.fchmod(file.fileno(), 0o600)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
