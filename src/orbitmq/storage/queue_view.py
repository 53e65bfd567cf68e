"""One queue of a store directory, for reading only: nothing is created, corrected or removed.

The entries are those of queue_index.py (20 bytes, entry q is message q) or of batch_queue_index.py (46 bytes, an entry says
which messages it holds). Files may still be growing under the hands of a broker, ours or Apache's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from orbitmq.storage import batch_queue_index, queue_index
from orbitmq.storage.entry_log import NOWHERE_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from orbitmq.storage.files import Disk
    from orbitmq.storage.open_files import PlainFile

_CHUNK_ENTRIES = 4096
_MANY_ENTRIES = 1 << 16


class Place(NamedTuple):
    """Where messages [queue_offset, queue_offset + messages) are in the commit log."""

    queue_offset: int
    messages: int
    commit_log_offset: int
    size: int
    tags_code: int

    @property
    def leads_nowhere(self) -> bool:
        return self.size == NOWHERE_SIZE


class QueueView:
    def __init__(self, disk: Disk, directory: Path, topic: str, queue_id: int, *, is_batch: bool) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.is_batch = is_batch
        self.directory = directory
        self._entry_bytes = batch_queue_index.ENTRY_BYTES if is_batch else queue_index.ENTRY_BYTES
        self._disk = disk
        found = [file for file in disk.list(directory) if not file.is_directory and file.name.isdigit()]
        sizes = {file.size for file in found if file.size}
        # Of files of several lengths the most usual counts; `orbitmq store verify` names the others.
        self.file_bytes = max(sizes, key=lambda size: sum(file.size == size for file in found), default=0)
        self.starts = [int(file.name) for file in found if file.size and file.size == self.file_bytes]
        self._files: dict[int, PlainFile] = {}
        self.first = self.starts[0] // self._entry_bytes if self.starts else 0
        self.next = self._find_end()

    def places(self, start: int, stop: int) -> Iterator[Place]:
        """The entries that hold messages of [start, stop), in order; those that lead nowhere are left out."""
        number = (
            start if not self.is_batch else self._search(lambda place: place.queue_offset + place.messages <= start)
        )
        number = max(number, self.first)
        while number < self.next:
            places = self.read(number, _CHUNK_ENTRIES)
            if not places:
                number = self._after_gap(number)
                continue
            for place in places:
                if place.queue_offset >= stop:
                    return
                if not place.leads_nowhere:
                    yield place
            number += len(places)

    def entries_between(self, log_start: int, log_end: int) -> Iterator[tuple[int, bytes]]:
        """The entries, as they stand in the file, of records that begin in [log_start, log_end): for whoever decodes many at
        once. Each piece comes with the number of its first entry; the last may go on behind the end, and entries that lead
        nowhere are among them."""
        number = self._search(lambda place: place.commit_log_offset < log_start)
        while number < self.next:
            data = self._bytes(number, min(_MANY_ENTRIES, self.next - number))
            if not data:
                number = self._after_gap(number)
                continue
            yield number, data
            number += len(data) // self._entry_bytes
            last = self._decode(number - 1, data[-self._entry_bytes :])[0]
            if last.commit_log_offset >= log_end and not last.leads_nowhere:
                return

    def min_offset(self, log_start: int) -> int:
        """The first message whose record the log still holds."""
        number = self._search(lambda place: place.commit_log_offset < log_start)
        real = self._next_real(number)
        return real[1].queue_offset if real is not None else self.max_offset

    @property
    def max_offset(self) -> int:
        """The number the next message gets, as far as the files know."""
        if not self.is_batch:
            return self.next
        last = self.last
        return last.queue_offset + last.messages if last is not None else 0

    @property
    def last(self) -> Place | None:
        """The newest entry that leads somewhere."""
        for number in range(self.next - 1, self.first - 1, -1):
            places = self.read(number, 1)
            if places and not places[0].leads_nowhere:
                return places[0]
        return None

    def read(self, number: int, count: int) -> list[Place]:
        """Up to `count` entries from `number`, cut at the end of the file and of the queue."""
        count = min(count, self.next - number)
        return self._decode(number, self._bytes(number, count)) if count > 0 else []

    def position(self, number: int) -> tuple[Path, int]:
        """The file of an entry and where in it the entry stands."""
        at = number * self._entry_bytes
        start = at - at % self.file_bytes
        return self.directory / f"{start:020d}", at - start

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _find_end(self) -> int:
        """Bisection in the last file that has an entry at all."""
        per_file = self.file_bytes // self._entry_bytes
        for start in reversed(self.starts):
            low, high = start // self._entry_bytes, start // self._entry_bytes + per_file
            if not self._is_written(low):
                continue
            while low < high:
                middle = (low + high) // 2
                low, high = (middle + 1, high) if self._is_written(middle) else (low, middle)
            return low
        return self.first

    def _is_written(self, number: int) -> bool:
        data = self._bytes(number, 1)
        valid = batch_queue_index.valid_entries if self.is_batch else queue_index.valid_entries
        return len(data) == self._entry_bytes and valid(data) == 1

    def _search(self, before: Callable[[Place], bool]) -> int:
        """The number of the first entry for which `before` is false; one that leads nowhere stands for the next that leads."""
        low, high = self.first, self.next
        while low < high:
            middle = (low + high) // 2
            real = self._next_real(middle)
            if real is None or real[0] >= high or not before(real[1]):
                high = middle
            else:
                low = real[0] + 1
        return low

    def _next_real(self, number: int) -> tuple[int, Place] | None:
        """The first entry from `number` on that leads somewhere."""
        count = 1
        while number < self.next:
            places = self.read(number, count)
            for index, place in enumerate(places):
                if not place.leads_nowhere:
                    return number + index, place
            number = number + len(places) if places else self._after_gap(number)
            count = _CHUNK_ENTRIES
        return None

    def _after_gap(self, number: int) -> int:
        """The first entry of the next file there is: one in between is missing."""
        later = [start for start in self.starts if start > number * self._entry_bytes]
        return later[0] // self._entry_bytes if later else self.next

    def _decode(self, number: int, data: bytes) -> list[Place]:
        if self.is_batch:
            entries = batch_queue_index.ENTRY.iter_unpack(data)
            return [Place(base, count, offset, size, code) for offset, size, code, _, base, count, _, _ in entries]
        numbered = enumerate(queue_index.ENTRY.iter_unpack(data), number)
        return [Place(queue_offset, 1, offset, size, code) for queue_offset, (offset, size, code) in numbered]

    def _bytes(self, number: int, count: int) -> bytes:
        at = number * self._entry_bytes
        start = at - at % self.file_bytes
        if start not in self._files:
            path = self.directory / f"{start:020d}"
            if start not in self.starts or self._disk.stat(path) is None:
                return b""  # never there, or expired under our hands
            self._files[start] = self._disk.open(path)
        size = min(count * self._entry_bytes, start + self.file_bytes - at)
        return self._files[start].pread(size, at - start)
