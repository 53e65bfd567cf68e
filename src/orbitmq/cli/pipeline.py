"""`orbitmq pipeline`: sources, transforms and sinks in one file, run by Spark."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click

from orbitmq.cli.lazy import HelpfulGroup
from orbitmq.cli.options import credential_options, credential_pair, verbose_option
from orbitmq.cli.spark_session import (
    SparkPlace,
    continuous_options,
    credential_settings,
    require_spark,
    spark_options,
    status,
)


@click.group(cls=HelpfulGroup)
def pipeline() -> None:
    """Sources, transforms, expectations and sinks in a file, run by Spark."""


@pipeline.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False), default=Path())
@click.option("--name", default="pipeline", show_default=True)
@click.option("-n", "--namesrv", "name_server", default="127.0.0.1:9876", show_default=True, envvar="NAMESRV_ADDR")
@click.option("-t", "--topic", default="Orders", show_default=True)
@click.option(
    "--form",
    type=click.Choice(["toml", "python"]),
    default="toml",
    show_default=True,
    help="Parts in a file, or in code.",
)
def init(directory: Path, name: str, name_server: str, topic: str, form: str) -> None:
    """Write a pipeline to start from into DIRECTORY."""
    from orbitmq.spark.pipeline_file import scaffold

    made = scaffold(directory, name, name_server, topic, form)
    for path in made:
        click.echo(f"made {path}")
    click.echo(f"next: orbitmq pipeline run {made[0]} --dry-run")


@pipeline.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@continuous_options(10.0)
@click.option("--dry-run", is_flag=True, help="Only show tables, columns and plans.")
@spark_options
@credential_options[0]
@credential_options[1]
@verbose_option
def run(
    place: SparkPlace,
    file: Path,
    continuous: bool,
    seconds: float,
    dry_run: bool,
    access_key: str | None,
    secret_key: str | None,
) -> None:
    """Run the pipeline in FILE, pipeline.toml or pipeline.py. What was done is kept in its checkpoint: run again, it goes on.

    Topics are streams. Files and stores are read whole: their rows are written once, or replaced (mode = "complete").

    FILE says where the cluster is. Credentials need not be in it: those of the environment count where it names none.

    A FILE that ends with .yml is one of Spark's own declarative pipelines (pyspark.pipelines).
    """
    require_spark()
    credentials = credential_settings(credential_pair(access_key, secret_key))
    if file.suffix in (".yml", ".yaml"):
        if continuous:
            raise click.UsageError("Spark's own pipelines run once: leave out --continuous")
        _run_declared(place, file, dry_run)
        return
    from orbitmq.spark.pipeline_code import load_code
    from orbitmq.spark.pipeline_file import load

    code = load_code(file) if file.suffix == ".py" else None
    loaded = load(file) if code is None else code.parts(file)
    with place.session("pipeline") as session:
        from orbitmq.spark.pipeline import RunningPipeline

        running = RunningPipeline(
            session,
            loaded,
            file.absolute().parent,
            functions=code.functions if code else None,
            credentials=credentials,
            tell=lambda line: status(f"running: {line}"),
        )
        if dry_run:
            click.echo(running.describe())
            return
        status("running")
        if continuous:
            stopping = threading.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: stopping.set())
            summary = running.run_until(stopping.is_set, seconds)
        else:
            summary = running.run_once()
        status("")
    for line in summary.lines():
        click.echo(line)


def _run_declared(place: SparkPlace, file: Path, dry_run: bool) -> None:
    from orbitmq.spark.declared import run_declared
    from orbitmq.spark.session import parse_conf

    with place.plain_failures():
        run_declared(file, master=place.master, conf=parse_conf(place.conf), dry=dry_run, tell=click.echo)
