"""What the writer promised: one line for each thing it tried and each thing the store acknowledged.

    try <id> <topic> <queue>                          before the append
    ack <id> <topic> <queue> <queue offset> <log offset> <end>    after it returned; a broken writer says -1s before it
    durable <log offset>                              after a flush: what ends before it survives a power cut, too
    batch <id> <id> ...                               before them: these are appended together, all or none
    torn <id> ...                                     a power cut took some of these that were appended together, and not all
    lost <id>                                         was acknowledged but not durable, and a power cut took it
    trysave <number>    acksave <number>              around saving a table
    kill <where>                                      just before the process kills itself

Lines go straight to the kernel, so they survive the killing of the process as the store's own bytes do, and nothing the store
does wrong can touch them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class Promise(NamedTuple):
    topic: str
    queue_id: int
    queue_offset: int  # -1: not told
    log_offset: int
    end: int


@dataclass
class Promised:
    tried: set[str] = field(default_factory=set)
    acked: dict[str, Promise] = field(default_factory=dict)
    batches: list[list[str]] = field(default_factory=list)
    durable: int = 0
    save_tried: int = 0
    save_acked: int = 0
    kills: list[str] = field(default_factory=list)


class Ledger:
    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, *lines: str) -> None:
        os.write(self._descriptor, "".join(f"{line}\n" for line in lines).encode())

    def close(self) -> None:
        os.close(self._descriptor)


def read_ledger(path: Path) -> Promised:
    promised = Promised()
    for line in path.read_text().splitlines() if path.exists() else []:
        kind, *rest = line.split(" ")
        if kind == "try":
            promised.tried.add(rest[0])
        elif kind == "ack":
            promised.acked[rest[0]] = Promise(rest[1], *map(int, rest[2:]))
        elif kind == "durable":
            promised.durable = int(rest[0])
        elif kind == "batch":
            promised.batches.append(rest)
        elif kind == "torn":
            promised.batches.remove(rest)
        elif kind == "lost":
            promised.acked.pop(rest[0])
        elif kind == "trysave":
            promised.save_tried = int(rest[0])
        elif kind == "acksave":
            promised.save_acked = int(rest[0])
        elif kind == "kill":
            promised.kills.append(" ".join(rest))
    return promised
