"""Spark's own declarative pipelines (`pyspark.pipelines`), run to their end: `orbitmq pipeline run spark-pipeline.yml`.

    name: orders
    storage: file:///lake/pipelines/orders        where checkpoints go
    libraries: [{glob: {include: transformations/**}}]

Their datasets read topics like any stream, `spark.readStream.format("rocketmq")`, and write to them by `create_sink`. Spark's own
program runs them too, but says failure after success where a source or sink is written in Python (Spark 4.3.0): when a run is over and
did not fail, the server sends what the accumulators of its Python processes hold, because each of those that plan a source registers
two, used or not (pyspark.sql.worker.utils); the client takes that answer for a failure, because it is no event. Here it is taken for
what it is: the end.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkValueError

from orbitmq.errors import ConfigError
from orbitmq.spark.registration import register
from orbitmq.spark.session import start_connect_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

_PACKAGES: Final = ("grpc", "grpc_status", "pandas", "yaml")
_EVENT: Final = "pipeline_event_result"
_PLAN: Final = "\n=== Streaming Query"  # what follows is for those who mend Spark
_ACCUMULATORS: Final = "__python_accumulator__"


def run_declared(
    file: Path, *, master: str | None, conf: Mapping[str, str], dry: bool, tell: Callable[[str], None]
) -> None:
    """`tell` hears what happens, in Spark's words; a run that fails is raised as Spark says it. `dry` checks the graph only."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"Spark's pipelines need packages that are not installed here: {', '.join(missing)}",
            hint='pip install "orbitmq[connect]"',
        )
    from pyspark.pipelines.cli import load_pipeline_spec, register_definitions
    from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

    try:
        spec = load_pipeline_spec(file)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from error
    spark = start_connect_session(spec.name, master=master, conf={**spec.configuration, **conf})
    try:
        register(spark)
        graph = create_dataflow_graph(spark, spec.catalog, spec.database, spec.configuration)
        try:
            register_definitions(file, SparkConnectGraphElementRegistry(spark, graph), spec, spark, graph)
        except (ImportError, NameError, SyntaxError, TypeError, AttributeError) as error:
            raise ConfigError(f"the files of {file} cannot be run: {error}") from error
        answers = start_run(
            spark, graph, full_refresh=None, full_refresh_all=False, refresh=None, dry=dry, storage=spec.storage
        )
        for message in _events(answers):
            tell(message)
    finally:
        spark.stop()


def _events(answers: Iterator[dict[str, Any]]) -> Iterator[str]:
    try:
        for answer in answers:
            if _EVENT in answer:
                yield answer[_EVENT].event.message.partition(_PLAN)[0].rstrip()
    except PySparkValueError as error:
        if error.getCondition() != "UNKNOWN_RESPONSE" or _ACCUMULATORS not in str(error):
            raise
