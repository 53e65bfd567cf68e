"""A table and its file: who waits for a change waits for that change, and for nothing else."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from orbitmq.broker.saved_table import SavedTable
from orbitmq.storage.files import LocalDisk
from orbitmq.storage.json_file import JsonFile
from orbitmq.storage.tables import DataVersion, DelayTable
from tests.broker.kit import PATIENCE_SECONDS
from tests.raw_client import until

if TYPE_CHECKING:
    from pathlib import Path


class SlowFile(JsonFile[DelayTable]):
    """Each write waits until it is allowed."""

    def __init__(self, path: Path) -> None:
        super().__init__(LocalDisk(), path, DelayTable)
        self.may_write = threading.Semaphore(0)
        self.begun: list[int] = []  # the versions that are in them

    def save(self, table: DelayTable) -> bool:
        self.begun.append(table.data_version.counter)
        assert self.may_write.acquire(timeout=PATIENCE_SECONDS)
        return super().save(table)


class Changing:
    def __init__(self, path: Path) -> None:
        self.file = SlowFile(path)
        self.version = 0
        self.saved = SavedTable(self.file, lambda: DelayTable(data_version=DataVersion(counter=self.version)))

    def change(self) -> None:
        self.version += 1
        self.saved.save_soon()


async def test_who_waits_for_a_change_is_not_kept_by_those_that_come_after_it(tmp_path: Path) -> None:
    """A broker where topics are made without a pause would tell no name server of any."""
    table = Changing(tmp_path / "t.json")
    table.change()
    await until(lambda: table.file.begun == [1], what="the first write")
    table.change()
    second = asyncio.create_task(table.saved.settle())
    table.file.may_write.release()
    await until(lambda: table.file.begun == [1, 2], what="the second write")
    assert not second.done(), "the first file does not have the second change"
    table.change()
    table.file.may_write.release()
    await until(lambda: table.file.begun == [1, 2, 3], what="the third write")
    assert second.done()
    table.file.may_write.release()
    await table.saved.settle()


async def test_who_waits_no_longer_ends_neither_the_write_nor_the_waiting_of_others(tmp_path: Path) -> None:
    table = Changing(tmp_path / "t.json")
    table.change()
    leaving, staying = (asyncio.create_task(table.saved.settle()) for _ in range(2))
    await until(lambda: table.file.begun == [1], what="the write")
    leaving.cancel()
    await asyncio.wait([leaving])
    assert leaving.cancelled()
    table.file.may_write.release()
    await asyncio.wait_for(staying, PATIENCE_SECONDS)
    assert table.file.begun == [1]
