"""The Spark session that OrbitMQ's commands run in: local without any set-up, or wherever `--master` says.

A session that is there already (a notebook's) is used as it is. Under spark-submit, its master and its settings count. Executors
of a cluster are given the package.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark import SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from orbitmq.errors import ConfigError
from orbitmq.spark.java_runtime import java_home
from orbitmq.spark.shipping import is_elsewhere, ship
from orbitmq.spark.worker_python import worker_python

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOGGING: Final = Path(__file__).with_name("log4j2.properties")

DEFAULTS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    # Hadoop's default forks a process for each file it makes on a local disk.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
_CONNECT_PORT: Final = "spark.connect.grpc.binding.port"
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"  # set for a program that spark-submit started: its JVM is there already
LOCAL_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
}


def start_session(
    name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None, cores: int | None = None
) -> SparkSession:
    """`conf` wins over our settings; `cores` is for a session on this machine and defaults to all of them."""
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    # It repeats, as JSON, errors that are raised anyway.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    builder = SparkSession.builder.appName(name)
    for key, value in _settings(master, cores, conf or {}).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    if is_elsewhere(session.sparkContext.master or "local"):
        ship(session)
    return session


def start_connect_session(
    name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Through Spark Connect: of the server `sc://...`, or of one that is started here upon `master`, on any port that is free."""
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    settings = {"spark.app.name": name, **(conf or {})}
    remote = master or os.environ.get("SPARK_REMOTE", "")
    builder: Any = SparkSession.builder
    if not remote.startswith("sc://"):
        settings = _settings(master, None, {_CONNECT_PORT: "0", **settings})
        remote = _serve_connect(settings)
        builder = ConnectSession.builder
    with warnings.catch_warnings():
        # A server that is started here has got them all; Spark 4.3 then asks it to take them a second time, and most are for a start only.
        warnings.filterwarnings("ignore", "Failed to set", UserWarning)
        session: SparkSession = builder.config(map={**settings, "spark.remote": remote}).getOrCreate()
    return session


def _serve_connect(settings: dict[str, str]) -> str:
    """Start a server in this process, and say where it listens; of the settings, those stay that a session takes.

    As `SparkSession.builder` does with `spark.api.mode=connect`. But that looks for its server at port 15002, whatever it was told to
    listen at, so that there could be only one on a machine.
    """
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    os.environ["SPARK_LOCAL_REMOTE"] = "1"  # so that stopping the session stops its server
    ConnectSession._start_connect_server(settings.get("spark.master", "local"), settings)
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    service: Any = getattr(SparkContext._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    return f"sc://localhost:{getattr(service, 'MODULE$').localPort()}"


def _settings(master: str | None, cores: int | None, conf: Mapping[str, str]) -> dict[str, str]:
    if _SUBMITTED in os.environ:
        return {**({"spark.master": master} if master else {}), **conf}
    settings = {**DEFAULTS, "spark.master": master or f"local[{cores or '*'}]"}
    is_here = not is_elsewhere(settings["spark.master"])
    os.environ.setdefault("PYSPARK_PYTHON", worker_python() if is_here else sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ["JAVA_HOME"] = str(java_home())
    if settings["spark.master"].startswith("local"):
        settings |= LOCAL_DEFAULTS
        settings["spark.sql.shuffle.partitions"] = str(cores or os.cpu_count() or 1)
    return settings | dict(conf)


def parse_conf(pairs: tuple[str, ...]) -> dict[str, str]:
    """`--conf NAME=VALUE`, as spark-submit takes it."""
    parsed = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--conf {pair!r} is not NAME=VALUE", hint="for example --conf spark.executor.memory=4g")
        parsed[name.strip()] = value
    return parsed
