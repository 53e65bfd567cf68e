"""How long requests took, from the read that brought them to the write of their answer: by code, answer and way.

Requests that came in one read and were answered in one write took the same time, so the clock is read once for all of them.
Who answers such a request only says so; the connection settles the bill at the end of the read.

    data_received ─> handler: served.fresh += 1 (the first is noted in `unsettled`) ─> ... ─> one write ─> settle(seconds)

The steps between bounds are those of Java's StoreStatsService; coarser spreads are made of them by adding up.

Java: RemotingMetricsManager, StoreStatsService
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.protocol.codes import FLAG_ONEWAY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orbitmq.protocol.command import Command

BOUNDS_MS: Final = (
    *range(21), *range(22, 51, 2), *range(55, 101, 5), *range(110, 201, 10),
    *range(250, 501, 50), *range(600, 1001, 100), *range(2000, 10_001, 1000),
)  # fmt: skip


class Result(StrEnum):
    SUCCESS = "success"
    ONEWAY = "oneway"  # nobody is told
    NOT_WRITTEN = "write_channel_failed"  # the peer was gone before its answer was there


class Kind(NamedTuple):
    """What is counted together. `is_held`: it waited for something to happen, as a long poll does."""

    request_code: int
    answer_code: int = 0
    result: Result = Result.SUCCESS
    is_held: bool = False


class Times:
    """How long the requests of one kind took."""

    __slots__ = ("counts", "fresh", "longest_seconds", "seconds", "unsettled")

    def __init__(self, unsettled: list[Times]) -> None:
        self.fresh = 0  # answered in this read and not timed yet
        self.counts = [0] * (len(BOUNDS_MS) + 1)  # up to each bound, whole milliseconds; the last: longer than all
        self.seconds = 0.0  # of all together
        self.longest_seconds = 0.0
        self.unsettled = unsettled  # where to note itself with the first `fresh` one

    def add(self, seconds: float, requests: int = 1) -> None:
        self.counts[0 if seconds < 0.001 else bisect_left(BOUNDS_MS, int(seconds * 1000))] += requests
        self.seconds += seconds * requests
        if seconds > self.longest_seconds:
            self.longest_seconds = seconds


class RequestTimes:
    """Of all connections of a server. Only codes that it serves are counted, so their number is bounded."""

    def __init__(self) -> None:
        self.unsettled: list[Times] = []
        self.waiting: Counter[int] = Counter()  # by code: begun, and waiting for a disk or another machine
        self._by_kind: dict[Kind, Times] = {}

    def of(self, kind: Kind) -> Times:
        times = self._by_kind.get(kind)
        if times is None:
            times = self._by_kind[kind] = Times(self.unsettled)
        return times

    def all(self) -> Iterator[tuple[Kind, Times]]:
        yield from self._by_kind.items()

    def note(self, request: Command, answer: Command) -> None:
        """Answered at once; its time is known at the end of the read."""
        result = Result.ONEWAY if request.flag & FLAG_ONEWAY else Result.SUCCESS
        times = self.of(Kind(request.code, answer.code, result))
        if not times.fresh:
            self.unsettled.append(times)
        times.fresh += 1

    def note_later(self, request: Command, answer: Command, seconds: float, *, is_written: bool, is_held: bool) -> None:
        """Answered some time after it was read."""
        result = Result.ONEWAY if request.flag & FLAG_ONEWAY else Result.SUCCESS if is_written else Result.NOT_WRITTEN
        self.of(Kind(request.code, answer.code, result, is_held)).add(seconds)

    def settle(self, seconds: float) -> None:
        """What was answered in this read took so long."""
        for times in self.unsettled:
            fresh, times.fresh = times.fresh, 0
            if seconds < 0.001 and seconds <= times.longest_seconds:  # nearly always; `add` says the same
                times.counts[0] += fresh
                times.seconds += seconds * fresh
            else:
                times.add(seconds, fresh)
        del self.unsettled[:]


def spread(counts: Sequence[int], bounds_ms: Sequence[int]) -> list[int]:
    """As `Times.counts`, between these bounds, which are some of `BOUNDS_MS`; the last: above them all."""
    ends = [0, *(bisect_left(BOUNDS_MS, bound) + 1 for bound in bounds_ms), len(counts)]
    return [sum(counts[start:end]) for start, end in pairwise(ends)]
