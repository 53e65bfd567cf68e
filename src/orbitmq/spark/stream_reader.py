"""`spark.readStream.format("rocketmq")`: what came since the last micro-batch.

The checkpoint holds, for every queue, the offset up to which a micro-batch read. Spark writes it before the micro-batch runs,
so that one that failed is run again with the same ends. A queue that is not in it yet is new: it is read from its beginning.
Offsets are committed to a group only when asked for; the checkpoint never depends on them.

Spark keeps no beginning of a query, only ends. Where the beginning cannot be found again ("latest" is elsewhere after a crash)
the first micro-batch is therefore an empty one that ends there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from orbitmq.client.filters import subscription
from orbitmq.errors import OrbitError
from orbitmq.protocol.codes import ResponseCode
from orbitmq.spark.access import link
from orbitmq.spark.bounds import starting_offsets
from orbitmq.spark.discovery import End, Found, extents, find_queues, min_offsets, queue_end
from orbitmq.spark.driver_rows import CarriesRows
from orbitmq.spark.failures import plain_errors, plain_errors_in
from orbitmq.spark.group_offsets import commit_offsets
from orbitmq.spark.loss import report_loss
from orbitmq.spark.patience import may_pass, patiently
from orbitmq.spark.planning import RangesPartition, plan, ranges_between
from orbitmq.spark.pulling import pull_once
from orbitmq.spark.queue_offsets import Offsets, OffsetsJson, from_json, listed, named, to_json
from orbitmq.spark.rate_limits import TriggerPace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    import pyarrow as pa

    from orbitmq.client.cluster import Cluster
    from orbitmq.message import QueueRef
    from orbitmq.spark.access import Link
    from orbitmq.spark.schema import Projection
    from orbitmq.spark.source_options import SourceOptions

logger = logging.getLogger(__name__)

T = TypeVar("T")

_NO_LIMIT: Final = 2**62
_UNKNOWN_FOR_NOW: Final = (ResponseCode.TOPIC_NOT_EXIST,)
_OTHER_QUEUES: Final = (
    "name them again, begin with a checkpoint of its own, or let failOnDataLoss=false leave them unread"
)
_SAMPLED_QUEUES: Final = 3
_SAMPLED_MESSAGES: Final = 16


class StreamReader(CarriesRows, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """On the driver it plans, and keeps state; in workers only `read` is called, which must not."""

    def __init__(self, options: SourceOptions, projection: Projection) -> None:
        super().__init__(options.driver_rows)
        self.options = options
        self.projection = projection
        self._pace = TriggerPace(options.limits)
        self._found: Found | None = None
        self._found_at = 0.0
        self._latest: Offsets = {}
        self._target: Offsets | None = None  # where an availableNow query ends
        self._committed: Offsets = {}
        self._unreachable: set[QueueRef] = set()
        self._on_slaves: set[QueueRef] = set()  # those of which a slave has not got all that was read
        self._initial: Offsets | None = None
        self._initial_is_logged = False

    # ---- offsets

    @plain_errors
    def initialOffset(self) -> OffsetsJson:  # noqa: N802 - Spark's name
        if self._initial is None:  # Spark asks twice and must hear the same
            here = self._link()
            self._initial = self._patiently(here, lambda: self._beginning(here.cluster))
        return to_json(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Anything but "all" says that our own limits count; a trigger that ignores limits will ask for all."""
        limits = self.options.limits
        if limits.max_offsets is None and limits.min_offsets is None and limits.max_bytes is None:
            return ReadAllAvailable()
        return ReadMaxRows(limits.max_offsets or _NO_LIMIT)

    @plain_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> OffsetsJson:  # noqa: N802
        here = self._link()
        begin = from_json(start)
        if begin == self._initial and not self._initial_is_logged and self.options.starting.moves:
            self._initial_is_logged = True
            return to_json(begin)
        latest = self._patiently(here, lambda: self._latest_offsets(here.cluster, begin))
        self._latest = latest
        if self._target is not None:
            latest = self._up_to_target(begin, latest)
        from_here = self._known_starts(here, begin, latest)
        if isinstance(limit, ReadAllAvailable) or not any(latest[queue] != from_here[queue] for queue in latest):
            return to_json(latest)
        return to_json(self._paced(here, begin, from_here, latest))

    def reportLatestOffset(self) -> OffsetsJson | None:  # noqa: N802
        return to_json(self._latest) if self._latest else None

    @plain_errors
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        here = self._link()
        self._target = self._patiently(here, lambda: self._latest_offsets(here.cluster, {}))

    # ---- reading

    @plain_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RangesPartition]:
        begin, until = from_json(start), from_json(end)
        here = self._link()
        from_here = self._known_starts(here, begin, until)
        backwards = [queue for queue in until if until[queue] < from_here[queue]]
        if begin == self._initial:  # the first micro-batch, run again from a beginning that has moved beyond its end
            self._initial_is_logged = True
            if backwards and not self.options.starting.moves:
                report_loss(self.options, f"what the first micro-batch read is gone from {listed(backwards)}")
        elif backwards:  # made anew, and allowed by failOnDataLoss=false, else `latestOffset` would have failed
            from_here.update(self._patiently(here, lambda: min_offsets(here.cluster, backwards)))
        ranges = ranges_between(from_here, until)
        planned = plan(ranges, self.options.min_partitions, self.options.max_partitions)
        at_once = replace(self.options, retry_ms=0)
        self.carry(planned, lambda partition: self._rows(partition, at_once))
        return planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangesPartition)
        return plain_errors_in(self._rows(partition, self.options))

    def _rows(self, partition: RangesPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
        from orbitmq.spark.range_reading import RangeReader  # a process that only plans can do without

        return RangeReader(link(options.access), options, self.projection).batches(partition.ranges)

    @plain_errors
    def commit(self, end: dict[str, Any]) -> None:
        if not self.options.commit:
            return
        moved = {queue: at for queue, at in from_json(end).items() if self._committed.get(queue) != at}
        here = self._link()
        self._committed |= self._patiently(here, lambda: commit_offsets(here.cluster, self.options.group, moved))

    def stop(self) -> None:
        """Connections belong to the process and are shared; they end with it."""

    # ---- asking the cluster

    def _link(self) -> Link:
        return link(self.options.access)

    def _patiently(self, here: Link, question: Callable[[], Awaitable[T]]) -> T:
        topics = self.options.topics
        if not topics and self._found is not None:
            topics = tuple({queue.topic for queue in self._found.queues})
        return here.run(patiently(here.cluster, topics, self.options.retry_ms / 1000, question))

    async def _beginning(self, cluster: Cluster) -> Offsets:
        found = await self._queues(cluster)
        return await starting_offsets(cluster, self.options, await extents(cluster, found.queues))

    async def _queues(self, cluster: Cluster) -> Found:
        """Looked for from time to time. While no name server answers, or one that has just been started does not know the topic
        yet, those that are known have to do. Of a topic that is gone for good, the brokers say that it ends at 0: a loss."""
        now = time.monotonic()
        before = self._found
        if before is not None and now - self._found_at < self.options.discovery_ms / 1000:
            return before
        self._found_at = now
        try:
            self._found = await find_queues(cluster, self.options, may_be_none=True)
        except OrbitError as error:
            if before is None or not may_pass(error, _UNKNOWN_FOR_NOW):
                raise
            logger.warning("no look for new queues: %s", error)
            return before
        new = set(self._found.queues) - set(before.queues) if before is not None else set()
        if new:
            logger.info("new since the query began: %s", listed(new))
        return self._found

    async def _latest_offsets(self, cluster: Cluster, begin: Offsets) -> Offsets:
        """One beyond the last message of every queue. Those of a broker that is away stay where they are."""
        found = await self._queues(cluster)
        outcomes = await asyncio.gather(
            *(queue_end(cluster, queue, self.options.from_slaves) for queue in found.queues), return_exceptions=True
        )
        latest: Offsets = {}
        failures: dict[QueueRef, OrbitError] = {}
        for queue, outcome in zip(found.queues, outcomes, strict=True):
            if isinstance(outcome, OrbitError) and may_pass(outcome):
                failures[queue] = outcome
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                latest[queue] = self._checked(queue, begin.get(queue), outcome)
        if failures and not latest:
            raise next(iter(failures.values()))
        self._keep_unreachable(begin, latest, failures, found)
        return latest

    def _checked(self, queue: QueueRef, begin: int | None, end: End) -> int:
        """Where it ends. Of a slave that is behind, the queue stays where it is: its master has what was read."""
        if begin is None or end.offset >= begin:
            self._on_slaves.discard(queue)
            return end.offset
        what = f"{named(queue)} ends at {end.offset}, but the query has read it up to {begin}"
        if end.is_of_master:
            report_loss(self.options, what)
            return end.offset
        if queue not in self._on_slaves:
            self._on_slaves.add(queue)
            logger.warning("not read until its master is back: on a slave, %s", what)
        return begin

    def _keep_unreachable(
        self, begin: Offsets, latest: Offsets, failures: dict[QueueRef, OrbitError], found: Found
    ) -> None:
        """They stay where they are: were they forgotten, they would be read from their beginning when they come back."""
        away = begin.keys() - latest.keys()
        new = away - self._unreachable
        dropped = [queue for queue in new if not self.options.names(queue)]
        if dropped:
            what = f"the checkpoint is also of {listed(dropped)}, which the options no longer name"
            report_loss(self.options, what, hint=_OTHER_QUEUES)
        for queue in sorted(new.difference(dropped)):
            if queue.broker_name in found.brokers and queue not in failures:
                report_loss(self.options, f"{named(queue)} is no longer there; what was not read of it is lost")
        if new:
            logger.warning("not read for now: %s", listed(new))
        for queue in away:
            latest[queue] = begin[queue]
        self._unreachable = set(away)

    # ---- how far

    def _known_starts(self, here: Link, begin: Offsets, latest: Offsets) -> Offsets:
        """Where reading begins: a queue that the checkpoint does not know is new and is read from its first message."""
        new = [queue for queue in latest if queue not in begin]
        lows = self._patiently(here, lambda: min_offsets(here.cluster, new)) if new else {}
        return {queue: begin[queue] if queue in begin else lows[queue] for queue in latest}

    def _up_to_target(self, begin: Offsets, latest: Offsets) -> Offsets:
        """No further than what was there when the query began; queues that came later are left for the next one."""
        assert self._target is not None
        bounded: Offsets = {}
        for queue, offset in latest.items():
            if queue in self._target:
                end, read = min(offset, self._target[queue]), begin.get(queue, 0)
                bounded[queue] = end if offset < read else max(end, read)  # before `read`: it was made anew
            elif queue in begin:
                bounded[queue] = begin[queue]
        return bounded

    def _paced(self, here: Link, begin: Offsets, from_here: Offsets, latest: Offsets) -> Offsets:
        now_ms = int(time.monotonic() * 1000)
        bytes_each = 0.0
        if self.options.limits.max_bytes is not None:
            bytes_each = here.run(self._bytes_each(here.cluster, from_here, latest))
        end = self._pace.end(from_here, latest, now_ms, bytes_each)
        if end is None:
            if self._target is None:
                return begin
            end = latest  # an availableNow query must come to its end, however little is left
        self._pace.triggered(now_ms)
        return end

    async def _bytes_each(self, cluster: Cluster, from_here: Offsets, latest: Offsets) -> float:
        """What a message takes, about: some are looked at where the longest queues will be read."""
        longest = sorted(latest, key=lambda queue: from_here[queue] - latest[queue])[:_SAMPLED_QUEUES]
        total, count = 0, 0
        for queue in longest:
            if latest[queue] <= from_here[queue]:
                continue
            try:
                everything = subscription(queue.topic, None, 0)
                pulled = await pull_once(cluster, self.options, everything, queue, from_here[queue], _SAMPLED_MESSAGES)
            except OrbitError as error:
                if not may_pass(error):
                    raise
                logger.debug("no sample of %s: %s", named(queue), error)
                continue
            if pulled.found:
                total += len(pulled.body)
                count += pulled.next_offset - from_here[queue]
        return total / count if count else 0.0
