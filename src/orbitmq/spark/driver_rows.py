"""Rows that come with the plan: a small micro-batch is read where it is planned, on the driver, and needs no task in Python.

A task in Python takes tens of milliseconds before its first row, longer than reading a few hundred messages. Spark has a way
around it for its simplest readers: behind the partitions it asks for the rows themselves (`getCache`), keeps them as a block, and
the one task takes them from there. Where the block is lost, the task calls `read`, as it does without all this.

    latestOffset    the end, which Spark writes to the checkpoint
    partitions      one partition, and its rows are read
    getCache        they go to the JVM

Spark asks only readers that are its own `_SimpleStreamReaderWrapper`; but those it does not ask how far queues go, so a query
would have no lag. Ours is one between `partitions` and `getCache`, and at no other time.

PySpark: python_streaming_source_runner.partitions_func; Spark: PythonMicroBatchStreamBase.planInputPartitions
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import datasource_internal

from orbitmq.errors import OrbitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from orbitmq.spark.planning import RangesPartition

    Read = Callable[[RangesPartition], Iterator[pa.RecordBatch]]

logger = logging.getLogger(__name__)

_MOST_BYTES: Final = 1 << 20
# A name of Spark's own: a release that has it no more reads small micro-batches as it reads all others.
_ASKED_FOR_ROWS: Final[type[Any] | None] = getattr(datasource_internal, "_SimpleStreamReaderWrapper", None)


class CarriesRows:
    """The part of a stream reader that reads what is small and hands it over."""

    def __init__(self, most_rows: int) -> None:
        self._most_rows = most_rows if _ASKED_FOR_ROWS is not None else 0
        self._bytes_a_row = 0.0  # of the micro-batches before, about
        self._carried: list[pa.RecordBatch] | None = None

    @property  # type: ignore[misc]  # `isinstance` asks it; nobody sets it
    def __class__(self) -> type[Any]:
        return type(self) if self._carried is None or _ASKED_FOR_ROWS is None else _ASKED_FOR_ROWS

    def getCache(self, _start: dict[str, Any], _end: dict[str, Any]) -> Iterator[pa.RecordBatch]:  # noqa: N802
        """The rows of the partition that was planned last, once."""
        assert self._carried is not None
        rows, self._carried = self._carried, None
        return iter(rows)

    def carry(self, planned: Sequence[RangesPartition], read: Read) -> None:
        """Read what is planned if it is one short task. What turns out to be large, or cannot be read now, is the task's."""
        self._carried = None
        offsets = sum(partition.offsets for partition in planned)
        if len(planned) != 1 or offsets > self._most_rows:
            return
        if offsets * self._bytes_a_row > _MOST_BYTES:
            self._bytes_a_row /= 2  # a guess that grows old: messages may have become smaller
            return
        try:
            rows, size = _up_to(read(planned[0]), _MOST_BYTES)
        except OrbitError as error:
            logger.debug("left to a task, which has more patience: %s", error)
            return
        if size <= _MOST_BYTES:
            self._bytes_a_row = size / offsets
            self._carried = rows
        else:
            self._bytes_a_row = size / sum(batch.num_rows for batch in rows)


def _up_to(batches: Iterator[pa.RecordBatch], most_bytes: int) -> tuple[list[pa.RecordBatch], int]:
    """Batches until they are more than `most_bytes`, and what they are."""
    found: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        found.append(batch)
        size += batch.nbytes
        if size > most_bytes:
            break
    return found, size
