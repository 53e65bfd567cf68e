"""What a write was told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast

from orbitmq.client.names import check_group, check_topic
from orbitmq.errors import ConfigError, MessageError
from orbitmq.spark import access as access_options
from orbitmq.spark.access import Access, access_from
from orbitmq.spark.lake import Lake
from orbitmq.spark.options import Options

if TYPE_CHECKING:
    from collections.abc import Mapping

BadRows = Literal["fail", "drop", "deadLetter"]

OPTIONS: Final[dict[str, tuple[str, ...]]] = {
    **access_options.OPTIONS,
    "topic": (),
    "producerGroup": ("group", "groupId"),
    "badRows": (),
    "deadLetterPath": (),
    "droppedRowsPath": (),
    "checkpointLocation": (),  # Spark's own
    "dedupIds": (),
    "jobId": (),
    "batchBytes": (),
    "maxMessageBytes": (),
    "maxInFlight": (),
    "retryTimeout": (),
    "unconfirmed": (),
}
_DEFAULT_GROUP: Final = "orbitmq-spark-sink"
_BATCH_BYTES: Final = 256 << 10
_MAX_MESSAGE_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class SinkOptions:
    access: Access
    topic: str  # for all rows; empty: the column of that name
    group: str
    bad_rows: BadRows
    dead_letter_path: str
    dropped_rows_path: str  # where to note how many rows were left out; empty: nowhere
    dedup_ids: bool
    job_id: str
    batch_bytes: int
    max_message_bytes: int
    max_in_flight: int
    retry_ms: int
    accepts_unconfirmed: bool  # rows that are stored, but not as safely as the broker promises, count as written


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    options = Options(given, OPTIONS, "the rocketmq sink")
    topic = options.text("topic")
    if topic:
        try:
            check_topic(topic)
        except MessageError as error:
            raise ConfigError(error.message, hint=error.hint) from error
    group = options.text("producerGroup", _DEFAULT_GROUP)
    check_group(group)
    path = _from_here(options.text("deadLetterPath"))
    bad_rows = options.choice("badRows", "deadLetter" if path else "fail", ("fail", "drop", "deadLetter"))
    if (bad_rows == "deadLetter") != bool(path):
        raise ConfigError("badRows=deadLetter and deadLetterPath go together", hint="give both or neither")
    max_message_bytes = options.size("maxMessageBytes") or _MAX_MESSAGE_BYTES
    return SinkOptions(
        access=access_from(options),
        topic=topic,
        group=group,
        bad_rows=cast("BadRows", bad_rows),
        dead_letter_path=Lake(path).address if path else "",  # a worker is in a folder of its own
        dropped_rows_path=_notes(options),
        dedup_ids=options.flag("dedupIds", True),
        job_id=options.text("jobId"),
        batch_bytes=min(options.size("batchBytes") or _BATCH_BYTES, max_message_bytes),
        max_message_bytes=max_message_bytes,
        max_in_flight=options.number("maxInFlight", 8) or 8,
        retry_ms=options.duration_ms("retryTimeout", 60_000),
        accepts_unconfirmed=options.choice("unconfirmed", "retry", ("retry", "accept")) == "accept",
    )


def _notes(options: Options) -> str:
    """Beside the checkpoint of a stream, whatever file system Spark has it on: of one that Arrow does not know, we will hear."""
    given = _from_here(options.text("droppedRowsPath"))
    return Lake(given).address if given else _from_here(options.text("checkpointLocation"))


def _from_here(path: str) -> str:
    """Workers have folders of their own to begin a path in."""
    return str(Path(path).absolute()) if path and ":" not in path else path
