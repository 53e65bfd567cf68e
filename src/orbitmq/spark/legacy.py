"""For jobs written for Apache's rocketmq-spark: its format name, its option names, its columns.

    register(spark)
    spark.readStream.format("org.apache.spark.sql.rocketmq.RocketMQSourceProvider").option("nameServer", ...)...

or, of a frame that was read with `format("rocketmq")`, `legacy_view(frame)`. Option names need nothing: both formats take them.

    topic flag body properties(JSON text) brokerName queueId queueOffset bornTimestamp storeTimestamp

Java: org.apache.spark.sql.rocketmq.RocketMQSource.schema
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as sql
from pyspark.sql.types import StringType, StructField, StructType

from orbitmq.errors import ConfigError
from orbitmq.message.properties import decode_properties
from orbitmq.spark.batch_reader import BatchReader
from orbitmq.spark.failures import plain_errors
from orbitmq.spark.schema import COLUMNS as SOURCE_COLUMNS
from orbitmq.spark.schema import projection
from orbitmq.spark.source import RocketMQSource
from orbitmq.spark.source_options import source_options
from orbitmq.spark.stream_reader import StreamReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

    from orbitmq.spark.planning import RangesPartition
    from orbitmq.spark.schema import Projection
    from orbitmq.spark.source_options import SourceOptions

COLUMNS: Final = (
    "topic", "flag", "body", "properties", "brokerName", "queueId", "queueOffset", "bornTimestamp", "storeTimestamp",
)  # fmt: skip
_OF_THE_OTHER: Final = frozenset({"columns", "includebody", "properties", "pushfilters"})  # options of `rocketmq`
FORMAT: Final = "org.apache.spark.sql.rocketmq.RocketMQSourceProvider"


def legacy_view(frame: DataFrame) -> DataFrame:
    """The frame with rocketmq-spark's columns."""
    return frame.withColumn("properties", sql.to_json("properties")).select(*COLUMNS)


class LegacySource(RocketMQSource):
    """Reads what `legacy_view` makes; writes as `format("rocketmq")` does."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    @plain_errors
    def schema(self) -> StructType:
        super().schema()  # checks the options
        known = [name for name in self.options if name.lower() in _OF_THE_OTHER]
        if known:
            raise ConfigError(
                f"{FORMAT} has columns of its own: option {known[0]} does nothing", hint='use format("rocketmq")'
            )
        return StructType(
            [StructField(name, StringType() if name == "properties" else SOURCE_COLUMNS[name]) for name in COLUMNS]
        )

    @plain_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        return _LegacyBatchReader(source_options(self.options, streaming=False), _projection(schema))

    @plain_errors
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return _LegacyStreamReader(source_options(self.options, streaming=True), _projection(schema))


class _LegacyBatchReader(BatchReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return map(_with_json_properties, super().read(partition))


class _LegacyStreamReader(StreamReader):
    def _rows(self, partition: RangesPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
        return map(_with_json_properties, super()._rows(partition, options))


def _projection(schema: StructType) -> Projection:
    if any(field.name == "properties" and not isinstance(field.dataType, StringType) for field in schema):
        raise ConfigError(
            f"{FORMAT} gives properties as JSON text", hint="properties STRING; from_json makes a map of it"
        )
    return projection(schema)


def _with_json_properties(batch: pa.RecordBatch) -> pa.RecordBatch:
    at = batch.schema.get_field_index("properties")
    if at < 0:
        return batch
    texts = [json.dumps(decode_properties(text), ensure_ascii=False) for text in batch.column(at).to_pylist()]
    return batch.set_column(at, batch.schema.field(at), pa.array(texts, pa.string()))
