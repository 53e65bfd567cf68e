"""What a slave knows besides messages: topics, groups, offsets. It asks its master for them, every few seconds.

Java: SlaveSynchronize
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, TypeVar

from orbitmq.errors import BodyError, OrbitError, RequestFailed
from orbitmq.fastjson import loads
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import request as new_request
from orbitmq.storage import tables
from orbitmq.storage.java_object import JavaObject, read_object
from orbitmq.tasks import set_within

if TYPE_CHECKING:
    from orbitmq.broker.consumer_offsets import ConsumerOffsets
    from orbitmq.broker.delayed import DelayedMessages
    from orbitmq.broker.groups import Groups
    from orbitmq.broker.replication.slave import Copying
    from orbitmq.broker.request_modes import RequestModes
    from orbitmq.broker.topics import Topics
    from orbitmq.transport.address import Address
    from orbitmq.transport.pool import Pool

_SYNC_SECONDS: Final = 3.0
_LEAST_SECONDS: Final = 0.1  # between two
_CALL_SECONDS: Final = 5.0

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=JavaObject)


class MasterTables:
    """The slave's tables are the master's. Offsets that consumers committed here while it was away are overwritten."""

    def __init__(
        self,
        copying: Copying,
        pool: Pool,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        delayed: DelayedMessages,
        request_modes: RequestModes,
    ) -> None:
        self._copying = copying
        self._pool = pool
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._delayed = delayed
        self._request_modes = request_modes
        self._wanted = asyncio.Event()

    def message_arrived(self, topic: str) -> None:
        """A topic that nobody here knows is new on the master: it is worth asking now."""
        if self._topics.get(topic) is None:
            self._wanted.set()

    async def run(self) -> None:
        """Sync for ever. Failures are reported when they begin and when they end."""
        failing = False
        while True:
            await set_within(self._wanted, _SYNC_SECONDS)
            self._wanted.clear()
            try:
                await self.sync()
            except OrbitError as error:
                if not failing:
                    logger.warning("cannot copy the master's tables: %s", error)
                failing = True
            else:
                failing = False
            await asyncio.sleep(_LEAST_SECONDS)

    async def sync(self) -> None:
        """Once. Raises an OrbitError if the master cannot be asked; what was taken over by then stays."""
        master = self._copying.master
        if master is None:
            return
        topics = await self._fetch(master, RequestCode.GET_ALL_TOPIC_CONFIG, tables.TopicTable)
        await self._topics.take_over(topics)
        groups = await self._fetch(master, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, tables.GroupTable)
        await self._groups.take_over(groups)
        self._offsets.take_over(await self._fetch(master, RequestCode.GET_ALL_CONSUMER_OFFSET, tables.OffsetTable))
        self._delayed.take_over(await self._fetch(master, RequestCode.GET_ALL_DELAY_OFFSET, tables.DelayTable))
        try:
            modes = await self._fetch(master, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, tables.RequestModeTable)
        except RequestFailed as refusal:
            if refusal.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # a master of 4.x has none
                raise
        else:
            await self._request_modes.take_over(modes)

    async def _fetch(self, master: Address, code: RequestCode, kind: type[T]) -> T:
        answer = await self._pool.call(master, new_request(code), _CALL_SECONDS)
        if answer.code != ResponseCode.SUCCESS:
            raise RequestFailed(answer.code, f"master {master} refused {code.name}: {answer.remark}")
        try:
            return await asyncio.to_thread(_read, kind, bytes(answer.body))
        except BodyError as error:
            raise BodyError(f"what master {master} answers to {code.name} cannot be read: {error}") from None


def _read(kind: type[T], body: bytes) -> T:
    """In a thread: ten thousand topics would hold up everybody else."""
    return read_object(kind, loads(body))
