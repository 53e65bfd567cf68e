"""`format("rocketmq")`: topics as tables, to read and to write, in batches and as streams.

Spark makes one of these for each read or write, on the driver, and sends what it makes to the workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from orbitmq.spark.batch_reader import BatchReader
from orbitmq.spark.failures import plain_errors
from orbitmq.spark.pushdown import FilteringBatchReader
from orbitmq.spark.schema import projection
from orbitmq.spark.source_options import source_options, source_schema
from orbitmq.spark.stream_reader import StreamReader

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType


class RocketMQSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    @plain_errors
    def schema(self) -> StructType:
        return source_schema(self.options)

    @plain_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        options = source_options(self.options, streaming=False)
        # Spark refuses every read of a reader that takes filters while its own setting for that is off.
        kind = FilteringBatchReader if options.push_filters else BatchReader
        return kind(options, projection(schema))

    @plain_errors
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return StreamReader(source_options(self.options, streaming=True), projection(schema))
