"""How many rows a sink left out, and why, where the program that runs the query can read it.

What a sink's `commit` is told stays in a process of Spark's own: the line that it logs reaches a terminal, but no program. So it also
keeps a note, beside the checkpoint of a stream or where `droppedRowsPath` says:

    <checkpoint or droppedRowsPath>/droppedRows/<query or job>.json

Each micro-batch that leaves rows out adds to it; one that is run again replaces what it said before, so every row counts once.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import msgspec

from orbitmq.errors import OrbitError
from orbitmq.spark.lake import Lake
from orbitmq.spark.whole_files import as_file_name

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

_FOLDER: Final = "droppedRows"
_SUFFIX: Final = ".json"
_MOST_REASONS: Final = 100  # some name a topic, and data can name many
_OTHER_REASONS: Final = "other reasons"


@dataclass(frozen=True, slots=True)
class DroppedRows:
    """What one query, or one job, has left out so far."""

    run: str  # id of the query, or of the job
    last_batch: int  # the last micro-batch that left rows out; 0 for a job
    reasons: dict[str, int]  # why -> rows, the most frequent first

    @property
    def rows(self) -> int:
        return sum(self.reasons.values())


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    batch: int
    of_batch: dict[str, int]
    before: dict[str, int]  # of all batches before it


def dropped_rows(place: str) -> list[DroppedRows]:
    """Of the checkpoint of a stream, or of a folder given as `droppedRowsPath`; empty while no row was left out."""
    lake = Lake(place)
    found = []
    for name in sorted(lake.names_in(_FOLDER)):
        if name.endswith(_SUFFIX) and not name.startswith("."):
            note = lake.read(f"{_FOLDER}/{name}", _Note)
            reasons = _few(Counter(note.before) + Counter(note.of_batch))
            found.append(DroppedRows(unquote(name.removesuffix(_SUFFIX)), note.batch, reasons))
    return found


def rows_left_out(place: str) -> int:
    """By all queries and jobs that note it there; 0 where nobody does, or can: who tried has said so."""
    try:
        return sum(one.rows for one in dropped_rows(place)) if place else 0
    except (OSError, OrbitError) as error:
        logger.debug("no notes of rows left out in %s: %s", place, error)
        return 0


def note_dropped_rows(place: str, run: str, batch: int, reasons: Mapping[str, int]) -> None:
    """The rows that could be sent are sent: a note that cannot be kept is no reason to send them again."""
    try:
        lake = Lake(place)
        path = f"{_FOLDER}/{as_file_name(run)}{_SUFFIX}"
        before: Counter[str] = Counter()
        if lake.has(path):
            known = lake.read(path, _Note)
            before.update(known.before)
            if known.batch != batch:
                before.update(known.of_batch)
        lake.write(path, _Note(batch=batch, of_batch=_few(Counter(reasons)), before=_few(before)))
    except (OSError, OrbitError) as error:
        logger.warning("how many rows were left out cannot be noted in %s: %s", place, error)


def _few(reasons: Counter[str]) -> dict[str, int]:
    """The most frequent, and the rest as one."""
    other = reasons.pop(_OTHER_REASONS, 0)
    told = dict(reasons.most_common(_MOST_REASONS))
    other += reasons.total() - sum(told.values())
    return {**told, _OTHER_REASONS: other} if other else told
