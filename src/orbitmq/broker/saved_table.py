"""A table in memory and its file: changes are written by a thread, one write at a time, never by the event loop."""

from __future__ import annotations

import asyncio
import logging
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar

from orbitmq.errors import StorageError
from orbitmq.storage.java_object import JavaObject

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.storage.json_file import JsonFile

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=JavaObject)


class SavedTable(Generic[T]):
    def __init__(self, file: JsonFile[T], snapshot: Callable[[], T]) -> None:
        """`snapshot` gives a table that nobody changes while it is being written."""
        self._file = file
        self._snapshot = snapshot
        self._writing = asyncio.Lock()
        self._in_thread = Lock()  # a save whose task was cancelled goes on, and the next must not meet it
        self._changed = False
        self._soon: asyncio.Task[None] | None = None
        self._next_write = asyncio.Event()  # set once the write is over that what changed now is in
        self._this_write: asyncio.Event | None = None  # the same of the one that goes on

    async def save(self) -> None:
        """On disk on return, with everything that was so when it was called. StorageError when it cannot be."""
        async with self._writing:
            await asyncio.to_thread(self._write, self._snapshot())

    def _write(self, table: T) -> None:
        with self._in_thread:
            self._file.save(table)

    def save_soon(self) -> None:
        """Many changes in a row are written once; a failure is logged, and the next save tries again."""
        self._changed = True
        if self._soon is None or self._soon.done():
            self._soon = asyncio.create_task(self._save_while_changing())

    async def _save_while_changing(self) -> None:
        while self._changed:  # a change that came while the last one was being written is not in that file
            self._changed = False
            self._this_write, self._next_write = self._next_write, asyncio.Event()
            try:
                await self.save_or_log()
            finally:
                self._this_write.set()
                self._this_write = None

    async def save_or_log(self) -> None:
        try:
            await self.save()
        except StorageError as error:
            logger.error("cannot save %s: %s", self._file.path, error)

    @property
    def is_settled(self) -> bool:
        """Whether `settle` has nothing to wait for."""
        return not self._changed and self._this_write is None

    async def settle(self) -> None:
        """Until what `save_soon` was told so far is on disk, or could not be put there; whatever changes meanwhile.

        Who waits may be cancelled: others wait for the same write.
        """
        write = self._next_write if self._changed else self._this_write
        if write is not None:
            await write.wait()
