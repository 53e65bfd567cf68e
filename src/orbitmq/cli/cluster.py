"""`orbitmq cluster`: the clusters in numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from orbitmq.cli.options import target_options, view_options
from orbitmq.cli.view import View, show_rows

if TYPE_CHECKING:
    from orbitmq.cli.options import Target


@click.command()
@view_options
@target_options
def cluster(target: Target, view: View) -> None:
    """The clusters in numbers: brokers, topics, rates, releases."""
    from orbitmq.admin.clusters import ClusterRow, list_clusters

    target.run(lambda session: show_rows(session, view, ClusterRow, lambda: list_clusters(session)))
