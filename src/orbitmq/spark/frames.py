"""Frames for the commands: of topics, of store directories and of lakes, and as views that SQL can name."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from orbitmq.errors import ConfigError
from orbitmq.spark.lake import Lake
from orbitmq.spark.schema import table_schema
from orbitmq.spark.table_formats import live_paths

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

_NAMED: Final = re.compile(r"([^\W\d]\w*)=(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What a query may read. A store or a lake may be given as `name=path`."""

    topics: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    lakes: tuple[str, ...] = ()
    connection: Mapping[str, str] = field(default_factory=dict)  # options of the source: name server, credentials

    def __bool__(self) -> bool:
        return bool(self.topics or self.stores or self.lakes)


def topic_frame(
    spark: SparkSession, connection: Mapping[str, str], topics: tuple[str, ...], **options: str
) -> DataFrame:
    return spark.read.format("rocketmq").options(**connection, subscribe=",".join(topics), **options).load()


def store_frame(spark: SparkSession, directory: str, **options: str) -> DataFrame:
    return spark.read.format("rocketmq-store").options(**options).load(directory)


def lake_frame(spark: SparkSession, address: str) -> DataFrame:
    """The files that the manifests name: whole batches, each once."""
    lake = Lake(address)
    files = [lake.address_of(path) for path in live_paths(lake, lake.state())]
    if not files:
        raise ConfigError(f"{address} holds no archive and no export", hint="`orbitmq spark archive` makes one")
    # Archives may have been written with more columns or fewer from one run to the next.
    frame: DataFrame = spark.read.option("mergeSchema", "true").parquet(*files)
    return frame


def all_frames(spark: SparkSession, tables: Tables, **options: str) -> DataFrame:
    """Everything as one, in the standard columns or those of the option `columns`."""
    frames = []
    if tables.topics:
        frames.append(topic_frame(spark, tables.connection, tables.topics, **options))
    frames += [store_frame(spark, _named(path, "")[1], **options) for path in tables.stores]
    names = table_schema(options.get("columns")).fieldNames()
    for address in tables.lakes:
        frame = lake_frame(spark, _named(address, "")[1])
        frames.append(frame.select(*(name for name in names if name in frame.columns)))
    if not frames:
        raise ConfigError("nothing to read is named", hint="give --topic, --store or --lake")
    together: Any = frames[0]
    for frame in frames[1:]:
        together = together.unionByName(frame, allowMissingColumns=True)
    return together  # type: ignore[no-any-return]


def make_views(spark: SparkSession, tables: Tables) -> list[str]:
    """A topic is a view of its own name; a store is `store`, a lake `lake`, unless given as `name=path`."""
    views: dict[str, DataFrame] = {}
    for topic in tables.topics:
        views[topic] = topic_frame(spark, tables.connection, (topic,))
    for text in tables.stores:
        name, path = _named(text, "store")
        views[_free(name, "store", views)] = store_frame(spark, path)
    for text in tables.lakes:
        name, path = _named(text, "lake")
        views[_free(name, "lake", views)] = lake_frame(spark, path)
    for name, frame in views.items():
        frame.createOrReplaceTempView(f"`{name}`")
    return list(views)


def _named(text: str, default: str) -> tuple[str, str]:
    found = _NAMED.fullmatch(text)
    return (found[1], found[2]) if found else (default, text)


def _free(name: str, kind: str, taken: Mapping[str, object]) -> str:
    if name in taken:
        raise ConfigError(
            f"two tables would be called {name}", hint=f"name them: --{kind} first=PATH --{kind} second=PATH"
        )
    return name
