"""Spark's own declarative pipelines over topics, run by ours: success is told from failure. Needs orbitmq[connect]."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from orbitmq.cli.entry import cli
from orbitmq.spark import declared
from orbitmq.testing import Server
from tests.spark.direct import bodies, read, send

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(3600)]

TOO_SLOW = ("CANNOT_OPEN_SOCKET", "failed to connect back")
SPARK_CONNECT_PORT = 15002
ROOT = Path(__file__).parent.parent.parent
DATASETS = """
from pyspark import pipelines as dp

READING = {"nameServer": "%(server)s", "subscribe": "Declared", "startingOffsets": "earliest"}


@dp.table
def orders():
    return spark.readStream.format("rocketmq").options(**READING).load().selectExpr("%(column)s AS body", "queueId")


dp.create_sink("copies", "rocketmq", {"nameServer": "%(server)s", "topic": "%(copies)s"})


@dp.append_flow(target="copies")
def copied():
    return spark.readStream.format("rocketmq").options(**READING).load().select("body", "tags")
"""


def a_pipeline(folder: Path, server: Server, column: str, copies: str) -> Path:
    folder.mkdir(parents=True)
    said = {"server": server.address, "column": column, "copies": copies}
    (folder / "datasets.py").write_text(DATASETS % said)
    file = folder / "spark-pipeline.yml"
    storage = (folder / "storage").as_uri()
    file.write_text(f"name: declared\nstorage: {storage}\nlibraries:\n  - glob:\n      include: datasets.py\n")
    return file


def run(folder: Path, server: Server, column: str, *more: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """In a process of its own: Spark Connect and a classic session exclude each other. What it said, and the topic it copied to.

    Spark waits ten seconds for a Python process to start, which on a busy machine may not do: then all of it again, by other names.
    """
    environment: Mapping[str, str] = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    for attempt in range(4):
        copies = f"Copies{attempt}"
        file = a_pipeline(folder / str(attempt), server, column, copies)
        command = [sys.executable, "-m", "orbitmq", "pipeline", "run", str(file), "--master", "local[2]", *more]
        done = subprocess.run(command, cwd=file.parent, env=environment, capture_output=True, text=True, timeout=900)
        if not any(said in done.stdout + done.stderr for said in TOO_SLOW):
            break
    return done, copies


@contextmanager
def taken(port: int) -> Iterator[None]:
    """By us, or by somebody who was there before."""
    with socket.socket() as holder:
        with suppress(OSError):
            holder.bind(("", port))
            holder.listen()
        yield


def test_a_run_that_completes_is_a_success_and_one_that_fails_is_told_in_a_line(tmp_path: Path) -> None:
    """Beside another one, which may have taken the port where Spark Connect listens by itself."""
    for package in ("grpc", "grpc_status", "pandas"):
        pytest.importorskip(package, reason="Spark Connect is not installed")
    with Server() as server, taken(SPARK_CONNECT_PORT):
        send(server, "Declared", [f"{number}" for number in range(20)])
        done, copies = run(tmp_path / "good", server, "cast(body AS STRING)")
        assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["Run is COMPLETED."]), done.stderr
        assert "Traceback" not in done.stderr
        assert bodies(read(server, subscribe=copies)) == sorted(f"{number}" for number in range(20))
        failed, _ = run(tmp_path / "bad", server, "no_such_column", "--dry-run")
        assert failed.returncode == 1
        assert "no_such_column" in failed.stdout, "an event tells why"
        assert failed.stderr.strip()
        assert "Traceback" not in failed.stderr


def test_missing_packages_are_named_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declared, "find_spec", lambda _: None)
    failed = CliRunner().invoke(cli, ["pipeline", "run", str(tmp_path / "spark-pipeline.yml")])
    assert failed.exit_code == 1
    assert "grpc" in failed.output
    assert 'pip install "orbitmq[connect]"' in failed.output
