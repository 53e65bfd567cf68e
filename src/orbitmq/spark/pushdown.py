"""Filters of a batch query that narrow what is read: on topic, broker, queue, offset, store time and tags.

Off unless both the option `pushFilters` and Spark's own `spark.sql.python.filterPushdown.enabled` are on, and for one question a frame
(pushed_filters.py). Only filters that are ANDed and compare a column with a value arrive here, and Spark looks again. A store time
narrows the offsets by the brokers' search, which takes a queue's store times to be in order, as they are unless its broker's clock was
set back.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from orbitmq.client.namespaces import unwrapped
from orbitmq.message import QueueRef
from orbitmq.spark.batch_reader import BatchReader
from orbitmq.spark.bounds import first_at
from orbitmq.spark.discovery import extents
from orbitmq.spark.planning import QueueRange
from orbitmq.spark.pushed_filters import column_of, is_lower_edge, values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from orbitmq.client.cluster import Cluster

_OF_QUEUE: Final[dict[str, Callable[[QueueRef], object]]] = {
    "topic": lambda queue: queue.topic,
    "brokerName": lambda queue: queue.broker_name,
    "queueId": lambda queue: queue.queue_id,
}


class FilteringBatchReader(BatchReader):
    """A batch reader that takes filters."""

    _queue_filters: tuple[tuple[str, frozenset[object]], ...] = ()
    _offset_from: int | None = None
    _offset_until: int | None = None
    _stored_from_ms: int | None = None
    _stored_until_ms: int | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        for one in filters:
            if isinstance(one, EqualTo | In):
                self._narrow_by_values(column_of(one), values_of(one))
            elif isinstance(one, GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
                self._narrow_by_bound(column_of(one), one)
        return filters

    def _narrow_by_values(self, column: str, values: frozenset[Any]) -> None:
        if column in _OF_QUEUE:
            self._queue_filters = (*self._queue_filters, (column, values))
        elif column == "queueOffset" and values and all(isinstance(value, int) for value in values):
            self._narrow_offsets(min(values), max(values) + 1)
        elif column == "tags" and values and not self.options.sql and self.options.tags in ("", "*"):
            tags = [tag for tag in values if isinstance(tag, str)]
            if len(tags) == len(values) and all(_is_one_tag(tag) for tag in tags):
                self.options = replace(self.options, tags=" || ".join(sorted(tags)))

    def _narrow_by_bound(self, column: str, one: Any) -> None:
        is_from = is_lower_edge(one)
        if column == "queueOffset" and isinstance(one.value, int):
            edge = one.value + isinstance(one, GreaterThan | LessThanOrEqual)
            self._narrow_offsets(edge if is_from else None, None if is_from else edge)
        elif column == "storeTimestamp" and isinstance(one.value, datetime) and one.value.tzinfo is not None:
            time_ms = int(one.value.timestamp() * 1000)
            if is_from:
                self._stored_from_ms = max(self._stored_from_ms or 0, time_ms)
            else:
                until_ms = time_ms + 1
                self._stored_until_ms = min(self._stored_until_ms or until_ms, until_ms)

    def _narrow_offsets(self, start: int | None, until: int | None) -> None:
        if start is not None:
            self._offset_from = max(self._offset_from or 0, start)
        if until is not None:
            self._offset_until = until if self._offset_until is None else min(self._offset_until, until)

    async def _ranges(self, cluster: Cluster) -> list[QueueRange]:
        narrowed = []
        for range_ in await super()._ranges(cluster):
            queue, start, until = range_.queue, range_.start, range_.until
            shown = QueueRef(unwrapped(self.options.access.namespace, queue.topic), queue.broker_name, queue.queue_id)
            if not all(_OF_QUEUE[column](shown) in values for column, values in self._queue_filters):
                continue
            start = max(start, self._offset_from or 0)
            until = until if self._offset_until is None else min(until, self._offset_until)
            if start < until:
                narrowed.append(QueueRange(queue, start, until))
        return await self._narrowed_by_time(cluster, narrowed)

    async def _narrowed_by_time(self, cluster: Cluster, ranges: list[QueueRange]) -> list[QueueRange]:
        if self._stored_from_ms is None and self._stored_until_ms is None:
            return ranges
        held = await extents(cluster, [range_.queue for range_ in ranges])
        narrowed = []
        for range_ in ranges:
            start, until = range_.start, range_.until
            if self._stored_from_ms is not None:
                found = await first_at(cluster, self.options, range_.queue, self._stored_from_ms, held[range_.queue])
                start = max(start, until if found is None else found)
            if self._stored_until_ms is not None:
                found = await first_at(cluster, self.options, range_.queue, self._stored_until_ms, held[range_.queue])
                until = min(until, until if found is None else found)
            if start < until:
                narrowed.append(QueueRange(range_.queue, start, until))
        return narrowed


def _is_one_tag(tag: str) -> bool:
    """Whether a subscription to it means this tag and nothing else: "*" means all, "a || b" two of them."""
    return tag not in ("", "*") and tag.strip() == tag and "|" not in tag
