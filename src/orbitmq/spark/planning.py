"""Which task reads what: ranges of offsets, split where a queue is long, packed where queues are short.

A task costs about as much as some ten thousand messages, so short ranges share one, and there are no more tasks than the longest of
them asks for. The plan follows from the ranges and the options
alone: a micro-batch that is run again has the same tasks, which is what ids for dropping repeats rest on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orbitmq.message import QueueRef

_WORTH_A_TASK: Final = 100_000


@dataclass(frozen=True, slots=True, order=True)
class QueueRange:
    """Offsets of one queue, `start` included, `until` not."""

    queue: QueueRef
    start: int
    until: int

    def __len__(self) -> int:
        return self.until - self.start


class RangesPartition(InputPartition):
    """What one task reads, in this order."""

    def __init__(self, ranges: Sequence[QueueRange]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)

    @property
    def offsets(self) -> int:
        return sum(map(len, self.ranges))

    def __repr__(self) -> str:
        return f"RangesPartition({len(self.ranges)} ranges, {self.offsets} offsets)"


def ranges_between(start: Mapping[QueueRef, int], end: Mapping[QueueRef, int]) -> list[QueueRange]:
    """What is not empty of it, in the order of the queues. Both must name the same queues."""
    return [QueueRange(queue, start[queue], end[queue]) for queue in sorted(end) if end[queue] > start[queue]]


def plan(
    ranges: Sequence[QueueRange], min_partitions: int | None = None, max_partitions: int | None = None
) -> list[RangesPartition]:
    total = sum(map(len, ranges))
    if not total:
        return []
    tasks = min(len(ranges), -(-total // _WORTH_A_TASK))
    if max_partitions is not None:
        tasks = min(tasks, max_partitions)
    if min_partitions is not None:
        tasks = max(tasks, min_partitions)
    if tasks > len(ranges):
        return [RangesPartition([piece]) for piece in _split(ranges, tasks, total)]
    bins = _packed(ranges, tasks)
    if min_partitions is None:
        bins = _fewer(ranges, bins)
    return [RangesPartition(sorted(bin_)) for bin_ in bins]


def _split(ranges: Sequence[QueueRange], tasks: int, total: int) -> list[QueueRange]:
    """About `tasks` pieces of about equal length: each range is cut by its share of the whole."""
    pieces: list[QueueRange] = []
    for range_ in ranges:
        size = len(range_)
        parts = min(size, max(1, -(-size * tasks // total)))
        edges = [range_.start + size * part // parts for part in range(parts + 1)]
        pieces += [QueueRange(range_.queue, edges[part], edges[part + 1]) for part in range(parts)]
    return pieces


def _packed(ranges: Sequence[QueueRange], tasks: int) -> list[list[QueueRange]]:
    """The longest first, each to the task that has least so far."""
    bins: list[list[QueueRange]] = [[] for _ in range(tasks)]
    sizes = [0] * tasks
    for range_ in sorted(ranges, key=lambda one: (-len(one), one)):
        lightest = sizes.index(min(sizes))
        bins[lightest].append(range_)
        sizes[lightest] += len(range_)
    return [bin_ for bin_ in bins if bin_]


def _fewer(ranges: Sequence[QueueRange], bins: list[list[QueueRange]]) -> list[list[QueueRange]]:
    """As few tasks as take no longer: of eight like queues in five tasks, some have two, and so would all of four."""
    longest = _longest(bins)
    while len(bins) > 1:
        fewer = _packed(ranges, len(bins) - 1)
        if _longest(fewer) > longest:
            break
        bins = fewer
    return bins


def _longest(bins: Sequence[Sequence[QueueRange]]) -> int:
    return max(sum(map(len, bin_)) for bin_ in bins)
