"""Pipelines in a file: scaffolded, checked, shown, run, run again."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest
from click.testing import CliRunner
from pyarrow import dataset
from pyspark import cloudpickle

from orbitmq.cli.entry import cli
from orbitmq.errors import ConfigError
from orbitmq.spark.pipeline import RunningPipeline
from orbitmq.spark.pipeline_code import load_code
from orbitmq.spark.pipeline_file import Transform, load
from orbitmq.sync import connect
from orbitmq.testing import Server
from tests.spark.marks import SPARK
from tests.spark.tables import table_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = SPARK


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


def run(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(cli, ["pipeline", *arguments])
    assert done.exit_code == code, done.output
    return done.output


def send(server: Server, topic: str, bodies: list[bytes]) -> None:
    with connect(server.address) as client, client.producer(group="pipelines") as producer:
        for body in bodies:
            producer.send(topic, body, tag="t")


def texts(folder: Path, column: str) -> list[Any]:
    return sorted(
        dataset.dataset(str(folder), format="parquet", exclude_invalid_files=True).to_table()[column].to_pylist()
    )


def test_a_scaffolded_pipeline_runs_as_it_is_and_goes_on_where_it_was(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    run("init", str(tmp_path / "p"), "-n", server.address, "-t", "Words")
    assert "is there already" in run("init", str(tmp_path / "p"), code=1)
    send(server, "Words", [b" one ", b"  ", b"two"])
    file = str(tmp_path / "p" / "pipeline.toml")
    shown = run("run", file, "--dry-run")
    assert "raw (stream): topic string" in shown
    assert not (tmp_path / "p" / "out").exists()
    printed = run("run", file)
    assert "clean: 3 rows read" in printed
    assert "not met by 1 rows: length(text) > 0" in printed
    send(server, "Words", [b"three"])
    # as pipelines were kept at first: by the place of a sink in the file
    checkpoint = tmp_path / "p" / "checkpoint"
    (own,) = checkpoint.iterdir()
    own.rename(checkpoint / "0-clean")
    assert "clean: 1 rows read" in run("run", file)
    assert texts(tmp_path / "p" / "out", "text") == ["one", "three", "two"]
    # another sink comes before it
    screen = '[[sink]]\ntable = "clean"\nformat = "console"\n\n[[sink]]'
    pipeline = tmp_path / "p" / "pipeline.toml"
    pipeline.write_text(pipeline.read_text().replace("[[sink]]", screen, 1))
    send(server, "Words", [b"four"])
    assert 'name = "0-clean"' in run("run", file, code=1)
    assert texts(tmp_path / "p" / "out", "text") == ["one", "three", "two"]
    (checkpoint / "0-clean").rename(checkpoint / own.name)
    printed = run("run", file)
    assert "clean (parquet out): 1 rows read" in printed
    assert "not met by 1 rows on their way to clean (console): length(text) > 0" in printed
    assert texts(tmp_path / "p" / "out", "text") == ["four", "one", "three", "two"]
    own.rename(tmp_path / "away")
    assert "out holds what a query of another checkpoint wrote" in run("run", file, code=1)


def test_what_is_no_stream_is_written_once_or_replaced_and_its_rules_are_counted(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "in.csv").write_text("body\n1\n2\n3\n")
    file = tmp_path / "pipeline.toml"
    text = f"""
name = "whole"
checkpoint = "checkpoint"
connection = {{ nameServer = "{server.address}" }}
source = [{{ name = "a", format = "csv", path = "in.csv", options = {{ header = true }} }}]
transform = [{{ name = "b", sql = "SELECT nullif(body, '2') AS body FROM a WHERE body < 3" }}]
expect = [{{ table = "a", rule = "body > 1", otherwise = "drop" }}, {{ table = "b", rule = "false", otherwise = "count" }}]
sink = [
  {{ table = "a", format = "parquet", path = "out" }},
  {{ table = "b", format = "rocketmq", options = {{ topic = "Whole", badRows = "drop" }} }},
  {{ table = "b", format = "console" }},
]
"""
    file.write_text(text)
    assert "has no stream that could go on" in run("run", str(file), "--continuous", code=1)
    assert not (tmp_path / "out").exists()
    printed = run("run", str(file))
    told = [
        "a: 2 rows written",
        "b (rocketmq Whole): 1 rows written",
        "b (rocketmq Whole): 1 rows left out by the sink",
        "not met by 1 rows: body > 1",
        "not met by 1 rows: false",
    ]
    assert [line for line in printed.splitlines() if line in told] == told
    assert 'mode = "complete" replaces them' in run("run", str(file), code=1)
    assert texts(tmp_path / "out", "body") == ["2", "3"], "not once more"
    file.write_text(text.replace('path = "out"', 'path = "out", mode = "complete"'))
    assert "all rows of b were written to Whole before" in run("run", str(file), code=1)
    only_files = [line for line in text.splitlines() if "Whole" not in line and "console" not in line]
    file.write_text("\n".join(only_files).replace('path = "out"', 'path = "out", mode = "complete"'))
    (tmp_path / "in.csv").write_text("body\n1\n9\n")
    assert "a: 1 rows written" in run("run", str(file))
    assert texts(tmp_path / "out", "body") == ["9"]


def test_json_becomes_columns_and_rows_go_to_files_and_to_a_topic(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    send(server, "Bills", [b'{"id": %d, "cents": %d}' % (number, number * 100) for number in range(10)])
    file = tmp_path / "pipeline.toml"
    file.write_text(f"""
name = "bills"
checkpoint = "checkpoint"
connection = {{ nameServer = "{server.address}" }}
source = [{{ name = "raw", format = "rocketmq", options = {{ subscribe = "Bills", startingOffsets = "earliest" }} }}]
transform = [
  {{ name = "bills", from = "raw", inline = "id BIGINT, cents BIGINT" }},
  {{ name = "large", sql = "SELECT IF(id = 7, '', CAST(id AS STRING)) AS body, tags FROM bills WHERE cents >= 700" }},
]
sink = [
  {{ table = "bills", format = "parquet", path = "bills" }},
  {{ table = "large", format = "rocketmq", options = {{ topic = "LargeBills", badRows = "deadLetter", deadLetterPath = "bad" }} }},
]
""")
    printed = run("run", str(file)).splitlines()
    assert "bills: 10 rows read" in printed
    assert "large: 1 rows left out by the sink" in printed
    assert texts(tmp_path / "bills", "cents") == [number * 100 for number in range(10)]
    assert texts(tmp_path / "bad", "error") == ["its body is empty, which brokers refuse"], "beside the file"
    with connect(server.address) as client, client.pull_consumer(group="check") as consumer:
        found = [
            message.body
            for queue in consumer.queues("LargeBills")
            for message in consumer.fetch(queue, offset=0, max=32, wait=0).messages
        ]
    assert sorted(found) == [b"8", b"9"]


def test_a_pipeline_goes_on_until_it_is_told_to_stop_and_says_how_far_it_is(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    send(server, "Endless", [b"1", b"2"])
    file = tmp_path / "pipeline.toml"
    file.write_text(f"""
name = "endless"
checkpoint = "checkpoint"
connection = {{ nameServer = "{server.address}" }}
source = [{{ name = "raw", format = "rocketmq", options = {{ subscribe = "Endless", startingOffsets = "earliest" }} }}]
expect = [{{ table = "raw", rule = "CAST(CAST(body AS STRING) AS INT) > 1", otherwise = "drop" }}]
sink = [{{ table = "raw", format = "parquet", path = "out" }}]
""")
    told: list[str] = []

    def tell(line: str) -> None:
        if line == "raw: 2 rows read" and line not in told:
            send(server, "Endless", [b"3"])
        told.append(line)

    running = RunningPipeline(spark, load(file), tmp_path, tell=tell)
    summary = running.run_until(lambda: "raw: 3 rows read" in told, 0.2)
    assert summary.lines() == ["raw: 3 rows read", "not met by 1 rows: CAST(CAST(body AS STRING) AS INT) > 1"]
    assert texts(tmp_path / "out", "body") == [b"2", b"3"]


def test_a_rule_that_must_hold_stops_the_pipeline_with_its_own_words(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    send(server, "Strict", [b"1", b"-2"])
    file = tmp_path / "pipeline.toml"
    file.write_text(f"""
name = "strict"
checkpoint = "checkpoint"
connection = {{ nameServer = "{server.address}" }}
source = [{{ name = "raw", format = "rocketmq", options = {{ subscribe = "Strict", startingOffsets = "earliest" }} }}]
expect = [{{ table = "raw", rule = "CAST(CAST(body AS STRING) AS INT) > 0", otherwise = "fail" }}]
sink = [{{ table = "raw", format = "parquet", path = "out" }}]
""")
    failed = run("run", str(file), code=1)
    assert "a row of raw does not meet: CAST(CAST(body AS STRING) AS INT) > 0" in failed
    assert len(failed.strip().splitlines()) == 1


def test_a_pipeline_in_python_is_scaffolded_shown_and_run(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    run("init", str(tmp_path / "p"), "-n", server.address, "-t", "Coded", "--form", "python")
    send(server, "Coded", [b" one ", b"  ", b"two"])
    file = str(tmp_path / "p" / "pipeline.py")
    assert "clean -> parquet out" in run("run", file, "--dry-run")
    printed = run("run", file)
    assert "clean: 3 rows read" in printed
    assert "not met by 1 rows: length(text) > 0" in printed
    assert texts(tmp_path / "p" / "out", "text") == ["one", "two"]


AVRO = (
    '{"type": "record", "name": "Bill", "fields": [{"name": "id", "type": "long"}, {"name": "to", "type": "string"}]}'
)


def test_avro_becomes_columns_of_a_table_each_row_once(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    fastavro = pytest.importorskip("fastavro")
    pytest.importorskip("deltalake")
    schema = fastavro.parse_schema(json.loads(AVRO))

    def bill(number: int) -> bytes:
        written = io.BytesIO()
        fastavro.schemaless_writer(written, schema, {"id": number, "to": f"c{number}"})
        return written.getvalue()

    topic = "AvroBills"
    send(server, topic, [*(bill(number) for number in range(10)), b"?"])
    (tmp_path / "bill.avsc").write_text(AVRO)
    file = tmp_path / "pipeline.py"
    file.write_text(f"""
from orbitmq.spark import Pipeline

pipeline = Pipeline("avro", checkpoint="checkpoint", connection={{"nameServer": "{server.address}"}})
pipeline.source("raw", "rocketmq", subscribe="{topic}", startingOffsets="earliest")
pipeline.decode("bills", "raw", avro="bill.avsc", malformed="null")
pipeline.expect("bills", "id IS NOT NULL", otherwise="drop")

@pipeline.table
def named(bills, spark):
    names = spark.createDataFrame([(1, "first"), (2, "second")], "id BIGINT, name STRING")
    return bills.join(names, "id", "left").select("id", "to", "name", "queueOffset")

pipeline.sink("named", "delta", path="table")
""")

    def held() -> list[tuple[int, str | None]]:
        rows = table_rows("delta", tmp_path / "table").to_pylist()
        return sorted((row["id"], row["name"]) for row in rows)

    printed = run("run", str(file))
    assert "not met by 1 rows: id IS NOT NULL" in printed
    wanted = [(number, {1: "first", 2: "second"}.get(number)) for number in range(10)]
    assert held() == wanted
    # A batch that the table has got, and Spark does not know of: its checkpoint is as before the last commit.
    for commit in (tmp_path / "checkpoint").glob("named-delta-*/commits/*"):
        commit.unlink()
    run("run", str(file))
    assert held() == wanted
    send(server, topic, [bill(10)])
    run("run", str(file))
    assert held() == [*wanted, (10, None)]


def test_a_body_that_is_not_what_its_schema_says_is_told_in_one_line(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    pytest.importorskip("fastavro")
    send(server, "Malformed", [b"?"])
    (tmp_path / "bill.avsc").write_text(AVRO)
    file = tmp_path / "pipeline.toml"
    for way, message in (
        ('avro = "bill.avsc"', "the body of Malformed, queue"),
        ('inline = "id BIGINT"', "a body of bills is not the JSON of its columns: ?"),
    ):
        file.write_text(f"""
name = "bad"
checkpoint = "checkpoint"
connection = {{ nameServer = "{server.address}" }}
source = [{{ name = "raw", format = "rocketmq", options = {{ subscribe = "Malformed", startingOffsets = "earliest" }} }}]
transform = [{{ name = "bills", from = "raw", {way} }}]
sink = [{{ table = "bills", format = "json", path = "out" }}]
""")
        failed = run("run", str(file), code=1)
        assert message in failed
        assert len(failed.strip().splitlines()) == 1


GOOD = """
name = "n"
checkpoint = "c"
source = [{ name = "a", format = "parquet", path = "in" }]
transform = [{ name = "b", sql = "SELECT * FROM a" }]
sink = [{ table = "b", format = "console" }]
"""


def test_modules_beside_a_pipeline_are_found_while_it_is_built_and_carried_to_workers(tmp_path: Path) -> None:
    (tmp_path / "carried_words").mkdir()
    (tmp_path / "carried_words" / "__init__.py").write_text("")
    (tmp_path / "carried_words" / "forms.py").write_text("def loud(text):\n    return text.upper()\n")
    (tmp_path / "found_late.py").write_text("def same(frame):\n    return frame\n")
    (tmp_path / "transforms.py").write_text("from found_late import same\ndef copied(frame):\n    return same(frame)\n")
    file = tmp_path / "json.py"  # a name that Python knows
    file.write_text("""
from __future__ import annotations
from dataclasses import dataclass
from carried_words.forms import loud
from orbitmq.spark import Pipeline

@dataclass
class Word:
    text: str

def said(text):
    return loud(Word(text).text)

pipeline = Pipeline("beside", checkpoint="c")
pipeline.source("raw", "csv", path="in")

@pipeline.table
def late(raw):
    from found_late import same
    return same(raw)

pipeline.sink("late", "console")
""")
    code = load_code(file)
    said = sys.modules["orbitmq_pipeline_json"].said
    running = RunningPipeline(MagicMock(), code.parts(file), tmp_path, functions=code.functions)
    assert running.tables["late"] is running.tables["raw"]
    parts = code.parts(file)
    parts.transforms[:] = [Transform(name="late", python="transforms.py:copied", source="raw")]
    assert RunningPipeline(MagicMock(), parts, tmp_path).tables.keys() == {"raw", "late"}
    assert str(tmp_path) not in sys.path
    # A worker has neither the file nor its folder.
    pickler: Any = cloudpickle
    work = "import pickle, sys; print(pickle.load(sys.stdin.buffer)('hello'))"
    worker = subprocess.run([sys.executable, "-c", work], input=pickler.dumps(said), capture_output=True, check=True)
    assert worker.stdout.strip() == b"HELLO"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nowhere_at_all", "cannot be run: ModuleNotFoundError: No module named"),
        ("import os\nos.environ['NO_SUCH_NAME']", "cannot be run: KeyError: 'NO_SUCH_NAME'"),
        ("x = 1", "has 0 pipelines"),
        (
            "from orbitmq.spark import Pipeline\np = Pipeline('n', checkpoint='c')\np.source('a', 'csv', path='x')\n"
            "@p.table\ndef b(c): ...\np.sink('b', 'console')\n",
            "transform b is from 'c'.*there are a",
        ),
    ],
)
def test_what_is_wrong_with_the_code_is_said(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "pipeline.py"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_code(file).parts(file)
    with pytest.raises(ConfigError, match="no Python file"):
        load_code(tmp_path / "missing.py")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("name", "nmae"), "nmae"),
        (('format = "parquet"', 'format = "orc"'), "there are rocketmq"),
        (('format = "parquet"', 'format = "rocketmq-store", options = { pushfilters = true }'), "asked several times"),
        (('table = "b"', 'table = "z"'), "there are a, b"),
        (('name = "b", sql', 'name = "a", sql'), "two tables"),
        (('sql = "SELECT * FROM a"', 'python = "t.py:f", from = "x"'), "there are a"),
        (('format = "console"', 'format = "csv"'), "no path"),
        (('format = "console"', 'format = "iceberg"'), "no path"),
        (('format = "console" }', 'format = "console" }, { table = "b", format = "console" }'), "are the same.*a name"),
        (('format = "console"', 'format = "console", name = "../x"'), "has the name"),
        (
            ('format = "console" }', 'format = "csv", path = "o" }, { table = "a", format = "json", path = "o/" }'),
            "two sinks write files to o",
        ),
        (('sql = "SELECT * FROM a"', 'avro = "a.avsc", json = "a.ddl", from = "a"'), "one of sql, python"),
        (('sql = "SELECT * FROM a"', 'avro = "a.avsc", from = ["a", "a"]'), "from several tables"),
        (('name = "n"', 'name = '), "TOML|Invalid"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_file_is_said(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(GOOD)
    assert load(file).name == "n"
    file.write_text(GOOD.replace(*change, 1))
    with pytest.raises(ConfigError, match=message):
        load(file)
