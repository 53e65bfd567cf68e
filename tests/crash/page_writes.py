"""A call of the system that writes much, as a kill may find it: the kernel copies page by page, and looks for signals in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbitmq.storage.open_files import PAGE_BYTES, MappedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Parts = Sequence[bytes | bytearray | memoryview]

_write_at_once = MappedFile.write


def pages_of(parts: Parts, position: int) -> Iterator[tuple[int, bytes]]:
    """What goes to each page of the file, and where in the file it begins."""
    whole = b"".join(parts)
    at = 0
    while at < len(whole):
        size = PAGE_BYTES - (position + at) % PAGE_BYTES
        yield position + at, whole[at : at + size]
        at += size


def writing_by_pages(before_each: Callable[[], None] = lambda: None) -> Callable[[MappedFile, Parts, int], None]:
    """Takes the place of `MappedFile.write`."""

    def write(file: MappedFile, parts: Parts, position: int) -> None:
        for start, data in pages_of(parts, position):
            before_each()
            _write_at_once(file, [data], start)

    return write
