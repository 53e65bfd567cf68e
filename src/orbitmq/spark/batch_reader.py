"""`spark.read.format("rocketmq")`: everything between two points, planned once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from orbitmq.errors import ConfigError
from orbitmq.spark.access import link
from orbitmq.spark.bounds import ending_offsets, starting_offsets
from orbitmq.spark.discovery import extents, find_queues, greet
from orbitmq.spark.failures import plain_errors, plain_errors_in
from orbitmq.spark.patience import patiently
from orbitmq.spark.planning import QueueRange, RangesPartition, plan, ranges_between
from orbitmq.spark.queue_offsets import named
from orbitmq.spark.range_reading import RangeReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from orbitmq.client.cluster import Cluster
    from orbitmq.spark.schema import Projection
    from orbitmq.spark.source_options import SourceOptions


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions, projection: Projection) -> None:
        self.options = options
        self.projection = projection

    @plain_errors
    def partitions(self) -> list[RangesPartition]:
        here, options = link(self.options.access), self.options
        # A wrong address is told soon; a cluster that is there and restarts is waited for, as tasks do.
        here.run(patiently(here.cluster, (), options.access.timeout_seconds, lambda: greet(here.cluster)))
        seconds = options.retry_ms / 1000
        ranges = here.run(patiently(here.cluster, options.topics, seconds, lambda: self._ranges(here.cluster)))
        # Spark calls a reader without partitions with one of its own, which is None.
        return plan(ranges, options.min_partitions, options.max_partitions) or [RangesPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangesPartition)
        reader = RangeReader(link(self.options.access), self.options, self.projection)
        return plain_errors_in(reader.batches(partition.ranges))

    async def _ranges(self, cluster: Cluster) -> list[QueueRange]:
        found = await find_queues(cluster, self.options, may_be_none=False)
        held = await extents(cluster, found.queues)
        start = await starting_offsets(cluster, self.options, held)
        end = await ending_offsets(cluster, self.options, held)
        for queue in found.queues:
            if start[queue] > end[queue] and self.options.ending.anchor == "offsets":
                raise ConfigError(
                    f"{named(queue)} would be read from {start[queue]} to {end[queue]}",
                    hint="endingOffsets must not lie before the start",
                )
        return ranges_between(start, end)
