"""Running a pipeline: its tables are made as views, its rows checked, its sinks fed; once, or until interrupted.

Every sink is a streaming query with a checkpoint of its own, so a pipeline goes on where it was. Into files each row comes
exactly once; into a topic at least once, with ids that tell repeats apart. What expectations let through or not is counted.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from orbitmq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from orbitmq.spark.pipeline_file import Expectation, Pipeline, Sink, Source, Transform


@dataclass(slots=True)
class PipelineSummary:
    rows: dict[str, int] = field(default_factory=dict)  # sink -> rows read for it
    unmet: dict[str, int] = field(default_factory=dict)  # rule -> rows that did not meet it


class RunningPipeline:
    """`folder` is where the file is: its paths begin there."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, folder: Path) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._folder = folder
        self.tables: dict[str, DataFrame] = {}
        for source in pipeline.sources:
            self._add(source.name, self._source(source))
        for transform in pipeline.transforms:
            self._add(transform.name, self._transformed(transform))

    def describe(self) -> str:
        """What would run: every table with its columns, every sink with its plan."""
        parts = []
        for name, frame in self.tables.items():
            columns = ", ".join(f"{one.name} {one.dataType.simpleString()}" for one in frame.schema)
            parts.append(f"{name}{' (stream)' if frame.isStreaming else ''}: {columns}")
        for sink in self._pipeline.sinks:
            plan: Any = self.tables[sink.table]._jdf.queryExecution().analyzed().toString()
            parts.append(f"{sink.table} -> {sink.format} {sink.path}\n{plan}".rstrip())
        return "\n".join(parts)

    def run_once(self) -> PipelineSummary:
        """With what there is."""
        return self._finished([self._start(index, sink, {"availableNow": True}) for index, sink in self._streams()])

    def run_until(self, stopping: Callable[[], bool], every_seconds: float) -> PipelineSummary:
        trigger = {"processingTime": f"{every_seconds} seconds"}
        queries = [self._start(index, sink, trigger) for index, sink in self._streams()]
        while not stopping() and all(query.isActive for query in queries):
            queries[0].awaitTermination(0.2)  # type: ignore[arg-type]
        for query in queries:
            if query.isActive:
                query.stop()
        return self._finished(queries)

    def _streams(self) -> list[tuple[int, Sink]]:
        """The sinks that are fed by streams; the others are written here and now."""
        streams = []
        for index, sink in enumerate(self._pipeline.sinks):
            if self.tables[sink.table].isStreaming:
                streams.append((index, sink))
            else:
                self._write(sink)
        return streams

    def _add(self, name: str, frame: DataFrame) -> None:
        for number, expectation in enumerate(self._pipeline.expectations):
            if expectation.table == name:
                frame = _expected(frame, expectation, f"expect_{number}")
        frame.createOrReplaceTempView(f"`{name}`")
        self.tables[name] = frame

    def _source(self, source: Source) -> DataFrame:
        options = _texts(source.options)
        if source.format == "rocketmq":
            return (
                self._spark.readStream.format("rocketmq").options(**_texts(self._pipeline.connection), **options).load()
            )
        reading = self._spark.read.format(source.format).options(**options)
        if source.columns:
            reading = reading.schema(source.columns)
        return reading.load(self._path(source.path))

    def _transformed(self, transform: Transform) -> DataFrame:
        if transform.sql:
            return self._spark.sql(transform.sql)
        frame = self.tables[transform.source]
        if transform.python:
            return _function(self._folder, transform.python)(frame)
        text = transform.inline or self._schema_text(transform.json)
        schema = StructType.fromDDL(text)
        if not isinstance(schema, StructType):
            raise ConfigError(
                f"transform {transform.name}: {text!r} is no list of columns", hint="id BIGINT, cents BIGINT"
            )
        parsed = frame.withColumn("__parsed", sql.from_json(sql.col("body").cast("string"), schema))
        kept = [name for name in frame.columns if name not in ("body", *schema.fieldNames())]
        return parsed.select("__parsed.*", *kept)

    def _schema_text(self, name: str) -> str:
        try:
            return (self._folder / name).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"schema {name}: {error.strerror}") from error

    def _start(self, index: int, sink: Sink, trigger: Mapping[str, Any]) -> StreamingQuery:
        checkpoint = self._path(self._pipeline.checkpoint)
        writing = self.tables[sink.table].writeStream.queryName(f"{self._pipeline.name}: {sink.table} {index}")
        writing = (
            writing.format(sink.format).outputMode(sink.mode).trigger(**trigger).options(**self._sink_options(sink))
        )
        writing = writing.option("checkpointLocation", f"{checkpoint}/{index}-{sink.table}")
        return writing.start(self._path(sink.path)) if sink.path else writing.start()

    def _write(self, sink: Sink) -> None:
        writing = self.tables[sink.table].write.format("noop" if sink.format == "console" else sink.format)
        writing = writing.options(**self._sink_options(sink)).mode("append")
        if sink.format == "console":
            self.tables[sink.table].show(truncate=False)
        elif sink.path:
            writing.save(self._path(sink.path))
        else:
            writing.save()

    def _sink_options(self, sink: Sink) -> dict[str, str]:
        connection = _texts(self._pipeline.connection) if sink.format == "rocketmq" else {}
        return {**connection, **_texts(sink.options)}

    def _path(self, path: str) -> str:
        return path if "://" in path or Path(path).is_absolute() else str(self._folder / path)

    def _finished(self, queries: list[StreamingQuery]) -> PipelineSummary:
        summary = PipelineSummary()
        rules = [one.rule for one in self._pipeline.expectations]
        for query in queries:
            query.awaitTermination()
            for progress in query.recentProgress:
                name = (progress.name or "").partition(": ")[2].rpartition(" ")[0]
                summary.rows[name] = summary.rows.get(name, 0) + progress.numInputRows
                for observed, row in progress.observedMetrics.items():
                    rule = rules[int(observed.removeprefix("expect_"))]
                    summary.unmet[rule] = summary.unmet.get(rule, 0) + int(row["unmet"] or 0)
        return summary


def _expected(frame: DataFrame, expectation: Expectation, name: str) -> DataFrame:
    met = f"coalesce(({expectation.rule}), false)"
    counted = frame.observe(name, sql.count_if(sql.expr(f"NOT {met}")).alias("unmet"))
    if expectation.otherwise == "count":
        return counted
    if expectation.otherwise == "drop":
        return counted.where(met)
    text = f"a row of {expectation.table} does not meet: {expectation.rule}".replace("\\", "\\\\").replace("'", "\\'")
    return counted.where(f"IF({met}, true, CAST(raise_error('{text}') AS BOOLEAN))")


def _function(folder: Path, name: str) -> Callable[[DataFrame], DataFrame]:
    file, _, function = name.partition(":")
    spec = importlib.util.spec_from_file_location(Path(file).stem, folder / file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{name}: {file} is no Python file", hint="write file.py:function")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        found: Callable[[DataFrame], DataFrame] = getattr(module, function)
    except (OSError, AttributeError) as error:
        raise ConfigError(f"{name} cannot be used: {error}", hint="write file.py:function") from error
    return found


def _texts(options: Mapping[str, str | int | bool]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
