"""How far a group has come in each queue: kept by the broker for a group that shares the work, in a file for one whose members
each get everything.

Java: RemoteBrokerOffsetStore, LocalFileOffsetStore
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from orbitmq import saved_file
from orbitmq.client import questions
from orbitmq.errors import BodyError, ConfigError, OrbitError
from orbitmq.message import QueueRef
from orbitmq.protocol.bodies.groups import QueueKey
from orbitmq.protocol.bodies.offsets import QueueOffsets

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orbitmq.client.cluster import Cluster
    from orbitmq.transport.connection import Connection

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


class _Unsaved(NamedTuple):
    """A commit that no broker took."""

    queue: QueueRef
    offset: int
    error: OrbitError


class RemoteOffsets:
    """Kept by the broker of each queue.

    Brokers carry out requests side by side, so two commits of one queue must not be under way at once: the older could win.
    And Apache's lose commits that are the first of a group in a topic and come at the same time (each makes the table of the
    topic, the last one stays): the first goes alone.

    A broker writes offsets down every few seconds, so one that was killed, or a slave in its master's place, has older ones than
    it was told: over a new connection everything is said again, with the next save of all. Java's client says everything every
    five seconds.
    """

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._offsets: dict[QueueRef, int] = {}
        self._saved: dict[QueueRef, int] = {}
        self._tables: set[_Table] = set()
        self._told_over: dict[str, Connection | None] = {}  # broker -> what was open when it took our word
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
        unsaved = await self._save(queues)
        for queue, offset, error in unsaved:
            logger.warning("offset %d of %s is not committed yet: %s", offset, queue, error)
        return not unsaved

    async def save_or_fail(self) -> None:
        """As `save` of all queues; raises what the first broker that did not take them answered, after telling all."""
        unsaved = await self._save(None)
        if unsaved:
            raise unsaved[0].error

    async def _save(self, queues: Iterable[QueueRef] | None) -> list[_Unsaved]:
        async with self._saving:
            if queues is None:
                # Not of single queues: those that are just being given up may have another owner, who is further by now.
                self._doubt_brokers_that_were_away()
            by_table: dict[_Table, list[QueueRef]] = {}
            for queue in self._offsets if queues is None else queues:
                if self._has_moved(queue):
                    by_table.setdefault((queue.broker_name, queue.topic), []).append(queue)
            # Each for itself: a broker that refuses, or is slow, keeps back no commits of others.
            unsaved = await asyncio.gather(*(self._save_in_table(moved) for moved in by_table.values()))
            return [one for some in unsaved for one in some]

    async def _save_in_table(self, moved: list[QueueRef]) -> list[_Unsaved]:
        """Offsets of one broker and topic, of those queues that are not forgotten meanwhile."""
        left = [queue for queue in moved if self._has_moved(queue)]
        if left and not self.has_table(left[0]):
            failure = await self._save_one(left[0], self._offsets[left[0]])
            if failure is not None:
                return [failure]
            left = [queue for queue in left if self._has_moved(queue)]
        outcomes = await asyncio.gather(*(self._save_one(queue, self._offsets[queue]) for queue in left))
        return [outcome for outcome in outcomes if outcome is not None]

    def _has_moved(self, queue: QueueRef) -> bool:
        offset = self._offsets.get(queue)
        return offset is not None and offset != self._saved.get(queue)

    async def _save_one(self, queue: QueueRef, offset: int) -> _Unsaved | None:
        try:
            address = self._cluster.vip(questions.any_address(self._cluster, queue.broker_name))
            await self._cluster.ask(address, questions.commit(self._group, queue, offset), questions.SECONDS)
        except OrbitError as error:
            return _Unsaved(queue, offset, error)
        if queue in self._offsets:  # not forgotten meanwhile: then another member may say otherwise
            self._saved[queue] = offset
        self._tables.add((queue.broker_name, queue.topic))
        self._told_over.setdefault(queue.broker_name, self._connection_to(queue.broker_name))
        return None

    def _doubt_brokers_that_were_away(self) -> None:
        """Nothing counts as saved by a broker whose connection is another one than when it took our word."""
        for broker_name, connection in list(self._told_over.items()):
            current = self._connection_to(broker_name)
            if current is None or current is connection:
                continue  # one that is away is told once it is back
            del self._told_over[broker_name]
            self._tables = {table for table in self._tables if table[0] != broker_name}
            for queue in [queue for queue in self._saved if queue.broker_name == broker_name]:
                del self._saved[queue]

    def _connection_to(self, broker_name: str) -> Connection | None:
        """The one that pulls and heartbeats keep open."""
        replica = self._cluster.replica(broker_name)
        return self._cluster.open_connection(replica[0]) if replica is not None else None


class LocalOffsets:
    """Kept in a file of this machine, in the form and place where the Java client keeps them."""

    def __init__(self, directory: Path, client_id: str, group: str) -> None:
        self._path = directory / client_id / group / _FILE_NAME
        self._offsets: dict[QueueRef, int] = {}
        self._changed = False
        self._saving = asyncio.Lock()  # of two saves in two threads, the older could win
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
        async with self._saving:
            if not self._changed:
                return True
            self._changed = False
            table = {
                QueueKey(broker_name=queue.broker_name, queue_id=queue.queue_id, topic=queue.topic): offset
                for queue, offset in self._offsets.items()
            }
            try:
                await self._write(QueueOffsets(table).to_json().decode())
            except OSError as error:
                self._changed = True
                logger.warning("offsets are not saved to %s: %s", self._path, error)
                return False
            return True

    async def _write(self, text: str) -> None:
        write = partial(saved_file.save, self._path, text)
        try:
            writing = asyncio.get_running_loop().run_in_executor(None, write)
        except RuntimeError:
            write()  # the program ends: Python starts no more work in threads, and nobody is kept waiting by us
        else:
            await writing

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
