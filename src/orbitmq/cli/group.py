"""`orbitmq group`: consumer groups, how far they are, who is in them, sending them elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from orbitmq.cli.asking import destructive_options, may_go_on
from orbitmq.cli.completing import group_argument, topic_option
from orbitmq.cli.lazy import HelpfulGroup
from orbitmq.cli.options import bundled, document_options, queue_place, target_options, view_options, where_option
from orbitmq.cli.times import moment
from orbitmq.cli.view import View, rows_text, show_document, show_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from orbitmq.admin.groups import GroupRow
    from orbitmq.admin.resets import Goal
    from orbitmq.admin.session import Session
    from orbitmq.cli.options import Target

F = TypeVar("F", bound="Callable[..., Any]")


@click.group(cls=HelpfulGroup)
def group() -> None:
    """Consumer groups: list, make, change, describe, delete; lag, members, resetting."""


@group.command("ls")
@click.argument("pattern", default="*")
@click.option("-c", "--cluster", help="Only of this cluster.")
@click.option("-a", "--all", "everything", is_flag=True, help="Also the system's own.")
@click.option("--quick", is_flag=True, help="Without members and lag, which cost two questions a group.")
@view_options
@target_options
def list_(target: Target, view: View, pattern: str, cluster: str | None, everything: bool, quick: bool) -> None:
    """The groups whose name matches PATTERN (*, ?)."""
    from fnmatch import fnmatchcase

    from orbitmq.admin.brokers import reachable_brokers
    from orbitmq.admin.groups import GroupRow, list_groups, with_figures

    async def show(session: Session) -> None:
        async def fetch() -> list[GroupRow]:
            rows = await list_groups(session, cluster=cluster, quick=True)
            rows = [row for row in rows if (everything or row.kind == "normal") and fnmatchcase(row.group, pattern)]
            return (
                rows if quick else await with_figures(session, rows, await reachable_brokers(session, cluster=cluster))
            )

        columns = ("group", "enabled", "max_retries", "brokers")
        full = ("group", "members", "model", "lag", "tps", *columns[1:])
        await show_rows(session, view, GroupRow, fetch, columns if quick else full)

    target.run(show)


@group.command()
@group_argument()
@document_options
@target_options
def describe(target: Target, view: View, name: str) -> None:
    """Everything about one group: settings, members, subscriptions, lag."""
    from orbitmq.admin.groups import describe_group

    found = target.run(lambda session: describe_group(session, name))
    show_document(view, found)
    if found.differing_members and view.format == "table":
        click.echo(
            f"\nmembers disagree: {', '.join(found.differing_members)} do not subscribe to what the others do. "
            "Messages get lost that way; give all members of a group the same topics and filters.",
            err=True,
        )


@group.command()
@group_argument()
@topic_option(help="Only in this topic.")
@click.option("--queues", is_flag=True, help="Queue by queue.")
@view_options
@target_options
def lag(target: Target, view: View, name: str, topic: str | None, queues: bool) -> None:
    """How far behind a group is, in messages and in seconds, topic by topic."""
    from orbitmq.admin.offsets import QueueLag, TopicLag, group_lag, queue_lags

    async def show(session: Session) -> None:
        await _check_exists(session, name)
        if queues:
            await show_rows(
                session, view, QueueLag, lambda: queue_lags(session, name, topic), QueueLag.__struct_fields__[1:]
            )
        else:
            await show_rows(
                session, view, TopicLag, lambda: group_lag(session, name, topic), TopicLag.__struct_fields__[1:]
            )

    target.run(show)


@group.command()
@group_argument()
@click.option("--producers", is_flag=True, help="Producers of the group, instead of its consumers.")
@view_options
@target_options
def connections(target: Target, view: View, name: str, producers: bool) -> None:
    """Who is connected under the name of a group."""
    from orbitmq.admin.groups import ConnectionRow, consumer_connections, producer_connections

    question = producer_connections if producers else consumer_connections
    columns = ConnectionRow.__struct_fields__[1:]
    target.run(lambda session: show_rows(session, view, ConnectionRow, lambda: question(session, name), columns))


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the options say that a group is to be like; None: as it is, or by default."""

    max_retries: int | None
    retry_queues: int | None
    enabled: bool | None
    ordered: bool | None
    broadcast: bool | None

    def changes(self) -> dict[str, Any]:
        """Fields of a `GroupConfig`."""
        fields = {
            "retry_max_times": self.max_retries,
            "retry_queue_nums": self.retry_queues,
            "consume_enable": self.enabled,
            "consume_message_orderly": self.ordered,
            "consume_broadcast_enable": self.broadcast,
        }
        return {name: value for name, value in fields.items() if value is not None}


def wish_options(function: F) -> F:
    options = (
        click.option("--max-retries", type=int, help="Before a message goes to dead letters; a new group: 16."),
        click.option("--retry-queues", type=click.IntRange(min=1), help="Of its retry topic; a new group: 1."),
        click.option("--enabled/--disabled", default=None, help="Whether it may consume; a new group may."),
        click.option("--ordered/--unordered", default=None, help="Whether its members consume in order."),
        click.option("--broadcast/--no-broadcast", default=None, help="Whether it may broadcast; a new group may."),
    )
    return bundled(function, "wishes", options, Wishes)


@group.command()
@click.argument("name")
@click.option("--if-missing", is_flag=True, help="One that is there already is no failure, and stays as it is.")
@wish_options
@where_option
@target_options
def create(
    target: Target, wishes: Wishes, name: str, cluster: str | None, broker: str | None, if_missing: bool
) -> None:
    """Make a group."""
    from orbitmq.admin.groups import create_group
    from orbitmq.client.names import check_group
    from orbitmq.protocol.bodies.groups import GroupConfig

    check_group(name)
    config = GroupConfig(group_name=name, **wishes.changes())
    places = target.run(
        lambda session: create_group(session, config, cluster=cluster, broker=broker, if_missing=if_missing)
    )
    where = ", ".join(place.broker for place in places)
    click.echo(f"created group {name} on {where}" if places else f"group {name} is there already")


@group.command()
@group_argument()
@wish_options
@where_option
@target_options
def update(target: Target, wishes: Wishes, name: str, cluster: str | None, broker: str | None) -> None:
    """Change a group; what is not named stays as it is."""
    from orbitmq.admin.groups import update_group

    changes = wishes.changes()
    if not changes:
        raise click.UsageError("nothing to change: name what is to be another")
    places = target.run(lambda session: update_group(session, name, changes, cluster=cluster, broker=broker))
    click.echo(f"changed group {name} on {', '.join(place.broker for place in places)}")


@group.command("rm")
@group_argument()
@click.option("-c", "--cluster", help="Only on the brokers of this cluster.")
@click.option("--keep-offsets", is_flag=True, help="A group of the same name will go on where this one was.")
@destructive_options
@target_options
def remove(target: Target, name: str, cluster: str | None, keep_offsets: bool, yes: bool, dry_run: bool) -> None:
    """Delete a group and, unless told otherwise, its offsets."""
    from orbitmq.admin.groups import delete_group, describe_group

    found = target.run(lambda session: describe_group(session, name))
    topics = ", ".join(one.topic for one in found.topics) or "nothing"
    preview = f"group {name}: {len(found.members)} members connected, reads {topics}, {found.lag} messages behind"
    if may_go_on(preview, "Delete it?", yes=yes, dry_run=dry_run):
        places = target.run(lambda session: delete_group(session, name, cluster=cluster, keep_offsets=keep_offsets))
        click.echo(f"deleted group {name} on {', '.join(place.broker for place in places)}")


@group.command()
@group_argument()
@topic_option(help="Only in this topic; without, in all that the group reads.")
@click.option("--queue", metavar="BROKER:QUEUE", help="Only this queue of the topic.")
@click.option("--to-time", callback=moment, metavar="TIME", help="Go on at the first message stored then or later.")
@click.option("--to-offset", type=click.IntRange(min=0), help="Go on at this offset, or the nearest there is.")
@click.option("--to-earliest", is_flag=True, help="Read everything that is kept again.")
@click.option("--to-latest", is_flag=True, help="Skip everything that is there.")
@destructive_options
@target_options
def reset(
    target: Target,
    name: str,
    topic: str | None,
    queue: str | None,
    to_time: datetime | None,
    to_offset: int | None,
    to_earliest: bool,
    to_latest: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Send a group elsewhere in its queues, running or not. Shows first, queue by queue, what will happen."""
    from orbitmq.admin.resets import ResetStep, apply_reset, plan_reset

    goals: list[Goal] = [goal for goal in (to_time, to_offset) if goal is not None]
    goals += [word for word, given in (("earliest", to_earliest), ("latest", to_latest)) if given]  # type: ignore[misc]
    if len(goals) != 1:
        raise click.UsageError("give one of --to-time, --to-offset, --to-earliest, --to-latest")
    goal = goals[0]
    place = queue_place(queue)
    steps = target.run(lambda session: plan_reset(session, name, goal, topic=topic, queue=place))
    moved = [step for step in steps if step.goal != step.committed]
    columns = ("topic", "broker", "queue", "min_offset", "max_offset", "committed", "goal", "change", "way")
    rows = [{name: getattr(step, name) for name in columns} for step in steps]
    preview = rows_text(View(), ResetStep, rows, columns)
    if not moved:
        click.echo(preview, nl=False)
        click.echo("the group is there already")
        return
    again, skipped = (sum(max(0, sign * step.change) for step in steps) for sign in (-1, 1))
    question = f"Move {len(moved)} queues: {again} messages to be read again, {skipped} to be skipped?"
    if may_go_on(preview, question, yes=yes, dry_run=dry_run):
        target.run(lambda session: apply_reset(session, moved, goal))
        click.echo(f"group {name} goes on elsewhere in {len(moved)} queues")


@group.command()
@group_argument("source")
@group_argument("to")
@topic_option(required=True, help="In this topic.")
@destructive_options
@target_options
def clone(target: Target, source: str, to: str, topic: str, yes: bool, dry_run: bool) -> None:
    """Let group TO go on in a topic where group SOURCE is."""
    from orbitmq.admin.offsets import QueueLag, clone_offsets, queue_lags

    rows = target.run(lambda session: queue_lags(session, source, topic))
    columns = ("topic", "broker", "queue", "committed", "max_offset", "lag")
    preview = rows_text(View(), QueueLag, [{name: getattr(row, name) for name in columns} for row in rows], columns)
    if may_go_on(preview, f"Give group {to} these offsets?", yes=yes, dry_run=dry_run):
        target.run(lambda session: clone_offsets(session, source, to, topic))
        exists = target.run(lambda session: _exists(session, to))
        when = "" if exists else "; it is not there yet, and begins there with its first member"
        click.echo(f"group {to} goes on in {topic} where {source} is{when}")


async def _check_exists(session: Session, name: str) -> None:
    from orbitmq.admin.groups import missing_group

    if not await _exists(session, name):
        raise missing_group(name)


async def _exists(session: Session, name: str) -> bool:
    from orbitmq.admin.brokers import reachable_brokers
    from orbitmq.admin.groups import group_tables

    return name in await group_tables(session, await reachable_brokers(session))
