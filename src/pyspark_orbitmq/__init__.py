"""Found by Spark without being told: it imports every top-level module named `pyspark_*` and takes its `DefaultSource`."""

from orbitmq.spark.source import RocketMQSource as DefaultSource

__all__ = ["DefaultSource"]
