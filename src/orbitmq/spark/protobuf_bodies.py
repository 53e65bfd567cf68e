"""Bodies in Protobuf, by a file of descriptors. Needs `pip install "orbitmq[protobuf]"`.

    protoc --include_imports --descriptor_set_out=order.desc order.proto

    int32, sint32, sfixed32; uint32, fixed32       INT; BIGINT
    int64, sint64, sfixed64; uint64, fixed64       BIGINT; DECIMAL(20,0)
    float, double, bool, string, bytes, enum       FLOAT, DOUBLE, BOOLEAN, STRING, BINARY, STRING (its name, or number)
    message, repeated, map                         STRUCT, ARRAY, MAP
    google.protobuf.Timestamp                      TIMESTAMP, to the microsecond

A field that is not set is NULL where its being set is known (messages, `optional`, `oneof`), else its default. Messages that hold
themselves have no column type.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from pyspark.sql import types as spark

from orbitmq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.spark.body_decoding import Row

_HINT: Final = "protoc --include_imports --descriptor_set_out=order.desc order.proto"
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_BY_CPP_TYPE: Final[dict[int, spark.DataType]] = {
    FieldDescriptor.CPPTYPE_INT32: spark.IntegerType(),
    FieldDescriptor.CPPTYPE_INT64: spark.LongType(),
    FieldDescriptor.CPPTYPE_UINT32: spark.LongType(),
    FieldDescriptor.CPPTYPE_UINT64: spark.DecimalType(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: spark.DoubleType(),
    FieldDescriptor.CPPTYPE_FLOAT: spark.FloatType(),
    FieldDescriptor.CPPTYPE_BOOL: spark.BooleanType(),
    FieldDescriptor.CPPTYPE_ENUM: spark.StringType(),
}


class ProtobufBodies:
    def __init__(self, descriptors: bytes, name: str) -> None:
        self._descriptors = descriptors
        self._message = name
        self.name = f"Protobuf {name}"
        _message_class(descriptors, name)

    def columns(self) -> spark.StructType:
        return _columns(_message_class(self._descriptors, self._message).DESCRIPTOR, ())

    def decoder(self) -> Callable[[bytes], Row]:
        made = _message_class(self._descriptors, self._message)
        row_of = _row_reader(made.DESCRIPTOR)

        def decode(body: bytes) -> Row:
            message = made()
            try:
                message.ParseFromString(body)
            except DecodeError as error:
                raise ValueError(str(error)) from error
            return row_of(message)

        return decode


@lru_cache(maxsize=16)
def _message_class(descriptors: bytes, name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
        for file in files.file:
            pool.Add(file)
    except (DecodeError, TypeError) as error:
        raise ConfigError(f"these are no descriptors of Protobuf: {error}", hint=_HINT) from error
    try:
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except (KeyError, TypeError) as error:
        known = [f"{file.package}.{one.name}".lstrip(".") for file in files.file for one in file.message_type]
        raise ConfigError(
            f"the descriptors have no message {name!r}", hint=f"there are {', '.join(known) or 'none'}; {_HINT}"
        ) from error


def _columns(message: Any, inside: tuple[str, ...]) -> spark.StructType:
    if message.full_name in inside:
        raise ConfigError(f"the message {message.full_name} holds itself: that has no column type")
    below = (*inside, message.full_name)
    return spark.StructType([spark.StructField(field.name, _column(field, below)) for field in message.fields])


def _column(field: Any, inside: tuple[str, ...]) -> spark.DataType:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return spark.MapType(_single(entry["key"], inside), _single(entry["value"], inside))
    single = _single(field, inside)
    return spark.ArrayType(single) if field.is_repeated else single


def _single(field: Any, inside: tuple[str, ...]) -> spark.DataType:
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return spark.TimestampType()
        return _columns(field.message_type, inside)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return spark.BinaryType() if field.type == FieldDescriptor.TYPE_BYTES else spark.StringType()
    return _BY_CPP_TYPE[field.cpp_type]


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _row_reader(message: Any) -> Callable[[Any], Row]:
    """Made once for a type of message; what it does for each message is only reading."""
    readers = [(field.name, field.has_presence and not field.is_repeated, _reader(field)) for field in message.fields]

    def read(value: Any) -> Row:
        return {
            name: None if may_be_unset and not value.HasField(name) else reader(getattr(value, name))
            for name, may_be_unset, reader in readers
        }

    return read


def _reader(field: Any) -> Callable[[Any], Any]:
    if _is_map(field):
        # A map of messages gives them by key only.
        of_value = _single_reader(field.message_type.fields_by_name["value"])
        return lambda pairs: [(key, of_value(pairs[key])) for key in pairs]
    single = _single_reader(field)
    return (lambda values: list(map(single, values))) if field.is_repeated else single


def _single_reader(field: Any) -> Callable[[Any], Any]:
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return lambda moment: moment.seconds * 1_000_000 + moment.nanos // 1000
        return _row_reader(field.message_type)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        names = {one.number: one.name for one in field.enum_type.values}
        return lambda number: names.get(number, str(number))
    return _as_it_is


def _as_it_is(value: Any) -> Any:
    return value
