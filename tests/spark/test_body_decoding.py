"""Bodies in Avro and Protobuf as columns: every type, what is malformed, schemas that have no columns. No session is needed."""

from __future__ import annotations

import io
import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from orbitmq.errors import ConfigError, MessageError
from orbitmq.spark import body_decoding
from orbitmq.spark.body_decoding import bodies_of, decode_array

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orbitmq.spark.body_decoding import Bodies

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "size", "type": ["int", "long"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "token", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "marks", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
        {"name": "to", "type": {"type": "record", "name": "Place", "fields": [{"name": "town", "type": "string"}]}},
        {"name": "from", "type": ["null", "Place"], "default": None},
    ],
}
ORDER_ROW: dict[str, Any] = {
    "id": 7,
    "note": None,
    "size": 1 << 40,
    "at": datetime(2026, 11, 15, 12, 0, 0, 5000, tzinfo=UTC),
    "day": date(2026, 11, 15),
    "price": Decimal("12.34"),
    "token": "3f2f0d9e-0000-4000-8000-000000000000",
    "state": "PAID",
    "marks": {"a": [1, 2], "b": []},
    "to": {"town": "Ulm"},
    "from": {"town": "Bonn"},
}


def decoded(bodies: Bodies, given: Iterable[bytes | None], malformed: Any = "fail", header: int = 0) -> list[Any]:
    """As a worker does it, with what reaches a worker."""
    shipped: Bodies = pickle.loads(pickle.dumps(bodies))
    columns = shipped.columns()
    values = list(given)
    arrays = (
        pa.array(values, pa.binary()),
        pa.array(["T"] * len(values)),
        pa.array([3] * len(values)),
        pa.array(range(len(values))),
    )
    made = decode_array(shipped, columns, malformed, header, arrays)
    return [row or {} for row in made.to_pylist()]


def avro(row: dict[str, Any]) -> bytes:
    fastavro = pytest.importorskip("fastavro")
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(ORDER), row)
    return written.getvalue()


def test_avro_of_every_kind_becomes_columns() -> None:
    body = avro(ORDER_ROW)
    bodies = bodies_of("avro", json.dumps(ORDER).encode(), "")
    assert bodies.columns().simpleString() == (
        "struct<id:bigint,note:string,size:bigint,at:timestamp,day:date,price:decimal(9,2),token:string,state:string,"
        "marks:map<string,array<int>>,to:struct<town:string>,from:struct<town:string>>"
    )
    (row, empty) = decoded(bodies, [body, None])
    assert {**row, "marks": dict(row["marks"])} == ORDER_ROW
    assert empty == {}
    framed = decoded(bodies, [b"\0\0\0\0\x09" + body], header=5)
    assert framed[0]["id"] == 7
    several = json.dumps([{"type": "record", "name": "Other", "fields": []}, ORDER]).encode()
    assert bodies_of("avro", several, "shop.Order").columns() == bodies.columns()


def test_names_of_avro_are_in_the_namespace_around_them_and_may_come_from_beside() -> None:
    fastavro = pytest.importorskip("fastavro")
    place = {"type": "record", "name": "Place", "fields": [{"name": "town", "type": "string"}]}
    inner = {
        "type": "record",
        "name": "Line",
        "namespace": "shop.lines",
        "fields": [{"name": "at", "type": place}, {"name": "next", "type": ["null", "shop.lines.Place"]}],
    }
    order = {
        "type": "record",
        "name": "shop.Order",
        "fields": [{"name": "line", "type": inner}, {"name": "back", "type": "shop.lines.Place"}],
    }
    wanted = (
        "struct<line:struct<at:struct<town:string>,next:struct<town:string>>,back:struct<town:string>,"
        "state:string,other:struct<town:string>>"
    )
    state = {"type": "enum", "name": "State", "namespace": "shop", "symbols": ["NEW", "PAID"]}
    other = {**place, "name": "Other", "namespace": "shop"}
    order["fields"] = [*order["fields"], {"name": "state", "type": "State"}, {"name": "other", "type": "Other"}]
    row = {
        "line": {"at": {"town": "Ulm"}, "next": None},
        "back": {"town": "Bonn"},
        "state": "PAID",
        "other": {"town": "Kiel"},
    }
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema([state, other, order])[2], row)
    for several in ([state, other, order], [order, other, state]):
        bodies = bodies_of("avro", json.dumps(several).encode(), "shop.Order")
        assert bodies.columns().simpleString() == wanted
        assert decoded(bodies, [stream.getvalue()]) == [row]
    alone = json.dumps(ORDER).encode()
    assert bodies_of("avro", alone, "shop.Order").columns() == bodies_of("avro", alone, "").columns()
    for given, name, message in (
        (alone, "shop.Bill", r"no record shop\.Bill.*there are shop\.Order"),
        (json.dumps([state, other, order]).encode(), "", r"several types.*shop\.Other, shop\.Order"),
        (json.dumps([order]).encode(), "shop.Order", "no Avro schema: UnknownType"),
    ):
        with pytest.raises(ConfigError, match=message):
            bodies_of("avro", given, name)


def test_a_body_that_is_not_avro_fails_with_its_place_or_is_null() -> None:
    body = avro(ORDER_ROW)
    bodies = bodies_of("avro", json.dumps(ORDER).encode(), "")
    for bad in (b"", body[:-3], body + b"x", b"\xff" * 40):
        with pytest.raises(MessageError, match=r"the body of T, queue 3, offset 1 is no Avro shop\.Order: "):
            decoded(bodies, [body, bad])
        assert [row.get("id") for row in decoded(bodies, [body, bad], "null")] == [7, None]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("long", "int"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2},
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
        ),
    ],
)
def test_a_value_that_its_column_cannot_hold_fails_with_its_place_or_is_null(written: Any, read: Any) -> None:
    fastavro = pytest.importorskip("fastavro")

    def record(kind: Any) -> dict[str, Any]:
        return {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}

    def body(value: int) -> bytes:
        stream = io.BytesIO()
        given = value if written == "long" else Decimal(value)
        fastavro.schemaless_writer(stream, fastavro.parse_schema(record(written)), {"f": given})
        return stream.getvalue()

    bodies = bodies_of("avro", json.dumps(record(read)).encode(), "")
    given = [body(7), body(1 << 40), None, body(8)]
    assert [row.get("f") for row in decoded(bodies, given, "null")] == [7, None, None, 8]
    with pytest.raises(MessageError, match=r"the body of T, queue 3, offset 1 is no Avro R: "):
        decoded(bodies, given)


def test_a_time_beyond_any_calendar_fails_with_its_place_or_is_null() -> None:
    files = descriptors()
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    order: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    late = order(id=1)
    late.at.seconds = 1 << 50
    bodies = bodies_of("protobuf", files.SerializeToString(), "shop.Order")
    given = [order(id=5).SerializeToString(), late.SerializeToString()]
    assert [row.get("id") for row in decoded(bodies, given, "null")] == [5, None]
    with pytest.raises(MessageError, match=r"offset 1 is no Protobuf shop\.Order"):
        decoded(bodies, given)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (b"{", "no Avro schema"),
        (b'{"type": "record", "name": 5, "fields": []}', "no Avro schema"),
        (b'"string"', "no record"),
        (b'{"type":"record","name":"R","fields":[{"name":"f","type":["int","string"]}]}', "field f may be of several"),
        (b'{"type":"record","name":"R","fields":[{"name":"next","type":["null","R"]}]}', "holds itself in next"),
    ],
)
def test_a_schema_of_avro_without_columns_is_refused(schema: bytes, message: str) -> None:
    pytest.importorskip("fastavro")
    with pytest.raises(ConfigError, match=message):
        bodies_of("avro", schema, "").columns()


def descriptors() -> Any:
    """What `protoc --include_imports --descriptor_set_out` writes for a message of every kind."""
    protos: Any = pytest.importorskip("google.protobuf.descriptor_pb2")
    timestamp: Any = pytest.importorskip("google.protobuf.timestamp_pb2")
    files = protos.FileDescriptorSet()
    timestamp.DESCRIPTOR.CopyToProto(files.file.add())
    file = files.file.add(name="shop.proto", package="shop", syntax="proto3", dependency=[timestamp.DESCRIPTOR.name])
    file.enum_type.add(name="State").value.add(name="NEW", number=0)
    file.enum_type[0].value.add(name="PAID", number=1)
    place = file.message_type.add(name="Place")
    order = file.message_type.add(name="Order")
    kinds = protos.FieldDescriptorProto

    def field(to: Any, name: str, kind: int, type_name: str | None = None, *, repeated: bool = False) -> Any:
        label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
        return to.field.add(name=name, number=len(to.field) + 1, type=kind, type_name=type_name, label=label)

    field(place, "town", kinds.TYPE_STRING)
    field(order, "id", kinds.TYPE_INT64)
    field(order, "big", kinds.TYPE_UINT64)
    field(order, "half", kinds.TYPE_UINT32)
    field(order, "raw", kinds.TYPE_BYTES)
    field(order, "state", kinds.TYPE_ENUM, ".shop.State")
    field(order, "to", kinds.TYPE_MESSAGE, ".shop.Place")
    field(order, "stops", kinds.TYPE_MESSAGE, ".shop.Place", repeated=True)
    field(order, "at", kinds.TYPE_MESSAGE, ".google.protobuf.Timestamp")
    entry = order.nested_type.add(name="MarksEntry")
    entry.options.map_entry = True
    field(entry, "key", kinds.TYPE_STRING)
    field(entry, "value", kinds.TYPE_MESSAGE, ".shop.Place")
    field(order, "marks", kinds.TYPE_MESSAGE, ".shop.Order.MarksEntry", repeated=True)
    note = field(order, "note", kinds.TYPE_STRING)
    note.proto3_optional = True
    note.oneof_index = 0
    order.oneof_decl.add(name="_note")
    selfish = file.message_type.add(name="Tree")
    field(selfish, "below", kinds.TYPE_MESSAGE, ".shop.Tree", repeated=True)
    return files


def test_protobuf_of_every_kind_becomes_columns() -> None:
    files = descriptors()
    from google.protobuf import descriptor_pool, message_factory

    bodies = bodies_of("protobuf", files.SerializeToString(), "shop.Order")
    assert bodies.columns().simpleString() == (
        "struct<id:bigint,big:decimal(20,0),half:bigint,raw:binary,state:string,to:struct<town:string>,"
        "stops:array<struct<town:string>>,at:timestamp,marks:map<string,struct<town:string>>,note:string>"
    )
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    order: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    message = order(id=-5, big=(1 << 64) - 1, half=1 << 31, raw=b"\0\xff", state=1, note="")
    message.stops.add(town="Ulm")
    message.marks["x"].town = "Bonn"
    message.at.FromDatetime(datetime(2026, 11, 15, 12, 0, 0, 5, tzinfo=UTC))
    full, unset = decoded(bodies, [message.SerializeToString(), order(state=9).SerializeToString()])
    assert (full["id"], full["big"], full["half"], full["raw"]) == (-5, Decimal((1 << 64) - 1), 1 << 31, b"\0\xff")
    assert (full["state"], full["to"], full["stops"], full["note"]) == ("PAID", None, [{"town": "Ulm"}], "")
    assert full["at"] == datetime(2026, 11, 15, 12, 0, 0, 5, tzinfo=UTC)
    assert full["marks"] == [("x", {"town": "Bonn"})]
    assert (unset["id"], unset["state"], unset["stops"], unset["at"], unset["note"]) == (0, "9", [], None, None)
    with pytest.raises(MessageError, match=r"offset 0 is no Protobuf shop\.Order"):
        decoded(bodies, [b"\xff\xff"])
    assert decoded(bodies, [b"\xff\xff"], "null") == [{}]


def test_descriptors_that_do_not_fit_are_refused() -> None:
    files = descriptors().SerializeToString()
    with pytest.raises(ConfigError, match=r"no message 'shop\.Bill'.*there are .*shop\.Order"):
        bodies_of("protobuf", files, "shop.Bill")
    with pytest.raises(ConfigError, match="protoc"):
        bodies_of("protobuf", b'syntax = "proto3";', "shop.Order")
    with pytest.raises(ConfigError, match=r"shop\.Tree holds itself"):
        bodies_of("protobuf", files, "shop.Tree").columns()


def test_a_missing_package_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_decoding, "find_spec", lambda _name: None)
    for kind in ("avro", "protobuf"):
        with pytest.raises(ConfigError, match=rf"orbitmq\[{kind}\]"):
            bodies_of(kind, b"", "")
