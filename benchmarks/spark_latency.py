"""How soon a stream sees what was sent, at 200 messages a second: micro-batches without limits, one after the other.

micro-batch     what Spark says a trigger with rows took (durationMs.triggerExecution)
end to end      from the time that the producer stamped on a record to its row in foreachBatch
"""

from __future__ import annotations

import threading
import time
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame

RATE: Final = 200
_PERCENTS: Final = 100


def micro_batches(
    frame: DataFrame, timestamp: str, send: Callable[[], object], checkpoint: Path, seconds: float
) -> dict[str, float]:
    """`send` sends one message; `timestamp` is the column that says when."""
    delays: list[float] = []

    def look(rows: DataFrame, _batch: int) -> None:
        sent = [row[0] for row in rows.selectExpr(f"unix_micros({timestamp})").collect()]
        now = time.time()
        delays.extend(now - at / 1e6 for at in sent)

    query = frame.writeStream.foreachBatch(look).option("checkpointLocation", str(checkpoint)).start()
    stop = threading.Event()
    pacing = threading.Thread(target=_paced, args=(send, stop), daemon=True)
    pacing.start()
    try:
        _wait_for_rows(query, delays)
        time.sleep(seconds / 4)  # the first micro-batches warm the JVM up
        delays.clear()
        first = query.lastProgress["batchId"] if query.lastProgress else -1
        time.sleep(seconds)
    finally:
        stop.set()
        pacing.join()
    counted = list(delays)
    query.processAllAvailable()  # a query that is stopped in the middle of foreachBatch fills the log with its stack
    progress = [one for one in query.recentProgress if one["batchId"] > first and one["numInputRows"] > 0]
    query.stop()
    triggers = [one["durationMs"]["triggerExecution"] for one in progress]
    ends = [1000 * delay for delay in counted]
    return {
        "micro-batches": len(triggers),
        "micro-batch ms, median": round(median(triggers)),
        "micro-batch ms, p99": round(_p99(triggers)),
        "end to end ms, median": round(median(ends)),
        "end to end ms, p99": round(_p99(ends)),
    }


def _p99(values: list[float]) -> float:
    return quantiles(values, n=_PERCENTS)[-1] if len(values) > 1 else values[0]


def _wait_for_rows(query: Any, delays: list[float]) -> None:
    while not delays:
        if not query.isActive:
            raise RuntimeError(f"the query ended: {query.exception()}")
        time.sleep(0.1)


def _paced(send: Callable[[], object], stop: threading.Event) -> None:
    started = time.monotonic()
    sent = 0
    while not stop.is_set():
        due = int((time.monotonic() - started) * RATE)
        for _ in range(due - sent):
            send()
        sent = due
        stop.wait(1 / RATE)
