"""`orbitmq spark sql | stats | trace | dlq`: questions about messages, answered as tables, files and pages of charts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from orbitmq import saved_file
from orbitmq.cli.asking import destructive_options, may_go_on
from orbitmq.cli.choosing import fields_of
from orbitmq.cli.options import bundled, output_option, target_options
from orbitmq.cli.spark_archive import connection_settings
from orbitmq.cli.spark_rows import (
    DeadLetterCount,
    HourVolume,
    LargeMessage,
    QueueSkew,
    StageLatency,
    TagVolume,
    TopicVolume,
    Volumes,
    typed,
)
from orbitmq.cli.spark_session import SparkPlace, require_spark, spark_options, status
from orbitmq.cli.view import View, csv_text, rows_text, show_document, table_text, yaml_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    from orbitmq.cli.options import Target
    from orbitmq.spark.charts import Page

    F = TypeVar("F", bound=Callable[..., Any])

_FILES = ("parquet", "csv", "json")
_OF_TABLES = {
    "Verify the spelling and correctness of the schema and catalog.": "A topic is a table when -t names it; stores and "
    "archives are by --store and --lake."
}
_TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
_DEAD_LETTERS = "%DLQ%"  # before the name of a group: the topic of its dead letters


@dataclass(frozen=True, slots=True)
class Pictures:
    """Where charts go, if anywhere."""

    page: Path | None
    image: Path | None

    def check(self) -> None:
        """What is missing is told before Spark starts."""
        if self.image is not None:
            require_spark()
            from orbitmq.spark.chart_image import check_pictures

            check_pictures()

    def write(self, charts: Page) -> None:
        if self.page is not None:
            from orbitmq.spark.chart_page import html_page

            saved_file.save(self.page, html_page(charts), keep_old=False)
        if self.image is not None:
            from orbitmq.spark.chart_image import png_image

            saved_file.save(self.image, png_image(charts), keep_old=False)
        for path in filter(None, (self.page, self.image)):
            click.echo(f"charts are in {path}", err=True)


def chart_options(function: F) -> F:
    """Gives the command `pictures`: the page and the picture to make, where they are wanted."""
    options = (
        click.option("--html", "page", type=click.Path(path_type=Path), help="Also write a page of charts."),
        click.option("--png", "image", type=click.Path(path_type=Path), help="Also draw the charts as a picture."),
    )
    return bundled(function, "pictures", options, lambda page, image: Pictures(page, image))


def table_options(function: F) -> F:
    """Gives the command `sources`: topics, stores and lakes."""
    options = (
        click.option("-t", "--topic", "topics", multiple=True, help="A topic. Repeatable."),
        click.option(
            "--store", "stores", multiple=True, metavar="[NAME=]DIRECTORY", help="A store directory. Repeatable."
        ),
        click.option(
            "--lake", "lakes", multiple=True, metavar="[NAME=]DIRECTORY", help="An archive or export. Repeatable."
        ),
    )
    return bundled(
        function, "sources", options, lambda topics, stores, lakes: {"topics": topics, "stores": stores, "lakes": lakes}
    )


@click.command("sql")
@click.argument("query")
@table_options
@output_option
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Rows printed, at most.")
@click.option("--to", "path", metavar="DIRECTORY", help="Write all rows there instead of printing them.")
@click.option("--as", "form", type=click.Choice(_FILES), help="Form of --to: parquet unless given.")
@spark_options
@target_options
def sql(
    target: Target,
    place: SparkPlace,
    sources: dict[str, tuple[str, ...]],
    query: str,
    output: str,
    limit: int,
    path: str | None,
    form: str | None,
) -> None:
    """Run a QUERY over topics, store directories and archives.

    A topic is a table of its own name; a store is `store` and an archive `lake`, unless given as NAME=DIRECTORY.

      orbitmq spark sql "SELECT tags, count(*) FROM Orders GROUP BY tags" -t Orders
    """
    if path is None and form is not None:
        raise click.UsageError("--as is the form of the files that --to writes: give --to")
    connection = connection_settings(target)
    with place.session("sql", _OF_TABLES) as session:
        from orbitmq.spark.frames import Tables, make_views

        make_views(session, Tables(**sources, connection=connection))
        status("running")
        frame = session.sql(query)
        if path is not None:
            frame.write.format(form or _FILES[0]).option("header", "true").save(path)
            click.echo(f"written to {path}")
            return
        moments = {field.name for field in frame.schema.fields if field.dataType.typeName() == "timestamp"}
        rows = [row.asDict(recursive=True) for row in frame.limit(limit + 1).collect()]
        status("")
        shown = [{name: _zoned(row[name]) if name in moments else row[name] for name in row} for row in rows[:limit]]
        print_rows(frame.columns, shown, output)
        if len(rows) > limit:
            click.echo(f"only the first {limit} rows are shown: --limit gives more, --to all of them", err=True)


@click.command()
@table_options
@output_option
@chart_options
@click.option("--top", type=click.IntRange(min=1), default=20, show_default=True, help="Rows of the longer lists.")
@spark_options
@target_options
def stats(
    target: Target, place: SparkPlace, sources: dict[str, tuple[str, ...]], output: str, pictures: Pictures, top: int
) -> None:
    """Volume by topic, tag and hour, how even queues are, and the largest messages."""
    pictures.check()
    connection = connection_settings(target)
    with place.session("stats") as session:
        from orbitmq.spark.frames import Tables, all_frames
        from orbitmq.spark.statistics import COLUMNS, statistics, statistics_page

        tables = Tables(**sources, connection=connection)
        status("counting")
        found = statistics(all_frames(session, tables, columns=COLUMNS), top=top)
        status("")
    volumes = Volumes(
        topics=typed(TopicVolume, found.topics),
        tags=typed(TagVolume, found.tags),
        hours=typed(HourVolume, found.hours),
        queues=typed(QueueSkew, found.queues),
        largest=typed(LargeMessage, found.largest),
    )
    if output in ("json", "yaml"):
        show_document(View(format=output), volumes)
    else:
        parts: tuple[tuple[str, type[msgspec.Struct], Sequence[msgspec.Struct]], ...] = (
            ("topics", TopicVolume, volumes.topics),
            ("tags", TagVolume, volumes.tags),
            ("hours", HourVolume, volumes.hours),
            ("queues", QueueSkew, volumes.queues),
            ("largest", LargeMessage, volumes.largest),
        )
        for name, row_type, rows in parts:
            click.echo(f"{name}:")
            _show(row_type, rows[:top], output)
            click.echo()
    pictures.write(statistics_page(found))


@click.command()
@click.option("--trace-topic", default=_TRACE_TOPIC, show_default=True)
@output_option
@chart_options
@spark_options
@target_options
def trace(target: Target, place: SparkPlace, trace_topic: str, output: str, pictures: Pictures) -> None:
    """How long messages take to be produced, delivered and consumed, from the trace topic."""
    pictures.check()
    connection = connection_settings(target)
    none = {
        _missing(trace_topic): f"nothing has been traced to {trace_topic!r} (is tracing on in producers and consumers?)"
    }
    with place.session("trace", none) as session:
        from orbitmq.spark.frames import topic_frame
        from orbitmq.spark.trace_latency import histogram, latencies, latency_page, summary

        status("measuring")
        traces = topic_frame(session, connection, (trace_topic,), columns="body")
        found = latencies(traces).cache()
        rows = summary(found)
        buckets = histogram(found)
        status("")
    _show(StageLatency, typed(StageLatency, rows), output)
    pictures.write(latency_page(rows, buckets))


@click.command()
@click.argument("group")
@click.option("--where", "rule", default="", metavar="SQL", help="Only those for which it holds; see below.")
@click.option("--resend", is_flag=True, help="Send them again, to GROUP alone.")
@click.option(
    "--to-all", is_flag=True, help="With --resend: to the topics they came from, where every group reads them."
)
@click.option("--to", "to_topic", default="", help="Send them to this topic instead.")
@output_option
@destructive_options
@spark_options
@target_options
def dlq(
    target: Target,
    place: SparkPlace,
    group: str,
    rule: str,
    resend: bool,
    to_all: bool,
    to_topic: str,
    output: str,
    yes: bool,
    dry_run: bool,
) -> None:
    """The dead letters of GROUP, counted; with --resend, sent again: to GROUP alone, as `orbitmq dlq resend` does.

    --where is a condition in SQL over the columns of a message and originTopic:
    "tags = 'paid' AND storeTimestamp > '2026-11-01' AND properties['region'] = 'eu'"
    """
    if to_all and (to_topic or not resend):
        raise click.UsageError("--to-all goes with --resend, and without --to")
    group = group.removeprefix(_DEAD_LETTERS)
    connection = connection_settings(target)
    none = {
        _missing(
            f"{_DEAD_LETTERS}{group}"
        ): f"group {group!r} has no dead letters (`orbitmq dlq ls` lists those that have)"
    }
    with place.session("dlq", none) as session:
        from orbitmq.spark import dead_letter_rules as rules

        letters = rules.dead_letters(session, connection, group, rule).cache()
        rows = typed(DeadLetterCount, rules.analysis(letters))
        status("")
        _show(DeadLetterCount, rows, output)
        if not resend and not to_topic:
            return
        count = sum(row.messages for row in rows if row.origin_topic is not None or to_topic)
        where = f"to group {group} alone"
        if to_topic or to_all:
            where = f"to {to_topic}" if to_topic else "to the topics they came from, for every group"
        if count and may_go_on(f"{count} messages go {where}", "Send them?", yes=yes, dry_run=dry_run):
            status("sending")
            rules.resend(letters, connection, to_topic=to_topic, to_group="" if to_all else group)
            status("")
            click.echo(f"sent {count} messages {where}", err=output != "table")  # what follows JSON is no JSON


def _missing(topic: str) -> str:
    """What the source says of a topic that is not there."""
    return f"topic {topic!r} does not exist (check its name, or create it; subscribePattern also finds topics that come later)"


def _show(row_type: type[msgspec.Struct], rows: Sequence[msgspec.Struct], form: str) -> None:
    click.echo(rows_text(View(format=form), row_type, [fields_of(row) for row in rows]), nl=False)


def print_rows(titles: Sequence[str], rows: Sequence[Mapping[str, object]], form: str) -> None:
    """Rows of whatever columns a query has."""
    texts = [{title: _texts(row[title]) for title in titles} for row in rows]
    if form in ("json", "yaml"):
        encoded = msgspec.json.encode(texts, enc_hook=str)
        if form == "json":
            click.echo(msgspec.json.format(encoded, indent=2))
        else:
            click.echo(yaml_text(msgspec.json.decode(encoded)), nl=False)
    elif form == "csv":
        click.echo(csv_text(titles, texts), nl=False)
    elif rows:
        click.echo(table_text([title.upper() for title in titles], [list(row.values()) for row in texts]), nl=False)
    else:
        click.echo("nothing found")


def _zoned(value: datetime | None) -> datetime | None:
    """Spark gives moments in local time and does not say so."""
    return None if value is None else value.astimezone(UTC)


def _texts(value: object) -> object:
    """The same with bytes as text: JSON has no bytes, and bodies are mostly text."""
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {key: _texts(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_texts(one) for one in value]
    return value
