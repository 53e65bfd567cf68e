"""`orbitmq msg`: send messages, find them, follow their lives."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from orbitmq.cli.completing import topic_argument
from orbitmq.cli.options import document_options, output_option, queue_place, target_options
from orbitmq.cli.times import moment
from orbitmq.cli.view import View, fields_of, line_text, rows_text, show_document

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    from orbitmq.admin.messages import MessageRow
    from orbitmq.admin.session import Session
    from orbitmq.cli.options import Target

_DURATION = re.compile(r"(\d+)(s|m|h)")
_BODY_CHARACTERS = 60
_COLUMNS = ("topic", "broker", "queue", "offset", "id", "tag", "keys", "stored_at", "attempt", "body")


@click.group()
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
@click.option("--delay", metavar="TIME", help="Deliver later: 90s, 5m, 2h; a 4.x broker has some delay levels only.")
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
    delay: str | None,
    output: str,
) -> None:
    """Send BODY, or the messages of a file or of stdin, to TOPIC."""
    from orbitmq.admin.sending import ReceiptRow
    from orbitmq.cli.sending import Envelope, Line, read_lines, send_with_progress
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
        delay=_duration(delay),
    )
    place = queue_place(queue)
    wanted = QueueRef(topic, *place) if place is not None else None
    lines = [Line(body=body)] if body is not None else list(read_lines(source or sys.stdin.buffer, style))
    outgoing = [envelope.fill(line) for line in lines]
    rows = [fields_of(receipt) for receipt in send_with_progress(target, outgoing, wanted)]
    if output == "table" and len(rows) > 10:
        click.echo(f"sent {len(rows)} messages to {topic}")
    else:
        click.echo(
            rows_text(View(format=output), ReceiptRow, rows, ("status", "id", "broker", "queue", "offset")), nl=False
        )


@msg.command()
@click.argument("message_id", required=False, metavar="[ID]")
@click.option("--topic", help="The topic; without it a producer's id is looked for in all of them.")
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
    import base64

    from orbitmq.admin.messages import message_at_offset, message_by_id

    place = queue_place(queue)
    if message_id is not None:
        found = target.run(lambda session: message_by_id(session, message_id, topic))
    elif topic is not None and place is not None and offset is not None:
        found = target.run(lambda session: message_at_offset(session, topic, *place, offset))
    else:
        raise click.UsageError("give an ID, or --topic, --queue and --offset")
    if raw:
        body = base64.b64decode(found.body) if found.body_encoding == "base64" else found.body.encode()
        sys.stdout.buffer.write(body)
    else:
        show_document(view, found)


@msg.command()
@topic_argument("topic")
@click.option("--key", help="Messages with this key.")
@click.option("--from", "begin", callback=moment, metavar="TIME", help="Stored then or later.")
@click.option("--to", "end", callback=moment, metavar="TIME", help="Stored until then.")
@click.option("--queue", metavar="BROKER:QUEUE", help="Only of this queue.")
@click.option("--filter", "tags", help='Only these tags: "new || paid".')
@click.option("--grep", metavar="TEXT", help="Only messages whose body holds this text.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="At most so many.")
@output_option
@target_options
def find(
    target: Target,
    topic: str,
    key: str | None,
    begin: datetime | None,
    end: datetime | None,
    queue: str | None,
    tags: str | None,
    grep: str | None,
    limit: int,
    output: str,
) -> None:
    """Messages of TOPIC by key or by time."""
    from orbitmq.admin.messages import TopicReader, Window, messages_by_key

    begin_ms = int(begin.timestamp() * 1000) if begin is not None else None
    end_ms = int(end.timestamp() * 1000) if end is not None else None
    place = queue_place(queue)

    async def search(session: Session) -> list[MessageRow]:
        def wanted(row: MessageRow) -> bool:
            return (grep is None or grep in row.body) and (place is None or place == (row.broker, row.queue))

        if key is not None:
            rows = await messages_by_key(session, topic, key, limit=limit, begin_ms=begin_ms, end_ms=end_ms)
            return [row for row in rows if wanted(row)]
        window = Window(begin_ms=begin_ms, end_ms=end_ms, queue=place, filter=tags)
        found = []
        async for row in TopicReader(session).read(topic, window):
            if wanted(row):
                found.append(row)
            if len(found) == limit:
                break
        return found

    show_messages(View(format=output), sorted(target.run(search), key=lambda row: row.stored_at))


@msg.command()
@click.argument("message_id", metavar="ID")
@click.option("--topic", help="The topic; without it a producer's id is looked for in all of them.")
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


def show_messages(view: View, rows: Sequence[MessageRow]) -> None:
    """A table shows the beginning of each body; the other forms show all."""
    from orbitmq.admin.messages import MessageRow

    found = [fields_of(row) for row in rows]
    if view.format == "table":
        found = [{**row, "body": _shortened(row["body"])} for row in found]
    click.echo(rows_text(view, MessageRow, found, _COLUMNS), nl=False)


def export_line(row: MessageRow) -> str:
    return line_text(View(format="json"), row)


def _shortened(body: Any) -> str:
    text = str(body)
    return text if len(text) <= _BODY_CHARACTERS else text[: _BODY_CHARACTERS - 3] + "..."


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise click.UsageError(f"--property {text!r} is no NAME=VALUE")
    return name, value


def _duration(text: str | None) -> timedelta | None:
    from datetime import timedelta

    if text is None:
        return None
    found = _DURATION.fullmatch(text)
    if found is None:
        raise click.UsageError(f"--delay {text!r} is no time: write 10s, 5m or 1h")
    return timedelta(seconds=int(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]])
