"""How far a group has come in each queue: kept by the broker for a group that shares the work, in a file for one whose members
each get everything.

Java: RemoteBrokerOffsetStore, LocalFileOffsetStore
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from orbitmq import saved_file
from orbitmq.client import questions
from orbitmq.errors import BodyError, ConfigError, OrbitError
from orbitmq.message import QueueRef
from orbitmq.protocol.bodies.groups import QueueKey
from orbitmq.protocol.bodies.offsets import QueueOffsets

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orbitmq.client.cluster import Cluster

logger = logging.getLogger(__name__)

_FILE_NAME: Final = "offsets.json"

_Table = tuple[str, str]  # broker and topic: what a broker keeps a group's offsets by


class Offsets(Protocol):
    """Offsets move in memory at once and are saved now and then."""

    def known(self, queue: QueueRef) -> int | None:
        """The offset in memory."""
        ...

    def has_table(self, queue: QueueRef) -> bool:
        """Whether something of this group and topic was saved before."""
        ...

    def advance(self, queue: QueueRef, offset: int) -> None:
        """Never goes back."""
        ...

    def set(self, queue: QueueRef, offset: int) -> None:
        """Goes wherever it is told: the user or the broker decided."""
        ...

    def forget(self, queue: QueueRef) -> None: ...

    async def stored(self, queue: QueueRef) -> int | None:
        """The saved offset, None when there is none."""
        ...

    async def save(self, queues: Iterable[QueueRef] | None = None) -> bool:
        """Save what has moved, of these queues or of all. False when something is not saved, which is logged: try again."""
        ...


class RemoteOffsets:
    """Kept by the broker of each queue.

    Brokers carry out requests side by side, so two commits of one queue must not be under way at once: the older could win.
    And Apache's lose commits that are the first of a group in a topic and come at the same time (each makes the table of the
    topic, the last one stays): the first goes alone.
    """

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._offsets: dict[QueueRef, int] = {}
        self._saved: dict[QueueRef, int] = {}
        self._tables: set[_Table] = set()
        self._saving = asyncio.Lock()

    def known(self, queue: QueueRef) -> int | None:
        return self._offsets.get(queue)

    def has_table(self, queue: QueueRef) -> bool:
        """The broker has our word on this topic already, so that commits may also ride on pulls."""
        return (queue.broker_name, queue.topic) in self._tables

    def advance(self, queue: QueueRef, offset: int) -> None:
        if offset > self._offsets.get(queue, -1):
            self._offsets[queue] = offset

    def set(self, queue: QueueRef, offset: int) -> None:
        self._offsets[queue] = offset

    def forget(self, queue: QueueRef) -> None:
        self._offsets.pop(queue, None)
        self._saved.pop(queue, None)

    async def stored(self, queue: QueueRef) -> int | None:
        return await questions.committed_offset(self._cluster, self._group, queue)

    async def save(self, queues: Iterable[QueueRef] | None = None) -> bool:
        async with self._saving:
            wanted = self._offsets if queues is None else queues
            moved = [queue for queue in wanted if self._has_moved(queue)]
            firsts = {(queue.broker_name, queue.topic): queue for queue in moved if not self.has_table(queue)}
            if not await self._save_together(firsts.values()):
                return False
            return await self._save_together([queue for queue in moved if self._has_moved(queue)])

    async def _save_together(self, queues: Iterable[QueueRef]) -> bool:
        return all(await asyncio.gather(*(self._save_one(queue, self._offsets[queue]) for queue in queues)))

    def _has_moved(self, queue: QueueRef) -> bool:
        offset = self._offsets.get(queue)
        return offset is not None and offset != self._saved.get(queue)

    async def _save_one(self, queue: QueueRef, offset: int) -> bool:
        try:
            address = self._cluster.vip(questions.any_address(self._cluster, queue.broker_name))
            await self._cluster.ask(address, questions.commit(self._group, queue, offset), questions.SECONDS)
        except OrbitError as error:
            logger.warning("offset %d of %s is not committed yet: %s", offset, queue, error)
            return False
        self._saved[queue] = offset
        self._tables.add((queue.broker_name, queue.topic))
        return True


class LocalOffsets:
    """Kept in a file of this machine, in the form and place where the Java client keeps them."""

    def __init__(self, directory: Path, client_id: str, group: str) -> None:
        self._path = directory / client_id / group / _FILE_NAME
        self._offsets: dict[QueueRef, int] = {}
        self._changed = False
        self._read()

    def known(self, queue: QueueRef) -> int | None:
        return self._offsets.get(queue)

    def has_table(self, queue: QueueRef) -> bool:
        return True

    def advance(self, queue: QueueRef, offset: int) -> None:
        if offset > self._offsets.get(queue, -1):
            self.set(queue, offset)

    def set(self, queue: QueueRef, offset: int) -> None:
        self._changed = self._changed or self._offsets.get(queue) != offset
        self._offsets[queue] = offset

    def forget(self, queue: QueueRef) -> None:
        """Nothing: a queue of ours stays ours, and the file keeps its place."""

    async def stored(self, queue: QueueRef) -> int | None:
        return self._offsets.get(queue)

    async def save(self, queues: Iterable[QueueRef] | None = None) -> bool:
        if not self._changed:
            return True
        self._changed = False
        table = {
            QueueKey(broker_name=queue.broker_name, queue_id=queue.queue_id, topic=queue.topic): offset
            for queue, offset in self._offsets.items()
        }
        text = QueueOffsets(table).to_json().decode()
        try:
            await asyncio.to_thread(saved_file.save, self._path, text)
        except OSError as error:
            self._changed = True
            logger.warning("offsets are not saved to %s: %s", self._path, error)
        return not self._changed

    def _read(self) -> None:
        for path in (self._path, self._path.with_name(_FILE_NAME + ".bak")):
            try:
                table = QueueOffsets.from_json(path.read_bytes()).offsets
            except FileNotFoundError:
                continue
            except (OSError, BodyError) as error:
                logger.warning("offsets in %s cannot be read: %s", path, error)
                continue
            self._offsets = {
                QueueRef(key.topic, key.broker_name, key.queue_id): offset for key, offset in table.items()
            }
            return


def default_directory() -> Path:
    """Where the Java client keeps offset files too."""
    try:
        return Path.home() / ".rocketmq_offsets"
    except RuntimeError as error:
        raise ConfigError("this user has no home folder", hint="say where offsets go: offset_directory=") from error
