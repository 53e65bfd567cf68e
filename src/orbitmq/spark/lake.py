"""A lake: a directory of Parquet files, and the manifests that say which of them count.

    <lake>/topic=Orders/date=2026-11-15/hour=18/00000003-00001.parquet    batch 3, task 1; in a table each try has a name of its own,
                                                                          and so has each of a compaction
    <lake>/_manifests/00000003.plan.json     what batch 3 is to read: written before it runs
    <lake>/_manifests/00000003.files.json    what batch 3 wrote, of a lake that is a table (table_formats.py): before its commit
    <lake>/_manifests/00000003.json          what batch 3 wrote, and where the next one begins: written when all of it is there

A batch that was interrupted is run again by its plan, makes files of the same names with the same rows, and only then counts:
every message is in the lake once, whenever whoever died. Manifests, like files, appear under their name when they are whole
(whole_files.py); until then no two have the same name, and whoever runs a batch again removes them first: a worker that was given up
and is not dead cannot finish its file any more. What else has no name yet, and what a compaction made, may be somebody's work at any time:
nobody takes it for a leftover before it is a day old.
A compaction has no plan and may take the number of a batch under way: that batch keeps its plan and the names of its files, and its
manifest has the next number that is free.
Whoever reads by manifests (`live_files`) sees whole batches only; whoever reads the directory may see one under way.

The directory may be on any file system that Arrow knows (`s3://`, `gs://`, `hdfs://`, a path).
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
from pyarrow import fs

from orbitmq.clock import SystemClock
from orbitmq.errors import ConfigError, StorageError
from orbitmq.spark.queue_offsets import OffsetsJson
from orbitmq.spark.whole_files import NewFile, file_names, make_folder, sync_folders, sync_new_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

T = TypeVar("T")

MANIFESTS: Final = "_manifests"
_MANIFEST_NAME: Final = re.compile(r"(\d{8})\.json")
# Hadoop takes one slash for its default host. A single letter would be a drive.
_URI: Final = re.compile(r"[a-z][a-z0-9+.-]+:/|file:", re.IGNORECASE)
# Where a lake has files. What else is below its directory, such as another lake, is none of its business.
_OUR_FOLDER: Final = re.compile(r"(topic=[^/]+(/date=[^/]+(/hour=[^/]+)?)?)?|_manifests|metadata")
# The names that archives, compactions and exports give.
_COMPACTED: Final = "compacted-"
_OUR_FILE: Final = re.compile(r"(compacted-)?\d{8}-\d{5}(-[0-9a-f]{32})?\.parquet|\d{20}-\d{20}\.parquet")
_TRY: Final = re.compile(r"(?:compacted-)?(\d{8})-\d{5}-[0-9a-f]{32}\.parquet")  # of a compaction, and in a table
_UNFINISHED: Final = re.compile(r"\.(.+?)(\.[0-9a-f]{32})?\.tmp")
_DAY_NS: Final = 24 * 3600 * 10**9
_WHOLE_EVERY: Final = 50  # so often a manifest repeats all before it, so that few are read


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    path: str  # below the lake
    rows: int
    bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One batch that is done."""

    number: int
    kind: str  # archive, export, compaction
    source: str  # what the messages came from; a lake holds one source only
    written_at_ms: int
    log_end: int | None = None  # where the next export begins
    log_mark: int | None = None  # of the bytes before that, by which the log is known again; older ones have none
    offsets: OffsetsJson = {}  # where the next batch of an archive begins, of every queue
    added: list[DataFile] = []
    removed: list[str] = []
    damage: list[str] = []  # what could not be read
    format: str = "parquet"  # or delta, iceberg: the lake is such a table, too
    is_whole: bool = False  # `added` is everything: the manifests before this one need not be read
    last_batch: int | None = None  # said by a whole one: the newest number that is no compaction's
    batch_at_ms: int | None = None  # and since when that batch has read nothing
    asked_at_ms: int | None = None  # an archive: when it began to ask the queues where they end; older ones do not say


class LakeState(msgspec.Struct, kw_only=True):
    """What all manifests together say."""

    next_number: int = 0
    source: str = ""
    log_end: int | None = None
    log_mark: int | None = None
    offsets: OffsetsJson = {}
    files: dict[str, DataFile] = {}
    format: str = ""  # of a lake that has no batch yet
    last_batch: int = -1  # compactions may have taken numbers since
    batch_at_ms: int = 0  # when its queues were asked where they end; of an older version, when it was written

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files.values())


class Begun(NamedTuple, Generic[T]):
    """A batch that somebody planned and nobody finished; the number is in the names of its files."""

    number: int
    plan: T


class Lake:
    """Opened anew in every worker: pass `address` on, not the object. It is the same everywhere: a path does not depend on the folder
    that a process happens to be in."""

    def __init__(self, address: str) -> None:
        self.files: Any = fs.LocalFileSystem()
        if not is_uri(address):
            self.root = self.address = str(Path(address).absolute())
            return
        try:
            self.files, self.root = fs.FileSystem.from_uri(address)
        except (pa.ArrowInvalid, OSError) as error:
            hint = "Arrow, which writes the files, calls it s3://" if address.startswith(("s3a:", "s3n:")) else ""
            raise ConfigError(f"{address!r} is no place for files: {error}", hint=hint) from error
        is_path = isinstance(self.files, fs.LocalFileSystem) and "://" not in address
        self.address = f"file://{self.root}" if is_path else address

    def state(self) -> LakeState:
        numbers = self._numbers()
        state = LakeState()
        manifests: list[Manifest] = []
        for number in reversed(numbers):
            manifests.append(self.read(self._manifest_path(number), Manifest))
            if manifests[-1].is_whole:
                break
        for manifest in reversed(manifests):
            state = _after(state, manifest)
        return state

    def live_files(self) -> list[str]:
        """The addresses of the files that the manifests name, for `spark.read.parquet`."""
        return [self.address_of(path) for path in sorted(self.state().files)]

    def is_newest(self, state: LakeState) -> bool:
        """Whether nobody has published a batch since, nor listed its files."""
        number = state.next_number
        return not (self.has(self._manifest_path(number)) or self.has(self._files_path(number)))

    def publish(self, manifest: Manifest, state: LakeState) -> LakeState:
        """Make a batch count. `state` is what its writer knew when it began."""
        after = _after(state, manifest)
        if manifest.number and manifest.number % _WHOLE_EVERY == 0:
            manifest = msgspec.structs.replace(
                manifest,
                is_whole=True,
                added=list(after.files.values()),
                offsets=after.offsets,
                log_end=after.log_end,
                log_mark=after.log_mark,
                last_batch=after.last_batch,
                batch_at_ms=after.batch_at_ms,
            )
        if not self._create(self._manifest_path(manifest.number), _json(manifest)):
            raise self.taken(manifest.number)
        return after

    def under_way(self, state: LakeState) -> int | None:
        """The number of a batch that somebody began and did not finish."""
        for number in range(state.next_number, state.last_batch, -1):
            if self.has(self._plan_path(number)):
                return number
        return None

    def pending(self, state: LakeState, kind: type[T]) -> Begun[T] | None:
        """The batch under way, to be run again."""
        number = self.under_way(state)
        return None if number is None else Begun(number, self.read(self._plan_path(number), kind))

    def intend(self, state: LakeState, plan: T) -> Begun[T]:
        """What the next batch will read, kept before it runs."""
        if not self._create(self._plan_path(state.next_number), _json(plan)):
            raise self.taken(state.next_number)
        return Begun(state.next_number, plan)

    def prepared(self, state: LakeState) -> Manifest | None:
        """The next batch, if all its files are there and only its commit is missing, or the word that it was made."""
        path = self._files_path(state.next_number)
        return self.read(path, Manifest) if self.has(path) else None

    def prepare(self, manifest: Manifest) -> None:
        """All files of the batch are there. From now on a table may name them: they are not written again.

        A batch has one list of files for good. Another, of a compaction beside an archive, would make the table lose rows.
        """
        path = self._files_path(manifest.number)
        if not self._create(path, _json(manifest)) and self.read(path, Manifest) != manifest:
            raise self.taken(manifest.number)

    def taken(self, number: int) -> StorageError:
        return StorageError(
            f"{self.address} has got a batch {number} from somebody else",
            hint="one archive or compaction at a time may write into a directory; start it again when the other is done",
        )

    def leftovers(self, state: LakeState) -> list[str]:
        """Files of batches and compactions that never counted or no longer do; none while a batch is under way, or when another
        compaction has ended since: its files are not in `state`.

        A table's older versions may name files that no longer count: they are left to what its format has for that.
        """
        # Before the look for a plan: files of a batch that begins meanwhile are not among them.
        names = self._removable()
        if self.under_way(state) is not None or not self.is_newest(state):
            return []
        if state.format != "parquet":
            return _abandoned(names, state, None)
        ours = [path for path, name in names.items() if _OUR_FILE.fullmatch(name) or _is_unfinished(name)]
        return [path for path in ours if path not in state.files]

    def abandoned(self, state: LakeState) -> list[str]:
        """What whoever died left of the batch under way: what was not finished, and in a table what no list names.

        To be asked once a batch that is listed has been finished: then it is not under way.
        """
        names = self._removable()
        if not self.is_newest(state):  # a compaction has ended since, or has listed its files
            state = self.state()
        listed = self.prepared(state)
        counted = state.files.keys() | {file.path for file in (listed.added if listed else [])}
        found = _abandoned(names, state, self.under_way(state))
        return [path for path in found if path not in counted]

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            if self.has(path):
                self.files.delete_file(f"{self.root}/{path}")

    def sizes(self, paths: Sequence[str]) -> list[int]:
        """0 where there is none."""
        return [info.size or 0 for info in self.files.get_file_info([f"{self.root}/{path}" for path in paths])]

    def check_written(self, files: Sequence[DataFile]) -> None:
        """Whether the driver finds what the executors say they wrote: before it counts, and offsets are committed."""
        sizes = self.sizes([file.path for file in files]) if files else []
        lost = [file for file, size in zip(files, sizes, strict=True) if size != file.bytes]
        if lost:
            raise StorageError(
                f"executors wrote {len(files)} files to {self.address}, and the driver does not find {len(lost)} of them there, "
                f"such as {lost[0].path} of {lost[0].bytes} bytes; nothing of this batch counts",
                hint="the directory must be one and the same for the driver and every executor: "
                "a disk that all of them mount at this path, or s3://, gs://, hdfs://",
            )

    def has_manifests(self) -> bool:
        return self._is_lake(self.root)

    def outer(self) -> str | None:
        """The lake that this one is inside of."""
        folder = self.root.rpartition("/")[0]
        while folder:
            with suppress(OSError):  # of a folder that we may not look into we need not know
                if self._is_lake(folder):
                    return str(folder)
            folder = folder.rpartition("/")[0]
        return None

    def _is_lake(self, folder: str) -> bool:
        return bool(self.files.get_file_info(f"{folder}/{MANIFESTS}").type == fs.FileType.Directory)

    def has(self, path: str) -> bool:
        return bool(self.files.get_file_info(f"{self.root}/{path}").type == fs.FileType.File)

    def read(self, path: str, kind: type[T]) -> T:
        try:
            with self.files.open_input_stream(f"{self.root}/{path}") as stream:
                return msgspec.json.decode(stream.readall(), type=kind)
        except (OSError, msgspec.DecodeError) as error:
            raise StorageError(f"{self.address}/{path} cannot be read: {error}") from error

    def write(self, path: str, content: Any) -> None:
        """Whole, or not at all."""
        with self.creating(path) as stream:
            stream.write(_json(content))

    def text(self, path: str) -> str:
        try:
            with self.files.open_input_stream(f"{self.root}/{path}") as stream:
                return str(stream.readall(), "utf-8")
        except OSError as error:
            raise StorageError(f"{self.address}/{path} cannot be read: {error}") from error

    def keep_text(self, path: str, text: str) -> None:
        """Whole, or not at all."""
        with self.creating(path) as stream:
            stream.write(text.encode())

    def keep_new_text(self, path: str, text: str) -> bool:
        """Whole, or not at all; False where the name is taken."""
        return self._create(path, text.encode())

    def creating(self, path: str) -> NewFile:
        return NewFile(self.files, self.root, path)

    def sync_folders(self, paths: Iterable[str]) -> None:
        sync_folders(self.files, self.root, paths)

    def make(self) -> None:
        """The folder, unless it is there."""
        try:
            make_folder(self.files, self.root)
        except OSError as error:
            raise StorageError(f"cannot make {self.root}: {error}") from error

    def names_in(self, folder: str) -> set[str]:
        return file_names(self.files, f"{self.root}/{folder}")

    def sync_new(self, folder: str, known: set[str]) -> None:
        """What another library wrote into a folder, beside the names that were known before it did, is durable."""
        sync_new_files(self.files, self.root, folder, known)

    def address_of(self, path: str) -> str:
        return f"{self.address.rstrip('/')}/{path}"

    def _create(self, path: str, content: bytes) -> bool:
        """False where the name is taken.

        Of two who try at once, one succeeds where the disk is local and has hard links; elsewhere Arrow cannot promise it.
        """
        if self.has(path):
            return False
        new = NewFile(self.files, self.root, path, is_shared=True)
        with new as stream:
            stream.write(content)
        return new.is_ours

    def _plan_path(self, number: int) -> str:
        return f"{MANIFESTS}/{number:08d}.plan.json"

    def _files_path(self, number: int) -> str:
        return f"{MANIFESTS}/{number:08d}.files.json"

    def _manifest_path(self, number: int) -> str:
        return f"{MANIFESTS}/{number:08d}.json"

    def _removable(self) -> dict[str, str]:
        """Every file of the lake that nobody can be at work on, or whose batch says whether somebody is: path -> name."""
        old_ns = SystemClock().now_ms() * 10**6 - _DAY_NS
        found = self.files.get_file_info(fs.FileSelector(self.root, allow_not_found=True))
        folders = [info.path for info in found if not info.is_file and _OUR_FOLDER.fullmatch(info.base_name)]
        for folder in folders:
            found += self.files.get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True))
        names = {
            info.path.removeprefix(self.root).lstrip("/"): info.base_name
            for info in found
            if info.is_file and (_is_of_batch(info.base_name) or (info.mtime_ns is not None and info.mtime_ns < old_ns))
        }
        return {path: name for path, name in names.items() if _OUR_FOLDER.fullmatch(path.rpartition("/")[0])}

    def _numbers(self) -> list[int]:
        where = fs.FileSelector(f"{self.root}/{MANIFESTS}", allow_not_found=True)
        names = [info.base_name for info in self.files.get_file_info(where)]
        return sorted(int(found[1]) for name in names if (found := _MANIFEST_NAME.fullmatch(name)))


def is_uri(address: str) -> bool:
    """Whether it says on which file system it is; else it is a path here."""
    return _URI.match(address) is not None


def _abandoned(names: Mapping[str, str], state: LakeState, under_way: int | None) -> list[str]:
    paths = []
    for path, name in names.items():
        tried = _TRY.fullmatch(name)
        numbers: tuple[int | None, ...] = (state.next_number, under_way)
        if name.startswith(_COMPACTED):
            # One that took the number of the batch under way counts; of plain files, a compaction removes what does not.
            numbers = () if state.format == "parquet" else (state.next_number,)
        if _is_unfinished(name) or (tried and int(tried[1]) in numbers):
            paths.append(path)
    return paths


def _is_of_batch(name: str) -> bool:
    """Whether a task of an archive or an export writes it, or wrote it: its batch has a plan before it has files."""
    found = _UNFINISHED.fullmatch(name)
    whole = found[1] if found else name
    return _OUR_FILE.fullmatch(whole) is not None and not whole.startswith(_COMPACTED)


def _is_unfinished(name: str) -> bool:
    """Whether it is ours and has not got its name yet."""
    found = _UNFINISHED.fullmatch(name)
    return found is not None and bool(found[2] or _OUR_FILE.fullmatch(found[1]))


def _json(content: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(content), indent=1)


def _after(state: LakeState, manifest: Manifest) -> LakeState:
    files = {} if manifest.is_whole else dict(state.files)
    for path in manifest.removed:
        files.pop(path, None)
    files.update({file.path: file for file in manifest.added})
    last_batch, batch_at_ms = manifest.number, manifest.asked_at_ms or manifest.written_at_ms
    if manifest.kind == "compaction":  # an old one that is whole does not say what was before it
        known = manifest if manifest.is_whole else state
        last_batch = last_batch if known.last_batch is None else known.last_batch
        batch_at_ms = batch_at_ms if known.batch_at_ms is None else known.batch_at_ms
    return LakeState(
        next_number=manifest.number + 1,
        source=manifest.source,
        log_end=state.log_end if manifest.log_end is None else manifest.log_end,
        log_mark=state.log_mark if manifest.log_end is None else manifest.log_mark,
        offsets=manifest.offsets or state.offsets,
        files=files,
        format=manifest.format,
        last_batch=last_batch,
        batch_at_ms=batch_at_ms,
    )
