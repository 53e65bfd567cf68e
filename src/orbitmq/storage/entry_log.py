"""A growing run of fixed-size entries in fixed-size files: what queues are made of.

    <directory>/00000000000000000000    entries 0 ..
    <directory>/00000000000006000000    a file's name is the position of its first byte, in 20 digits

New entries gather in memory (`tail`) and are written behind the scenes: losing them costs nothing, because the commit log has
them and recovery indexes it again. Files have their full length from birth but only the blocks written to, and are written by
pwrite: ten thousand queues take no 60 GB, and a full disk is an error instead of a SIGBUS.

Java: MappedFileQueue, as ConsumeQueue and BatchConsumeQueue use it
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from orbitmq.errors import StoreCorrupt
from orbitmq.storage.open_files import PAGE_BYTES
from orbitmq.storage.segmented_log import NAME_DIGITS, segment_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from orbitmq.storage.files import Disk
    from orbitmq.storage.open_files import PlainFile

_CHUNK_ENTRIES: Final = 16_384  # read at once when entries are looked at one by one
_ZEROES: Final = bytes(64 * PAGE_BYTES)
NOWHERE_SIZE: Final = 0x7FFFFFFF  # of an entry that leads to no record
_FILES_TO_SCAN: Final = 3  # after a crash; what is older was synced long ago


class EntryFiles:
    """The files alone. A position counts bytes from the first entry that ever was."""

    __slots__ = ("_disk", "_names_changed", "_open", "_unsynced", "directory", "file_bytes", "starts")

    def __init__(self, disk: Disk, directory: Path, file_bytes: int, starts: tuple[int, ...] = ()) -> None:
        self.directory = directory
        self.file_bytes = file_bytes
        self.starts = starts  # first position of each file there is, ascending
        self._disk = disk
        self._open: dict[int, PlainFile] = {}
        self._unsynced: set[int] = set()
        self._names_changed = False  # since the last sync of the directory

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes, cut at the end of the file; nothing where there is no file."""
        start = position - position % self.file_bytes
        file = self._open.get(start)
        if file is None:
            if start not in self.starts:
                return b""
            file = self._opened(start)
        return file.pread(min(size, start + self.file_bytes - position), position - start)

    def write(self, position: int, data: bytes) -> None:
        """All of `data`, over as many files as it takes; they are made as they are needed."""
        at = 0
        while at < len(data):
            start = position + at - (position + at) % self.file_bytes
            piece = data[at : start + self.file_bytes - position]
            file = self._opened(start) if start in self.starts else self._create(start)
            file.pwrite(piece, position + at - start)
            self._unsynced.add(start)
            at += len(piece)

    def clear_from(self, position: int) -> None:
        """Zeroes from there to the end of that file, if it is there. Only pages that hold something else are written: others may
        have no block yet, and the disk no room."""
        start = position - position % self.file_bytes
        if start not in self.starts:
            return
        file, at = self._opened(start), position - start
        while True:
            at = file.next_data(at)
            window = file.pread(len(_ZEROES) - at % PAGE_BYTES, at)
            if not window:
                return
            done = len(window) if _ZEROES.startswith(window) else 0
            while done < len(window):
                page = window[done : done + PAGE_BYTES - (at + done) % PAGE_BYTES]
                if not _ZEROES.startswith(page):
                    file.pwrite(_ZEROES[: len(page)], at + done)
                    self._unsynced.add(start)
                done += len(page)
            at += done

    def distrust(self) -> None:
        """Take no file for synced: whoever wrote them was killed."""
        self._unsynced = set(self.starts)
        self._names_changed = True

    @property
    def needs_sync(self) -> bool:
        return self._names_changed or bool(self._unsynced)

    def sync(self) -> None:
        unsynced, self._unsynced = self._unsynced, set()
        try:
            for start in sorted(unsynced):
                if start in self.starts:
                    self._opened(start).sync()
            if self._names_changed:
                self._names_changed = False
                self._disk.sync_directory(self.directory)
        except BaseException:
            self._unsynced |= unsynced
            self._names_changed = True
            raise

    def drop(self, start: int) -> None:
        self.starts = tuple(kept for kept in self.starts if kept != start)
        self._unsynced.discard(start)
        file = self._open.pop(start, None)
        if file is not None:
            file.close()
        self._disk.remove(self.directory / segment_name(start))
        self._names_changed = True

    def destroy(self) -> None:
        """Remove the files and their directory."""
        for start in self.starts:
            self.drop(start)
        if self._disk.stat(self.directory) is not None:
            self._disk.remove_directory(self.directory)

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _opened(self, start: int) -> PlainFile:
        file = self._open.get(start)
        if file is None:
            fresh = self._disk.open(self.directory / segment_name(start), writable=True)
            file = self._open.setdefault(start, fresh)
            if file is not fresh:
                fresh.close()  # another thread was quicker
        return file

    def _create(self, start: int) -> PlainFile:
        file = self._disk.create_sparse(self.directory / segment_name(start), self.file_bytes)
        self._open[start] = file
        self.starts = tuple(sorted((*self.starts, start)))
        self._names_changed = True
        return file


def load_entry_files(disk: Disk, directory: Path, file_bytes: int) -> EntryFiles:
    """What is in a queue's directory. An empty last file is what a killed creation leaves; it is removed."""
    files = [file for file in disk.list(directory) if not file.is_directory]
    if files and files[-1].size == 0:
        disk.remove(directory / files.pop().name)
    for file in files:
        path = directory / file.name
        if len(file.name) != NAME_DIGITS or not (file.name.isascii() and file.name.isdigit()):
            raise StoreCorrupt(f"{path} is not a queue file", hint="move it out of this directory")
        if file.size != file_bytes:
            raise StoreCorrupt(
                f"{path} has {file.size} bytes where {file_bytes} are configured",
                hint=f"set the size this store was written with, or remove {directory.parent.parent} to have it rebuilt",
            )
    return EntryFiles(disk, directory, file_bytes, tuple(int(file.name) for file in files))


class EntryLog:
    """Entries by number. Guarded by its owner: the table of queues holds one lock for all."""

    __slots__ = ("changes", "entry_bytes", "files", "tail", "written")

    def __init__(self, files: EntryFiles, entry_bytes: int) -> None:
        self.files = files
        self.entry_bytes = entry_bytes
        self.written = 0  # entries before this number are in the files, later ones in the tail
        self.tail = bytearray()
        self.changes = 0  # entries that were read may be kept as long as this stays the same

    @property
    def next(self) -> int:
        return self.written + len(self.tail) // self.entry_bytes

    @property
    def first(self) -> int:
        """The lowest number there is an entry for; `next` if there is none."""
        starts = self.files.starts
        return starts[0] // self.entry_bytes if starts else self.written

    @property
    def per_file(self) -> int:
        return self.files.file_bytes // self.entry_bytes

    def read(self, number: int, count: int) -> bytes:
        """Up to `count` entries from `number`, all of one file; nothing where there are none."""
        size = self.entry_bytes
        behind = number - self.written
        if behind >= 0:
            return bytes(self.tail[behind * size : (behind + count) * size])
        data = self.files.read(number * size, min(count, -behind) * size)
        got = len(data) // size
        if got < count and number + got == self.written:
            data += self.tail[: (count - got) * size]
        return data

    def load(self, valid: Callable[[bytes], int], *, trust: bool) -> bytes:
        """Find the last entry; `valid` counts the written entries at the start of its argument.

        After a clean stop bisection finds it. After a crash pages may be missing anywhere in what was not synced, so each
        entry is looked at, from the third last file on. Files behind the last entry are removed.

        Returns all entries there are if one look was enough to find them, which it is for most queues; else nothing.
        """
        starts = self.files.starts
        if not starts:
            return b""
        if trust:
            # Most queues are short: one page often holds the end.
            page = self.files.read(starts[-1], PAGE_BYTES // self.entry_bytes * self.entry_bytes)
            seen = valid(page) * self.entry_bytes
            if seen < len(page):
                self.written = (starts[-1] + seen) // self.entry_bytes
            else:
                self.written = self._bisect_end(valid, (starts[-1] + seen) // self.entry_bytes)
                seen = 0
        else:
            self.written, seen, page = self._scan_end(valid), 0, b""
        for start in starts[1:]:
            if start >= self.written * self.entry_bytes:
                self.files.drop(start)
        if not trust:
            # Of what was not synced a power cut keeps any pages. Those behind a lost one would count again once that is filled.
            self.files.clear_from(self.written * self.entry_bytes)
        return page[:seen] if len(starts) == 1 else b""

    def cut(self, number: int) -> None:
        """Forget the entries from `number` on, and clear them, so that nobody takes them for valid later."""
        self.changes += 1
        if number >= self.written:
            del self.tail[(number - self.written) * self.entry_bytes :]
            return
        end = self.written
        self.tail.clear()
        self.written = number
        for start in reversed(self.files.starts):
            first = start // self.entry_bytes
            if first >= number and start != self.files.starts[0]:
                self.files.drop(start)
            elif first + self.per_file > number:
                low, high = max(first, number), min(first + self.per_file, end)
                self.files.write(low * self.entry_bytes, bytes((high - low) * self.entry_bytes))

    def drop_files_below(self, number: int) -> int:
        """Remove leading files that hold no entry from `number` on, never the last; how many went."""
        count = 0
        while len(self.files.starts) > 1 and self.first + self.per_file <= min(number, self.written):
            self.files.drop(self.files.starts[0])
            count += 1
        return count

    def first_leading_to(self, physical: int) -> int:
        """Of the entries that a crash may have damaged, the first that leads to log offset `physical` or further, or back.

        Each begins with an offset and a size. Offsets ascend; what leads back stands on two pages, and one of them was lost.
        """
        head = struct.Struct(f">qi{self.entry_bytes - 12}x")
        before = -1
        for start in self.files.starts[-_FILES_TO_SCAN:]:
            number = start // self.entry_bytes
            while data := self.read(number, min(_CHUNK_ENTRIES, start // self.entry_bytes + self.per_file - number)):
                for offset, size in head.iter_unpack(data):
                    if size != NOWHERE_SIZE:
                        if offset >= physical or offset <= before:
                            return number
                        before = offset
                    number += 1
        return self.next

    def overwrite(self, number: int, entry: bytes) -> None:
        """Change one entry that is there."""
        self.changes += 1
        behind = (number - self.written) * self.entry_bytes
        if behind >= 0:
            self.tail[behind : behind + self.entry_bytes] = entry
        else:
            self.files.write(number * self.entry_bytes, entry)

    def unwritten(self) -> tuple[int, bytes]:
        """What is only in memory: number of the first such entry, and the entries."""
        return self.written, bytes(self.tail)

    def mark_written(self, first: int, data_bytes: int) -> None:
        """What `unwritten` gave is in the files now, unless the log was cut meanwhile."""
        if first == self.written and data_bytes <= len(self.tail):
            del self.tail[:data_bytes]
            self.written += data_bytes // self.entry_bytes

    def _bisect_end(self, valid: Callable[[bytes], int], low: int) -> int:
        """In the last file, whose entries before `low` are written."""
        high = self.files.starts[-1] // self.entry_bytes + self.per_file
        while low < high:
            middle = (low + high) // 2
            if valid(self.files.read(middle * self.entry_bytes, self.entry_bytes)):
                low = middle + 1
            else:
                high = middle
        return low

    def _scan_end(self, valid: Callable[[bytes], int]) -> int:
        number = 0
        for start in self.files.starts[-_FILES_TO_SCAN:]:
            number = start // self.entry_bytes
            end = number + self.per_file
            while number < end:
                data = self.files.read(number * self.entry_bytes, _CHUNK_ENTRIES * self.entry_bytes)
                written = valid(data)
                number += written
                if written * self.entry_bytes < len(data):
                    return number
        return number
