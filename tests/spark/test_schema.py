"""Which columns a query gets, and what it is told when it asks for others. No Spark session is needed for this."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, LongType, MapType, StringType, StructField, StructType

from orbitmq.errors import ConfigError
from orbitmq.spark.schema import COLUMNS, STANDARD, projection, table_schema

BODY = StructField("body", BinaryType(), nullable=False)


def test_the_standard_columns_come_in_their_order_and_as_arrow_exactly_as_spark_wants_them() -> None:
    schema = table_schema()
    wanted = projection(schema)
    assert wanted.columns == tuple(STANDARD)
    assert wanted.arrow.equals(to_arrow_schema(schema, timezone="UTC"))
    assert wanted.arrow.field("storeTimestamp").type == pa.timestamp("us", "UTC")
    assert wanted.properties == "map"


def test_options_choose_columns() -> None:
    assert table_schema("all").fieldNames() == list(COLUMNS)
    assert table_schema("queueOffset, body").fieldNames() == ["queueOffset", "body"]
    bare = table_schema(include_body=False, properties="none").fieldNames()
    assert [name for name in STANDARD if name not in bare] == ["body", "properties"]
    assert projection(table_schema(properties="raw")).properties == "raw"


def test_a_schema_of_the_user_is_the_projection() -> None:
    wanted = projection(
        StructType([BODY, StructField("properties", StringType()), StructField("storeHost", StringType())])
    )
    assert wanted.columns == ("body", "properties", "storeHost")
    assert wanted.properties == "raw"
    assert not wanted.arrow.field("body").nullable


def test_a_reader_can_add_columns_for_itself_behind_those_wanted() -> None:
    wanted = projection(StructType([BODY, StructField("queueOffset", LongType())]))
    more = wanted.with_columns(["queueOffset", "tags"])
    assert more.columns == ("body", "queueOffset", "tags")
    assert more.arrow.names == list(more.columns)
    assert [more.arrow.field(name) for name in wanted.columns] == list(wanted.arrow)


@pytest.mark.parametrize(
    ("field", "told"),
    [
        (StructField("boddy", BinaryType()), "no column 'boddy'.*did you mean body"),
        (StructField("queueid", IntegerType()), "did you mean queueId"),
        (StructField("body", StringType()), "column body is binary, not string"),
        (StructField("properties", MapType(StringType(), IntegerType())), "map<string,string> or string"),
        (StructField("queueOffset", IntegerType()), "bigint, not int"),
        (StructField("tags", StringType(), nullable=False), "cannot be NOT NULL"),
    ],
)
def test_what_no_message_has_is_refused_with_what_to_do(field: StructField, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        projection(StructType([field]))


def test_nothing_left_to_read_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no columns"):
        table_schema("body", include_body=False)
