"""Errors of source and sink in the words of a command: its flags, not their options. Without Spark."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import click
import pytest
from py4j.protocol import Py4JError

from orbitmq import spark
from orbitmq.cli import spark_archive, spark_query, spark_replay
from orbitmq.cli.spark_session import SparkPlace
from orbitmq.errors import ConfigError, OrbitError, RequestFailed, StorageError
from orbitmq.spark.failures import plain_errors

PLACE = SparkPlace(master=None, conf=())
WORDS = {**spark_archive._WORDS_OF_ARCHIVE, **spark_archive._WORDS_OF_EXPORT, **spark_replay._WORDS}


def said_by_spark() -> set[str]:
    """Every text in the code of source, sink and lakes."""
    files = Path(inspect.getfile(spark)).parent.glob("*.py")
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text())))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_what_is_put_in_other_words_is_what_the_code_says() -> None:
    said = said_by_spark()
    missing = spark_query._missing("T").partition(" (")[2].removesuffix(")")
    assert [text for text in (*WORDS, missing) if not any(text in one for one in said)] == []


@pytest.mark.parametrize(
    ("error", "words", "told"),
    [
        (
            StorageError("gone", hint="retention overtook the query; failOnDataLoss=false goes on without them"),
            spark_archive._WORDS_OF_ARCHIVE,
            "gone (retention overtook the query; --ignore-loss goes on without them)",
        ),
        (
            ConfigError("outside", hint="give an offset in that range, or failOnDataLoss=false to take the nearest"),
            spark_archive._WORDS_OF_ARCHIVE,
            "outside (--ignore-loss goes on with what is left)",
        ),
        (
            RequestFailed(17, "topic 'T' does not exist", hint=spark_query._missing("T").partition(" (")[2][:-1]),
            {spark_query._missing("T"): "nothing here"},
            "nothing here",
        ),
        (StorageError("as it is", hint="do it"), None, "as it is (do it)"),
    ],
)
def test_an_error_names_what_the_user_can_give(error: OrbitError, words: dict[str, str] | None, told: str) -> None:
    sentence = str(error)

    @plain_errors
    def fails() -> None:
        raise error

    with pytest.raises(type(error)) as caught, PLACE.plain_failures(words):
        fails()
    assert (str(caught.value), caught.value.code) == (told, error.code)
    # Out of a worker it comes as a text.
    with pytest.raises(OrbitError) as remade, PLACE.plain_failures(words):
        raise RuntimeError(f"[X] Traceback:\norbitmq.errors.{type(error).__name__}: {sentence}\n")
    assert str(remade.value) == told


FAILED_IN_A_WORKER = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent failure: \
Lost task 0.0 in stage 0.0 (TID 0) (127.0.0.1 executor driver): org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/site-packages/pyspark/worker.py", line 2345, in main
    process()
    ~~~~~~~^^
KeyError: 'a column'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/site-packages/pyarrow/error.pxi", line 92, in pyarrow.lib.check_status
OSError: [Errno 28] Error writing bytes to file. Detail: [errno 28] No space left on device

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/site-packages/pyspark/worker.py", line 2345, in main
KeyError: 'a column'
"""


def test_what_a_worker_failed_with_is_told() -> None:
    with pytest.raises(click.ClickException) as told, PLACE.plain_failures():
        raise Py4JError(FAILED_IN_A_WORKER)
    assert told.value.message == (
        "a worker failed: OSError: [Errno 28] Error writing bytes to file. Detail: [errno 28] No space left on device"
    )
    with pytest.raises(click.ClickException, match=r"^Job aborted$"), PLACE.plain_failures():
        raise Py4JError("An error occurred while calling o1.save.\n: Job aborted\n\tat org.apache")


def test_wrong_use_is_told_before_spark_starts() -> None:
    with pytest.raises(click.BadParameter, match="2026-11-01"):
        spark_archive.archive.make_context("archive", ["Orders", "--to", "lake", "--from", "2026-11-01"])
