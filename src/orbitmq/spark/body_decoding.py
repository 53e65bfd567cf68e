"""Bodies in Avro or Protobuf as columns, decoded by Python in the workers.

Spark's own functions for this, `from_avro` and `from_protobuf`, come in jars that must be of Spark's very version, and are not
published for every one (for 4.3: neither); `fastavro` and `protobuf` are wheels that run with any.

A schema becomes columns once, on the driver. Workers get what they need to decode as a value, and give back Arrow batches.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import pyarrow as pa
from pyspark.sql import functions as sql
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_schema

from orbitmq.errors import ConfigError, MessageError
from orbitmq.spark.failures import plain_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Malformed = Literal["fail", "null"]
Row = dict[str, Any]

_HOMES: Final = {
    "avro": ("fastavro", "orbitmq.spark.avro_bodies", "AvroBodies"),
    "protobuf": ("google.protobuf", "orbitmq.spark.protobuf_bodies", "ProtobufBodies"),
}
_PLACE: Final = ("topic", "queueId", "queueOffset")


class Bodies(Protocol):
    """How bodies are written. Pickled to the workers."""

    name: str  # for people: "Avro shop.Order"

    def columns(self) -> StructType: ...

    def decoder(self) -> Callable[[bytes], Row]:
        """Raises ValueError for what it cannot decode; values are what Arrow takes for the columns."""


def bodies_of(kind: str, schema: bytes, name: str) -> Bodies:
    """`schema` is what the file holds; `name` that of the message or record in it, where there are several."""
    package, module, made = _HOMES[kind]
    if find_spec(package.partition(".")[0]) is None or find_spec(package) is None:
        raise ConfigError(
            f"bodies in {kind} need a package that is not installed", hint=f'pip install "orbitmq[{kind}]"'
        )
    bodies: Bodies = getattr(import_module(module), made)(schema, name)
    return bodies


def decoded(frame: DataFrame, bodies: Bodies, *, malformed: Malformed, header_bytes: int) -> DataFrame:
    """The columns of the body, and behind them those of the frame that have other names."""
    columns = bodies.columns()

    # Spark reads these hints: arrays in, an array out.
    def work(body: pa.Array, topic: pa.Array, queue: pa.Array, offset: pa.Array) -> pa.Array:
        return decode_array(bodies, columns, malformed, header_bytes, (body, topic, queue, offset))

    udf: Any = arrow_udf
    decode = udf(work, columns)
    place = [name if name in frame.columns else sql.lit(None) for name in _PLACE]
    kept = [name for name in frame.columns if name not in ("body", *columns.fieldNames())]
    parsed = frame.withColumn("__parsed", decode("body", *place))
    return parsed.select("__parsed.*", *kept)


@plain_errors
def decode_array(
    bodies: Bodies, columns: StructType, malformed: Malformed, header_bytes: int, arrays: tuple[pa.Array, ...]
) -> pa.Array:
    """In a worker: body, topic, queue and offset of every row in, a struct of every row out."""
    kind = pa.struct(list(to_arrow_schema(columns, timezone="UTC")))
    decode = bodies.decoder()
    texts, *places = arrays

    def one(number: int, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except (ValueError, OverflowError, pa.ArrowTypeError) as error:  # ArrowInvalid is a ValueError
            if malformed == "null":
                return None
            raise MessageError(
                f"{_said(*(place[number].as_py() for place in places))} is no {bodies.name}: {error}",
                hint='malformed = "null" makes nulls of such bodies, for rules to drop',
            ) from error

    def row_of(body: bytes | None) -> Row | None:
        return None if body is None else decode(body[header_bytes:])

    rows = [one(number, partial(row_of, body)) for number, body in enumerate(texts.to_pylist())]
    try:
        return pa.array(rows, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        # Some value decodes, but is beyond what its column holds: one by one, it is known whose.
        fitting = [one(number, partial(pa.array, [row], kind)) for number, row in enumerate(rows)]
        return pa.concat_arrays([pa.nulls(1, kind) if made is None else made for made in fitting])


def _said(topic: str | None, queue: int | None, offset: int | None) -> str:
    return "a body" if topic is None else f"the body of {topic}, queue {queue}, offset {offset}"
