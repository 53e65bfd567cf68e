"""Running a pipeline: its tables are made as views, its rows checked, its sinks fed; once, or until interrupted.

Every sink is a streaming query with a checkpoint of its own, so a pipeline goes on where it was. Into files each row comes
exactly once; into a topic at least once, with ids that tell repeats apart. What expectations let through or not is counted.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sql
from pyspark.sql.types import StringType, StructField, StructType

from orbitmq.errors import ConfigError
from orbitmq.spark.body_decoding import bodies_of, decoded
from orbitmq.spark.neighbours import modules_beside, run_file
from orbitmq.spark.pipeline_code import SESSION
from orbitmq.spark.pipeline_file import TABLE_FORMATS
from orbitmq.spark.table_sink import TABLE_SINK, sink_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from orbitmq.spark.body_decoding import Malformed
    from orbitmq.spark.pipeline_code import TableFunction
    from orbitmq.spark.pipeline_file import Expectation, Pipeline, Sink, Source, Transform

_CORRUPT: Final = "__corrupt"


@dataclass(slots=True)
class PipelineSummary:
    rows: dict[str, int] = field(default_factory=dict)  # sink -> rows read for it
    unmet: dict[str, int] = field(default_factory=dict)  # rule -> rows that did not meet it


class RunningPipeline:
    """`folder` is where the file is: its paths begin there. `functions` are those of tables that a Python file makes,
    `credentials` the options to reach a cluster with where the file names none.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        folder: Path,
        *,
        functions: Mapping[str, TableFunction] | None = None,
        credentials: Mapping[str, str] | None = None,
    ) -> None:
        self._functions = functions or {}
        self._spark = spark
        self._pipeline = pipeline
        self._folder = folder
        self._credentials = credentials or {}
        self.tables: dict[str, DataFrame] = {}
        with modules_beside(folder):
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
            self._sink_options(sink)
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
        if source.format == "rocketmq":
            return self._spark.readStream.format("rocketmq").options(**self._connected(source.options)).load()
        reading = self._spark.read.format(source.format).options(**_texts(source.options))
        if source.columns:
            reading = reading.schema(source.columns)
        return reading.load(self._path(source.path))

    def _transformed(self, transform: Transform) -> DataFrame:
        if transform.sql:
            return self._spark.sql(transform.sql)
        if transform.name in self._functions:
            return self._called(self._functions[transform.name])
        frames = [self.tables[name] for name in transform.inputs]
        if transform.python:
            return _function(self._folder, transform.python)(*frames)
        if transform.avro or transform.protobuf:
            kind = "avro" if transform.avro else "protobuf"
            file, _, name = (transform.avro or transform.protobuf).partition(":")
            bodies = bodies_of(kind, self._schema(file), name)
            return decoded(frames[0], bodies, malformed=transform.malformed, header_bytes=transform.header_bytes)
        text = transform.inline or self._schema(transform.json).decode()
        return json_columns(frames[0], text, transform.name, transform.malformed)

    def _called(self, function: TableFunction) -> DataFrame:
        given = {SESSION: self._spark, **self.tables}
        return function(**{name: given[name] for name in inspect.signature(function).parameters})

    def _schema(self, name: str) -> bytes:
        try:
            return (self._folder / name).read_bytes()
        except OSError as error:
            raise ConfigError(f"schema {name}: {error.strerror}") from error

    def _start(self, index: int, sink: Sink, trigger: Mapping[str, Any]) -> StreamingQuery:
        checkpoint = f"{self._path(self._pipeline.checkpoint)}/{index}-{sink.table}"
        writing = self.tables[sink.table].writeStream.queryName(f"{self._pipeline.name}: {sink.table} {index}")
        writing = writing.outputMode(sink.mode).trigger(**trigger).option("checkpointLocation", checkpoint)
        writing = writing.format(_format(sink)).options(**self._sink_options(sink))
        return writing.start(self._path(sink.path)) if sink.path else writing.start()

    def _write(self, sink: Sink) -> None:
        frame = self.tables[sink.table]
        if sink.format == "console":
            frame.show(truncate=False)
            return
        writing = frame.write.format(_format(sink)).options(**self._sink_options(sink)).mode("append")
        if sink.path:
            writing.save(self._path(sink.path))
        else:
            writing.save()

    def _sink_options(self, sink: Sink) -> dict[str, str]:
        if sink.format == "rocketmq":
            return self._connected(sink.options)
        options = _texts(sink.options)
        if sink.format in TABLE_FORMATS:
            options["tableFormat"] = sink.format
            sink_table({**options, "path": self._path(sink.path)})  # what is wrong is told before anything runs
        return options

    def _connected(self, options: Mapping[str, str | int | bool]) -> dict[str, str]:
        """A part's own options win over those of all parts. Credentials are a pair: one of the file's is with none of ours."""
        named = {**_texts(self._pipeline.connection), **_texts(options)}
        has_some = any(name.lower() in ("accesskey", "secretkey") for name in named)
        return named if has_some else {**self._credentials, **named}

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


def json_columns(frame: DataFrame, text: str, name: str, malformed: Malformed) -> DataFrame:
    schema = StructType.fromDDL(text)
    if not isinstance(schema, StructType):
        raise ConfigError(f"transform {name}: {text!r} is no list of columns", hint="id BIGINT, cents BIGINT")
    with_corrupt = StructType([*schema, StructField(_CORRUPT, StringType())])
    body = sql.col("body").cast("string")
    parsed = frame.withColumn("__parsed", sql.from_json(body, with_corrupt, {"columnNameOfCorruptRecord": _CORRUPT}))
    if malformed == "fail":
        said = f"concat('a body of {_quoted(name)} is not the JSON of its columns: ', left(__parsed.{_CORRUPT}, 80))"
        parsed = parsed.where(f"IF(__parsed.{_CORRUPT} IS NULL, true, CAST(raise_error({said}) AS BOOLEAN))")
    kept = [one for one in frame.columns if one not in ("body", *schema.fieldNames())]
    return parsed.select(*(f"__parsed.`{one}`" for one in schema.fieldNames()), *kept)


def _expected(frame: DataFrame, expectation: Expectation, name: str) -> DataFrame:
    met = f"coalesce(({expectation.rule}), false)"
    counted = frame.observe(name, sql.count_if(sql.expr(f"NOT {met}")).alias("unmet"))
    if expectation.otherwise == "count":
        return counted
    if expectation.otherwise == "drop":
        return counted.where(met)
    text = _quoted(f"a row of {expectation.table} does not meet: {expectation.rule}")
    return counted.where(f"IF({met}, true, CAST(raise_error('{text}') AS BOOLEAN))")


def _quoted(text: str) -> str:
    """Inside a string of SQL."""
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _function(folder: Path, name: str) -> TableFunction:
    file, _, function = name.partition(":")
    try:
        found: TableFunction = getattr(run_file(folder / file), function)
    except (OSError, AttributeError) as error:
        raise ConfigError(f"{name} cannot be used: {error}", hint="write file.py:function") from error
    return found


def _format(sink: Sink) -> str:
    return TABLE_SINK if sink.format in TABLE_FORMATS else sink.format


def _texts(options: Mapping[str, str | int | bool]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
