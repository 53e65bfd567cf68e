"""`format("rocketmq-store")`: a store directory as a table, without a broker, ours or Apache's, live or dead.

spark.read.format("rocketmq-store").option("subscribe", "Orders").load("/var/lib/orbitmq/store")
spark.read.format("rocketmq-store").option("read", "damage").load(directory)        # what cannot be read, and why
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from orbitmq.spark.failures import plain_errors, plain_errors_in
from orbitmq.spark.schema import projection, table_schema
from orbitmq.spark.store_options import parse_options
from orbitmq.spark.store_scan import Damage, LogRange, check_gaps, plan, read_range

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orbitmq.spark.schema import Projection
    from orbitmq.spark.store_options import StoreScan

logger = logging.getLogger(__name__)

FORMAT: Final = "rocketmq-store"

DAMAGE_SCHEMA: Final = StructType([
    StructField("topic", StringType()),  # null: no queue leads there
    StructField("queueId", IntegerType()),
    StructField("queueOffset", LongType()),
    StructField("commitLogOffset", LongType()),
    StructField("storeSize", LongType()),
    StructField("reason", StringType()),
])  # fmt: skip


class RangePartition(InputPartition):
    """None: an empty store. Spark calls a reader without partitions with one of its own."""

    def __init__(self, log_range: LogRange | None) -> None:
        super().__init__(log_range)
        self.log_range = log_range


class GapsPartition(InputPartition):
    """Gaps between the files of the log, known since the plan was made."""

    def __init__(self, gaps: Sequence[Damage]) -> None:
        super().__init__(gaps)
        self.gaps = gaps


class StoreSource(DataSource):
    @plain_errors
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._scan, self._what, self._table = parse_options(dict(options))

    @classmethod
    def name(cls) -> str:
        return FORMAT

    @plain_errors
    def schema(self) -> StructType:
        return DAMAGE_SCHEMA if self._what == "damage" else self._table

    @plain_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        if self._what == "damage":
            return DamageReader(self._scan)
        if not self._scan.push_filters:
            return MessageReader(self._scan, projection(schema))
        # Spark refuses every read of a reader that takes filters while its own setting for that is off.
        from orbitmq.spark.store_pushdown import FilteringMessageReader

        return FilteringMessageReader(self._scan, projection(schema))


class MessageReader(DataSourceReader):
    def __init__(self, scan: StoreScan, wanted: Projection) -> None:
        self.scan = scan
        self._wanted = wanted

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        ranges, gaps = plan(self.scan)
        check_gaps(self.scan, gaps)
        _report(self.scan, gaps)
        return _partitions(ranges)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, RangePartition)
        return plain_errors_in(self._batches(partition.log_range)) if partition.log_range else iter(())

    def _batches(self, log_range: LogRange) -> Iterator[pa.RecordBatch]:
        for batch, damage in read_range(self.scan, log_range, self._wanted):
            _report(self.scan, damage)
            if batch.num_rows:
                yield batch


class DamageReader(DataSourceReader):
    def __init__(self, scan: StoreScan) -> None:
        # Bodies are inflated, too: one that cannot be is damage.
        self._scan = replace(scan, skips_corrupt=True, check_crc=True)

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        ranges, gaps = plan(self._scan)
        found = _partitions(ranges)
        return [*found, GapsPartition(gaps)] if gaps else found

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, GapsPartition):
            yield damage_batch(partition.gaps)
            return
        assert isinstance(partition, RangePartition)
        if partition.log_range is None:
            return
        wanted = projection(table_schema("body"))
        for _, damage in read_range(self._scan, partition.log_range, wanted):
            if damage:
                yield damage_batch(damage)


def _partitions(ranges: Sequence[LogRange]) -> list[InputPartition]:
    return [RangePartition(log_range) for log_range in ranges] or [RangePartition(None)]


def damage_batch(damage: Sequence[Damage]) -> pa.RecordBatch:
    columns = zip(*damage, strict=True)
    kinds = (pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.int64(), pa.string())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=DAMAGE_SCHEMA.fieldNames())


def _report(scan: StoreScan, damage: Sequence[Damage]) -> None:
    """In the log of the worker; `read=damage` gives the same as a table."""
    for one in damage:
        logger.error("%s: left out: %s", scan.directory, one)
