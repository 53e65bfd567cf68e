"""`orbitmq bench`: how fast a cluster takes and gives messages, measured from here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from orbitmq.cli.choosing import fields_of
from orbitmq.cli.completing import topic_option
from orbitmq.cli.options import output_option, target_options
from orbitmq.cli.view import View, rows_text

if TYPE_CHECKING:
    from orbitmq.cli.options import Target


@click.command()
@topic_option(default="BenchmarkTest", show_default=True, help="Where to send.")
@click.option("--messages", type=click.IntRange(min=1), default=10_000, show_default=True, help="How many.")
@click.option("--size", type=click.IntRange(min=1), default=1024, show_default=True, help="Bytes of a body.")
@click.option(
    "--in-flight", type=click.IntRange(min=1), default=64, show_default=True, help="Sends on their way at once."
)
@click.option("--read", is_flag=True, help="Read them back, too.")
@output_option
@target_options
def bench(target: Target, topic: str, messages: int, size: int, in_flight: int, read: bool, output: str) -> None:
    """Send messages to a topic as fast as the cluster takes them; messages a second, and how long one takes."""
    from orbitmq.cli.measuring import BenchRow, measure

    rows = target.run(lambda session: measure(session, topic, messages, size, in_flight, read=read))
    click.echo(rows_text(View(format=output), BenchRow, [fields_of(row) for row in rows]), nl=False)
