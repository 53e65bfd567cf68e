"""As pyspark_orbitmq, for `format("rocketmq-store")`: Spark takes one source from each such module."""

from orbitmq.spark.store_source import StoreSource as DefaultSource

__all__ = ["DefaultSource"]
