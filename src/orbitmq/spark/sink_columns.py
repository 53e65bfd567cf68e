"""The columns of a frame that is written to topics: which it may have, of which types, and under which names.

    body (value)     binary or string; the only one that must be there
    topic            string; the option `topic` wins over it
    tags (tag)       string
    keys             string, or array of strings
    properties       map of strings
    orderKey         string: rows with the same key go to the same queue, in their order within a task. Without this column the property
                     __SHARDINGKEY counts, which a message that was sent with an order key has
    delay            interval, or seconds as a number
    deliverAt        timestamp
    delayLevel       int, one of the broker's levels, counted from 1
    bornAt           timestamp: when the message was born, if not now. Only rows of the same millisecond can share a request
    dedupId          string: what repeats of the row share, where the sink's own id (its task and number) would not do
    retryTopic       string: the topic it is of, where it goes to %RETRY%<group>, which only that group reads

Columns that the source makes and the sink has no use for (queueId, flag, storeTimestamp, ...) are left out, so that what was read can
be written as it is.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    FractionalType,
    IntegralType,
    MapType,
    StringType,
    TimestampType,
)

from orbitmq.errors import ConfigError
from orbitmq.spark.schema import COLUMNS as SOURCE_COLUMNS
from orbitmq.spark.sink_rows import TRAVEL_ALONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.types import StructType


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, StringType)


def _is_bytes_or_text(kind: DataType) -> bool:
    return isinstance(kind, BinaryType | StringType)


def _is_text_or_texts(kind: DataType) -> bool:
    return isinstance(kind, StringType) or (isinstance(kind, ArrayType) and isinstance(kind.elementType, StringType))


def _is_map_of_texts(kind: DataType) -> bool:
    return isinstance(kind, MapType) and isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)


def _is_delay(kind: DataType) -> bool:
    return isinstance(kind, DayTimeIntervalType | IntegralType | FractionalType | DecimalType)


# column -> its other names, whether a type fits, what to say when it does not
_COLUMNS: Final[dict[str, tuple[tuple[str, ...], Callable[[DataType], bool], str]]] = {
    "topic": ((), _is_text, "string"),
    "body": (("value",), _is_bytes_or_text, "binary or string"),
    "tags": (("tag",), _is_text, "string"),
    "keys": ((), _is_text_or_texts, "string or array<string>"),
    "properties": ((), _is_map_of_texts, "map<string,string>"),
    "orderKey": (("order_key", "shardingKey", "sharding_key"), _is_text, "string"),
    "delay": ((), _is_delay, "an interval, or a number of seconds"),
    "deliverAt": (("deliver_at",), lambda kind: isinstance(kind, TimestampType), "timestamp"),
    "delayLevel": (("delay_level",), lambda kind: isinstance(kind, IntegralType), "int"),
    "bornAt": (("born_at",), lambda kind: isinstance(kind, TimestampType), "timestamp"),
    "dedupId": (("dedup_id",), _is_text, "string"),
    "retryTopic": (("retry_topic",), _is_text, "string"),
}
_BY_NAME: Final = {alias: name for name, (aliases, _, _) in _COLUMNS.items() for alias in (name, *aliases)}
_IGNORED: Final = frozenset(SOURCE_COLUMNS) - _BY_NAME.keys()


def sink_columns(schema: StructType, *, has_topic_option: bool) -> dict[str, str]:
    """Column of the sink -> name in the frame. ConfigError when the frame cannot be written."""
    found: dict[str, str] = {}
    for field in schema:
        column = _BY_NAME.get(field.name)
        if column is None:
            if field.name not in _IGNORED:
                raise _unknown(field.name)
            continue
        _, fits, wanted = _COLUMNS[column]
        if not fits(field.dataType):
            raise ConfigError(
                f"column {field.name} is {field.dataType.simpleString()}; the rocketmq sink takes {wanted}",
                hint=f"cast it, for example CAST({field.name} AS STRING)",
            )
        if column in found:
            raise ConfigError(f"columns {found[column]} and {field.name} are the same to the rocketmq sink")
        found[column] = field.name
    if "body" not in found:
        raise ConfigError("the frame has no column body", hint="name one body or value: to_json(struct(*)) AS body")
    if "topic" not in found and not has_topic_option:
        raise ConfigError("nothing says to which topic to write", hint='.option("topic", "Orders"), or a column topic')
    if len(found.keys() & {"delay", "deliverAt", "delayLevel"}) > 1:
        raise ConfigError("delay, deliverAt and delayLevel exclude each other", hint="keep one of these columns")
    alone = found.keys() & TRAVEL_ALONE
    if "bornAt" in found and alone:
        raise ConfigError(
            f"columns bornAt and {found[min(alone)]} exclude each other",
            hint="delayed and retried messages are born when they are sent",
        )
    return found


def _unknown(name: str) -> ConfigError:
    near = get_close_matches(name, _BY_NAME, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return ConfigError(
        f"the rocketmq sink has no column {name!r}",
        hint=f"{hint}it takes {', '.join(_COLUMNS)}; put the rest into body or properties, or drop it",
    )
