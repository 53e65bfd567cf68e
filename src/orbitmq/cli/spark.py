"""`orbitmq spark`: topics and stores through Spark, into a lake and back."""

from __future__ import annotations

import click

from orbitmq.cli.lazy import CommandTable, LazyGroup

_COMMANDS: CommandTable = {
    "archive": (
        "orbitmq.cli.spark_archive",
        "archive",
        "Topics into Parquet, Delta or Iceberg, each message once; goes on where it was.",
    ),
    "export-store": (
        "orbitmq.cli.spark_archive",
        "export_store",
        "A store directory into Parquet, Delta or Iceberg, without a broker.",
    ),
    "compact": ("orbitmq.cli.spark_archive", "compact", "Make the small files of an archive into few."),
    "replay": ("orbitmq.cli.spark_replay", "replay", "What an archive or a topic holds, sent to a topic again."),
    "sql": ("orbitmq.cli.spark_query", "sql", "SQL over topics, store directories and archives."),
    "dlq": ("orbitmq.cli.spark_query", "dlq", "Dead letters of a group: count them, send some again."),
    "trace": ("orbitmq.cli.spark_query", "trace", "How long messages take, from the trace topic."),
    "stats": ("orbitmq.cli.spark_query", "stats", "Volume by topic, tag and hour; queues; the largest."),
}


class _Group(LazyGroup):
    table = _COMMANDS


@click.group(cls=_Group)
def spark() -> None:
    """Topics and stores through Spark: archive, replay, query.

    Everything runs on this machine unless --master names a cluster. Needs `pip install "orbitmq[spark]"`; a Java runtime is
    fetched when there is none.
    """
