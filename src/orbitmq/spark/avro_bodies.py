"""Bodies in Avro: one record each, without a container around it. Needs `pip install "orbitmq[avro]"`.

    null, boolean, int, long, float, double, bytes, string      VOID, BOOLEAN, INT, BIGINT, FLOAT, DOUBLE, BINARY, STRING
    record, array, map, enum, fixed                             STRUCT, ARRAY, MAP, STRING, BINARY
    [null, X]; [int, long], [float, double]                     X; BIGINT, DOUBLE
    date, timestamp-*, local-timestamp-*, decimal               DATE, TIMESTAMP, TIMESTAMP_NTZ, DECIMAL
    other logical types                                         as what they are written as

Unions of other types have no column type, and types that hold themselves have no end: an error says which field.
"""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any, Final

import fastavro
from pyspark.sql import types as spark

from orbitmq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.spark.body_decoding import Row

_PRIMITIVES: Final[dict[str, spark.DataType]] = {
    "null": spark.NullType(),
    "boolean": spark.BooleanType(),
    "int": spark.IntegerType(),
    "long": spark.LongType(),
    "float": spark.FloatType(),
    "double": spark.DoubleType(),
    "bytes": spark.BinaryType(),
    "string": spark.StringType(),
}
_LOGICAL: Final[dict[str, spark.DataType]] = {
    "date": spark.DateType(),
    "timestamp-millis": spark.TimestampType(),
    "timestamp-micros": spark.TimestampType(),
    "local-timestamp-millis": spark.TimestampNTZType(),
    "local-timestamp-micros": spark.TimestampNTZType(),
}
_WIDER: Final[dict[frozenset[str], spark.DataType]] = {
    frozenset({"int", "long"}): spark.LongType(),
    frozenset({"float", "double"}): spark.DoubleType(),
}


class AvroBodies:
    """The schema is kept as fastavro gives it back: every name in full, and what names mean beside it."""

    def __init__(self, schema: bytes, name: str) -> None:
        try:
            loaded = _known_logical(json.loads(schema))
            records = _parsed(loaded if isinstance(loaded, list) else [loaded])
        except (ValueError, TypeError, KeyError, AttributeError, fastavro.schema.SchemaParseException) as error:
            raise ConfigError(f"this is no Avro schema: {error!r}", hint="a file of JSON, as .avsc are") from error
        named = {one["name"]: one for one in records if isinstance(one, dict) and one.get("type") == "record"}
        if name and name not in named:
            raise ConfigError(f"the Avro schema has no record {name}", hint=f"there are {', '.join(named) or 'none'}")
        if not named:
            raise ConfigError("the Avro schema is no record", hint="columns come from the fields of a record")
        if not name and len(records) > 1:
            raise ConfigError("the Avro schema has several types", hint=f"name one of {', '.join(named)} after a colon")
        self._schema: dict[str, Any] = named[name] if name else records[0]
        self.name = f"Avro {self._schema['name']}"

    def columns(self) -> spark.StructType:
        columns = _Columns(self._schema["__named_schemas"]).of(self._schema, "")
        assert isinstance(columns, spark.StructType)
        return columns

    def decoder(self) -> Callable[[bytes], Row]:
        fitting = _fitting(self.columns())

        def decode(body: bytes) -> Row:
            stream = io.BytesIO(body)
            try:
                row: Any = fastavro.schemaless_reader(stream, self._schema, None)
            except (EOFError, IndexError, OverflowError, MemoryError, KeyError) as error:
                raise ValueError(f"it ends too early or holds impossible values ({type(error).__name__})") from error
            if rest := len(body) - stream.tell():
                raise ValueError(f"{rest} bytes are left over")
            return row if fitting is None else fitting(row)  # type: ignore[no-any-return]

        return decode


class _Columns:
    """From a schema to column types."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._inside: list[str] = []

    def of(self, schema: Any, field: str) -> spark.DataType:
        if isinstance(schema, list):
            return self._union(schema, field)
        if isinstance(schema, str):
            return _PRIMITIVES.get(schema) or self.of(self._named[schema], field)
        kind = schema["type"]
        logical = schema.get("logicalType")
        if logical == "decimal":
            return spark.DecimalType(schema["precision"], schema.get("scale", 0))
        if logical in _LOGICAL:
            return _LOGICAL[logical]
        if kind == "array":
            return spark.ArrayType(self.of(schema["items"], field))
        if kind == "map":
            return spark.MapType(spark.StringType(), self.of(schema["values"], field))
        if kind in ("record", "enum", "fixed"):
            return self._of_named(schema, field)
        return self.of(kind, field)

    def _of_named(self, schema: Any, field: str) -> spark.DataType:
        if schema["type"] != "record":
            return spark.StringType() if schema["type"] == "enum" else spark.BinaryType()
        name = schema["name"]
        if name in self._inside:
            raise ConfigError(f"the Avro record {name} holds itself in {field}: that has no column type")
        self._inside.append(name)
        fields = [
            spark.StructField(one["name"], self.of(one["type"], f"{field}.{one['name']}".lstrip(".")))
            for one in schema["fields"]
        ]
        self._inside.pop()
        return spark.StructType(fields)

    def _union(self, schema: list[Any], field: str) -> spark.DataType:
        others = [one for one in schema if one != "null"]
        if len(others) == 1:
            return self.of(others[0], field)
        names = frozenset(one for one in others if isinstance(one, str))
        if len(names) != len(others) or names not in _WIDER:
            raise ConfigError(
                f"the Avro field {field} may be of several types, which has no column type",
                hint="decode it in a Python transform",
            )
        return _WIDER[names]


def _fitting(kind: spark.DataType) -> Callable[[Any], Any] | None:
    """What makes Arrow's form of a value; None where it is the same. Only maps differ: Arrow takes them as pairs."""
    if isinstance(kind, spark.MapType):
        inner = _fitting(kind.valueType)
        return lambda value: (
            value and [(key, inner(one) if inner and one is not None else one) for key, one in value.items()]
        )
    if isinstance(kind, spark.ArrayType):
        inner = _fitting(kind.elementType)
        return inner and (lambda value: value and [inner(one) if one is not None else None for one in value])
    if isinstance(kind, spark.StructType):
        inners = {field.name: inner for field in kind if (inner := _fitting(field.dataType))}
        if not inners:
            return None
        return lambda value: value and {**value, **{name: inner(value[name]) for name, inner in inners.items()}}
    return None


def _known_logical(schema: Any) -> Any:
    """Without the logical types that have no column type: what they are written as remains."""
    if isinstance(schema, list):
        return [_known_logical(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        name: _known_logical(value) if name in ("type", "items", "values") else value for name, value in schema.items()
    }
    if "fields" in kept:
        kept["fields"] = [_known_logical(field) for field in kept["fields"]]
    if kept.get("logicalType") not in (*_LOGICAL, "decimal"):
        kept.pop("logicalType", None)
    return kept


def _parsed(types: list[Any]) -> list[Any]:
    """Types that use each other, in whatever order the file has them."""
    named: dict[str, Any] = {}
    done: dict[int, Any] = {}
    while len(done) < len(types):
        unknown = None
        for index in sorted(set(range(len(types))) - set(done)):
            known = dict(named)  # of a type that cannot be parsed yet nothing is kept
            try:
                done[index] = fastavro.parse_schema(types[index], known)
            except fastavro.schema.UnknownType as error:
                unknown = unknown or error
            else:
                named = known
                break
        else:
            assert unknown is not None
            raise unknown
    return [done[index] for index in range(len(types))]
