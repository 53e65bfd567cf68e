"""How far a streaming query is behind: in its progress, and told to whoever listens.

Spark's own metrics stay empty for sources written in Python, but each progress report says how far a micro-batch read and how
far the queues went: the rest is a subtraction.

    spark.streams.addListener(LagListener(lambda lag: gauge.set(lag.messages)))
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from orbitmq.spark.queue_offsets import from_progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

    from orbitmq.message import QueueRef

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lag:
    """What a query had not read yet when a micro-batch was done."""

    query_id: str
    query_name: str | None
    batch_id: int
    by_queue: dict[QueueRef, int]

    @property
    def messages(self) -> int:
        return sum(self.by_queue.values())


def lag_of(progress: StreamingQueryProgress) -> Lag:
    """Of all rocketmq sources of the query together."""
    by_queue: dict[QueueRef, int] = {}
    for source in progress.sources:
        read, latest = from_progress(source.endOffset), from_progress(source.latestOffset)
        if read is not None and latest is not None:
            for queue, high in latest.items():
                by_queue[queue] = by_queue.get(queue, 0) + max(0, high - read.get(queue, 0))
    return Lag(str(progress.id), progress.name, progress.batchId, by_queue)


class LagListener(StreamingQueryListener):
    """Calls `report` after every micro-batch. What it raises is logged: a listener must not hurt its query."""

    def __init__(self, report: Callable[[Lag], object]) -> None:
        self._report = report

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        try:
            self._report(lag_of(event.progress))
        except Exception:
            logger.exception("the lag could not be reported")

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing is read yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing came, so nothing changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """The last progress has said it."""
