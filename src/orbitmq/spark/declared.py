"""Spark's own declarative pipelines (`pyspark.pipelines`), run to their end: `orbitmq pipeline run spark-pipeline.yml`.

    name: orders
    storage: file:///lake/pipelines/orders        where checkpoints go
    libraries: [{glob: {include: transformations/**}}]

Their datasets read topics like any stream, `spark.readStream.format("rocketmq")`, and write to them by `create_sink`. Spark's own
program runs them too, but says failure after success where a source or sink is written in Python (Spark 4.3.0): it runs the graph by
the client's `execute_command_as_iterator`, which refuses every answer that is no event; and at the end of such a run the server
sends what the accumulators of its Python processes hold, because each of those that plan a source registers two, used or not
(pyspark.sql.worker.utils). The client's `execute_command`, by which Spark's program makes the graph, takes such answers: here the
graph is run by it, too. What a run says while it goes on is lost by that; the last thing it says is given back.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from orbitmq.errors import ConfigError
from orbitmq.spark.registration import register
from orbitmq.spark.session import start_connect_session

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SUFFIXES: Final = (".yml", ".yaml")
_PACKAGES: Final = ("grpc", "grpc_status", "pandas", "yaml")
_EVENT: Final = "pipeline_event_result"


def run_declared(file: Path, *, master: str | None, conf: Mapping[str, str], dry: bool) -> str:
    """Its last words. `dry` checks the graph and runs nothing; what fails is raised as Spark says it."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"Spark's pipelines need packages that are not installed here: {', '.join(missing)}",
            hint='pip install "pyspark[connect]" pyyaml',
        )
    from pyspark.pipelines.cli import load_pipeline_spec, register_definitions
    from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph

    if not file.is_file():
        raise ConfigError(f"there is no file {file}")
    spec = load_pipeline_spec(file)
    spark = start_connect_session(spec.name, master=master, conf={**spec.configuration, **conf})
    try:
        register(spark)
        graph = create_dataflow_graph(spark, spec.catalog, spec.database, spec.configuration)
        register_definitions(file, SparkConnectGraphElementRegistry(spark, graph), spec, spark, graph)
        return _run(spark, graph, spec.storage, dry)
    finally:
        spark.stop()


def _run(spark: Any, graph: str, storage: str, dry: bool) -> str:
    from pyspark.sql.connect import proto

    command = proto.Command()
    start = proto.PipelineCommand.StartRun(dataflow_graph_id=graph, dry=dry, storage=storage)
    command.pipeline_command.start_run.CopyFrom(start)
    _, answers, _ = spark.client.execute_command(command)
    return str(answers[_EVENT].event.message) if _EVENT in answers else ""
