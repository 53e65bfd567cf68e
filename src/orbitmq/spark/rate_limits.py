"""How far a micro-batch goes: at most so many offsets or bytes, shared out by how far each queue lags; or not at all yet.

Java: none; Kafka's source for Spark has the same options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orbitmq.message import QueueRef
    from orbitmq.spark.queue_offsets import Offsets
    from orbitmq.spark.source_options import TriggerLimits


class TriggerPace:
    """Decides the end of each micro-batch of one query."""

    def __init__(self, limits: TriggerLimits) -> None:
        self._limits = limits
        self._last_ms: int | None = None

    def end(
        self, start: Mapping[QueueRef, int], latest: Mapping[QueueRef, int], now_ms: int, bytes_each: float
    ) -> Offsets | None:
        """Where to read to; None when it is better to wait for more. `bytes_each`: what a message takes, about."""
        lags = {queue: max(0, latest[queue] - start[queue]) for queue in latest}
        total = sum(lags.values())
        if not self._is_worth_it(total, now_ms):
            return None
        allowed = total
        if self._limits.max_offsets is not None:
            allowed = min(allowed, self._limits.max_offsets)
        if self._limits.max_bytes is not None and bytes_each > 0:
            allowed = min(allowed, max(1, int(self._limits.max_bytes / bytes_each)))
        if allowed >= total:
            return dict(latest)
        shares = _shared_out(lags, allowed, total)
        return {queue: start[queue] + shares[queue] if lags[queue] else latest[queue] for queue in latest}

    def triggered(self, now_ms: int) -> None:
        """A micro-batch with messages begins now."""
        self._last_ms = now_ms

    def _is_worth_it(self, total: int, now_ms: int) -> bool:
        wanted = self._limits.min_offsets
        if wanted is None or total >= wanted:
            return True
        if self._last_ms is None:
            self._last_ms = now_ms  # the wait of the first micro-batch begins with the query
        return total > 0 and now_ms - self._last_ms >= self._limits.max_delay_ms


def _shared_out(lags: Mapping[QueueRef, int], allowed: int, total: int) -> dict[QueueRef, int]:
    """Shares by lag that add up to `allowed`; what rounding leaves over goes to the queues that lost most by it."""
    shares = {queue: lag * allowed // total for queue, lag in lags.items()}
    left = allowed - sum(shares.values())
    by_loss = sorted(lags, key=lambda queue: (-(lags[queue] * allowed % total), queue))
    for queue in by_loss[:left]:
        shares[queue] += 1
    return shares
