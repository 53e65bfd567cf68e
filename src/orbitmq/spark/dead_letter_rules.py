"""Dead letters: which they are, counted; and those that a rule chooses, sent again: to their group alone, or to a topic.

A rule is a condition in SQL over the columns of a message and `originTopic`:

    tags = 'paid' AND storeTimestamp > '2026-11-01' AND properties['region'] = 'eu'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sql

from orbitmq.client.names import DLQ_PREFIX, retry_topic
from orbitmq.message.properties import DLQ_ORIGIN_TOPIC, RETRY_TOPIC, SHARDING_KEY
from orbitmq.spark.statistics import ISO_TIME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

COLUMNS: Final = "topic,tags,keys,body,properties,brokerName,queueId,queueOffset,msgId,bornTimestamp,storeTimestamp"


def dead_letters(spark: SparkSession, connection: Mapping[str, str], group: str, rule: str = "") -> DataFrame:
    """The dead letters of a group that the rule chooses, with the topic each came from."""
    read = spark.read.format("rocketmq").options(**connection, subscribe=f"{DLQ_PREFIX}{group}", columns=COLUMNS)
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


def resend(letters: DataFrame, connection: Mapping[str, str], *, to_group: str = "", to_topic: str = "") -> None:
    """To `to_group` alone, as messages of the topics they came from; all to `to_topic`; or each to the topic it came from, for all
    who read that. A letter that is sent again has the same dedup id, whatever was chosen.
    """
    origin, order_key = sql.col("originTopic"), sql.col("properties")[SHARDING_KEY]
    topic = sql.lit(to_topic or retry_topic(to_group)) if to_topic or to_group else origin
    place = sql.concat_ws(":", sql.col("topic"), "brokerName", "queueId", "queueOffset")
    chosen = letters if to_topic else letters.where(origin.isNotNull())
    chosen = chosen.withColumn("dedupId", place).withColumn("topic", topic).withColumn("orderKey", order_key)
    columns = ["topic", "tags", "keys", "body", "properties", "dedupId", "orderKey"]
    if to_group and not to_topic:
        chosen = chosen.withColumn("retryTopic", origin)
        columns.append("retryTopic")
    ordered = chosen.orderBy("brokerName", "queueId", "queueOffset").select(*columns)
    options = {"producerGroup": "orbitmq-spark-dlq"}
    ordered.coalesce(1).write.format("rocketmq").options(**connection, **options).mode("append").save()
