"""Mending a store directory that `verification` found wrong. Nothing is thrown away: what is cut off is kept.

    <directory>/repair-20261115-091529/    everything taken out, under its old path; `report.json` says what was done

    a file that does not belong      is moved there
    a log file of another length     is cut or filled up to the length of the others
    a missing log file               is replaced by an empty one, closed by a blank record
    damage between records           is covered by a record that no queue holds, so that those behind it are reached
    bytes behind the last record     are cleared
    queue entries that lead there    are made to lead nowhere; the others keep their numbers
    queues or key index wrong        are moved there whole; the next start builds them from the log
    a table that cannot be read      is moved there; the version before it takes its place

The steps are planned first and can be shown without being done. Doing them takes the store's lock.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.errors import BodyError
from orbitmq.message.record import BLANK_BYTES, FIXED_BYTES, crc31, encode_blank, encode_record, topic_field
from orbitmq.message.sysflags import TRANSACTION_PREPARED
from orbitmq.storage.json_file import backup_of, read_table
from orbitmq.storage.lock import take_lock
from orbitmq.storage.queue_index import NOWHERE
from orbitmq.storage.segmented_log import is_segment_name, segment_name
from orbitmq.storage.verification import ERROR, TABLES

if TYPE_CHECKING:
    from orbitmq.clock import Clock
    from orbitmq.storage.files import Disk
    from orbitmq.storage.reader import StoreReader
    from orbitmq.storage.verification import DamagedRange, Verification

logger = logging.getLogger(__name__)

_COVER_TOPIC: Final = "REPAIRED"
_COVER_HOST: Final = bytes(8)
_CHUNK_BYTES: Final = 1 << 20


class Step(msgspec.Struct, frozen=True, tag_field="do", tag=str.lower):
    path: str  # in the store directory

    def __str__(self) -> str:
        raise TypeError("a step says what it does")


class Move(Step, frozen=True):
    """Out of the way, into the repair directory."""

    def __str__(self) -> str:
        return f"move {self.path} aside"


class Resize(Step, frozen=True):
    old_bytes: int
    new_bytes: int

    def __str__(self) -> str:
        return f"bring {self.path} from {self.old_bytes} to {self.new_bytes} bytes"


class AddFile(Step, frozen=True):
    size: int

    def __str__(self) -> str:
        return f"put an empty log file where {self.path} is missing"


class Cover(Step, frozen=True):
    position: int
    size: int
    log_offset: int

    def __str__(self) -> str:
        return f"cover {self.size} damaged bytes of {self.path} at byte {self.position}, keeping a copy"


class Close(Step, frozen=True):
    position: int
    size: int

    def __str__(self) -> str:
        return f"close {self.path} at byte {self.position}, keeping a copy of the {self.size} bytes behind"


class Clear(Step, frozen=True):
    position: int
    size: int

    def __str__(self) -> str:
        return f"clear {self.size} bytes of {self.path} from byte {self.position} on, keeping a copy"


class Detach(Step, frozen=True):
    position: int
    size: int

    def __str__(self) -> str:
        return f"let the entry at byte {self.position} of {self.path} lead nowhere"


class MarkUnclean(Step, frozen=True):
    def __str__(self) -> str:
        return f"leave {self.path}, so that the next start looks at the whole log"


class Restore(Step, frozen=True):
    def __str__(self) -> str:
        return f"put {backup_of(Path(self.path)).name} in place of {self.path}"


def plan(reader: StoreReader, disk: Disk, found: Verification) -> list[Step]:
    """What would mend what `verify` found. Nothing is changed."""
    steps = _log_file_steps(reader, disk)
    detached: list[Step] = []
    for damage in found.damages:
        steps.append(_damage_step(reader, damage))
        detached += _detach_steps(reader, damage)
    steps += _index_steps(found) or detached
    return steps + _table_steps(reader, disk)


def apply(reader: StoreReader, disk: Disk, clock: Clock, steps: list[Step]) -> Path:
    """Do the steps; the directory that holds what was taken out. Raises StoreLocked if a broker runs there."""
    lock = take_lock(disk, reader.directory)
    try:
        now = datetime.fromtimestamp(clock.now_ms() / 1000, UTC).astimezone()
        kept = reader.directory / f"repair-{now:%Y%m%d-%H%M%S}"
        bench = _Bench(disk, reader.directory, kept)
        disk.make_directory(kept)
        # The report first: whoever finds half a repair knows what was meant.
        disk.replace(kept / "report.json", msgspec.json.format(msgspec.json.encode(steps), indent=1) + b"\n")
        for step in steps:
            bench.do(step)
            logger.info("repair: %s", step)
    finally:
        lock.release()
    return kept


def _log_file_steps(reader: StoreReader, disk: Disk) -> list[Step]:
    log = reader.log
    steps: list[Step] = []
    files = [file for file in disk.list(log.directory) if not file.is_directory]
    last = max((file.name for file in files if is_segment_name(file.name)), default="")
    for file in files:
        path = _relative(reader, log.directory / file.name)
        if not is_segment_name(file.name) or (file.size == 0 and file.name == last):
            steps.append(Move(path))
        elif file.size != log.segment_bytes:
            steps.append(Resize(path, file.size, log.segment_bytes))
    for start, end in log.gaps():
        for missing in range(start, end, log.segment_bytes):
            place = log.directory / segment_name(missing)
            if disk.stat(place) is None:
                steps.append(AddFile(_relative(reader, place), log.segment_bytes))
    return steps


def _damage_step(reader: StoreReader, damage: DamagedRange) -> Step:
    segment = reader.log.segment_of(damage.start)
    assert segment is not None, "damage was found in a file of the log"
    path, position, size = _relative(reader, segment.file.path), damage.start - segment.start, damage.end - damage.start
    if not damage.is_rest_of_file and size > FIXED_BYTES:
        return Cover(path, position, size, damage.start)
    is_last = all(other.start <= segment.start or not any(other.memory[:BLANK_BYTES]) for other in reader.log.segments)
    return Clear(path, position, size) if is_last or size < BLANK_BYTES else Close(path, position, size)


def _detach_steps(reader: StoreReader, damage: DamagedRange) -> list[Step]:
    steps: list[Step] = []
    for view in reader.views():
        if view.is_batch:
            continue
        for place in view.places(view.first, view.next):
            if damage.start <= place.commit_log_offset < damage.end:
                path, position = view.position(place.queue_offset)
                steps.append(Detach(_relative(reader, path), position, len(NOWHERE)))
    return steps


def _index_steps(found: Verification) -> list[Step]:
    """Queues that are wrong in themselves are built again, all of them: a start does not mend a single one."""
    wrong = {
        finding.path.split("/", 1)[0]
        for finding in found.findings
        if finding.severity == ERROR and "damaged record" not in finding.problem
    }
    steps: list[Step] = []
    if wrong & {"consumequeue", "batchconsumequeue"}:
        steps += [Move("consumequeue"), Move("batchconsumequeue")]
    if "index" in wrong:
        # Only a start that expects the worst builds the key index again, and only without a checkpoint from the beginning.
        steps += [Move("index"), Move("checkpoint"), MarkUnclean("abort")]
    return steps


def _table_steps(reader: StoreReader, disk: Disk) -> list[Step]:
    steps: list[Step] = []
    for name, shape in TABLES.items():
        path = reader.directory / "config" / name
        try:
            read_table(disk, path, shape)
        except BodyError:
            steps.append(Move(_relative(reader, path)))
            try:
                if read_table(disk, backup_of(path), shape) is not None:
                    steps.append(Restore(_relative(reader, path)))
            except BodyError:
                steps.append(Move(_relative(reader, backup_of(path))))
    return steps


def _relative(reader: StoreReader, path: Path) -> str:
    return str(path.relative_to(reader.directory)) if path.is_relative_to(reader.directory) else str(path)


class _Bench:
    """Does the steps."""

    def __init__(self, disk: Disk, directory: Path, kept: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._kept = kept

    def do(self, step: Step) -> None:
        match step:
            case Move(path):
                self._move(self._directory / path, path)
            case Resize(path, old_bytes, new_bytes):
                if old_bytes > new_bytes:
                    self._keep(path, new_bytes, old_bytes - new_bytes)
                file = self._disk.open(self._directory / path, writable=True)
                file.truncate(new_bytes)
                file.sync()
                file.close()
            case AddFile(path, size):
                file = self._disk.create_sparse(self._directory / path, size)
                file.pwrite(encode_blank(size), 0)
                file.sync()
                file.close()
                self._disk.sync_directory((self._directory / path).parent)
            case Cover(path, position, size, log_offset):
                self._overwrite(path, position, size, _cover(size, log_offset))
            case Close(path, position, size):
                self._overwrite(path, position, size, encode_blank(size))
            case Clear(path, position, size):
                self._overwrite(path, position, size, b"")
            case Detach(path, position, size):
                self._overwrite(path, position, size, NOWHERE)
            case MarkUnclean(path):
                self._disk.replace(self._directory / path, b"")
            case Restore(path):
                target = self._directory / path
                self._disk.replace(target, self._disk.read(backup_of(target)))

    def _move(self, path: Path, name: str) -> None:
        if self._disk.stat(path) is None:
            return
        target = self._kept / name.lstrip("/")
        self._disk.make_directory(target.parent)
        self._disk.rename(path, target)

    def _keep(self, path: str, position: int, size: int) -> None:
        """Copy bytes out, without the zeroes at their end."""
        source = self._disk.open(self._directory / path)
        pieces = [
            source.pread(min(_CHUNK_BYTES, position + size - at), at)
            for at in range(position, position + size, _CHUNK_BYTES)
        ]
        source.close()
        target = self._kept / f"{path.lstrip('/')}.from-byte-{position}"
        self._disk.make_directory(target.parent)
        self._disk.replace(target, b"".join(pieces).rstrip(b"\0"))

    def _overwrite(self, path: str, position: int, size: int, data: bytes) -> None:
        """Put `data` there and zeroes behind it, once a copy of what stood there is safe."""
        self._keep(path, position, size)
        file = self._disk.open(self._directory / path, writable=True)
        for at in range(position + len(data), position + size, _CHUNK_BYTES):
            file.pwrite(bytes(min(_CHUNK_BYTES, position + size - at)), at)
        if data:
            file.pwrite(data, position)
        file.sync()
        file.close()


def _cover(size: int, log_offset: int) -> bytes:
    """A record of exactly `size` bytes that every broker steps over: prepared transactions have no place in a queue."""
    topic = topic_field(_COVER_TOPIC[: size - FIXED_BYTES])
    body = bytes(size - FIXED_BYTES - (len(topic.data) - 1))
    return encode_record(
        topic, 0, 0, 0, log_offset, TRANSACTION_PREPARED, 0, _COVER_HOST, 0, _COVER_HOST, 0, 0, body, crc31(body), b""
    )
