"""`df.write.format("rocketmq")` and `df.writeStream.format("rocketmq")`: rows as messages, at least once.

A task that fails is run again from its start, and a micro-batch that did not finish is run again after a restart, so a message
can be stored more than once. Every one carries an id made of query, micro-batch, task and row, which repeats share as long as
the plan gives a task the same rows in the same order: `drop_repeats` and consumers can tell them apart by it.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from orbitmq.errors import MessageError
from orbitmq.spark.access import link
from orbitmq.spark.dead_letters import DeadLetters
from orbitmq.spark.drop_notes import note_dropped_rows
from orbitmq.spark.failures import plain_errors
from orbitmq.spark.sink_rows import RefusedRows, encode_rows
from orbitmq.spark.sink_sending import SinkSender
from orbitmq.spark.whole_files import as_file_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orbitmq.spark.sink_options import SinkOptions

logger = logging.getLogger(__name__)

# Encoded together: many enough for what each step costs by itself, few enough to be in the processor's cache from step to step.
_ROWS_AT_ONCE: Final = 8192
_BYTES_AT_ONCE: Final = 2 << 20
_REASONS_TOLD: Final = 10  # in one line; each bad name of a topic is one


@dataclass
class Written(WriterCommitMessage):
    """What one task did."""

    sent: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # reason -> rows
    dead_letters: str | None = None
    task: TaskName | None = None


@dataclass(frozen=True, slots=True)
class TaskName:
    """Which task of which run of what: the same for every attempt at it."""

    run: str  # id of the streaming query, or of the job
    batch: str
    partition: int

    @property
    def file_name(self) -> str:
        return f"{as_file_name(self.run)}-{self.batch}-{self.partition:05d}"

    def dedup_ids(self, first: int, count: int) -> pa.Array:
        numbers = pa.array(np.arange(first, first + count)).cast(pa.string())
        return pc.binary_join_element_wise(f"{self.run}:{self.batch}:{self.partition}:", numbers, "")


class RowWriter:
    """What both writers do in a worker."""

    def __init__(self, options: SinkOptions, columns: dict[str, str]) -> None:
        self.options = options
        self.columns = columns
        # Made on the driver: all attempts at all tasks of a batch job share it.
        self.job_id = options.job_id or uuid.uuid4().hex

    def write_rows(self, batches: Iterator[pa.RecordBatch], task: TaskName) -> Written:
        written = Written(task=task)
        refusals: Counter[str] = Counter()
        letters = DeadLetters(self.options.dead_letter_path, task.file_name)
        sender = SinkSender(link(self.options.access), self.options)
        row = 0
        try:
            for batch in _sized(batches):
                count = batch.num_rows
                dedup_ids = task.dedup_ids(row, count) if self.options.dedup_ids else None
                rows, refused = encode_rows(batch, self.columns, self.options, sender.new_ids(count), dedup_ids)
                if refused.reasons:
                    self._refuse(task, row, refused)
                    refusals.update(refused.reasons)
                    if self.options.bad_rows == "deadLetter":
                        letters.add(batch, refused)
                sender.send(rows)
                written.sent += len(rows.members)
                row += count
            sender.finish()
            written.dead_letters = letters.save()
        except BaseException:
            sender.cancel()
            letters.abandon()
            raise
        written.refused = dict(refusals)
        return written

    def _refuse(self, task: TaskName, first_row: int, refused: RefusedRows) -> None:
        if self.options.bad_rows == "fail":
            raise MessageError(
                f"row {first_row + int(refused.rows[0])} of task {task.partition} cannot be sent: {refused.reasons[0]}",
                hint="badRows=drop leaves such rows out and counts them; deadLetterPath keeps them",
            )


class BatchWriter(DataSourceArrowWriter, RowWriter):
    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = _current_task(self.job_id)
        if task.run != self.job_id:  # inside foreachBatch, where one micro-batch may write several frames
            task = replace(task, run=f"{task.run}-{self.options.job_id or self.options.topic or 'rows'}")
        return self.write_rows(iterator, task)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _report(messages, "the job", self.options.dropped_rows_path)


class StreamWriter(DataSourceStreamArrowWriter, RowWriter):
    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self.write_rows(iterator, _current_task(self.job_id))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        _report(messages, f"micro-batch {batchId}", self.options.dropped_rows_path)


def _current_task(job_id: str) -> TaskName:
    context = TaskContext.get()
    assert context is not None, "Spark writes in tasks"
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    return TaskName(query or job_id, batch or "0", context.partitionId())


def _sized(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In pieces that can be encoded together."""
    for batch in batches:
        count = batch.num_rows
        pieces = max(-(-count // _ROWS_AT_ONCE), min(count, -(-batch.nbytes // _BYTES_AT_ONCE)))
        for piece in range(pieces):
            start, end = count * piece // pieces, count * (piece + 1) // pieces
            yield batch.slice(start, end - start)


def _report(messages: Sequence[WriterCommitMessage | None], what: str, notes: str) -> None:
    """What was left out is said once, by the driver, and noted for programs."""
    tasks = [message for message in messages if isinstance(message, Written)]
    refused: Counter[str] = Counter()
    for one in tasks:
        refused.update(one.refused)
    if not refused:
        return
    sent = sum(one.sent for one in tasks)
    files = [one.dead_letters for one in tasks if one.dead_letters]
    kept = f"; they are in {', '.join(files)}" if files else ""
    logger.warning("%s sent %d rows and left out %d: %s%s", what, sent, refused.total(), _reasons(refused), kept)
    task = tasks[0].task
    if notes and task is not None:
        note_dropped_rows(notes, task.run, int(task.batch), refused)


def _reasons(refused: Counter[str]) -> str:
    told = [f"{count} because {reason}" for reason, count in refused.most_common(_REASONS_TOLD)]
    others = len(refused) - len(told)
    return "; ".join([*told, f"{others} reasons more"] if others else told)
