"""`orbitmq topic`: list, make, change, describe, follow, delete topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from orbitmq.cli.asking import destructive_options, may_go_on
from orbitmq.cli.completing import topic_argument
from orbitmq.cli.lazy import HelpfulGroup
from orbitmq.cli.options import bundled, document_options, output_option, target_options, view_options, where_option
from orbitmq.cli.view import View, show_document, show_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orbitmq.admin.brokers import BrokerPlace
    from orbitmq.admin.session import Session
    from orbitmq.admin.topics import TopicPlan, TopicRow
    from orbitmq.cli.options import Target

F = TypeVar("F", bound="Callable[..., Any]")

_KINDS = ("normal", "retry", "dlq", "system")


@click.group(cls=HelpfulGroup)
def topic() -> None:
    """Topics: list, make, change, describe, follow, delete."""


@topic.command("ls")
@click.argument("pattern", default="*")
@click.option("-c", "--cluster", help="Only of this cluster.")
@click.option("--kind", type=click.Choice(_KINDS), multiple=True, help="Only such topics; repeatable.")
@click.option("-a", "--all", "everything", is_flag=True, help="Also retry, dead-letter and system topics.")
@click.option("--count", is_flag=True, help="Count the messages of each; one question a topic.")
@view_options
@target_options
def list_(
    target: Target, view: View, pattern: str, cluster: str | None, kind: Sequence[str], everything: bool, count: bool
) -> None:
    """The topics whose name matches PATTERN (*, ?)."""
    from fnmatch import fnmatchcase

    from orbitmq.admin.brokers import reachable_brokers
    from orbitmq.admin.topics import TopicRow, counted, list_topics

    kinds = kind or (_KINDS if everything else ("normal",))
    count = count or "messages" in view.choice.named

    async def show(session: Session) -> None:
        async def fetch() -> list[TopicRow]:
            rows = await list_topics(session, cluster=cluster)
            rows = [row for row in rows if row.kind in kinds and fnmatchcase(row.topic, pattern)]
            return await counted(session, rows, await reachable_brokers(session, cluster=cluster)) if count else rows

        columns = ("topic", "message_type", "read_queues", "write_queues", "permission", "ordered", "brokers")
        await show_rows(session, view, TopicRow, fetch, (*columns, "messages") if count else columns)

    target.run(show)


@topic.command()
@topic_argument()
@document_options
@target_options
def describe(target: Target, view: View, name: str) -> None:
    """Everything about one topic: brokers, queues, who reads it."""
    from orbitmq.admin.topics import describe_topic

    show_document(view, target.run(lambda session: describe_topic(session, name)))


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the options say that a topic is to be like."""

    queues: int | None
    read_queues: int | None
    write_queues: int | None
    permission: str | None
    ordered: bool | None
    message_type: str | None
    attribute: tuple[str, ...]

    def plan(self, name: str) -> TopicPlan:
        from orbitmq.admin.topics import TopicPlan

        attributes: dict[str, str | None] = {"message.type": self.message_type} if self.message_type else {}
        for text in self.attribute:
            key, equals, value = text.partition("=")
            if not equals or not key:
                raise click.UsageError(f"--attribute {text!r} is no KEY=VALUE")
            attributes[key] = value or None
        return TopicPlan(
            topic=name,
            read_queues=self.queues if self.read_queues is None else self.read_queues,
            write_queues=self.queues if self.write_queues is None else self.write_queues,
            permission=self.permission,
            ordered=self.ordered,
            attributes=attributes,
        )


def wish_options(function: F) -> F:
    options = (
        click.option("-q", "--queues", type=click.IntRange(min=1), help="Queues on each broker, to read and write."),
        click.option("--read-queues", type=click.IntRange(min=0), help="Queues on each broker that can be read."),
        click.option("--write-queues", type=click.IntRange(min=0), help="Queues on each broker that can be written."),
        click.option("--permission", type=click.Choice(["rw", "r", "w", "none"]), help="What clients may do."),
        click.option("--ordered/--unordered", default=None, help="Keep its queues in place when a broker is away."),
        click.option(
            "--type",
            "message_type",
            type=click.Choice(["NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"]),
            help="Which messages it takes (5.x).",
        ),
        click.option("--attribute", multiple=True, metavar="KEY=VALUE", help="Set an attribute; KEY= takes it away."),
    )
    return bundled(function, "wishes", options, Wishes)


@topic.command()
@click.argument("name")
@click.option("--if-missing", is_flag=True, help="One that is there already is no failure.")
@wish_options
@where_option
@target_options
def create(
    target: Target, wishes: Wishes, name: str, cluster: str | None, broker: str | None, if_missing: bool
) -> None:
    """Make a topic, with 8 queues on each broker unless told otherwise."""
    from orbitmq.admin.topics import create_topic
    from orbitmq.client.names import check_topic
    from orbitmq.errors import RequestFailed
    from orbitmq.protocol.codes import ResponseCode

    check_topic(name)
    try:
        places = target.run(lambda session: create_topic(session, wishes.plan(name), cluster=cluster, broker=broker))
    except RequestFailed as error:
        if not if_missing or error.code != ResponseCode.TOPIC_EXIST_ALREADY:
            raise
        click.echo(f"topic {name} is there already")
        return
    click.echo(f"created topic {name} on {_names(places)}")


@topic.command()
@topic_argument()
@wish_options
@where_option
@target_options
def update(target: Target, wishes: Wishes, name: str, cluster: str | None, broker: str | None) -> None:
    """Change a topic; what is not named stays as it is."""
    from orbitmq.admin.topics import TopicPlan, update_topic

    plan = wishes.plan(name)
    if plan == TopicPlan(topic=name):
        raise click.UsageError("nothing to change: name what is to be another")
    places = target.run(lambda session: update_topic(session, plan, cluster=cluster, broker=broker))
    click.echo(f"changed topic {name} on {_names(places)}")


@topic.command("rm")
@topic_argument()
@click.option("-c", "--cluster", help="Only on the brokers of this cluster.")
@destructive_options
@target_options
def remove(target: Target, name: str, cluster: str | None, yes: bool, dry_run: bool) -> None:
    """Delete a topic with all its messages."""
    from orbitmq.admin.topics import delete_topic, describe_topic

    found = target.run(lambda session: describe_topic(session, name, cluster=cluster))
    readers = f", read by {', '.join(found.groups)}" if found.groups else ""
    where = ", ".join(on.broker for on in found.brokers) or "no broker"
    preview = f"topic {name}: {found.messages} messages in {len(found.queues)} queues on {where}{readers}"
    if may_go_on(preview, "Delete it, with its messages, for good?", yes=yes, dry_run=dry_run):
        places = target.run(lambda session: delete_topic(session, name, cluster=cluster))
        click.echo(f"deleted topic {name} on {_names(places)}")


@topic.command()
@topic_argument()
@click.option(
    "--from", "start", default="latest", show_default=True, metavar="TIME", help="earliest, latest or a time."
)
@click.option("--filter", "tags", help='Only these tags: "new || paid".')
@click.option("--sql", help="Only messages for which this SQL92 expression over properties holds.")
@click.option("--key", help="Only messages with this key.")
@click.option("--grep", metavar="TEXT", help="Only messages whose body holds this text.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many.")
@click.option(
    "--template",
    help="How a message is printed, for example '{stored_at} {tag} {body}'. Fields as in `-o json`; \\n and \\t are understood.",
)
@output_option
@target_options
def tail(
    target: Target,
    name: str,
    start: str,
    tags: str | None,
    sql: str | None,
    key: str | None,
    grep: str | None,
    count: int | None,
    template: str | None,
    output: str,
) -> None:
    """Follow a topic: messages as they come, until Ctrl-C. No group is touched."""
    from orbitmq.cli.tailing import Tail, starting_point

    if tags is not None and sql is not None:
        raise click.UsageError("--filter and --sql exclude each other")
    wanted = Tail(
        topic=name, start=starting_point(start), tags=tags, sql=sql, key=key, grep=grep, count=count, template=template
    )
    target.run(lambda session: wanted.show(session, output))


def _names(places: Sequence[BrokerPlace]) -> str:
    return ", ".join(place.broker for place in places) or "no broker"
