"""One Spark session for all tests that ask for it: starting one takes seconds. Their modules say `pytestmark = SPARK`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orbitmq.spark.access import close_links
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


@pytest.fixture(scope="module", autouse=True)
def connections_are_closed() -> Iterator[None]:
    """Readers and writers keep theirs for the next task; tests of other rooms run in the same process and count them."""
    yield
    close_links()
