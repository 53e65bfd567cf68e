"""Running a pipeline: its tables are made as views, its rows checked, its sinks fed; once, or until interrupted.

Every sink of a stream is a streaming query with a checkpoint of its own, so a pipeline goes on where it was. Into files each row comes
exactly once; into a topic at least once, with ids that tell repeats apart. A table that is no stream is read whole and written once:
written again only where it replaces what it wrote before. What expectations let through or not is counted.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Observation
from pyspark.sql import functions as sql
from pyspark.sql.types import StringType, StructField, StructType

from orbitmq.errors import ConfigError
from orbitmq.spark.body_decoding import bodies_of, decoded
from orbitmq.spark.drop_notes import rows_left_out
from orbitmq.spark.hadoop_folder import HadoopFolder
from orbitmq.spark.lake import is_uri
from orbitmq.spark.neighbours import modules_beside, run_file
from orbitmq.spark.pipeline_checkpoints import checkpoint_folders, labels, target_of
from orbitmq.spark.pipeline_code import SESSION
from orbitmq.spark.pipeline_counts import PipelineSummary, ProgressCount, SinkCount, metric_name
from orbitmq.spark.pipeline_file import FILE_FORMATS, TABLE_FORMATS
from orbitmq.spark.table_sink import TABLE_SINK, sink_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from orbitmq.spark.body_decoding import Malformed
    from orbitmq.spark.pipeline_code import TableFunction
    from orbitmq.spark.pipeline_file import Expectation, Pipeline, Sink, Source, Transform

_CORRUPT: Final = "__corrupt"
_LOOK_SECONDS: Final = 0.5  # Spark keeps a hundred progress reports: no query makes so many in between
_FILES_OF_SPARK: Final = (
    "_spark_metadata"  # which files of a folder count, by number of the micro-batch that wrote them
)
_WRITTEN: Final = "_written"
_FOLDERS: Final = (
    "deadletterpath",
    "droppedrowspath",
)  # options of the topic sink that begin where the file is, like all its paths


@dataclass(frozen=True, slots=True)
class SinkPlan:
    sink: Sink
    label: str
    folder: str  # of its checkpoint
    is_new: bool


@dataclass(slots=True)
class RunningSink:
    query: StreamingQuery
    progress: ProgressCount
    notes: str  # where rows that are left out are counted; empty: nowhere
    left_out_before: int

    def look(self) -> None:
        if self.progress.is_news(self.query.lastProgress):
            self.progress.add(self.query.recentProgress)

    def done(self) -> SinkCount:
        self.query.awaitTermination()  # raises what it failed with
        self.look()
        self.progress.count.left_out = rows_left_out(self.notes) - self.left_out_before
        return self.progress.count


class RunningPipeline:
    """`folder` is where the file is: its paths begin there. `functions` are those of tables that a Python file makes,
    `credentials` the options to reach a cluster with where the file names none. `tell` is given a line on how far it is, twice a second.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        folder: Path,
        *,
        functions: Mapping[str, TableFunction] | None = None,
        credentials: Mapping[str, str] | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._tell = tell
        self._functions = functions or {}
        self._spark = spark
        self._pipeline = pipeline
        self._folder = folder
        self._credentials = credentials or {}
        self._observations: dict[int, Observation] = {}  # number of a rule -> of a table that is no stream
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
            plan = _internals(self.tables[sink.table]).queryExecution().analyzed().toString()
            parts.append(f"{sink.table} -> {sink.format} {sink.path}\n{plan}".rstrip())
        return "\n".join(parts)

    def run_once(self) -> PipelineSummary:
        """With what there is."""
        summary, running = self._started({"availableNow": True})
        while active := [one.query for one in running if one.query.isActive]:
            self._watch(active[0], running)
        return _finished(summary, running)

    def run_until(self, stopping: Callable[[], bool], every_seconds: float) -> PipelineSummary:
        if not any(self.tables[sink.table].isStreaming for sink in self._pipeline.sinks):
            raise ConfigError(
                f"pipeline {self._pipeline.name} has no stream that could go on",
                hint="leave out --continuous; topics are streams, files and stores are read whole",
            )
        summary, running = self._started({"processingTime": f"{every_seconds} seconds"})
        while not stopping() and all(one.query.isActive for one in running):
            self._watch(running[0].query, running)
        for one in running:
            if one.query.isActive:
                one.query.stop()
        return _finished(summary, running)

    def _watch(self, query: StreamingQuery, running: list[RunningSink]) -> None:
        """For a while, or until this query ends."""
        query.awaitTermination(_LOOK_SECONDS)  # type: ignore[arg-type]
        for one in running:
            one.look()
        if self._tell is not None:
            self._tell("; ".join(one.progress.count.line() for one in running))

    def _started(self, trigger: Mapping[str, Any]) -> tuple[PipelineSummary, list[RunningSink]]:
        """Tables that are no streams are written when this returns."""
        plans = self._planned()
        summary = PipelineSummary([one.rule for one in self._pipeline.expectations])
        whole = [plan for plan in plans if not self.tables[plan.sink.table].isStreaming]
        for plan in whole:
            self._check_not_written(plan)
        summary.sinks += [self._write(plan) for plan in whole]
        return summary, [self._start(plan, trigger) for plan in plans if plan not in whole]

    def _planned(self) -> list[SinkPlan]:
        """What is wrong with any of the checkpoints is told before anything runs."""
        sinks = self._pipeline.sinks
        there = HadoopFolder(self._spark, self._path(self._pipeline.checkpoint)).names()
        folders = checkpoint_folders(sinks, there)
        plans = [
            SinkPlan(sink, label, folder, folder not in there)
            for sink, label, folder in zip(sinks, labels(sinks), folders, strict=True)
        ]
        for plan in plans:
            if plan.is_new and plan.sink.format in FILE_FORMATS and self.tables[plan.sink.table].isStreaming:
                self._check_no_other_wrote(plan.sink)
        return plans

    def _check_no_other_wrote(self, sink: Sink) -> None:
        """Spark would take the first micro-batches of a new query for those that the folder has got, and leave them out."""
        if HadoopFolder(self._spark, f"{self._path(sink.path)}/{_FILES_OF_SPARK}").names():
            raise ConfigError(
                f"{sink.path} holds what a query of another checkpoint wrote: Spark would leave out rows of this one",
                hint="bring its checkpoint back, give another path, or remove the folder",
            )

    def _check_not_written(self, plan: SinkPlan) -> None:
        if plan.sink.mode == "append" and _WRITTEN in HadoopFolder(self._spark, self._checkpoint(plan)).names():
            again = 'mode = "complete" replaces them, or ' if plan.sink.format != "rocketmq" else ""
            raise ConfigError(
                f"all rows of {plan.sink.table} were written to {target_of(plan.sink)} before, and its source is read whole",
                hint=f"{again}remove {self._checkpoint(plan)} to write them once more",
            )

    def _checkpoint(self, plan: SinkPlan) -> str:
        return f"{self._path(self._pipeline.checkpoint)}/{plan.folder}"

    def _add(self, name: str, frame: DataFrame) -> None:
        for number, expectation in enumerate(self._pipeline.expectations):
            if expectation.table != name:
                continue
            if frame.isStreaming:
                frame = _expected(frame, expectation, metric_name(number))
            else:
                self._observations[number] = Observation(metric_name(number))
                frame = _expected(frame, expectation, self._observations[number])
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

    def _start(self, plan: SinkPlan, trigger: Mapping[str, Any]) -> RunningSink:
        sink = plan.sink
        writing = self.tables[sink.table].writeStream.queryName(f"{self._pipeline.name}: {plan.label}")
        writing = writing.outputMode(sink.mode).trigger(**trigger).option("checkpointLocation", self._checkpoint(plan))
        writing = writing.format(_format(sink)).options(**self._sink_options(sink))
        notes = self._notes(plan)
        before = rows_left_out(notes)
        query = writing.start(self._path(sink.path)) if sink.path else writing.start()
        return RunningSink(query, ProgressCount(plan.label, whole_tables=tuple(self._observations)), notes, before)

    def _write(self, plan: SinkPlan) -> SinkCount:
        sink, frame = plan.sink, self.tables[plan.sink.table]
        if sink.format == "console":
            frame.show(truncate=False)
            return SinkCount(plan.label, rows=None)
        counted = Observation()
        writing = frame.observe(counted, sql.count(sql.lit(1)).alias("rows")).write.format(_format(sink))
        writing = writing.options(**self._sink_options(sink)).mode("overwrite" if sink.mode == "complete" else "append")
        notes = self._notes(plan)
        before = rows_left_out(notes)
        if notes:  # a sink that is told of a checkpoint counts there, as a stream's does
            writing = writing.option("checkpointLocation", self._checkpoint(plan))
        if sink.path:
            writing.save(self._path(sink.path))
        else:
            writing.save()
        if sink.mode == "append":
            HadoopFolder(self._spark, self._checkpoint(plan)).mark(_WRITTEN)
        count = SinkCount(plan.label, "written", counted.get["rows"])
        count.left_out = rows_left_out(notes) - before
        for number in self._rules_on_the_way(frame):
            count.unmet[number] = self._observations[number].get["unmet"]
        return count

    def _rules_on_the_way(self, frame: DataFrame) -> list[int]:
        """Of tables that are no streams. To ask for a metric that no plan has would take for ever."""
        plan: str = _internals(frame).queryExecution().analyzed().toString()
        return [number for number in self._observations if f"CollectMetrics {metric_name(number)}," in plan]

    def _notes(self, plan: SinkPlan) -> str:
        """Where its sink counts the rows that it leaves out; empty for those that leave none."""
        if plan.sink.format != "rocketmq":
            return ""
        own = [str(value) for name, value in plan.sink.options.items() if name.lower() == "droppedrowspath"]
        return own[0] if own else self._checkpoint(plan)

    def _sink_options(self, sink: Sink) -> dict[str, str]:
        if sink.format == "rocketmq":
            options = self._connected(sink.options)
            return {name: self._path(value) if name.lower() in _FOLDERS else value for name, value in options.items()}
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
        return path if is_uri(path) or Path(path).is_absolute() else str(self._folder / path)


def _finished(summary: PipelineSummary, running: list[RunningSink]) -> PipelineSummary:
    for one in running:
        summary.sinks.append(one.done())
    return summary


def _internals(frame: DataFrame) -> Any:
    return frame._jdf


def json_columns(frame: DataFrame, text: str, name: str, malformed: Malformed) -> DataFrame:
    schema = StructType.fromDDL(text)
    if not isinstance(schema, StructType):
        raise ConfigError(f"transform {name}: {text!r} is no list of columns", hint="id BIGINT, cents BIGINT")
    with_corrupt = StructType([*schema, StructField(_CORRUPT, StringType())])
    body = sql.col("body").cast("string")
    parsed = frame.withColumn("__parsed", sql.from_json(body, with_corrupt, {"columnNameOfCorruptRecord": _CORRUPT}))
    # Of a body that is only blanks nothing is parsed, and nothing is called corrupt.
    is_good = f"(body IS NULL OR (__parsed IS NOT NULL AND __parsed.{_CORRUPT} IS NULL))"
    if malformed == "fail":
        text = f"left(coalesce(__parsed.{_CORRUPT}, CAST(body AS STRING)), 80)"
        said = f"concat('a body of {_quoted(name)} is not the JSON of its columns: ', {text})"
        parsed = parsed.where(f"IF({is_good}, true, CAST(raise_error({said}) AS BOOLEAN))")
    else:  # Spark keeps the fields that it could read
        parsed = parsed.withColumn("__parsed", sql.expr(f"IF({is_good}, __parsed, NULL)"))
    kept = [one for one in frame.columns if one not in ("body", *schema.fieldNames())]
    return parsed.select(*(f"__parsed.`{one}`" for one in schema.fieldNames()), *kept)


def _expected(frame: DataFrame, expectation: Expectation, metric: Observation | str) -> DataFrame:
    met = f"coalesce(({expectation.rule}), false)"
    counted = frame.observe(metric, sql.count_if(sql.expr(f"NOT {met}")).alias("unmet"))
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
    module = run_file(folder / file)
    try:
        found: TableFunction = getattr(module, function)
    except AttributeError as error:
        raise ConfigError(f"{name} cannot be used: {error}", hint="write file.py:function") from error
    return found


def _format(sink: Sink) -> str:
    return TABLE_SINK if sink.format in TABLE_FORMATS else sink.format


def _texts(options: Mapping[str, str | int | bool]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
