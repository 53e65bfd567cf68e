"""`orbitmq store`: look into a store directory, check it, mend it. No broker is needed; a running one is not disturbed."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from orbitmq.cli.asking import destructive_options, may_go_on
from orbitmq.cli.choosing import fields_of
from orbitmq.cli.lazy import HelpfulGroup
from orbitmq.cli.options import output_option
from orbitmq.cli.view import View, csv_text, line_text, local_time, printable, rows_text, show_document, table_text
from orbitmq.clock import SystemClock
from orbitmq.errors import RequestFailed
from orbitmq.message.record import decode_record
from orbitmq.protocol.codes import ResponseCode
from orbitmq.storage import repair as mending
from orbitmq.storage.files import LocalDisk
from orbitmq.storage.listing import Listing, StoredQueue, list_store
from orbitmq.storage.reader import StoreReader
from orbitmq.storage.verification import StoreFinding
from orbitmq.storage.verification import verify as verify_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orbitmq.message.message import StoredMessage

_BODY_CHARACTERS = 60
_SHOWN = 20  # messages, unless --count says otherwise
_ALL = 1 << 40

directory_argument = click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))


@click.group(cls=HelpfulGroup)
def store() -> None:
    """Look into a store directory, check it, mend it.

    DIRECTORY is the broker's storePathRootDir, written by OrbitMQ or by Apache's broker, running or not.
    """


@store.command()
@directory_argument
@output_option
@click.option("-t", "--topic", help="Only the queues of this topic.")
def ls(directory: Path, output: str, topic: str | None) -> None:
    """What is there: log files, queues, key index, tables. As CSV: the queues."""
    disk = LocalDisk()
    with StoreReader(directory, disk=disk) as reader:
        listing = list_store(reader, disk)
    if topic is not None:
        listing = msgspec.structs.replace(listing, queues=[queue for queue in listing.queues if queue.topic == topic])
    if output == "table":
        _print_listing(listing)
    else:
        _print_for_programs(output, listing, StoredQueue, listing.queues)


@store.command()
@directory_argument
@output_option
def verify(directory: Path, output: str) -> None:
    """Check every byte: log, queues, key index, tables, and that they agree.

    Exits with 1 if something is wrong that a start does not put right by itself.
    """
    disk = LocalDisk()
    with StoreReader(directory, disk=disk) as reader:
        found = verify_store(reader, disk, lambda what: click.echo(f"checking {what}", err=True))
    if output == "table":
        for finding in found.findings:
            where = finding.path if finding.byte is None else f"{finding.path}, byte {finding.byte}"
            click.echo(f"{finding.severity}: {where}: {finding.problem}")
        click.echo(
            f"{found.records} records, {found.queue_entries} queue entries, {found.key_entries} key entries, "
            f"{found.tables} tables: {len(found.errors)} errors, {len(found.findings) - len(found.errors)} notes"
        )
    else:
        _print_for_programs(output, found, StoreFinding, found.findings)
    if found.errors:
        sys.exit(1)


@store.command()
@directory_argument
@output_option
@click.option("-t", "--topic", help="Messages of this topic; without it, of the whole log in its order.")
@click.option("--queue", "queue_id", type=click.IntRange(min=0), help="Of this queue only.")
@click.option("--from", "start", type=click.IntRange(min=0), help="From this queue offset, or log offset, on.")
@click.option("--count", type=click.IntRange(min=1), help="At most so many. Default: all with -o json, else 20.")
@click.option("--key", help="Messages with this key; needs --topic.")
@click.option("--full", is_flag=True, help="Whole bodies and all properties.")
def dump(
    directory: Path,
    output: str,
    topic: str | None,
    queue_id: int | None,
    start: int | None,
    count: int | None,
    key: str | None,
    full: bool,
) -> None:
    """Print messages."""
    if (key is not None or queue_id is not None) and topic is None:
        raise click.UsageError("--key and --queue need --topic")
    with StoreReader(directory) as reader:
        if topic is not None:
            _check_there(reader, directory, topic, queue_id)
        most = count or (None if output == "json" else _SHOWN)
        if key is not None and topic is not None:
            chosen = iter(reader.find(topic, key, limit=_ALL if most is None else most + 1))
        elif topic is not None:
            chosen = _of_topic(reader, topic, queue_id, start)
        else:
            chosen = (decode_record(record.data) for record in reader.records(start))
        _print_messages(output, islice(chosen, most), full=full)
        if count is None and most is not None and next(chosen, None) is not None:
            click.echo(f"only the first {most} are shown: --count gives more, -o json all of them", err=True)


@store.command()
@directory_argument
@output_option
@destructive_options
def repair(directory: Path, output: str, yes: bool, dry_run: bool) -> None:
    """Mend what `verify` finds wrong. What is cut off is kept in DIRECTORY/repair-<time>."""
    disk = LocalDisk()
    kept: Path | None = None
    with StoreReader(directory, disk=disk) as reader:
        found = verify_store(reader, disk, lambda what: click.echo(f"checking {what}", err=True))
        steps = mending.plan(reader, disk, found)
        if steps and not (dry_run and output != "table"):
            preview = "".join(f"{step}\n" for step in steps)
            question = f"Do these {len(steps)} steps? What is taken out is kept."
            if may_go_on(preview, question, yes=yes, dry_run=dry_run):
                kept = mending.apply(reader, disk, SystemClock(), steps)
    if output != "table":
        from orbitmq.cli.store_rows import RepairStep, repair_of

        done = repair_of(steps, kept)
        _print_for_programs(output, done, RepairStep, done.steps)
    elif not steps:
        click.echo("nothing to mend")
    elif kept is not None:
        click.echo(f"{len(steps)} steps done; what was taken out is in {kept}")


def _check_there(reader: StoreReader, directory: Path, topic: str, queue_id: int | None) -> None:
    numbers = [number for name, number in reader.queue_keys() if name == topic]
    if not numbers or (queue_id is not None and queue_id not in numbers):
        which = "" if queue_id is None or not numbers else f" {queue_id}"
        raise RequestFailed(
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic {topic!r} has no queue{which} in {directory}",
            hint=f"`orbitmq store ls {directory}` shows those there are",
        )


def _of_topic(reader: StoreReader, topic: str, queue_id: int | None, start: int | None) -> Iterator[StoredMessage]:
    queues = [queue.queue_id for queue in reader.queues(topic)] if queue_id is None else [queue_id]
    for number in queues:
        yield from reader.messages(topic, number, start or 0)


def _print_messages(output: str, messages: Iterator[StoredMessage], *, full: bool) -> None:
    from orbitmq.cli.store_rows import RecordRow, record_row

    view = View(format=output)
    if output in ("csv", "yaml"):
        rows = [fields_of(record_row(message)) for message in messages]
        click.echo(rows_text(view, RecordRow, rows), nl=False)
        return
    for message in messages:
        text = line_text(view, record_row(message)) if output == "json" else _line(message, full=full) + "\n"
        click.echo(text, nl=False)


def _print_for_programs(
    output: str, found: msgspec.Struct, row_type: type[msgspec.Struct], rows: Sequence[msgspec.Struct]
) -> None:
    """All of it as JSON or YAML; as CSV the list in it that matters."""
    if output == "csv":
        click.echo(csv_text(row_type.__struct_fields__, map(fields_of, rows)), nl=False)
    else:
        show_document(View(format=output), found)


def _print_listing(listing: Listing) -> None:
    if listing.owner is None:
        state = "stopped properly" if listing.is_clean else "not running; the last stop was not clean"
    else:
        state = f"open in process {listing.owner}" if listing.owner else "open in another process"
    click.echo(f"{listing.directory}: {state}")
    click.echo(f"log: offsets {listing.log_start} to {listing.log_end}, files of {listing.segment_bytes} bytes\n")
    _print_table(
        ("LOG FILE", "FROM", "TO", "CHANGED"),
        [(file.path, file.start, file.end, file.modified_at) for file in listing.log_files],
    )
    _print_table(
        ("TOPIC", "QUEUE", "MIN", "MAX", "MESSAGES"),
        [(queue.topic, queue.queue_id, queue.min_offset, queue.max_offset, queue.messages) for queue in listing.queues],
    )
    _print_table(
        ("KEY INDEX", "ENTRIES", "FROM", "TO"),
        [(file.path, file.entries, file.begins_at, file.ends_at) for file in listing.key_files],
    )
    _print_table(("TABLE", "BYTES", "SAVED"), [(file.path, file.size, file.modified_at) for file in listing.tables])


def _print_table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    if rows:
        click.echo(table_text(titles, rows))


def _time(at_ms: int) -> str:
    return local_time(datetime.fromtimestamp(at_ms / 1000, UTC))


def _line(message: StoredMessage, *, full: bool) -> str:
    from orbitmq.admin.messages import message_body

    place = f"{message.topic} queue {message.queue_id} offset {message.queue_offset}"
    head = f"{place}  log {message.commit_log_offset}  {_time(message.stored_at_ms)}  {message.message_id}"
    body = message_body(message)
    if full:
        properties = [f"  {name}={value}" for name, value in sorted(message.properties.items())]
        text = body.decode("utf-8", "backslashreplace")
        return "\n".join(printable(line) for line in (head, *properties, f"  {text}")) + "\n"
    labelled = (("tags", message.tags), ("keys", ",".join(message.keys)))
    details = " ".join(f"{label}={text}" for label, text in labelled if text)
    start = body[:_BODY_CHARACTERS].decode("utf-8", "backslashreplace")
    more = "..." if len(body) > _BODY_CHARACTERS else ""
    return printable(f"{head}  {details}  {start}{more}")
