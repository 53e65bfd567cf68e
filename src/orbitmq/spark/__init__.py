"""The data pipeline on Spark: topics and stores as tables. Needs `pip install "orbitmq[spark]"`.

    from orbitmq.spark import register

    register(spark)  # not needed where the package is installed beside pyspark: Spark finds it
    spark.read.format("rocketmq").option("nameServer", "127.0.0.1:9876").option("subscribe", "Orders").load()

Names are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orbitmq.spark.drop_notes import DroppedRows, dropped_rows
    from orbitmq.spark.failures import plain_reason
    from orbitmq.spark.group_offsets import commit_finished
    from orbitmq.spark.lag import Lag, LagListener, lag_of
    from orbitmq.spark.legacy import legacy_view
    from orbitmq.spark.pipeline_code import Pipeline
    from orbitmq.spark.registration import register
    from orbitmq.spark.repeats import drop_repeats
    from orbitmq.spark.shipping import ship

_HOMES = {
    "DroppedRows": "orbitmq.spark.drop_notes",
    "Lag": "orbitmq.spark.lag",
    "LagListener": "orbitmq.spark.lag",
    "Pipeline": "orbitmq.spark.pipeline_code",
    "commit_finished": "orbitmq.spark.group_offsets",
    "drop_repeats": "orbitmq.spark.repeats",
    "dropped_rows": "orbitmq.spark.drop_notes",
    "lag_of": "orbitmq.spark.lag",
    "legacy_view": "orbitmq.spark.legacy",
    "plain_reason": "orbitmq.spark.failures",
    "register": "orbitmq.spark.registration",
    "ship": "orbitmq.spark.shipping",
}

__all__ = [
    "DroppedRows",
    "Lag",
    "LagListener",
    "Pipeline",
    "commit_finished",
    "drop_repeats",
    "dropped_rows",
    "lag_of",
    "legacy_view",
    "plain_reason",
    "register",
    "ship",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'orbitmq.spark' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)
