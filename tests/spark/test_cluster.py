"""On a real cluster: a master, two workers and their executors as processes of their own, which have nothing of the driver's.

`local-cluster[2,1,512]` is Spark's standalone master with two workers inside the driver's JVM and real executors outside. The
driver is started by spark-submit. What executors lack is said in executor_python.py.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import pyspark
import pytest

from orbitmq.spark.java_runtime import java_home
from orbitmq.spark.shipping import is_elsewhere, write_package
from orbitmq.sync import connect
from orbitmq.testing import Server
from tests.spark.direct import bodies, read, wait_for_topic

pytestmark = pytest.mark.timeout(900)  # three JVMs and their workers start here

ROOT = Path(__file__).parent.parent.parent
HERE = Path(__file__).parent
INSTALLED = str(
    Path(msgspec.__file__).parent.parent
)  # with pyarrow and numpy: what executors of a cluster need to have
MESSAGES = 400
QUICK_TO_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
QUIET = f"-Dlog4j2.configurationFile={(ROOT / 'src/orbitmq/spark/log4j2.properties').as_uri()}"
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_TO_START,
    "spark.ui.enabled": "false",
    "spark.python.authenticate.socketTimeout": "300s",  # for workers that start on a busy machine
    # nothing runs before both executors are there
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
}


@pytest.fixture
def spark_home(tmp_path: Path) -> Path:
    """pyspark's own, where workers may keep their folders: they lie below SPARK_HOME, and tests do not write into packages."""
    home = tmp_path / "spark"
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)
    return home


@pytest.fixture
def worker_python(tmp_path: Path) -> Path:
    """Workers of the driver, which plans, have all that the tests have; those of executors, which run below `work`, do not."""
    python = shlex.quote(sys.executable)
    driver_only = os.pathsep.join([str(ROOT / "src"), str(tmp_path / "driver")])
    without = f"{python} -S {HERE / 'executor_python.py'} {driver_only} {INSTALLED}"
    script = tmp_path / "worker-python"
    script.write_text(f'#!/bin/sh\ncase "$PWD" in */work/app-*) exec {without} "$@" ;; esac\nexec {python} "$@"\n')
    script.chmod(0o755)
    return script


def submit(spark_home: Path, worker_python: Path, settings: dict[str, str], *program: str) -> str:
    environment = {
        **os.environ,
        "SPARK_HOME": str(spark_home),
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": str(worker_python),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
    command = [str(spark_home / "bin" / "spark-submit"), "--master", "local-cluster[2,1,512]"]
    command += ["--driver-memory", "600m", "--driver-java-options", f"{QUICK_TO_START} {QUIET}"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    done = subprocess.run([*command, *program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_submitted_job_runs_on_executors_that_have_nothing_of_the_drivers_and_survives_the_loss_of_one(
    tmp_path: Path, spark_home: Path, worker_python: Path
) -> None:
    (tmp_path / "driver").mkdir()
    settings = SETTINGS | {"spark.local.dir": str(tmp_path / "local")}
    with Server() as server:
        with connect(server.address) as client, client.producer(group="tests") as producer:
            for first in range(0, MESSAGES, 100):
                producer.send_batch("Orders", [b"%d" % number for number in range(first, first + 100)])
        wait_for_topic(server, "Orders")
        program = [str(HERE / "cluster_job.py"), server.address, str(tmp_path)]
        saw = json.loads(submit(spark_home, worker_python, settings, *program).splitlines()[-1])
        wait_for_topic(server, "Copies")
        copies = read(server, subscribe="Copies")
    assert saw["master"] == "local-cluster[2,1,512]"
    folders = {executor["folder"] for executor in saw["executors"]}
    assert len(folders) == 2, "each executor has a folder of its own"
    for executor in saw["executors"]:
        assert "/orbitmq.zip/" in executor["package"], "the package came with the job"
        assert "is on the driver's machine" in executor["refused"]
    assert not (tmp_path / "die").exists(), "an executor was killed in mid-batch"
    assert len(saw["streamed"]) == len({tuple(place) for place in saw["streamed"]}) == MESSAGES, "each message once"
    assert sorted(map(int, bodies(copies))) == list(range(MESSAGES))
    assert saw["archived"] == MESSAGES


def test_the_package_that_is_shipped_is_imported_as_it_was_compiled(tmp_path: Path) -> None:
    package = write_package(tmp_path / "orbitmq.zip")
    with zipfile.ZipFile(package) as held:
        names = set(held.namelist())
    assert {"orbitmq/spark/source.py", "orbitmq/spark/source.pyc", "pyspark_orbitmq/__init__.py"} <= names
    look = "import orbitmq.spark.source as s; print(s.__file__, s.RocketMQSource.name())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(package), INSTALLED])}
    shown = subprocess.run(
        [sys.executable, "-S", "-c", look], env=environment, capture_output=True, text=True, check=True
    )
    assert shown.stdout.split() == [f"{package}/orbitmq/spark/source.pyc", "rocketmq"]


@pytest.mark.parametrize(
    ("master", "elsewhere"),
    [("local", False), ("local[*]", False), ("local-cluster[2,1,512]", True), ("spark://m:7077", True), ("yarn", True)],
)
def test_executors_beside_the_driver_need_no_package(master: str, elsewhere: bool) -> None:
    assert is_elsewhere(master) is elsewhere
