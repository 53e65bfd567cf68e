"""`orbitmq spark replay`: what an archive or a topic holds, sent to a topic again."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

import click

from orbitmq.cli.options import target_options
from orbitmq.cli.spark_archive import connection_settings
from orbitmq.cli.spark_session import SparkPlace, spark_options, status
from orbitmq.cli.times import moment

if TYPE_CHECKING:
    from datetime import datetime

    from orbitmq.cli.options import Target
    from orbitmq.spark.replay import Wishes

_WORDS = {
    "badRows=drop leaves such rows out and counts them; deadLetterPath keeps them": "--skip-bad leaves such messages out",
    "; failOnDataLoss=false goes on without them": "",
}


@click.command()
@click.option("--lake", default="", metavar="DIRECTORY", help="From an archive or export.")
@click.option(
    "-t", "--topic", "topics", multiple=True, help="From this topic; of an archive, only this topic. Repeatable."
)
@click.option(
    "--to", "to_topic", default="", help="The topic to send to. Default: each to its own; a topic's need --to."
)
@click.option("--tags", default="", help="Only messages with one of these tags: 'new || paid'.")
@click.option("--from", "start", callback=moment, help="Stored at this time or later.")
@click.option("--until", callback=moment, help="Stored before this time.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Messages a second, at most.")
@click.option(
    "--keys", type=click.Choice(["keep", "drop", "id"]), default="keep", show_default=True, help="Or the old id as key."
)
@click.option(
    "--times",
    type=click.Choice(["new", "keep"]),
    default="new",
    show_default=True,
    help="Born now, or when the old message was.",
)
@click.option(
    "--origin/--no-origin", default=True, show_default=True, help="Say as properties who each was: id, times."
)
@click.option("--skip-bad", is_flag=True, help="Leave out, and count, what no broker would take, instead of failing.")
@click.option("--state", default="", metavar="DIRECTORY", help="Keep there how far it is; run again, it goes on.")
@spark_options
@target_options
def replay(
    target: Target,
    place: SparkPlace,
    lake: str,
    topics: tuple[str, ...],
    to_topic: str,
    tags: str,
    start: datetime | None,
    until: datetime | None,
    rate: float | None,
    keys: Any,
    times: Any,
    origin: bool,
    skip_bad: bool,
    state: str,
) -> None:
    """Send again what an archive (--lake) or a topic (--topic) holds.

    At least once: an interrupted replay may send some messages twice, with equal ORBITMQ_DEDUP_ID.
    """
    if not lake and not topics:
        raise click.UsageError("nothing to replay: give --lake, or --topic and --to")
    if not lake and (not to_topic or to_topic in topics):
        raise click.UsageError("a topic is replayed into another one: give --to")
    connection = connection_settings(target)
    started = time.monotonic()
    with place.session("replay", _WORDS) as session:
        from orbitmq.spark.replay import Replay, Wishes
        from orbitmq.spark.sink_options import sink_options
        from orbitmq.spark.source_options import source_options

        wishes = Wishes(
            topics=topics if lake else (),
            tags=tuple(tag.strip() for tag in tags.split("||") if tag.strip()) if tags.strip() != "*" else (),
            begin_ms=int(start.timestamp() * 1000) if start else None,
            end_ms=int(until.timestamp() * 1000) if until else None,
            to_topic=to_topic,
            keys=keys,
            times=times,
            stamps_origin=origin,
            rate=rate,
        )
        source = None if lake else source_options(_source_settings(connection, topics, tags, wishes), streaming=False)
        bad_rows = "drop" if skip_bad else "fail"
        sink = sink_options({**connection, "producerGroup": "orbitmq-spark-replay", "badRows": bad_rows})
        running = Replay(session, sink, wishes, lake=lake, source=source, state=state, job=uuid.uuid4().hex)
        before = running.state.sent
        sent = running.run(lambda done, total: status(f"replaying: {done} of {total} pieces done"))
    seconds = time.monotonic() - started
    resumed = f" ({before:,} of them before)" if before else ""
    click.echo(f"sent {sent:,} messages{resumed} in {seconds:.1f} s")
    if running.state.left_out:
        click.echo(f"left out {running.state.left_out:,} messages that no broker would take", err=True)


def _source_settings(connection: dict[str, str], topics: tuple[str, ...], tags: str, wishes: Wishes) -> dict[str, str]:
    """The brokers give no more than is wanted, as far as they can tell."""
    options = {**connection, "subscribe": ",".join(topics), "tags": tags}
    if wishes.begin_ms is not None:
        options |= {"startingTimestamp": str(wishes.begin_ms), "startingOffsetsByTimestampStrategy": "latest"}
    if wishes.end_ms is not None:
        options["endingTimestamp"] = str(wishes.end_ms)
    return options
