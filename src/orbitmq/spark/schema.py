"""The columns of a message as a row, and which of them a query wants.

Spark prunes no columns of a Python source: whatever is in the schema crosses to the JVM, even for a `count()`. So a query
says what it needs: by a schema of its own (`.schema("topic STRING, body BINARY")`), by the option `columns`, or by
`includeBody` and `properties`. The standard columns are those that most queries read; the rest comes on request.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, Literal

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from orbitmq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

PropertiesForm = Literal["map", "raw", "none"]

_TEXT: Final = StringType()
_INT: Final = IntegerType()
_LONG: Final = LongType()
_TIME: Final = TimestampType()
_PROPERTIES_MAP: Final = MapType(_TEXT, _TEXT)

# What most queries read, in this order.
STANDARD: Final[dict[str, DataType]] = {
    "topic": _TEXT,
    "tags": _TEXT,  # null: none
    "keys": _TEXT,  # as stored: separated by spaces; null: none
    "body": BinaryType(),  # decompressed
    "properties": _PROPERTIES_MAP,
    "brokerName": _TEXT,
    "queueId": _INT,
    "queueOffset": _LONG,
    "msgId": _TEXT,  # the id its producer gave it (UNIQ_KEY); of a message without one, offsetMsgId
    "bornTimestamp": _TIME,
    "storeTimestamp": _TIME,
    "flag": _INT,
}

# What comes when it is asked for by name, or with columns=all.
ON_REQUEST: Final[dict[str, DataType]] = {
    "commitLogOffset": _LONG,
    "offsetMsgId": _TEXT,  # store host and commit-log offset in hex
    "bornHost": _TEXT,  # "10.0.0.1:51234"
    "storeHost": _TEXT,
    "sysFlag": _INT,
    "reconsumeTimes": _INT,
    "preparedTransactionOffset": _LONG,
    "storeSize": _INT,
    "bodyCrc": _LONG,
}

COLUMNS: Final[dict[str, DataType]] = {**STANDARD, **ON_REQUEST}
MAY_BE_NULL: Final = frozenset({"tags", "keys"})


@dataclass(frozen=True, slots=True)
class Projection:
    """The columns wanted, in their order. A decoder makes batches of exactly the schema `arrow`."""

    columns: tuple[str, ...]
    properties: PropertiesForm
    arrow: pa.Schema

    def with_columns(self, extra: Iterable[str]) -> Projection:
        """This one and, behind it, those of `extra` that it lacks: for a reader that needs them to choose rows."""
        missing = [name for name in extra if name not in self.columns]
        if not missing:
            return self
        schema = _struct([*self.columns, *missing], self.properties)
        arrow = to_arrow_schema(schema, timezone="UTC")
        for position, field in enumerate(self.arrow):
            arrow = arrow.set(position, field)
        return Projection(tuple(schema.fieldNames()), self.properties, arrow)


def table_schema(
    columns: str | None = None, *, include_body: bool = True, properties: PropertiesForm = "map"
) -> StructType:
    """The schema of a read without a schema of the user's. `columns`: "all", or names separated by commas."""
    if columns is None or columns.strip().lower() in ("", "standard"):
        names = list(STANDARD)
    elif columns.strip().lower() == "all":
        names = list(COLUMNS)
    else:
        names = [_known(name.strip()) for name in columns.split(",") if name.strip()]
    if not include_body:
        names = [name for name in names if name != "body"]
    if properties == "none":
        names = [name for name in names if name != "properties"]
    if not names:
        raise ConfigError("no columns are left to read", hint="name at least one in the option columns")
    return _struct(names, properties)


def projection(schema: StructType) -> Projection:
    """What a schema, the table's own or the user's, asks for; ConfigError for what no message has."""
    form: PropertiesForm = "none"
    for field in schema:
        name = _known(field.name)
        if name == "properties":
            form = "raw" if isinstance(field.dataType, StringType) else "map"
        _check_type(field, form)
    if not schema.fields:
        raise ConfigError("the schema has no columns", hint=f"choose from {', '.join(COLUMNS)}")
    return Projection(tuple(schema.fieldNames()), form, to_arrow_schema(schema, timezone="UTC"))


def _struct(names: Iterable[str], properties: PropertiesForm) -> StructType:
    fields = []
    for name in names:
        kind = _TEXT if name == "properties" and properties == "raw" else COLUMNS[name]
        fields.append(StructField(name, kind))
    return StructType(fields)


def _known(name: str) -> str:
    if name in COLUMNS:
        return name
    by_lower = {known.lower(): known for known in COLUMNS}
    near = by_lower.get(name.lower()) or next(iter(get_close_matches(name, COLUMNS, 1)), "")
    hint = f"did you mean {near}?" if near else f"the columns are {', '.join(COLUMNS)}"
    raise ConfigError(f"a message has no column {name!r}", hint=hint)


def _check_type(field: StructField, form: PropertiesForm) -> None:
    wanted = COLUMNS[field.name]
    if field.name == "properties":
        kind = field.dataType
        fits = form == "raw" or (
            isinstance(kind, MapType)
            and isinstance(kind.keyType, StringType)
            and isinstance(kind.valueType, StringType)
        )
    else:
        fits = type(field.dataType) is type(wanted)
    if not fits:
        shown = "map<string,string> or string" if field.name == "properties" else wanted.simpleString()
        raise ConfigError(
            f"column {field.name} is {shown}, not {field.dataType.simpleString()}",
            hint="read it as it is and cast it in the query",
        )
    if not field.nullable and field.name in MAY_BE_NULL:
        raise ConfigError(f"column {field.name} cannot be NOT NULL: messages may have none")
