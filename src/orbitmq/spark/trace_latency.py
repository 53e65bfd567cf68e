"""How long messages take, from what clients tell in the trace topic: to produce, to reach a consumer, to be consumed.

    produce    how long the producer's send took
    deliver    from the end of the send to the start of the consumer's handler; retries count each time
    consume    how long the handler took

The form of the records is drawn in client/trace.py. Clocks of producers and consumers are taken to agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sql

from orbitmq.spark import charts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

STAGES: Final = ("produce", "deliver", "consume")
TITLES: Final = ("stage", "topic", "group", "messages", "failed", "p50_ms", "p95_ms", "p99_ms", "max_ms")
_EDGES_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 30000)


def latencies(traces: DataFrame) -> DataFrame:
    """A row for each stage of each message: stage, topic, group, ms, ok. `traces` has the column `body`."""
    records = traces.select(sql.explode(sql.split(sql.col("body").cast("string"), "\x02")).alias("text"))
    fields = records.select(sql.split("text", "\x01").alias("f"))
    sent = fields.where("f[0] = 'Pub' AND size(f) >= 14").selectExpr(
        "f[4] AS topic", "f[3] AS group", "f[5] AS id", "CAST(f[1] AS LONG) + CAST(f[10] AS LONG) AS stored_ms",
        "CAST(f[10] AS LONG) AS ms", "lower(f[13]) = 'true' AS ok",
    )  # fmt: skip
    begun = fields.where("f[0] = 'SubBefore' AND size(f) >= 6").selectExpr(
        "f[3] AS group", "f[4] AS request", "f[5] AS id", "CAST(f[1] AS LONG) AS begun_ms"
    )
    ended = fields.where("f[0] = 'SubAfter' AND size(f) >= 5").selectExpr(
        "f[1] AS request", "f[2] AS id", "CAST(f[3] AS LONG) AS ms", "lower(f[4]) = 'true' AS ok"
    )
    topics = sent.select("id", "topic", "stored_ms").dropDuplicates(["id"])
    produced = sent.select(sql.lit("produce").alias("stage"), "topic", "group", "ms", "ok")
    delivered = (
        begun.join(topics, "id")
        .withColumn("ms", sql.greatest(sql.lit(0), sql.col("begun_ms") - sql.col("stored_ms")))
        .select(sql.lit("deliver").alias("stage"), "topic", "group", "ms", sql.lit(True).alias("ok"))
    )
    consumed = (
        ended.join(begun.select("request", "id", "group"), ["request", "id"])
        .join(topics.select("id", "topic"), "id", "left")
        .select(sql.lit("consume").alias("stage"), "topic", "group", "ms", "ok")
    )
    return produced.unionByName(delivered).unionByName(consumed)


def summary(found: DataFrame) -> list[tuple[Any, ...]]:
    """One row for each stage, topic and group, in the order of `TITLES`."""
    percentiles = [
        sql.percentile_approx("ms", share).alias(name) for share, name in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
    ]
    grouped = found.groupBy("stage", "topic", "group").agg(
        sql.count("*"), sql.count_if(sql.expr("NOT ok")), *percentiles, sql.max("ms")
    )
    rows = [tuple(row) for row in grouped.collect()]
    return sorted(rows, key=lambda row: (STAGES.index(row[0]), str(row[1]), str(row[2])))


def histogram(found: DataFrame) -> dict[str, list[tuple[str, float]]]:
    """Stage -> messages by how long they took."""
    bucket = sql.lit(len(_EDGES_MS))
    for index in reversed(range(len(_EDGES_MS))):
        bucket = sql.when(sql.col("ms") < _EDGES_MS[index], index).otherwise(bucket)
    counted = {(row[0], row[1]): row[2] for row in found.groupBy("stage", bucket.alias("bucket")).count().collect()}
    labels = [f"under {edge:,} ms" for edge in _EDGES_MS] + [f"{_EDGES_MS[-1]:,} ms and more"]
    return {
        stage: [(label, float(counted.get((stage, index), 0))) for index, label in enumerate(labels)]
        for stage in STAGES
        if any(key[0] == stage for key in counted)
    }


def latency_page(rows: Sequence[Sequence[object]], buckets: dict[str, list[tuple[str, float]]]) -> charts.Page:
    shapes = [charts.Section(f"{stage}: messages by duration", charts.bars(shape)) for stage, shape in buckets.items()]
    return charts.Page("How long messages take", (charts.Section("Percentiles", charts.table(TITLES, rows)), *shapes))
