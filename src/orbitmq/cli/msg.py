"""`orbitmq msg`: send messages, find them, follow their lives."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, BinaryIO

import click

from orbitmq.cli.choosing import fields_of
from orbitmq.cli.completing import topic_argument, topic_option
from orbitmq.cli.lazy import HelpfulGroup
from orbitmq.cli.options import document_options, output_option, queue_place, target_options, view_options
from orbitmq.cli.times import duration, epoch_ms, moment
from orbitmq.cli.view import View, line_text, rows_text, show_document, show_rows

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime, timedelta

    from orbitmq.admin.messages import MessageRow
    from orbitmq.admin.session import Session
    from orbitmq.cli.options import Target

_BODY_CHARACTERS = 60
_FOUND_AT_MOST = 100
_COLUMNS = ("topic", "broker", "queue", "offset", "id", "tag", "keys", "stored_at", "attempt", "body")


@click.group(cls=HelpfulGroup)
def msg() -> None:
    """Messages: send, get, find, trace."""


@msg.command()
@topic_argument("topic")
@click.argument("body", required=False)
@click.option("--file", "source", type=click.File("rb"), help="Messages from a file; - is stdin.")
@click.option(
    "--format",
    "style",
    type=click.Choice(["lines", "json", "whole"]),
    default="lines",
    show_default=True,
    help="Of file or stdin: a message a line, a JSON object a line, or all of it one message.",
)
@click.option("--tag", default="", help="The tag of every message that has none.")
@click.option("--key", "keys", multiple=True, help="A key; repeatable.")
@click.option("-p", "--property", "properties", multiple=True, metavar="NAME=VALUE", help="A property; repeatable.")
@click.option("--order-key", help="Messages with the same one go to the same queue.")
@click.option("--queue", metavar="BROKER:QUEUE", help="To this queue.")
@click.option(
    "--delay",
    callback=duration,
    metavar="TIME",
    help="Deliver later: 90s, 5m, 2h, 1d; a 4.x broker has some delay levels only.",
)
@output_option
@target_options
def send(
    target: Target,
    topic: str,
    body: str | None,
    source: BinaryIO | None,
    style: str,
    tag: str,
    keys: Sequence[str],
    properties: Sequence[str],
    order_key: str | None,
    queue: str | None,
    delay: timedelta | None,
    output: str,
) -> None:
    """Send BODY, or the messages of a file or of stdin, to TOPIC. What comes through a pipe is sent as it comes."""
    from orbitmq.admin.sending import ReceiptRow
    from orbitmq.cli.sending import Envelope, send_from, send_with_progress, text_line
    from orbitmq.message import QueueRef

    if body is not None and source is not None:
        raise click.UsageError("give a BODY or --file, not both")
    if body is None and source is None and sys.stdin.isatty():
        raise click.UsageError("give a BODY, --file, or messages on stdin")
    envelope = Envelope(
        topic=topic,
        tag=tag,
        keys=keys,
        properties=dict(map(_assignment, properties)),
        order_key=order_key,
        delay=delay,
    )
    place = queue_place(queue)
    wanted = QueueRef(topic, *place) if place is not None else None
    if body is not None:
        receipts = send_with_progress(target, [envelope.fill(text_line(body))], wanted)
    else:
        receipts = send_from(target, source or sys.stdin.buffer, style, envelope, wanted)
    if not receipts:
        raise click.UsageError(f"there is no message {'in the file' if source is not None else 'on stdin'}")
    rows = [fields_of(receipt) for receipt in receipts]
    if output == "table" and len(rows) > 10:
        click.echo(f"sent {len(rows)} messages to {topic}")
    else:
        click.echo(
            rows_text(View(format=output), ReceiptRow, rows, ("status", "id", "broker", "queue", "offset")), nl=False
        )


@msg.command()
@click.argument("message_id", required=False, metavar="[ID]")
@topic_option(help="The topic; without it a producer's id is looked for in all of them.")
@click.option("--queue", metavar="BROKER:QUEUE", help="Instead of an id: the queue, with --topic and --offset.")
@click.option("--offset", type=click.IntRange(min=0), help="Instead of an id: the offset in the queue.")
@click.option("--raw", is_flag=True, help="Only the body, byte for byte.")
@document_options
@target_options
def get(
    target: Target,
    view: View,
    message_id: str | None,
    topic: str | None,
    queue: str | None,
    offset: int | None,
    raw: bool,
) -> None:
    """One message whole: by ID, the producer's or the broker's, or by its place."""
    from orbitmq.admin.messages import body_bytes, message_at_offset, message_by_id

    place = queue_place(queue)
    if message_id is not None:
        found = target.run(lambda session: message_by_id(session, message_id, topic))
    elif topic is not None and place is not None and offset is not None:
        found = target.run(lambda session: message_at_offset(session, topic, *place, offset))
    else:
        raise click.UsageError("give an ID, or --topic, --queue and --offset")
    if raw:
        sys.stdout.buffer.write(body_bytes(found))
    else:
        show_document(view, found)


@msg.command()
@topic_argument("topic")
@click.option("--key", help="Messages with this key.")
@click.option("--from", "begin", callback=moment, metavar="TIME", help="Stored then or later.")
@click.option("--to", "end", callback=moment, metavar="TIME", help="Stored until then.")
@click.option("--queue", metavar="BROKER:QUEUE", help="Only of this queue.")
@click.option("--filter", "tags", help='Only these tags: "new || paid".')
@click.option("--sql", help="Only messages for which this SQL92 expression over properties holds.")
@click.option("--grep", metavar="TEXT", help="Only messages whose body holds this text.")
@click.option("--max", "most", type=click.IntRange(min=1), help="Stop after so many.  [default: 100]")
@view_options
@target_options
def find(
    target: Target,
    view: View,
    topic: str,
    key: str | None,
    begin: datetime | None,
    end: datetime | None,
    queue: str | None,
    tags: str | None,
    sql: str | None,
    grep: str | None,
    most: int | None,
) -> None:
    """Messages of TOPIC by key, time, tag, properties or text, the oldest first."""
    from orbitmq.cli.finding import Search

    if sql is not None and (tags is not None or key is not None):
        raise click.UsageError("--sql excludes --filter and --key")
    enough = most or max(_FOUND_AT_MOST, view.choice.skip + (view.choice.limit or 0))
    search = Search(
        topic=topic,
        key=key,
        begin_ms=epoch_ms(begin),
        end_ms=epoch_ms(end),
        queue=queue_place(queue),
        tags=tags,
        sql=sql,
        grep=grep,
        most=enough,
    )

    async def show(session: Session) -> None:
        found: list[MessageRow] = []

        async def fetch() -> list[MessageRow]:
            found[:] = await search.run(session)
            return found

        await show_messages(session, view, fetch)
        if len(found) == enough and most is None and view.choice.limit is None:
            click.echo(f"orbitmq: these are the first {enough}; --max finds more", err=True)

    target.run(show)


@msg.command()
@click.argument("message_id", metavar="ID")
@topic_option(help="The topic; without it a producer's id is looked for in all of them.")
@click.option("--trace-topic", default="RMQ_SYS_TRACE_TOPIC", show_default=True, help="Where traces are kept.")
@document_options
@target_options
def trace(target: Target, view: View, message_id: str, topic: str | None, trace_topic: str) -> None:
    """The life of a message as a tree: sent, stored, delivered to whom, with which outcome."""
    from orbitmq.admin.traces import trace_message

    found = target.run(lambda session: trace_message(session, message_id, topic=topic, trace_topic=trace_topic))
    if view.format != "table":
        show_document(view, found)
        return
    from orbitmq.cli.trace_tree import tree_text

    click.echo(tree_text(found), nl=False)


async def show_messages(session: Session, view: View, fetch: Callable[[], Awaitable[Sequence[MessageRow]]]) -> None:
    """A table shows the beginning of each body, unless fields are named; the other forms show all."""
    from orbitmq.admin.messages import MessageRow

    await show_rows(session, view, MessageRow, fetch, _COLUMNS, {"body": _BODY_CHARACTERS})


def export_line(row: MessageRow) -> str:
    return line_text(View(format="json"), row)


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise click.UsageError(f"--property {text!r} is no NAME=VALUE")
    return name, value
