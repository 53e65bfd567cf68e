"""Reading ranges of queues in a worker: many pulls on their way at once, one Arrow batch for each few megabytes.

OrbitMQ's brokers give megabytes an answer to who asks for that (pulling.py), Apache's a few dozen messages: there the way to full
speed is to have many questions on their way. A range is cut into segments; several segments, of one queue or of many, are pulled at the same time, decoded in their order, and given
out in it: each range's messages come in the order of their offsets.

    segments   [0..900) [900..1800) [1800..2700) ...     sized so that one becomes a batch of about 3 MB
    pulls       ─ ─ ─ ─   ─ ─ ─ ─     ─ ─ ─ ─            one after the other inside a segment
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from orbitmq.client.namespaces import unwrapped
from orbitmq.client.routes import MASTER
from orbitmq.errors import MessageError, TransportError
from orbitmq.protocol.codes import ResponseCode
from orbitmq.spark.decoding import RecordDecoder
from orbitmq.spark.loss import report_loss
from orbitmq.spark.patience import patiently
from orbitmq.spark.planning import QueueRange
from orbitmq.spark.pulling import BULK_BYTES, Pulled, pull_once
from orbitmq.spark.queue_offsets import named

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from orbitmq.client.filters import Subscription
    from orbitmq.message import QueueRef
    from orbitmq.spark.access import Link
    from orbitmq.spark.schema import Projection
    from orbitmq.spark.source_options import SourceOptions

logger = logging.getLogger(__name__)

# A sixteenth less than one answer holds: a segment whose messages are somewhat larger than those before is still one answer, and need
# not be asked for twice and joined.
_BATCH_BYTES: Final = BULK_BYTES * 15 // 16
_SEGMENT_BYTES: Final = 16 << 20  # where a segment ends even when it is not done
_SEGMENTS_AT_ONCE: Final = 8
_FIRST_SEGMENT: Final = 256
_SHORTEST_SEGMENT: Final = 16
_LONGEST_SEGMENT: Final = 16_384
_FILTERED_AT_ONCE: Final = 1024  # a broker looks at all that it is asked for before it does anything else


class Segment(NamedTuple):
    """The raw records of a part of a range. It may end before what was asked for, where messages are large."""

    range: QueueRange
    records: bytes
    rest: QueueRange | None


class RangeReader:
    """Reads for one task."""

    def __init__(self, link: Link, options: SourceOptions, projection: Projection) -> None:
        self._link = link
        self._options = options
        self._projection = projection
        tags = options.subscription("any").tags
        self._tags = pa.array(sorted(tags), pa.string()) if tags else None
        extra = ["queueOffset", *(["tags"] if tags else [])]
        self._decoded_projection = projection.with_columns(extra)
        self._decoders: dict[str, RecordDecoder] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._suggested: dict[QueueRef, int] = {}
        self._segment_offsets = _FIRST_SEGMENT
        self._is_filtered = bool(tags or options.sql)
        self._most_at_once = min(options.pull_batch, _FILTERED_AT_ONCE) if self._is_filtered else options.pull_batch

    def batches(self, ranges: Iterable[QueueRange]) -> Iterator[pa.RecordBatch]:
        """At least one batch for Spark to see the schema of, unless nothing is found."""
        waiting: deque[Future[Segment]] = deque()
        wanted = list(ranges)
        at_once = _SEGMENTS_AT_ONCE if self._is_foreseeable(wanted) else 1
        segments = self._segments(wanted)
        try:
            while True:
                while len(waiting) < at_once and (next_ := next(segments, None)) is not None:
                    waiting.append(self._link.submit(self._pulled(next_)))
                if not waiting:
                    return
                segment = waiting.popleft().result()
                if segment.rest is not None:
                    waiting.appendleft(self._link.submit(self._pulled(segment.rest)))
                self._learn_size(segment)
                at_once = _SEGMENTS_AT_ONCE
                if segment.records:
                    batch = self._batch(segment)
                    if batch.num_rows:
                        yield batch
        finally:
            for future in waiting:
                future.cancel()

    def _is_foreseeable(self, ranges: Sequence[QueueRange]) -> bool:
        """Whether it is known how large messages are, from tasks before, or they are few. If not, the first segment will tell."""
        known = self._link.bytes_an_offset
        sizes = [known.get(self._size_key(range_.queue.topic)) for range_ in ranges]
        largest = max((size for size in sizes if size is not None), default=None)
        if largest is None or None in sizes:
            return sum(map(len, ranges)) <= _FIRST_SEGMENT
        self._segment_offsets = _segment_offsets(largest)
        return True

    def _size_key(self, topic: str) -> tuple[str, str, str]:
        return topic, self._options.tags, self._options.sql  # a filter makes it less

    def _segments(self, ranges: Iterable[QueueRange]) -> Iterator[QueueRange]:
        """Cut when they are asked for: the length follows what the segments before turned out to hold."""
        for range_ in ranges:
            start = range_.start
            while start < range_.until:
                until = min(start + self._segment_offsets, range_.until)
                yield QueueRange(range_.queue, start, until)
                start = until

    def _learn_size(self, segment: Segment) -> None:
        bytes_each = len(segment.records) / len(segment.range)
        self._link.bytes_an_offset[self._size_key(segment.range.queue.topic)] = bytes_each
        self._segment_offsets = _segment_offsets(bytes_each)

    # ---- pulling, on the link's loop

    async def _pulled(self, range_: QueueRange) -> Segment:
        found: list[bytes] = []
        size, offset = 0, range_.start
        while offset < range_.until and size < _SEGMENT_BYTES:
            pulled = await self._pull(range_, offset)
            if pulled.found:
                found.append(pulled.body)
                size += len(pulled.body)
            if pulled.next_offset <= offset:
                self._lost(range_.queue, offset, range_.until, "the queue ends before them")
                offset = range_.until
                break
            self._check_nothing_is_lost(range_, offset, pulled)
            offset = pulled.next_offset
        end = min(offset, range_.until)
        rest = QueueRange(range_.queue, end, range_.until) if end < range_.until else None
        return Segment(QueueRange(range_.queue, range_.start, end), b"".join(found), rest)

    async def _pull(self, range_: QueueRange, offset: int) -> Pulled:
        queue, options = range_.queue, self._options
        wanted = self._subscriptions.get(queue.topic)
        if wanted is None:
            wanted = self._subscriptions[queue.topic] = options.subscription(queue.topic)
        count = min(range_.until - offset, self._most_at_once)
        cluster = self._link.cluster
        if queue.broker_name not in cluster.brokers:
            await cluster.fetch_route(queue.topic)

        async def once() -> Pulled:
            pulled = await pull_once(cluster, options, wanted, queue, offset, count, self._suggested.get(queue, MASTER))
            if not pulled.is_of_master and self._lacks_some(offset, pulled):
                self._suggested[queue] = MASTER
                raise TransportError(
                    f"a slave of {queue.broker_name} has not got message {offset} of {named(queue)}",
                    hint="it is behind its master: is that running?",
                )
            return pulled

        pulled = await patiently(cluster, [queue.topic], options.retry_ms / 1000, once)
        self._suggested[queue] = pulled.suggested_broker
        return pulled

    def _lacks_some(self, offset: int, pulled: Pulled) -> bool:
        return pulled.next_offset <= offset or self._passed_over_until(offset, pulled) > offset

    def _check_nothing_is_lost(self, range_: QueueRange, offset: int, pulled: Pulled) -> None:
        lost_until = self._passed_over_until(offset, pulled)
        if lost_until > offset:
            self._lost(range_.queue, offset, min(lost_until, range_.until), "they are gone from the broker")

    def _passed_over_until(self, offset: int, pulled: Pulled) -> int:
        """A broker skips what it has deleted without a word; a filter skips too, but not before the first message kept."""
        if pulled.found or (self._is_filtered and pulled.code == ResponseCode.PULL_RETRY_IMMEDIATELY):
            return max(offset, pulled.min_offset)
        return pulled.next_offset

    def _lost(self, queue: QueueRef, start: int, until: int, why: str) -> None:
        report_loss(self._options, f"messages {start} to {until} of {named(queue)} cannot be read: {why}")

    # ---- decoding, on the task's thread

    def _batch(self, segment: Segment) -> pa.RecordBatch:
        queue, start, until = segment.range.queue, segment.range.start, segment.range.until
        decoder = self._decoders.get(queue.broker_name)
        if decoder is None:
            decoder = RecordDecoder(self._decoded_projection, broker_name=queue.broker_name)
            self._decoders[queue.broker_name] = decoder
        batch, bad = decoder.pulled(segment.records)
        for record in bad:
            what = f"a record between {start} and {until} of {named(queue)} cannot be read: {record.reason}"
            if self._options.fail_on_data_loss:
                raise MessageError(what, hint="failOnDataLoss=false goes on without it")
            logger.warning("%s; going on without it", what)
        chosen = self._chosen(batch, start, until)
        return _as_named(chosen, self._options.access.namespace) if self._options.access.namespace else chosen

    def _chosen(self, batch: pa.RecordBatch, start: int, until: int) -> pa.RecordBatch:
        """Without what a filtered or batched pull gave beyond the range, and without tags that only share a hash."""
        offsets = batch.column("queueOffset")
        extremes = pc.min_max(offsets)
        mask = None
        if batch.num_rows and (extremes["min"].as_py() < start or extremes["max"].as_py() >= until):
            mask = pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, until))
        if self._tags is not None:
            wanted = pc.is_in(batch.column("tags"), value_set=self._tags)
            mask = wanted if mask is None else pc.and_(mask, wanted)
        if mask is not None:
            batch = batch.filter(mask)
        if self._decoded_projection is not self._projection:
            columns = batch.columns[: len(self._projection.columns)]
            batch = pa.RecordBatch.from_arrays(columns, schema=self._projection.arrow)
        return batch


def _segment_offsets(bytes_each: float) -> int:
    """How many make a batch."""
    return min(max(int(_BATCH_BYTES / max(1.0, bytes_each)), _SHORTEST_SEGMENT), _LONGEST_SEGMENT)


def _as_named(batch: pa.RecordBatch, namespace: str) -> pa.RecordBatch:
    """With topics as the program names them, without their namespace."""
    if "topic" not in batch.schema.names:
        return batch
    place = batch.schema.get_field_index("topic")
    topics = batch.column(place).dictionary_encode()
    names = pa.array([unwrapped(namespace, topic) for topic in topics.dictionary.to_pylist()], pa.string())
    return batch.set_column(place, batch.schema.field(place), names.take(topics.indices))
