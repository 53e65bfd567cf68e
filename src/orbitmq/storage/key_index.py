"""Finding messages by key: `topic#key` -> offsets in the commit log. The files are described in index_file.py.

    <directory>/20261115091529067    named by when it was begun, local time to the millisecond

Every record is entered under its unique key and under each of its KEYS. When a file is full the next one begins; a full
file is synced by `sync`, whose answer belongs into the checkpoint. Only hashes are kept, so an answer may hold offsets of
other keys: whoever asked compares.

Keys whose hashes meet stand in one chain, and one message can name thousands of such: a broker gives up after so many entries of
it that others would feel it. Who reads a store without one looks at them all.

Replaying the log must not enter a record twice. Records before the last one entered are skipped by offset; of the last
one itself only the missing keys are entered (Java enters all of them again).

Java: IndexService
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from orbitmq.accelerated import compiled
from orbitmq.errors import StorageError
from orbitmq.message.sysflags import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from orbitmq.message.tags import MOST_AT_ONCE, java_hash, java_hash_after, java_hashes_after
from orbitmq.storage.index_file import (
    DEFAULT_ENTRIES,
    DEFAULT_SLOTS,
    IndexFile,
    KeyedRecord,
    file_bytes,
    key_hash,
    positive,
    positive_all,
)
from orbitmq.storage.threads import OwnThreads

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from orbitmq.clock import Clock
    from orbitmq.storage.files import Disk
    from orbitmq.storage.threads import Threads

logger = logging.getLogger(__name__)

_NAME_DIGITS: Final = 17
_REMEMBERED_TOPICS: Final = 10_000
_MOST_LOOKS: Final = 100_000  # some 40 ms
_ALL: Final = 2**62


class KeyMatches(NamedTuple):
    offsets: list[int]  # newest first
    last_stored_at_ms: int  # of the newest record in the index, whatever its keys
    last_offset: int
    is_whole: bool = True  # False: given up before the end


class KeyIndex:
    """One thread at a time may `put` and `truncate`, one `sync`, one `delete_below`; any may `find`."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        clock: Clock,
        *,
        slots: int = DEFAULT_SLOTS,
        entries: int = DEFAULT_ENTRIES,
        trusted_until_ms: int | None = None,
        threads: Threads | None = None,
    ) -> None:
        """Opens what is there. After a crash of the machine pass the checkpoint's time of the last synced file as
        `trusted_until_ms`: later files may be torn anywhere and are removed, to be filled again from `resume_offset`."""
        self._disk = disk
        self._directory = directory
        self._clock = clock
        self._slots = slots
        self._entries = entries
        self._topic_hashes: dict[str, int] = {}
        self._unsynced: list[IndexFile] = []
        self._loops = compiled("indexes")
        self._reserving = (threads or OwnThreads()).repeat("orbitmq-key-index", self._reserve, self._is_low, None)
        self._changing = Lock()  # held to replace `files`
        self.lost_some = False  # files that were there could not be used: the log must be offered again
        self.files: tuple[IndexFile, ...] = self._load(trusted_until_ms)

    @property
    def resume_offset(self) -> int:
        """Every record before this commit-log offset is in the index; offer the log from here on."""
        return self.files[-1].end_offset if self.files else 0

    def put(
        self,
        offset: int,
        stored_at_ms: int,
        topic: str,
        unique_key: str | None,
        keys: str | None,
        sys_flag: int = 0,
    ) -> None:
        """Enter one record; `keys` as in its property, separated by spaces. Records must come in log order."""
        if sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
            return
        if not unique_key and not keys:
            return
        before = self._topic_hash(topic)
        hashes = [positive(java_hash_after(before, unique_key))] if unique_key else []
        if keys:
            hashes += [positive(java_hash_after(before, key)) for key in keys.split(" ") if key]
        last = self.files[-1] if self.files else None
        if last is not None and last.end_offset < offset and len(hashes) <= last.room:
            last.put(hashes, offset, stored_at_ms)
        else:
            self._put_carefully(hashes, offset, stored_at_ms)

    def put_many(self, records: list[KeyedRecord]) -> None:
        """`put` for many records, in log order, none rolled back; the keys as the bytes of their properties."""
        for at in range(0, len(records), MOST_AT_ONCE):
            self._put_some(records[at : at + MOST_AT_ONCE])
        self._have_room_reserved()

    def _put_some(self, records: list[KeyedRecord]) -> None:
        last = self.files[-1] if self.files else None
        if last is None or last.next_entry == 1 or last.is_full:
            # The first record of a file sets the bounds that the others are measured by.
            offset, stored_at_ms, topic, unique_key, more_keys = records[0]
            self.put(offset, stored_at_ms, topic, _text(unique_key), _text(more_keys))
            if len(records) > 1:
                self._put_some(records[1:])
            return
        if (
            self._loops is not None
            and last.end_offset < records[0][0]
            and len(records) <= last.room
            and last.put_compiled(self._loops, records, self._topic_hash)
        ):
            return
        offsets, times, topics, keys = _one_key_each(records)
        if offsets and last.end_offset < offsets[0] and len(keys) <= last.room:
            hashes = self._hashes(topics, keys)
            if hashes is not None:
                last.put_many(positive_all(hashes), offsets, times)
                return
        for offset, stored_at_ms, topic, unique_key, more_keys in records:
            self.put(offset, stored_at_ms, topic, _text(unique_key), _text(more_keys))

    @contextmanager
    def open(self, offset: int, count: int) -> Iterator[Any]:
        """What the accelerator enters up to `count` keys of records from `offset` on into; None if they need more care."""
        last = self.files[-1] if self.files else None
        if self._loops is None or last is None or last.next_entry == 1 or last.end_offset >= offset:
            yield None
            return
        try:
            keys = last.open_keys(self._loops.Keys, count, self._topic_hash)
        except StorageError:
            yield None  # whoever takes more care says so
            return
        try:
            yield keys
        finally:
            last.take_over(keys)
            self._have_room_reserved()

    def _hashes(self, topics: Sequence[str], keys: Sequence[bytes]) -> list[int] | None:
        """A record may have several keys: as many at a time as can be hashed together. None if one of them cannot be."""
        known = {topic: self._topic_hash(topic) for topic in set(topics)}
        before = [known[topic] for topic in topics]
        hashes: list[int] = []
        for at in range(0, len(keys), MOST_AT_ONCE):
            some = java_hashes_after(before[at : at + MOST_AT_ONCE], keys[at : at + MOST_AT_ONCE])
            if some is None:
                return None
            hashes += some
        return hashes

    def _put_carefully(self, hashes: list[int], offset: int, stored_at_ms: int) -> None:
        """For a record that may be there already, or that needs another file."""
        if self.files and offset <= self.files[-1].end_offset:
            hashes = self._missing(hashes, offset)
        while hashes:
            file = self._writable()
            room = file.room
            file.put(hashes[:room], offset, stored_at_ms)
            hashes = hashes[room:]

    def find(self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int) -> KeyMatches:
        """Up to `limit` records stored in the range, newest first. May include records of other keys."""
        files = self.files
        if not files:
            return KeyMatches([], 0, 0)
        found, is_whole = find_offsets(files, topic, key, limit, begin_ms, end_ms, _MOST_LOOKS)
        return KeyMatches(found, files[-1].end_ms, files[-1].end_offset, is_whole)

    def sync(self) -> int:
        """Sync the files that were filled since the last time; the store time of the last record that is now safe, or 0."""
        safe_until_ms = 0
        for full in list(self._unsynced):
            full.file.let_go(0, full.file.size)
            full.file.sync()
            safe_until_ms = full.end_ms
            with self._changing:
                if full in self._unsynced:
                    self._unsynced.remove(full)
        return safe_until_ms

    def truncate(self, offset: int) -> None:
        """Forget records at or after `offset`: the log was cut there."""
        while self.files and self.files[-1].end_offset >= offset:
            last = self.files[-1]
            last.truncate(offset)
            if last.next_entry > 1:
                break
            with self._changing:
                self.files = self.files[:-1]
            self._remove(last)

    def delete_below(self, offset: int) -> int:
        """Remove leading files that lead to nothing at or after `offset`, never the last; how many went."""
        count = 0
        while len(self.files) > 1 and self.files[0].end_offset < offset:
            with self._changing:
                oldest = self.files[0]
                self.files = self.files[1:]
            self._remove(oldest)
            count += 1
        return count

    def close(self) -> None:
        """Sync everything, so that a clean stop leaves a whole index."""
        self._reserving.stop()
        self.sync()
        for file in self.files[-1:]:
            file.file.sync()
        for file in self.files:
            file.file.close()

    def abandon(self) -> None:
        """Give the files back as they are."""
        self._reserving.stop()
        for file in self.files:
            file.file.close()

    def _load(self, trusted_until_ms: int | None) -> tuple[IndexFile, ...]:
        kept: list[IndexFile] = []
        found = list_index_files(self._disk, self._directory)
        for number, (path, size) in enumerate(found):
            reason = "" if size == file_bytes(self._slots, self._entries) else f"it has {size} bytes"
            if not reason:
                file = IndexFile(self._disk.map(path, writable=True), self._slots, writable=True)
                is_lost = file.next_entry == 1 and number < len(found) - 1
                # Only full files are ever synced while the broker runs.
                is_synced = trusted_until_ms is None or (file.is_full and file.end_ms <= trusted_until_ms)
                if not is_lost and is_synced:
                    if kept and file.next_entry == 1:
                        file.continue_from(kept[-1])  # a kill may have come between making it and saying so
                    kept.append(file)
                    continue
                file.file.close()
                reason = "it is empty and others follow" if is_lost else "it was not synced before the machine stopped"
            self.lost_some = True
            # What follows a removed file goes too: records are offered again from one offset on.
            for later, _ in found[number:]:
                logger.warning("removing %s, to be built again: %s", later, reason)
                self._disk.remove(later)
                reason = "it follows a removed one"
            break
        # Whoever filled them may have been killed before syncing them; syncing a clean file costs next to nothing.
        self._unsynced += [file for file in kept if file.is_full]
        return tuple(kept)

    def _writable(self) -> IndexFile:
        last = self.files[-1] if self.files else None
        if last is not None and not last.is_full:
            return last
        path = self._directory / self._next_name()
        size = file_bytes(self._slots, self._entries)
        file = IndexFile(self._disk.allocate(path, size, reserve=size - 20 * self._entries), self._slots, writable=True)
        if last is not None:
            file.continue_from(last)
            self._unsynced.append(last)
        with self._changing:
            self.files = (*self.files, file)
        return file

    def _have_room_reserved(self) -> None:
        if self._is_low():
            self._reserving.start()
            if self._reserving.idle:
                self._reserving.wake()

    def _is_low(self) -> bool:
        return bool(self.files) and self.files[-1].is_low

    def _reserve(self) -> bool:
        files = self.files
        try:
            if files:
                files[-1].reserve_ahead()
        except StorageError as error:
            logger.warning("could not reserve blocks ahead of need: %s", error)
        return True

    def _next_name(self) -> str:
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC).astimezone()
        name = f"{now:%Y%m%d%H%M%S}{now.microsecond // 1000:03d}"
        last = self.files[-1].file.path.name if self.files else ""
        # Files are ordered by name, also when the clock was set back or two begin in one millisecond.
        return name if name > last else str(int(last) + 1)

    def _missing(self, hashes: list[int], offset: int) -> list[int]:
        """Of a record's hashes those not entered yet; all of an earlier record's are."""
        if offset < self.files[-1].end_offset:
            return []
        missing = Counter(hashes)
        for file in reversed(self.files):
            if file.end_offset != offset:
                break
            missing.subtract(file.hashes_of_last_record())
        # Kept in order: the unique key comes first, as in a file built without interruption.
        return [hashed for hashed in dict.fromkeys(hashes) for _ in range(missing[hashed])]

    def _topic_hash(self, topic: str) -> int:
        """Of `topic#`, with which the hash of each of its keys goes on."""
        known = self._topic_hashes.get(topic)
        if known is not None:
            return known
        if len(self._topic_hashes) >= _REMEMBERED_TOPICS:
            self._topic_hashes.clear()
        hashed = self._topic_hashes[topic] = java_hash(f"{topic}#")
        return hashed

    def _remove(self, file: IndexFile) -> None:
        with self._changing:
            if file in self._unsynced:
                self._unsynced.remove(file)
        self._disk.remove(file.file.path)
        file.file.close()


def _one_key_each(
    records: Sequence[KeyedRecord],
) -> tuple[Sequence[int], Sequence[int], Sequence[str], Sequence[bytes]]:
    """Offsets, store times, topics and keys, as many of each as there are keys."""
    offsets, times, topics, unique_keys, more_keys = zip(*records, strict=True)
    if all(unique_keys) and not any(more_keys):
        return offsets, times, topics, unique_keys
    keyed = [(record, key) for record in records for key in (record[3], *(record[4] or b"").split(b" ")) if key]
    placed = [record for record, _ in keyed]
    return (
        [record[0] for record in placed],
        [record[1] for record in placed],
        [record[2] for record in placed],
        [key for _, key in keyed],
    )


def _text(key: bytes | None) -> str | None:
    return None if key is None else key.decode("utf-8", "replace")


def find_offsets(
    files: tuple[IndexFile, ...], topic: str, key: str, limit: int, begin_ms: int, end_ms: int, most_looks: int = _ALL
) -> tuple[list[int], bool]:
    """The newest of them, and whether they are all that were asked for; not if it took more than so many looks."""
    hashed = key_hash(topic, key)
    found: list[int] = []
    for file in reversed(files):
        if len(found) >= limit:
            break
        if most_looks <= 0:
            return found, False
        if file.overlaps(begin_ms, end_ms):
            more, looks = file.find(hashed, begin_ms, end_ms, limit - len(found), most_looks)
            found += more
            most_looks -= looks
        if file.begin_ms < begin_ms:
            break
    return found, most_looks > 0 or len(found) >= limit


def list_index_files(disk: Disk, directory: Path) -> list[tuple[Path, int]]:
    """Paths and sizes of what is named like an index file, oldest first."""
    return [
        (directory / file.name, file.size)
        for file in disk.list(directory)
        if not file.is_directory and len(file.name) == _NAME_DIGITS and file.name.isascii() and file.name.isdigit()
    ]
