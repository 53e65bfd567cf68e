"""Where each sink of a pipeline keeps what it has done: a folder of the pipeline's checkpoint, named by what the sink is.

    checkpoint/clean-parquet-1f0c9a2e    table, format, digest of where the rows go
    checkpoint/bills                     a sink with name = "bills"
    checkpoint/0-clean                   by its place in the file, as it was at first: found while it can only be this sink's

So a sink may move in its file, and others may come before it. What is not certain is an error: a sink that began anew without a
word would write its rows twice, or, into files, leave out as many batches as Spark finds there of the query before.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

from orbitmq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from orbitmq.spark.pipeline_file import Sink

_DIGEST_LETTERS: Final = 8


def target_of(sink: Sink) -> str:
    """Where its rows go: a path, or a topic."""
    topics = [str(value) for name, value in sink.options.items() if name.lower() == "topic"]
    return sink.path.rstrip("/") or "".join(topics)


def folder_of(sink: Sink) -> str:
    """The same wherever the sink stands in its file."""
    return sink.name or _by_target(sink)


def labels(sinks: Sequence[Sink]) -> list[str]:
    """As people call them: by name, by table where that is enough."""
    tables = [sink.table for sink in sinks]
    return [
        sink.name or (sink.table if tables.count(sink.table) == 1 else f"{sink.table} ({_kind(sink)})")
        for sink in sinks
    ]


def _kind(sink: Sink) -> str:
    return f"{sink.format} {target_of(sink)}".rstrip()


def checkpoint_folders(sinks: Sequence[Sink], there: Collection[str]) -> list[str]:
    """The folder of each sink, given those that are there. ConfigError when one may be that of a sink that has none."""
    claimed = {folder_of(sink) for sink in sinks}
    return [_chosen(sink, sinks, there, claimed) for sink in sinks]


def _chosen(sink: Sink, sinks: Sequence[Sink], there: Collection[str], claimed: Collection[str]) -> str:
    own = folder_of(sink)
    if own in there:
        return own
    former = sorted(name for name in there if name not in claimed and _may_be_of(sink, name))
    if not former:
        return own
    by_place = re.fullmatch(r"\d+-.*", former[0]) is not None
    if len(former) == 1 and by_place and sum(one.table == sink.table for one in sinks) == 1:
        return former[0]
    raise ConfigError(
        f"the sink of {sink.table} into {_kind(sink)} has no checkpoint yet, and no sink has {', '.join(former)}",
        hint=f'name = "{former[0]}" in the sink that wrote it goes on there; remove the folder if none is to',
    )


def _may_be_of(sink: Sink, name: str) -> bool:
    """Whether a folder can be of this sink, before it moved, got its name, or was sent elsewhere."""
    if sink.name:
        return name == _by_target(sink)
    table = re.escape(sink.table)
    return re.fullmatch(rf"\d+-{table}|{table}-[a-z]+-[0-9a-f]{{{_DIGEST_LETTERS}}}", name) is not None


def _by_target(sink: Sink) -> str:
    digest = hashlib.sha256(f"{sink.format}\0{target_of(sink)}".encode()).hexdigest()
    return f"{sink.table}-{sink.format}-{digest[:_DIGEST_LETTERS]}"
