"""`format("rocketmq")`: topics as tables, to read and to write, in batches and as streams.

Spark makes one of these for each read or write, on the driver, and sends what it makes to the workers. It starts a process for
nearly every step of that, each of which imports this module: what only one way of using it needs is imported there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from orbitmq.errors import ConfigError
from orbitmq.spark.failures import plain_errors
from orbitmq.spark.schema import projection
from orbitmq.spark.source_options import source_options, source_schema

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from orbitmq.spark.sink_options import SinkOptions


class RocketMQSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    @plain_errors
    def schema(self) -> StructType:
        return source_schema(self.options)

    @plain_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        from orbitmq.spark.batch_reader import BatchReader
        from orbitmq.spark.pushdown import FilteringBatchReader

        options = source_options(self.options, streaming=False)
        # Spark refuses every read of a reader that takes filters while its own setting for that is off.
        kind = FilteringBatchReader if options.push_filters else BatchReader
        return kind(options, projection(schema))

    @plain_errors
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from orbitmq.spark.stream_reader import StreamReader

        return StreamReader(source_options(self.options, streaming=True), projection(schema))

    @plain_errors
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from orbitmq.spark.sink import BatchWriter

        return BatchWriter(*self._sink(schema, overwrite))

    @plain_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from orbitmq.spark.sink import StreamWriter

        return StreamWriter(*self._sink(schema, overwrite))

    def _sink(self, schema: StructType, overwrite: bool) -> tuple[SinkOptions, dict[str, str]]:
        if overwrite:
            raise ConfigError(
                "a topic cannot be overwritten", hint='write with .mode("append") or outputMode("append")'
            )
        from orbitmq.spark.sink_columns import sink_columns
        from orbitmq.spark.sink_options import sink_options

        options = sink_options(self.options)
        return options, sink_columns(schema, has_topic_option=bool(options.topic))
