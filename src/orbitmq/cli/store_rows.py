"""What `store dump` and `store repair` print for programs.

A dumped message has the fields of `msg find`, and its place in the log; `msg send --format json` reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from orbitmq.admin.messages import MessageRow, message_row
from orbitmq.storage.repair import AddFile, Clear, Close, Cover, Detach, Resize

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orbitmq.message.message import StoredMessage
    from orbitmq.storage.repair import Step


class RecordRow(MessageRow, frozen=True, kw_only=True):
    """A message as a store keeps it. `broker` is null: a store does not name its own."""

    log_offset: int
    flag: int  # the producer's own
    system_flag: int  # compressed, part of a transaction, ...


def record_row(message: StoredMessage) -> RecordRow:
    plain = msgspec.structs.asdict(message_row(message, None))
    return RecordRow(**plain, log_offset=message.commit_log_offset, flag=message.flag, system_flag=message.sys_flag)


class RepairStep(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that mends a store."""

    do: str  # move, resize, addfile, cover, close, clear, detach, markunclean, restore
    path: str  # in the store directory
    byte: int | None  # the first that is written over
    size: int | None  # bytes that are written over; of a file that is made or brought to a length: its new length
    text: str  # the same in words


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """What mends a store, or has mended it."""

    steps: list[RepairStep]
    kept_in: str | None  # the folder with what was taken out; null when nothing was done


def repair_of(steps: Sequence[Step], kept: Path | None) -> Repair:
    return Repair(steps=[_repair_step(step) for step in steps], kept_in=None if kept is None else str(kept))


def _repair_step(step: Step) -> RepairStep:
    byte: int | None = None
    size: int | None = None
    match step:
        case Cover() | Close() | Clear() | Detach():
            byte, size = step.position, step.size
        case Resize():
            size = step.new_bytes
        case AddFile():
            size = step.size
    return RepairStep(do=type(step).__name__.lower(), path=step.path, byte=byte, size=size, text=str(step))
