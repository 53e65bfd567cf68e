"""`orbitmq dlq`: dead letters, the messages that groups have given up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from orbitmq.cli.asking import destructive_options, may_go_on
from orbitmq.cli.completing import group_argument
from orbitmq.cli.lazy import HelpfulGroup
from orbitmq.cli.msg import export_line, show_messages
from orbitmq.cli.options import bundled, target_options, view_options
from orbitmq.cli.times import epoch_ms, moment
from orbitmq.cli.view import View, show_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from typing import TextIO

    from orbitmq.admin.messages import MessageRow
    from orbitmq.admin.session import Session
    from orbitmq.cli.options import Target

F = TypeVar("F", bound="Callable[..., Any]")


@dataclass(frozen=True, slots=True)
class Choice:
    """Which dead letters of a group."""

    message_id: str | None = None
    key: str | None = None
    begin: datetime | None = None
    end: datetime | None = None
    most: int | None = None

    async def read(self, session: Session, group: str) -> list[MessageRow]:
        from orbitmq.admin.dead_letters import read_dead_letters
        from orbitmq.admin.messages import Window

        window = Window(begin_ms=epoch_ms(self.begin), end_ms=epoch_ms(self.end))
        found = []
        async for row in read_dead_letters(session, group, window):
            if self._wants(row):
                found.append(row)
            if len(found) == self.most:
                break
        return found

    def _wants(self, row: MessageRow) -> bool:
        if self.message_id is not None and self.message_id not in (row.id, row.offset_id):
            return False
        return self.key is None or self.key in row.keys


def choice_options(function: F) -> F:
    options = (
        click.option("--id", "message_id", help="Only the message with this id."),
        click.option("--key", help="Only messages with this key."),
        click.option("--from", "begin", callback=moment, metavar="TIME", help="Given up then or later."),
        click.option("--to", "end", callback=moment, metavar="TIME", help="Given up until then."),
        click.option("--max", "most", type=click.IntRange(min=1), help="At most so many."),
    )
    return bundled(function, "choice", options, Choice)


@click.group(cls=HelpfulGroup)
def dlq() -> None:
    """Dead letters: messages that a group failed to handle as often as it may."""


@dlq.command("ls")
@group_argument("group", required=False)
@choice_options
@view_options
@target_options
def list_(target: Target, view: View, choice: Choice, group: str | None) -> None:
    """The groups that have dead letters; with GROUP, its dead letters."""
    from orbitmq.admin.dead_letters import DeadLetterRow, list_dead_letters

    if group is None:
        if choice != Choice():
            raise click.UsageError("--id, --key, --from, --to and --max choose among the dead letters of a GROUP")
        target.run(lambda session: show_rows(session, view, DeadLetterRow, lambda: list_dead_letters(session)))
    else:
        target.run(lambda session: show_messages(session, view, lambda: choice.read(session, group)))


@dlq.command()
@group_argument("group")
@choice_options
@click.option(
    "--to-all",
    is_flag=True,
    help="Send to the original topic, where every group reads it; without, only GROUP gets it again.",
)
@destructive_options
@target_options
def resend(target: Target, choice: Choice, group: str, to_all: bool, yes: bool, dry_run: bool) -> None:
    """Send dead letters again. They stay in the dead-letter topic until their time is over."""
    from orbitmq.admin.dead_letters import letter_again
    from orbitmq.admin.messages import original_topic
    from orbitmq.admin.sending import Outgoing
    from orbitmq.cli.sending import send_with_progress

    rows = target.run(lambda session: choice.read(session, group))
    if not rows:
        click.echo("nothing found")
        return
    topics = ", ".join(sorted({original_topic(row) for row in rows}))
    whom = f"to {topics}, for every group" if to_all else f"to group {group} alone, as messages of {topics}"
    preview = f"{len(rows)} dead letters of {group}, {rows[0].id} to {rows[-1].id}, {whom}"
    if not may_go_on(preview, "Send them again?", yes=yes, dry_run=dry_run):
        return
    letters = [Outgoing(letter_again(row, group, "topic" if to_all else "group")) for row in rows]
    send_with_progress(target, letters)
    click.echo(f"sent {len(letters)} dead letters again")


@dlq.command()
@group_argument("group")
@choice_options
@click.option("--to-file", "sink", type=click.File("w", encoding="utf-8"), default="-", help="Without: stdout.")
@target_options
def export(target: Target, choice: Choice, group: str, sink: TextIO) -> None:
    """Write dead letters as JSON, one object a line. `orbitmq msg send TOPIC --format json` reads it."""
    rows = target.run(lambda session: choice.read(session, group))
    for row in rows:
        sink.write(export_line(row))
    click.echo(f"{len(rows)} dead letters of {group}", err=True)
