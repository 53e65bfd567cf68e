"""Filters of a query over a store that narrow the scan: on topic, broker name, queue, offset, store time and tags.

Off unless both the option `pushFilters` and Spark's own `spark.sql.python.filterPushdown.enabled` are on, and for one question a frame
(pushed_filters.py). They count like options: files and ranges of the log that hold nothing of it are not planned, other queues are not
looked at, and records that tags or times rule out are not decoded. Spark looks again: an entry of a batch holds several offsets.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from orbitmq.spark.pushed_filters import column_of, is_lower_edge, values_of
from orbitmq.spark.store_source import MessageReader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orbitmq.spark.store_options import StoreScan

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class FilteringMessageReader(MessageReader):
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        for one in filters:
            self.scan = narrowed(self.scan, one)
        return filters


def narrowed(scan: StoreScan, one: Filter) -> StoreScan:
    """The scan without what the filter rules out, as far as we can tell."""
    if isinstance(one, EqualTo | In):
        return _of_values(scan, column_of(one), values_of(one))
    if isinstance(one, GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return _beyond(scan, column_of(one), one)
    return scan


def _of_values(scan: StoreScan, column: str, values: frozenset[Any]) -> StoreScan:
    if column == "topic":
        return replace(scan, only_topics=_both(scan.only_topics, values))
    if column == "queueId":
        return replace(scan, only_queues=_both(scan.only_queues, values))
    if column == "brokerName":
        return scan if scan.broker_name in values else _nothing(scan)
    if column == "tags":
        tags = values.intersection(scan.tags) if scan.tags else values
        return replace(scan, tags=tuple(sorted(tags))) if tags else _nothing(scan)
    if column == "queueOffset" and values:
        return _within(scan, min(values), max(values) + 1)
    if column == "storeTimestamp" and values and all(map(_is_moment, values)):
        return _stored(scan, _ceiling_ms(min(values)), _floor_ms(max(values)) + 1)
    return scan


def _beyond(scan: StoreScan, column: str, one: Any) -> StoreScan:
    is_lower = is_lower_edge(one)
    is_behind = isinstance(
        one, GreaterThan | LessThanOrEqual
    )  # whether the edge of our half-open range is behind the value
    if column == "queueOffset" and isinstance(one.value, int):
        edge = one.value + is_behind
        return _within(scan, edge if is_lower else None, None if is_lower else edge)
    if column == "storeTimestamp" and _is_moment(one.value):
        edge = _floor_ms(one.value) + 1 if is_behind else _ceiling_ms(one.value)
        return _stored(scan, edge if is_lower else None, None if is_lower else edge)
    return scan


def _within(scan: StoreScan, start: int | None, stop: int | None) -> StoreScan:
    known = scan.queue_offsets
    first = known.start if start is None else max(known.start, start)
    return replace(scan, queue_offsets=range(first, known.stop if stop is None else min(known.stop, stop)))


def _stored(scan: StoreScan, begin_ms: int | None, end_ms: int | None) -> StoreScan:
    begins = [moment for moment in (scan.begin_ms, begin_ms) if moment is not None]
    ends = [moment for moment in (scan.end_ms, end_ms) if moment is not None]
    return replace(scan, begin_ms=max(begins, default=None), end_ms=min(ends, default=None))


def _nothing(scan: StoreScan) -> StoreScan:
    return replace(scan, only_topics=frozenset())


def _both(known: frozenset[Any] | None, values: frozenset[Any]) -> frozenset[Any]:
    return values if known is None else known & values


def _is_moment(value: Any) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None


def _floor_ms(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND // 1000


def _ceiling_ms(moment: datetime) -> int:
    return -((_EPOCH - moment) // _MICROSECOND // 1000)
