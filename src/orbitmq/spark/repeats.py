"""Dropping messages that the sink stored more than once: repeats carry one id.

drop_repeats(spark.read.format("rocketmq")...)                                   in a batch
drop_repeats(spark.readStream.format("rocketmq")..., within="1 hour")            in a stream, with bounded state
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from orbitmq.errors import ConfigError
from orbitmq.spark.property_texts import DEDUP_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COLUMN = "__dedup_id"


def drop_repeats(frame: DataFrame, *, within: str = "") -> DataFrame:
    """The frame with one row for each id; rows that no sink of ours sent are told apart by their msgId.

    A stream keeps the ids of the last `within`, by store time: a repeat that comes later is not recognised.
    """
    missing = {"properties", "msgId"} - set(frame.columns)
    if missing:
        raise ConfigError(f"repeats are found by {', '.join(sorted(missing))}, which the frame lacks")
    named = frame.withColumn(_COLUMN, sql.coalesce(sql.col("properties")[DEDUP_ID], sql.col("msgId")))
    if not frame.isStreaming:
        return named.dropDuplicates([_COLUMN]).drop(_COLUMN)
    if not within:
        raise ConfigError(
            "a stream needs to know how long to remember ids", hint='drop_repeats(frame, within="1 hour")'
        )
    if "storeTimestamp" not in frame.columns:
        raise ConfigError("repeats in a stream are found by storeTimestamp, which the frame lacks")
    return named.withWatermark("storeTimestamp", within).dropDuplicatesWithinWatermark([_COLUMN]).drop(_COLUMN)
