"""What a pipeline has done, counted as it runs: Spark keeps the last hundred progress reports of a query, and no more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.streaming.listener import StreamingQueryProgress

_PREFIX: Final = "expect_"


def metric_name(number: int) -> str:
    """Under which Spark reports how many rows did not meet the rule of this number."""
    return f"{_PREFIX}{number}"


@dataclass(slots=True)
class SinkCount:
    """Of one sink. `unmet`: the number of a rule -> rows that did not meet it, on their way to this sink."""

    sink: str
    verb: str = "read"
    rows: int | None = 0  # None: not known
    unmet: dict[int, int] = field(default_factory=dict)
    left_out: int = 0  # by a sink with badRows=drop or deadLetter

    def line(self) -> str:
        return f"{self.sink}: {self.rows or 0:,} rows {self.verb}"


@dataclass(slots=True)
class PipelineSummary:
    rules: list[str]
    sinks: list[SinkCount] = field(default_factory=list)

    def lines(self) -> list[str]:
        """For people. A rule for rows that go to several sinks is told once, unless those have got differently far."""
        told = [one.line() for one in self.sinks if one.rows is not None]
        told += [f"{one.sink}: {one.left_out:,} rows left out by the sink" for one in self.sinks if one.left_out]
        for number, rule in enumerate(self.rules):
            by_sink = {one.sink: one.unmet[number] for one in self.sinks if number in one.unmet}
            if len(set(by_sink.values())) == 1:
                told.append(f"not met by {next(iter(by_sink.values())):,} rows: {rule}")
            else:
                told += [f"not met by {rows:,} rows on their way to {sink}: {rule}" for sink, rows in by_sink.items()]
        return told


class ProgressCount:
    """Adds up the reports of one query. `add` is given those that Spark has, often enough that none is missed."""

    def __init__(self, sink: str, whole_tables: Sequence[int] = ()) -> None:
        """`whole_tables`: rules of tables that are no streams, which every micro-batch reads anew."""
        self.count = SinkCount(sink)
        self._whole_tables = frozenset(whole_tables)
        self._last: tuple[int, str] | None = None

    def is_news(self, report: StreamingQueryProgress | None) -> bool:
        return report is not None and (report.batchId, report.timestamp) != self._last

    def add(self, reports: Sequence[StreamingQueryProgress]) -> None:
        keys = [(report.batchId, report.timestamp) for report in reports]
        new = reports[keys.index(self._last) + 1 :] if self._last in keys else reports
        for report in new:
            self.count.rows = (self.count.rows or 0) + report.numInputRows
            for name, row in report.observedMetrics.items():
                if name.startswith(_PREFIX):  # a transform may have metrics of its own
                    self._observe(int(name.removeprefix(_PREFIX)), int(row["unmet"] or 0))
        if keys:
            self._last = keys[-1]

    def _observe(self, rule: int, unmet: int) -> None:
        before = self.count.unmet.get(rule, 0)
        self.count.unmet[rule] = max(before, unmet) if rule in self._whole_tables else before + unmet
