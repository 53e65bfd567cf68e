"""A pipeline as a Python file: the same parts as in pipeline.toml, with tables made by functions.

    from orbitmq.spark import Pipeline

    pipeline = Pipeline("orders", checkpoint="checkpoint", connection={"nameServer": "127.0.0.1:9876"})
    pipeline.source("raw", "rocketmq", subscribe="Orders", startingOffsets="earliest")

    @pipeline.table
    def orders(raw):                                   # a parameter is the table of its name, or `spark`
        return raw.selectExpr("cast(body AS STRING) AS text", "storeTimestamp")

    pipeline.expect("orders", "length(text) > 0", otherwise="drop")
    pipeline.sink("orders", "delta", path="lake/orders")

`orbitmq pipeline run pipeline.py` runs the one Pipeline of the file.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from orbitmq.errors import ConfigError
from orbitmq.spark.neighbours import run_file
from orbitmq.spark.pipeline_file import Expectation, Sink, Source, Transform, check
from orbitmq.spark.pipeline_file import Pipeline as Parts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame

    TableFunction = Callable[..., DataFrame]

Value = str | int | bool
SESSION = "spark"  # a parameter of this name is the session


class Pipeline:
    """Parts are added in the order in which they depend on each other."""

    def __init__(self, name: str, *, checkpoint: str, connection: Mapping[str, Value] | None = None) -> None:
        self._parts = Parts(name=name, checkpoint=checkpoint, sources=[], sinks=[], connection=dict(connection or {}))
        self.functions: dict[str, TableFunction] = {}

    def source(self, name: str, format: str, *, path: str = "", columns: str = "", **options: Value) -> None:  # noqa: A002
        self._parts.sources.append(Source(name=name, format=format, path=path, columns=columns, options=options))

    def table(self, function: TableFunction) -> TableFunction:
        """A table of the function's name, made of the tables that its parameters name."""
        name = function.__name__
        inputs = [one for one in inspect.signature(function).parameters if one != SESSION]
        self._parts.transforms.append(Transform(name=name, python=f"{name}()", source=inputs))
        self.functions[name] = function
        return function

    def decode(
        self,
        name: str,
        source: str,
        *,
        json: str = "",
        inline: str = "",
        avro: str = "",
        protobuf: str = "",
        malformed: Literal["fail", "null"] = "fail",
        header_bytes: int = 0,
    ) -> None:
        """The body of `source` as columns, by one schema."""
        self._parts.transforms.append(
            Transform(
                name=name,
                source=source,
                json=json,
                inline=inline,
                avro=avro,
                protobuf=protobuf,
                malformed=malformed,
                header_bytes=header_bytes,
            )
        )

    def sql(self, name: str, query: str) -> None:
        self._parts.transforms.append(Transform(name=name, sql=query))

    def expect(self, table: str, rule: str, *, otherwise: Literal["fail", "drop", "count"] = "fail") -> None:
        self._parts.expectations.append(Expectation(table=table, rule=rule, otherwise=otherwise))

    def sink(
        self,
        table: str,
        format: str,  # noqa: A002
        *,
        path: str = "",
        name: str = "",
        mode: Literal["append", "complete"] = "append",
        **options: Value,
    ) -> None:
        """`name`: of the folder in the checkpoint, where it is not to be made of table, format and target."""
        self._parts.sinks.append(Sink(table=table, format=format, path=path, name=name, mode=mode, options=options))

    def parts(self, where: Path) -> Parts:
        """Checked as those of a file are."""
        copied = msgspec.structs.replace(self._parts)
        check(where, copied)
        return copied


def load_code(path: Path) -> Pipeline:
    """Runs the file: its modules are looked for beside it."""
    module = run_file(path)
    found: list[Any] = [one for one in vars(module).values() if isinstance(one, Pipeline)]
    if len(found) != 1:
        raise ConfigError(f"{path} has {len(found)} pipelines", hint="one Pipeline at the top level of the file")
    pipeline: Pipeline = found[0]
    return pipeline
