"""Making our sources known to a session that did not find them by itself: with `addPyFile`, or in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbitmq.spark.legacy import LegacySource
from orbitmq.spark.source import RocketMQSource
from orbitmq.spark.store_source import StoreSource
from orbitmq.spark.table_sink import TableSinkSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Our formats work in this session from now on: rocketmq, rocketmq-store, orbitmq-table and the name that old jobs use."""
    for source in (RocketMQSource, StoreSource, TableSinkSource, LegacySource):
        spark.dataSource.register(source)
