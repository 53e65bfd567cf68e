"""Dead letters: which they are, counted; and those that a rule chooses, sent to their topics again.

A rule is a condition in SQL over the columns of a message and `originTopic`:

    tags = 'paid' AND storeTimestamp > '2026-11-01' AND properties['region'] = 'eu'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sql

from orbitmq.client.names import DLQ_PREFIX
from orbitmq.message.properties import DLQ_ORIGIN_TOPIC, RETRY_TOPIC
from orbitmq.spark.statistics import ISO_TIME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

COLUMNS: Final = "topic,tags,keys,body,properties,brokerName,queueId,queueOffset,msgId,bornTimestamp,storeTimestamp"


def dead_letters(spark: SparkSession, connection: Mapping[str, str], group: str, rule: str = "") -> DataFrame:
    """The dead letters of a group that the rule chooses, with the topic each came from."""
    topic = group if group.startswith(DLQ_PREFIX) else f"{DLQ_PREFIX}{group}"
    read = spark.read.format("rocketmq").options(**connection, subscribe=topic, columns=COLUMNS)
    properties = sql.col("properties")
    found = read.load().withColumn("originTopic", sql.coalesce(properties[DLQ_ORIGIN_TOPIC], properties[RETRY_TOPIC]))
    return found.where(rule) if rule else found


def analysis(letters: DataFrame) -> list[tuple[Any, ...]]:
    """By origin and tag, the most first: origin, tag, messages, the first and the last of them, an example's id."""
    counted = (
        letters.groupBy("originTopic", "tags")
        .agg(
            sql.count("*").alias("messages"),
            sql.date_format(sql.min("storeTimestamp"), ISO_TIME),
            sql.date_format(sql.max("storeTimestamp"), ISO_TIME),
            sql.min_by("msgId", "storeTimestamp"),
        )
        .orderBy(sql.desc("messages"), "originTopic", "tags")
    )
    return [tuple(row) for row in counted.collect()]


def resend(letters: DataFrame, connection: Mapping[str, str], *, to_topic: str = "") -> None:
    """Each to the topic it came from, or all to `to_topic`. A letter that is sent again has the same dedup id, whatever was chosen."""
    topic = sql.lit(to_topic) if to_topic else sql.col("originTopic")
    place = sql.concat_ws(":", sql.col("topic"), "brokerName", "queueId", "queueOffset")
    chosen = letters.withColumn("dedupId", place).withColumn("topic", topic).where("topic IS NOT NULL")
    ordered = chosen.orderBy("brokerName", "queueId", "queueOffset").select(
        "topic", "tags", "keys", "body", "properties", "dedupId"
    )
    options = {"producerGroup": "orbitmq-spark-dlq"}
    ordered.coalesce(1).write.format("rocketmq").options(**connection, **options).mode("append").save()
