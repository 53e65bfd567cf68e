"""One Spark session for all tests that ask for it: starting one takes seconds. Their modules say `pytestmark = SPARK`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orbitmq.spark.session import start_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    scratch = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.driver.memory": "600m",
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
    }
    session = start_session("orbitmq-tests", master="local[2]", conf=conf)
    yield session
    session.stop()
