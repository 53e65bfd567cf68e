"""Dropping messages that the sink stored more than once: repeats carry one id.

drop_repeats(spark.read.format("rocketmq")...)                                   in a batch
drop_repeats(spark.readStream.format("rocketmq")..., within="1 hour")            in a stream, with bounded state

A stream forgets ids by the time at which it read them, and drops nothing but repeats. Spark's dropDuplicatesWithinWatermark by store time
would also drop whatever is older than its watermark, repeat or not: a queue or broker that is read later than others, a topic that is
read from its beginning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from orbitmq.errors import ConfigError
from orbitmq.spark.property_texts import DEDUP_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COLUMN = "__dedup_id"
_SEEN = "__dedup_seen"


def drop_repeats(frame: DataFrame, *, within: str = "") -> DataFrame:
    """The frame with one row for each id; rows that no sink of ours sent are told apart by their msgId.

    A stream keeps an id for `within` after it was first read, by the driver's clock: a repeat that is read later stays. No row is
    dropped for being late.
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
    seen = named.withColumn(
        _SEEN, sql.current_timestamp()
    )  # one time for all rows of a micro-batch, also when it is run again
    return seen.withWatermark(_SEEN, within).dropDuplicatesWithinWatermark([_COLUMN]).drop(_COLUMN, _SEEN)
