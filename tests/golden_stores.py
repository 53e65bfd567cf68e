"""Store directories that Apache's own brokers wrote, and what they say they hold."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "golden" / "stores"
VERSIONS = ("5.3.3", "4.9.7")
SEGMENT_BYTES = 32_768


def manifest(version: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((GOLDEN / f"store-{version}.manifest.json").read_text())
    return loaded


def commit_log(version: str) -> bytes:
    """All files of the commit log, one behind the other: both stores begin at offset 0."""
    with tarfile.open(GOLDEN / f"store-{version}.tar.gz") as archive:
        names = sorted(name for name in archive.getnames() if name.startswith("store/commitlog/"))
        members = [archive.extractfile(name) for name in names]
        return b"".join(member.read() for member in members if member is not None)


def unpack(version: str, directory: Path) -> Path:
    """The store directory itself, in a scratch copy."""
    with tarfile.open(GOLDEN / f"store-{version}.tar.gz") as archive:
        if hasattr(tarfile, "data_filter"):  # Python 3.11.4 and later
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(directory)
    return directory / "store"
