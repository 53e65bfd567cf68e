"""A pipeline as a file: where rows come from, what is made of them, what must hold for them, where they go.

    name = "orders"
    checkpoint = "checkpoints/orders"            # what is done; run again, it goes on

    [connection]                                 # for every source and sink of format rocketmq
    nameServer = "127.0.0.1:9876"

    [[source]]
    name = "raw"
    format = "rocketmq"                          # or rocketmq-store, parquet, json, csv
    options = { subscribe = "Orders", startingOffsets = "earliest" }

    [[transform]]
    name = "orders"
    from = "raw"
    json = "schemas/order.ddl"                   # the body as columns; or inline = "id BIGINT, cents BIGINT",
                                                 # avro = "order.avsc", protobuf = "order.desc:shop.Order"
    malformed = "fail"                           # or null: the columns of such a body are all null

    [[transform]]
    name = "large"
    sql = "SELECT id, cents FROM orders WHERE cents > 1000"

    [[expect]]
    table = "orders"
    rule = "cents >= 0"
    otherwise = "drop"                           # or fail, or count

    [[sink]]
    table = "large"
    format = "parquet"                           # or rocketmq, delta, iceberg, json, csv, console
    path = "lake/large"

Tables are named where they are made and may be used by any that come later.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from orbitmq import saved_file
from orbitmq.errors import ConfigError
from orbitmq.spark.pipeline_checkpoints import folder_of, target_of

if TYPE_CHECKING:
    from pathlib import Path

FILE_FORMATS: Final = ("parquet", "json", "csv")
TABLE_FORMATS: Final = ("delta", "iceberg")
SOURCE_FORMATS: Final = ("rocketmq", "rocketmq-store", *FILE_FORMATS)
SINK_FORMATS: Final = ("rocketmq", *FILE_FORMATS, *TABLE_FORMATS, "console")
_NAME: Final = re.compile(r"\w[\w.-]*")
_WAYS: Final = ("sql", "python", "json", "inline", "avro", "protobuf")  # of a transform


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    format: str
    path: str = ""
    options: dict[str, str | int | bool] = {}
    columns: str = ""  # a schema in SQL's words, for files


class Transform(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of: SQL over earlier tables; a function of a Python file, given `source`; the body of `source` as columns."""

    name: str
    sql: str = ""
    python: str = ""  # file.py:function
    json: str = ""  # a file with a schema in SQL's words
    inline: str = ""  # such a schema itself
    avro: str = ""  # a file with a schema of Avro; behind a colon, which record of several
    protobuf: str = ""  # file:message, of descriptors
    malformed: Literal["fail", "null"] = "fail"  # what becomes of a body that is not what the schema says
    header_bytes: int = 0  # so many bytes of every body come before Avro or Protobuf begin
    source: str | list[str] = msgspec.field(default="", name="from")

    @property
    def inputs(self) -> list[str]:
        return [self.source] if isinstance(self.source, str) else self.source


class Expectation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    table: str
    rule: str  # a condition in SQL; a row for which it is NULL does not meet it
    otherwise: Literal["fail", "drop", "count"] = "fail"


class Sink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    table: str
    format: str
    path: str = ""
    name: str = ""  # of its folder in the checkpoint; without one: made of table, format and target
    options: dict[str, str | int | bool] = {}
    mode: Literal["append", "complete"] = "append"  # complete: a batch, or a table that is no stream, replaces all rows


class Pipeline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    checkpoint: str
    sources: list[Source] = msgspec.field(name="source")
    sinks: list[Sink] = msgspec.field(name="sink")
    connection: dict[str, str | int | bool] = {}
    transforms: list[Transform] = msgspec.field(default_factory=list, name="transform")
    expectations: list[Expectation] = msgspec.field(default_factory=list, name="expect")


def load(path: Path) -> Pipeline:
    """Checked: every table is made before it is used, and every part says what it needs to."""
    try:
        loaded = tomllib.loads(path.read_text(encoding="utf-8"))
        pipeline = msgspec.convert(loaded, Pipeline)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="`orbitmq pipeline init` makes one") from error
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path}: {error}") from error
    check(path, pipeline)
    return pipeline


def check(path: Path, pipeline: Pipeline) -> None:
    """Every table is made before it is used, and every part says what it needs to."""
    made = _tables(path, pipeline)
    for expectation in pipeline.expectations:
        if expectation.table not in made:
            raise ConfigError(f"{path}: an expectation is about {expectation.table!r}", hint=_one_of(made))
    for sink in pipeline.sinks:
        if sink.table not in made:
            raise ConfigError(f"{path}: a sink takes {sink.table!r}", hint=_one_of(made))
        if sink.format not in SINK_FORMATS:
            raise ConfigError(
                f"{path}: the sink of {sink.table} has format {sink.format!r}", hint=_one_of(SINK_FORMATS)
            )
        if sink.format in (*FILE_FORMATS, *TABLE_FORMATS) and not sink.path:
            raise ConfigError(f"{path}: the sink of {sink.table} has no path")
        if sink.name and not _NAME.fullmatch(sink.name):
            raise ConfigError(f"{path}: a sink has the name {sink.name!r}", hint="letters, digits, _ - . make one")
    _check_apart(path, pipeline.sinks)
    if not pipeline.sources or not pipeline.sinks:
        raise ConfigError(f"{path}: a pipeline has at least one source and one sink")


def _check_apart(path: Path, sinks: list[Sink]) -> None:
    folders = [folder_of(sink) for sink in sinks]
    targets = [target_of(sink) for sink in sinks if sink.format in FILE_FORMATS]
    for sink in sinks:
        if folders.count(folder_of(sink)) > 1:
            raise ConfigError(f"{path}: two sinks of {sink.table} are the same", hint="give each a name of its own")
        if sink.format in FILE_FORMATS and targets.count(target_of(sink)) > 1:
            raise ConfigError(
                f"{path}: two sinks write files to {sink.path}", hint="Spark takes the files of one query in a folder"
            )


def _tables(path: Path, pipeline: Pipeline) -> list[str]:
    made: list[str] = []
    for source in pipeline.sources:
        if source.format not in SOURCE_FORMATS:
            raise ConfigError(
                f"{path}: source {source.name} has format {source.format!r}", hint=_one_of(SOURCE_FORMATS)
            )
        if any(name.lower() == "pushfilters" for name in source.options):
            raise ConfigError(
                f"{path}: source {source.name} has the option pushFilters, and tables of a pipeline may be asked several times",
                hint="leave it out: Spark would keep the filters of one question for the others",
            )
        made.append(source.name)
    for transform in pipeline.transforms:
        named = {name: getattr(transform, name) for name in _WAYS}
        if sum(map(bool, named.values())) != 1:
            raise ConfigError(f"{path}: transform {transform.name} needs one of {', '.join(_WAYS)}")
        if not transform.python and isinstance(transform.source, list):
            raise ConfigError(f"{path}: transform {transform.name} is from several tables", hint="python or sql can be")
        for one in transform.inputs if not transform.sql else []:
            if one not in made:
                raise ConfigError(f"{path}: transform {transform.name} is from {one!r}", hint=_one_of(made))
        made.append(transform.name)
    if len(set(made)) != len(made):
        raise ConfigError(f"{path}: two tables have one name", hint=", ".join(made))
    return made


def _one_of(names: tuple[str, ...] | list[str]) -> str:
    return f"there are {', '.join(names)}"


def scaffold(folder: Path, name: str, name_server: str, topic: str, form: str = "toml") -> list[Path]:
    """A pipeline that runs as it is, once the topic exists; nothing is overwritten. The first file is the one to run."""
    words = {"name": name, "name_server": name_server, "topic": topic}
    files = {folder / "pipeline.py": _CODE.format(**words)}
    if form == "toml":
        files = {folder / "pipeline.toml": _PIPELINE.format(**words), folder / "transforms.py": _TRANSFORMS}
    for path in files:
        if path.exists():
            raise ConfigError(f"{path} is there already", hint="give another directory")
    for path, text in files.items():
        saved_file.save(path, text, keep_old=False)
    return list(files)


_PIPELINE: Final = """\
name = "{name}"
checkpoint = "checkpoint"  # what is done; run again, it goes on

[connection]
nameServer = "{name_server}"

[[source]]
name = "raw"
format = "rocketmq"
options = {{ subscribe = "{topic}", startingOffsets = "earliest" }}

[[transform]]
name = "texts"
sql = "SELECT topic, tags, keys, cast(body AS STRING) AS text, storeTimestamp FROM raw"

[[transform]]
name = "clean"
from = "texts"
python = "transforms.py:clean"

[[expect]]
table = "clean"
rule = "length(text) > 0"
otherwise = "drop"

[[sink]]
table = "clean"
format = "parquet"
path = "out"
"""

_TRANSFORMS: Final = '''\
"""Functions from frame to frame, named in pipeline.toml."""

from pyspark.sql import DataFrame, functions


def clean(frame: DataFrame) -> DataFrame:
    return frame.withColumn("text", functions.trim("text"))
'''

_CODE: Final = '''\
"""A pipeline in Python: run it with `orbitmq pipeline run pipeline.py`."""

from pyspark.sql import DataFrame, functions

from orbitmq.spark import Pipeline

pipeline = Pipeline("{name}", checkpoint="checkpoint", connection={{"nameServer": "{name_server}"}})
pipeline.source("raw", "rocketmq", subscribe="{topic}", startingOffsets="earliest")


@pipeline.table
def clean(raw: DataFrame) -> DataFrame:
    """A table is a function; its parameters are the tables it is made of."""
    text = functions.trim(functions.col("body").cast("string"))
    return raw.select("topic", "tags", "keys", text.alias("text"), "storeTimestamp")


pipeline.expect("clean", "length(text) > 0", otherwise="drop")
pipeline.sink("clean", "parquet", path="out")
'''
