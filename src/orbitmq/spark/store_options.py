"""What a scan of a store directory was told: where it is, which messages of it, and what to do about damage."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast

from orbitmq.client.names import is_system_topic
from orbitmq.errors import ConfigError
from orbitmq.spark.options import Options
from orbitmq.spark.schema import PropertiesForm, table_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

WhatToRead = Literal["messages", "damage"]

# The name of each option, and its other names.
OPTIONS: Final[dict[str, tuple[str, ...]]] = {
    "path": ("directory", "storePathRootDir"),
    "commitLogPath": ("storePathCommitLog",),
    "subscribe": ("topic",),
    "subscribePattern": (),
    "queueIds": (),
    "startingTimestamp": (),
    "endingTimestamp": (),
    "tags": (),
    "brokerName": (),
    "onCorrupt": (),
    "checkCrc": (),
    "partitionBytes": (),
    "read": (),
    "pushFilters": (),
    "columns": (),
    "includeBody": (),
    "properties": (),
}
_LIGHT_QUEUE_PREFIX: Final = "%LMQ%"  # its records stand in the queues of their own topic too
_ALL_OFFSETS: Final = range(2**63 - 1)


@dataclass(frozen=True, slots=True)
class StoreScan:
    """Travels to the workers."""

    directory: Path
    commit_log_directory: Path | None = None
    topics: tuple[str, ...] = ()  # none named: all but the system's
    topic_pattern: str = ""
    queue_ids: tuple[int, ...] = ()  # none named: all
    begin_ms: int | None = None  # store time, inclusive
    end_ms: int | None = None  # exclusive
    tags: tuple[str, ...] = ()  # none named: all, and messages without
    broker_name: str = ""
    skips_corrupt: bool = False
    check_crc: bool = False
    partition_bytes: int | None = None
    push_filters: bool = False
    # What filters of a query leave of it. They say nothing about the names of topics: one that is not there has no messages.
    only_topics: frozenset[str] | None = None
    only_queues: frozenset[int] | None = None
    queue_offsets: range = _ALL_OFFSETS

    @property
    def is_filtered(self) -> bool:
        """Whether filters leave parts of queues, or some queues."""
        return not (self.only_topics is None and self.only_queues is None and self.queue_offsets == _ALL_OFFSETS)

    def wants_queue(self, topic: str, queue_id: int) -> bool:
        if self.queue_ids and queue_id not in self.queue_ids:
            return False
        if self.only_topics is not None and topic not in self.only_topics:
            return False
        if self.only_queues is not None and queue_id not in self.only_queues:
            return False
        if self.topics or self.topic_pattern:
            return topic in self.topics or bool(
                self.topic_pattern and re.fullmatch(self.topic_pattern, topic) and self._is_for_users(topic)
            )
        return self._is_for_users(topic)

    def _is_for_users(self, topic: str) -> bool:
        return not is_system_topic(topic) and not topic.startswith(_LIGHT_QUEUE_PREFIX)


def parse_options(given: Mapping[str, str]) -> tuple[StoreScan, WhatToRead, StructType]:
    """The scan, what of it is wanted, and the schema of messages unless the user gives one."""
    options = Options(given, OPTIONS, "format rocketmq-store")
    if not options.text("path"):
        raise ConfigError("no store is named", hint='.load("/path/of/store"): the broker\'s storePathRootDir')
    pattern = options.text("subscribePattern")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"option subscribePattern is {pattern!r}: {error}") from error
    scan = StoreScan(
        directory=_local(options, "path"),
        commit_log_directory=_local(options, "commitLogPath") if options.text("commitLogPath") else None,
        topics=_listed(options.text("subscribe"), ","),
        topic_pattern=pattern,
        queue_ids=_queue_ids(options),
        begin_ms=options.moment_ms("startingTimestamp"),
        end_ms=options.moment_ms("endingTimestamp"),
        tags=tuple(tag for tag in _listed(options.text("tags"), "||") if tag != "*"),
        broker_name=options.text("brokerName"),
        skips_corrupt=options.choice("onCorrupt", "fail", ("fail", "skip")) == "skip",
        check_crc=options.flag("checkCrc", False),
        partition_bytes=options.size("partitionBytes"),
        push_filters=options.flag("pushFilters", False),
    )
    what = cast("WhatToRead", options.choice("read", "messages", ("messages", "damage")))
    form = cast("PropertiesForm", options.choice("properties", "map", ("map", "raw", "none")))
    schema = table_schema(
        options.text("columns") or None, include_body=options.flag("includeBody", True), properties=form
    )
    return scan, what, schema


def _local(options: Options, name: str) -> Path:
    text = options.text(name)
    scheme, colon, rest = text.partition(":")
    if colon and scheme == "file":
        return Path(re.sub(r"^//", "", rest))
    if colon and rest.startswith("//"):
        raise ConfigError(
            f"option {name} is {text!r}", hint="a store is mapped into memory: it must be on a local disk"
        )
    return Path(text)


def _listed(text: str, separator: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(separator) if part.strip())


def _queue_ids(options: Options) -> tuple[int, ...]:
    parts = _listed(options.text("queueIds"), ",")
    if not all(part.isdecimal() for part in parts):
        raise options.wrong("queueIds", "numbers separated by commas")
    return tuple(int(part) for part in parts)
