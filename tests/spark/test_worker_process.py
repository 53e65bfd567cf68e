"""What a worker's process does once for all of its tasks."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
from pyspark import TaskContext

from orbitmq.spark.worker_process import settle

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def unsettled() -> Iterator[None]:
    settle.cache_clear()
    yield
    settle.cache_clear()
    gc.unfreeze()


def test_in_a_task_what_is_there_is_put_aside_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "get", object)
    settle()
    put_aside = gc.get_freeze_count()
    assert put_aside > 0
    made_since = [[number] for number in range(1000)]
    settle()
    assert gc.get_freeze_count() <= put_aside
    assert len(made_since) == 1000


def test_in_a_program_of_the_users_nothing_is_put_aside() -> None:
    before = gc.get_freeze_count()
    settle()
    assert gc.get_freeze_count() <= before
