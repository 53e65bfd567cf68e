"""What a slave knows besides messages: topics, groups, offsets, timers. It asks its master for them, every few seconds.

Offsets say what of the log was done with. They are taken over once the log here has what the master's had when they were true: a
slave that knew more than it has would, as the next master, pass over messages that it never delivered.

Java: SlaveSynchronize
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from orbitmq.broker.replication.agreement import master_log
from orbitmq.errors import BodyError, OrbitError, RequestFailed
from orbitmq.fastjson import MAX_TOKENS_ASKED_FOR, loads
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import request as new_request
from orbitmq.storage import tables
from orbitmq.storage.checkpoint import unpack_timer_checkpoint
from orbitmq.storage.java_object import JavaObject, read_object
from orbitmq.tasks import set_within

if TYPE_CHECKING:
    from orbitmq.broker.consumer_offsets import ConsumerOffsets
    from orbitmq.broker.delayed import DelayedMessages
    from orbitmq.broker.groups import Groups
    from orbitmq.broker.replication.slave import Copying
    from orbitmq.broker.replication.slave_timers import SlaveTimers
    from orbitmq.broker.request_modes import RequestModes
    from orbitmq.broker.topics import Topics
    from orbitmq.storage.checkpoint import TimerCheckpoint
    from orbitmq.storage.store import Store
    from orbitmq.transport.address import Address
    from orbitmq.transport.pool import Pool

_SYNC_SECONDS: Final = 3.0
_LEAST_SECONDS: Final = 0.1  # between two
_LOOK_SECONDS: Final = 0.2  # while the log is behind what the master told of
_CALL_SECONDS: Final = 5.0

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=JavaObject)


class _Positions(NamedTuple):
    """What the master was done with when its log ended there."""

    log_end: int
    offsets: tables.OffsetTable
    delays: tables.DelayTable
    timers: TimerCheckpoint | None
    timer_counts: tables.TimerCountTable | None


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
        timers: SlaveTimers | None,
        store: Store,
    ) -> None:
        self._copying = copying
        self._pool = pool
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._delayed = delayed
        self._request_modes = request_modes
        self.timers = timers
        self._store = store
        self._positions: _Positions | None = None  # not taken over yet
        self._known_to = 0  # where the master's log ended before those that were taken over last were asked for
        self._is_held = False
        self._wanted = asyncio.Event()

    def hold_positions(self, is_held: bool) -> None:
        """While this slave acts for its master it knows better, until that has asked for it, and is registered again."""
        self._is_held, self._positions = is_held, None

    def message_arrived(self, topic: str) -> None:
        """A topic that nobody here knows is new on the master: it is worth asking now."""
        if self._topics.get(topic) is None:
            self._wanted.set()

    async def run(self) -> None:
        """Sync for ever. Failures are reported when they begin and when they end."""
        failing = False
        while True:
            await set_within(self._wanted, _LOOK_SECONDS if self._positions is not None else _SYNC_SECONDS)
            try:
                if self._wanted.is_set() or self._positions is None:
                    self._wanted.clear()
                    await self._sync()
                await self._take_positions()
            except OrbitError as error:
                if not failing:
                    logger.warning("cannot copy the master's tables: %s", error)
                failing = True
            else:
                failing = False
            await asyncio.sleep(_LEAST_SECONDS)

    async def sync(self) -> None:
        """Before copying begins. Raises an OrbitError if the master cannot be asked; what was taken over by then stays."""
        self._positions, self._known_to = None, 0  # of a log that may have been another's
        await self._sync()
        await self._take_positions()

    async def _sync(self) -> None:
        master = self._copying.master
        if master is None:
            return
        topics = await self._fetch(master, RequestCode.GET_ALL_TOPIC_CONFIG, tables.TopicTable)
        await self._topics.take_over(topics)
        groups = await self._fetch(master, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, tables.GroupTable)
        await self._groups.take_over(groups)
        modes = await self._fetch_new(master, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, tables.RequestModeTable)
        if modes is not None:
            await self._request_modes.take_over(modes)
        if self._positions is None and not self._is_held:
            positions = await self._fetch_positions(master)
            if self._copying.master == master and not self._is_held:  # they say nothing of another's log
                self._positions = positions

    async def _fetch_positions(self, master: Address) -> _Positions:
        offsets = await self._fetch(master, RequestCode.GET_ALL_CONSUMER_OFFSET, tables.OffsetTable)
        delays = await self._fetch(master, RequestCode.GET_ALL_DELAY_OFFSET, tables.DelayTable)
        timers = counts = None
        if self.timers is not None:
            counts = await self._fetch_new(master, RequestCode.GET_TIMER_METRICS, tables.TimerCountTable)
            answer = await self._pool.call(master, new_request(RequestCode.GET_TIMER_CHECK_POINT), _CALL_SECONDS)
            if answer.code == ResponseCode.SUCCESS:
                timers = unpack_timer_checkpoint(bytes(answer.body))
        # Asked for last: everything above was done before the log ended there.
        self._copying.master_end = (await master_log(self._pool, master)).end
        return _Positions(self._copying.master_end, offsets, delays, timers, counts)

    async def _take_positions(self) -> None:
        positions = self._positions
        # Only while it copies: before, what is here may be longer by what the master does not have, and is cut off.
        if positions is None or not self._copying.is_connected or self._store.log.end < positions.log_end:
            return
        self._positions = None
        self._store.dispatch()
        self._offsets.take_over(positions.offsets, self._known_to, forget_own=self._copying.was_master)
        self._known_to = positions.log_end
        self._delayed.take_over(positions.delays)
        if self.timers is not None:
            if positions.timer_counts is not None:
                self.timers.counts.take_over(positions.timer_counts)
            if positions.timers is not None:
                await self.timers.follow(positions.timers)
        if self._copying.was_master:
            await self._offsets.save()
            await self._delayed.save()
            self._copying.is_copy_now()

    async def _fetch_new(self, master: Address, code: RequestCode, kind: type[T]) -> T | None:
        """None if the master does not know of such things: one of 4.x, or one without timers."""
        try:
            return await self._fetch(master, code, kind)
        except RequestFailed as refusal:
            if refusal.code not in (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.SYSTEM_ERROR):
                raise
            return None

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
    return read_object(kind, loads(body, max_tokens=MAX_TOKENS_ASKED_FOR))
