"""What topics, stores and archives hold, in numbers: volume by topic, tag and hour; how even the queues are; the largest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sql

from orbitmq.spark import charts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = "topic,tags,body,brokerName,queueId,queueOffset,msgId,storeTimestamp"

ISO_TIME: Final = "yyyy-MM-dd'T'HH:mm:ssXXX"
ISO_HOUR: Final = "yyyy-MM-dd'T'HH:00:00XXX"

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    topics: Rows  # topic, messages, bytes, average bytes, first, last
    tags: Rows  # topic, tag, messages, bytes
    hours: Rows  # hour, topic, messages, bytes
    queues: Rows  # topic, queues, fewest, most, skew: the fullest queue against the average
    largest: Rows  # topic, bytes, id, broker, queue, offset


_QUEUES: Final = ("topic", "queues", "fewest", "most", "skew")
_LARGEST: Final = ("topic", "bytes", "id", "broker", "queue", "offset")


def statistics(frame: DataFrame, *, top: int = 20) -> Statistics:
    sized = frame.withColumn("bytes", sql.length("body")).drop("body").cache()
    try:
        return Statistics(
            topics=_rows(
                sized.groupBy("topic")
                .agg(
                    sql.count("*").alias("messages"),
                    sql.sum("bytes").alias("total"),
                    sql.round(sql.avg("bytes"), 1),
                    sql.date_format(sql.min("storeTimestamp"), ISO_TIME),
                    sql.date_format(sql.max("storeTimestamp"), ISO_TIME),
                )
                .orderBy(sql.desc("messages"), "topic")
            ),
            tags=_rows(
                sized.groupBy("topic", "tags")
                .agg(sql.count("*").alias("messages"), sql.sum("bytes"))
                .orderBy(sql.desc("messages"), "topic", "tags")
                .limit(top)
            ),
            hours=_rows(
                sized.groupBy(sql.date_format(sql.date_trunc("hour", "storeTimestamp"), ISO_HOUR), "topic")
                .agg(sql.count("*"), sql.sum("bytes"))
                .orderBy(sql.col("topic"), sql.expr("1"))
            ),
            queues=_rows(_skew(sized)),
            largest=_rows(
                sized.orderBy(sql.desc("bytes"), "topic", "queueOffset")
                .limit(top)
                .select("topic", "bytes", "msgId", "brokerName", "queueId", "queueOffset")
            ),
        )
    finally:
        sized.unpersist()


def _skew(sized: DataFrame) -> DataFrame:
    queues = sized.groupBy("topic", "brokerName", "queueId").agg(sql.count("*").alias("messages"))
    return (
        queues.groupBy("topic")
        .agg(
            sql.count("*"),
            sql.min("messages"),
            sql.max("messages"),
            sql.round(sql.max("messages") / sql.avg("messages"), 2).alias("skew"),
        )
        .orderBy(sql.desc("skew"), "topic")
    )


def statistics_page(found: Statistics) -> charts.Page:
    hours = sorted({str(row[0]) for row in found.hours})
    busiest = [str(row[0]) for row in found.topics[:5]]
    by_place = {(str(row[0]), str(row[1])): float(row[2]) for row in found.hours}
    series = {topic: [by_place.get((hour, topic), 0.0) for hour in hours] for topic in busiest}
    by_topic = [(str(row[0]), float(row[1])) for row in found.topics[:20]]
    by_tag = [(f"{row[0]} {row[1] or '(none)'}", float(row[2])) for row in found.tags]
    return charts.Page(
        "Messages in numbers",
        (
            charts.Section("By topic", charts.bars(by_topic)),
            charts.Section("By hour (UTC)", charts.lines([hour[:16].replace("T", " ") for hour in hours], series)),
            charts.Section("By tag", charts.bars(by_tag)),
            charts.Section("Queues: fullest against average", charts.table(_QUEUES, found.queues)),
            charts.Section("Largest", charts.table(_LARGEST, found.largest)),
        ),
    )


def _rows(frame: DataFrame) -> Rows:
    return [tuple(row) for row in frame.collect()]
