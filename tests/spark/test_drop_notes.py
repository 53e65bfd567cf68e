"""Rows that a sink left out: what its driver says of them, and what programs can read."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from orbitmq.errors import ConfigError
from orbitmq.spark import DroppedRows, dropped_rows
from orbitmq.spark.sink import BatchWriter, StreamWriter, TaskName
from orbitmq.spark.sink_options import sink_options
from orbitmq.testing import Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


def rows(*bodies: bytes | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary())})


def test_what_was_left_out_is_told_once_by_the_driver_and_counted_for_programs(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    given = {"nameServer": server.address, "topic": "Counted", "badRows": "drop", "checkpointLocation": checkpoint}
    writer = StreamWriter(sink_options(given), {"body": "body"})
    good, null, empty = rows(b"x"), rows(b"x", None), rows(b"", None, b"x")

    def micro_batch(number: int, *tasks: pa.RecordBatch) -> list[str]:
        """What the driver logs."""
        caplog.clear()
        names = [TaskName("query", str(number), place) for place in range(len(tasks))]
        done = [writer.write_rows(iter([task]), name) for task, name in zip(tasks, names, strict=True)]
        writer.commit([*pickle.loads(pickle.dumps(done)), None], number)
        return [record.getMessage() for record in caplog.records if record.name == "orbitmq.spark.sink"]

    assert micro_batch(6, good, good) == []
    assert dropped_rows(checkpoint) == []
    told = micro_batch(7, null, good, empty)
    is_null, is_empty = "its body is null", "its body is empty, which brokers refuse"
    assert told == [f"micro-batch 7 sent 3 rows and left out 3: 2 because {is_null}; 1 because {is_empty}"]
    for _ in range(2):  # after a crash it is run again
        assert dropped_rows(checkpoint) == [DroppedRows("query", 7, {is_null: 2, is_empty: 1})]
        assert micro_batch(7, null, good, empty) == told
    micro_batch(8, good)
    micro_batch(9, null)
    (counted,) = dropped_rows(checkpoint)
    assert (counted.rows, counted.last_batch, counted.reasons) == (4, 9, {is_null: 3, is_empty: 1})


def test_a_job_says_what_it_left_out_where_it_is_told_to_and_goes_on_where_it_cannot(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"nameServer": server.address, "badRows": "drop", "jobId": "nightly"}
    names = [f"no good {number}" for number in range(150)]
    many = pa.RecordBatch.from_pydict({"body": [b"x"] * 152, "topic": [*names, "Counted", "no good 7"]})

    def job(**more: str) -> None:
        writer = BatchWriter(sink_options({**given, **more}), {"body": "body", "topic": "topic"})
        writer.commit([writer.write_rows(iter([many]), TaskName("nightly", "0", 0))])

    job(droppedRowsPath=str(tmp_path))
    (counted,) = dropped_rows(str(tmp_path))
    assert (counted.run, counted.rows, len(counted.reasons)) == ("nightly", 151, 101)
    assert next(iter(counted.reasons.values())) == 2
    assert counted.reasons["other reasons"] == 50
    assert "the job sent 1 rows and left out 151: 2 because topic 'no good 7'" in caplog.text
    assert "140 reasons more" in caplog.text
    job(checkpointLocation="elsewhere://folder")
    assert "how many rows were left out cannot be noted in elsewhere://folder" in caplog.text
    with pytest.raises(ConfigError, match="no place for files"):
        job(droppedRowsPath="elsewhere://folder")


@pytest.mark.parametrize("job", ["daily/2026-11-18", ".hidden", "_hidden", "100%", "plain job"])
def test_a_job_of_any_name_is_counted_and_its_rows_are_kept(server: Server, tmp_path: Path, job: str) -> None:
    given = {"nameServer": server.address, "topic": "Named", "jobId": job}
    counting = BatchWriter(
        sink_options({**given, "badRows": "drop", "droppedRowsPath": str(tmp_path)}), {"body": "body"}
    )
    counting.commit([counting.write_rows(iter([rows(b"x", None)]), TaskName(counting.job_id, "0", 0))])
    assert [(one.run, one.rows) for one in dropped_rows(str(tmp_path))] == [(job, 1)]
    keeping = BatchWriter(sink_options({**given, "deadLetterPath": str(tmp_path / "bad")}), {"body": "body"})
    keeping.write_rows(iter([rows(b"x", None)]), TaskName(keeping.job_id, "0", 0))
    (file,) = (tmp_path / "bad").iterdir()
    assert file.suffix == ".parquet"
    assert not file.name.startswith((".", "_"))
