"""`orbitmq spark archive | export-store | compact`: from topics and store directories into Parquet, Delta or Iceberg."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from orbitmq.cli.options import target_options, verbose_option
from orbitmq.cli.spark_session import (
    SparkPlace,
    continuous_options,
    credential_settings,
    require_spark,
    size_text,
    spark_options,
    status,
    tasks_done,
)
from orbitmq.cli.times import moment
from orbitmq.clock import SystemClock
from orbitmq.errors import ConfigError

if TYPE_CHECKING:
    from datetime import datetime

    from orbitmq.cli.options import Target

F = TypeVar("F", bound=Callable[..., Any])

_LAYOUTS = ("none", "topic", "date", "hour")
_FORMATS = ("parquet", "delta", "iceberg")
_BATCHES_A_COMPACTION = 60  # of an archive that goes on: an hour of them by default
_COMPRESSIONS = ("zstd", "snappy", "lz4", "gzip", "none")
_WORDS_OF_ARCHIVE = {
    "give an offset in that range, or failOnDataLoss=false to take the nearest": "--ignore-loss goes on with what is left",
    "failOnDataLoss=false": "--ignore-loss",
    "subscribePattern": "--pattern",
}
_WORDS_OF_EXPORT = {
    'onCorrupt="skip" reads the rest, read="damage" lists what is wrong': "--skip-corrupt reads the rest and lists what is wrong",
    "scan a copy, or let the broker keep its files longer": "--skip-corrupt goes on without it; or export a copy",
}


def lake_options(default_layout: str) -> Callable[[F], F]:
    def add(function: F) -> F:
        function = click.option(
            "--columns", help="Columns, separated by commas, or all. Default: those most queries read."
        )(function)
        function = click.option("--compression", type=click.Choice(_COMPRESSIONS), default="zstd", show_default=True)(
            function
        )
        function = click.option(
            "--format",
            "table_format",
            type=click.Choice(_FORMATS),
            default="parquet",
            show_default=True,
            help="What the directory is: Parquet files with manifests, or also a Delta or Iceberg table.",
        )(function)
        return click.option(
            "--by",
            "layout",
            type=click.Choice(_LAYOUTS),
            default=default_layout,
            show_default=True,
            help="Folders: topic, or topic/date, or topic/date/hour of the store time, in UTC.",
        )(function)

    return add


@click.command()
@click.argument("topics", nargs=-1)
@click.option("--to", "address", required=True, metavar="DIRECTORY", help="Where the files go: a path, s3://, hdfs://.")
@click.option("--pattern", help="Topics whose name matches, found while it runs too.")
@click.option("--tags", help="Only messages with one of these tags: 'new || paid'.")
@click.option("--filter-sql", help="Only messages for which it holds, where brokers have enablePropertyFilter.")
@click.option(
    "--from",
    "start",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    show_default=True,
    help="Where a new archive begins. Queues that come later are read whole.",
)
@continuous_options(60.0)
@click.option(
    "--batch", type=click.IntRange(min=1), default=5_000_000, show_default=True, help="Messages a batch, at most."
)
@click.option("--group", help="Tell the brokers how far it is, as this group's offsets.")
@click.option(
    "--compact",
    "then_compact",
    is_flag=True,
    help="Make small files into few: at the end, and with --continuous every 60 batches.",
)
@click.option("--ignore-loss", is_flag=True, help="Go on where messages expired before they were archived.")
@lake_options("hour")
@spark_options
@target_options
def archive(target: Target, place: SparkPlace, topics: tuple[str, ...], address: str, **wishes: Any) -> None:
    """Move TOPICS into Parquet files, or a Delta or Iceberg table, each message exactly once.

    Run it again and it goes on where it was, also after a crash.
    """
    options = source_settings(target, topics, **wishes)
    require_spark()
    from orbitmq.spark.source_options import source_options, source_schema

    source, schema = source_options(options, streaming=True), source_schema(options)
    started = time.monotonic()
    with place.session("archive", _WORDS_OF_ARCHIVE) as session:
        from orbitmq.spark.archive import Archive

        running = Archive(
            session,
            source,
            schema,
            address,
            layout=wishes["layout"],
            compression=wishes["compression"],
            clock=SystemClock(),
            table_format=wishes["table_format"],
            progress=status,
        )

        def compact_files() -> None:
            if wishes["then_compact"]:
                _compact(session, address, wishes["compression"])

        if wishes["continuous"]:
            _until_interrupted(compacting_every(_BATCHES_A_COMPACTION, running.step, compact_files), wishes["seconds"])
        else:
            running.run_once()
        compact_files()
        running.look_again()
        held = running.state
        status("")
        done = running.summary
        seconds = time.monotonic() - started
        click.echo(
            f"archived {done.rows:,} messages of {len(done.topics)} topics in {done.batches} batches: "
            f"{done.files} files, {size_text(done.bytes)}, {seconds:.1f} s"
        )
        click.echo(f"{address} now holds {held.rows:,} messages in {len(held.files)} files")


def source_settings(target: Target, topics: tuple[str, ...], **wishes: Any) -> dict[str, str]:
    """The options of the source, from those of a command."""
    if bool(topics) == bool(wishes.get("pattern")):
        raise click.UsageError("name topics, or give --pattern")
    options = {**connection_settings(target), "startingOffsets": wishes.get("start") or "earliest"}
    if topics:
        options["subscribe"] = ",".join(topics)
    else:
        options["subscribePattern"] = wishes["pattern"]
    named = {"tags": "tags", "filterSql": "filter_sql", "columns": "columns", "groupId": "group"}
    options |= {name: str(wishes[wish]) for name, wish in named.items() if wishes.get(wish)}
    if wishes.get("group"):
        options["commitOffsets"] = "true"
    if wishes.get("ignore_loss"):
        options["failOnDataLoss"] = "false"
    if wishes.get("batch"):
        options["maxOffsetsPerTrigger"] = str(wishes["batch"])
    return options


def connection_settings(target: Target) -> dict[str, str]:
    """What is wrong with them is told here, before Spark starts."""
    from orbitmq.client.config import name_server_source

    try:
        name_server_source(target.name_servers)
    except ConfigError as error:
        raise click.UsageError(f"--namesrv: {error}") from None
    options = {"nameServer": target.name_servers, "timeoutMs": str(int(target.timeout * 1000))}
    options |= credential_settings(target.credentials)
    return {**options, "tls": "true"} if target.tls else options


def compacting_every(batches: int, step: Callable[[], bool], compact_files: Callable[[], None]) -> Callable[[], None]:
    done = 0

    def move() -> None:
        nonlocal done
        done += step()
        if done == batches:
            compact_files()
            done = 0

    return move


def _until_interrupted(step: Any, seconds: float) -> None:
    """The batch under way is finished first."""
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    while not stopping.is_set():
        began = time.monotonic()
        step()
        stopping.wait(max(0.0, seconds - (time.monotonic() - began)))


@click.command("export-store")
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@click.option("--to", "address", required=True, metavar="DIRECTORY", help="Where the files go: a path, s3://, hdfs://.")
@click.option("--topic", "topics", multiple=True, help="Only this topic. Repeatable.")
@click.option("--pattern", help="Only topics whose name matches.")
@click.option("--queue", "queues", multiple=True, type=click.IntRange(min=0), help="Only this queue. Repeatable.")
@click.option("--tags", help="Only messages with one of these tags: 'new || paid'.")
@click.option("--from", "start", callback=moment, help="Stored at this time or later.")
@click.option("--until", callback=moment, help="Stored before this time.")
@click.option("--broker-name", default="", help="What the column brokerName says: records do not hold it.")
@click.option("--skip-corrupt", is_flag=True, help="Read on over damage and list it, instead of failing.")
@click.option("--check-crc", is_flag=True, help="Check every body against its CRC.")
@lake_options("topic")
@spark_options
@verbose_option
def export_store(
    place: SparkPlace,
    directory: str,
    address: str,
    topics: tuple[str, ...],
    pattern: str | None,
    queues: tuple[int, ...],
    tags: str | None,
    start: datetime | None,
    until: datetime | None,
    broker_name: str,
    skip_corrupt: bool,
    check_crc: bool,
    layout: Any,
    table_format: Any,
    compression: str,
    columns: str | None,
) -> None:
    """Write the messages of a store DIRECTORY into Parquet files, or a table: the fastest way out of a broker.

    DIRECTORY is a storePathRootDir of OrbitMQ's or Apache's broker, running or not. Run it again to add what came since.
    """
    require_spark()
    from orbitmq.spark.store_export import export_store as export
    from orbitmq.spark.store_options import parse_options

    given = {
        "path": directory,
        "subscribe": ",".join(topics),
        "subscribePattern": pattern or "",
        "queueIds": ",".join(map(str, queues)),
        "tags": tags or "",
        "startingTimestamp": str(int(start.timestamp() * 1000)) if start else "",
        "endingTimestamp": str(int(until.timestamp() * 1000)) if until else "",
        "brokerName": broker_name,
        "onCorrupt": "skip" if skip_corrupt else "fail",
        "checkCrc": str(check_crc).lower(),
        "columns": columns or "",
    }
    scan, _, schema = parse_options(given)
    started = time.monotonic()
    with place.session("export-store", _WORDS_OF_EXPORT) as session:
        begun = time.monotonic()
        done = export(
            session,
            scan,
            schema,
            address,
            layout=layout,
            compression=compression,
            clock=SystemClock(),
            table_format=table_format,
            progress=tasks_done("exporting"),
        )
        seconds = time.monotonic() - begun
    click.echo(
        f"exported {done.rows:,} messages, log offsets {done.log_start} to {done.log_end}: {len(done.files)} files, "
        f"{size_text(done.bytes)}, {seconds:.1f} s ({done.rows / max(seconds, 0.001):,.0f} a second) and "
        f"{begun - started:.1f} s to start"
    )
    for text in done.damage:
        click.echo(f"could not be read: {text}", err=True)


@click.command()
@click.argument("address", metavar="DIRECTORY")
@click.option("--target-mb", type=click.IntRange(min=1), default=128, show_default=True, help="Size of the files made.")
@click.option("--compression", type=click.Choice(_COMPRESSIONS), default="zstd", show_default=True)
@spark_options
@verbose_option
def compact(place: SparkPlace, address: str, target_mb: int, compression: str) -> None:
    """Make the small files of an archive or export into few, and remove what interrupted runs left behind."""
    with place.session("compact") as session:
        _compact(session, address, compression, target_mb << 20)


def _compact(session: Any, address: str, compression: str, target_bytes: int = 128 << 20) -> None:
    from orbitmq.spark.compaction import compact as make_few

    done = make_few(
        session,
        address,
        compression=compression,
        clock=SystemClock(),
        target_bytes=target_bytes,
        progress=tasks_done("compacting"),
    )
    status("")
    click.echo(f"compacted {done.files_before} files into {done.files_after}")
