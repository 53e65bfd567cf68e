"""`orbitmq spark`: topics and stores through Spark, into a lake and back."""

from __future__ import annotations

import click

from orbitmq.cli.lazy import CommandTable, LazyGroup

_COMMANDS: CommandTable = {
    "archive": (
        "orbitmq.cli.spark_archive",
        "archive",
        "Topics into Parquet files, each message once; goes on where it was.",
    ),
    "export-store": (
        "orbitmq.cli.spark_archive",
        "export_store",
        "A store directory into Parquet files, without a broker.",
    ),
    "compact": ("orbitmq.cli.spark_archive", "compact", "Make the small files of an archive into few."),
}


class _Group(LazyGroup):
    table = _COMMANDS


@click.group(cls=_Group)
def spark() -> None:
    """Topics and stores through Spark: archive, replay, query.

    Everything runs on this machine unless --master names a cluster. Needs `pip install "orbitmq[spark]"`; a Java runtime is
    fetched when there is none.
    """
