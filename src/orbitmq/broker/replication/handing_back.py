"""A master that comes back asks who acted in its place how far it got, before anybody hears of it again.

A master that lost the end of its log (a power cut with ASYNC_FLUSH) lost deliveries with it, and its slave may know of them from the
master itself. What was delivered it then decides alone: some of it comes twice, none is lost.

Java: BrokerPreOnlineService
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, TypeVar

from orbitmq.broker.half_messages import GROUP as TRANSACTIONS
from orbitmq.broker.replication.agreement import master_log
from orbitmq.errors import OrbitError, RequestFailed, TransportError
from orbitmq.fastjson import MAX_TOKENS_ASKED_FOR, loads
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import request as new_request
from orbitmq.protocol.headers.admin import HaAddresses
from orbitmq.storage import tables
from orbitmq.storage.checkpoint import unpack_timer_checkpoint
from orbitmq.storage.java_object import JavaObject, read_object

if TYPE_CHECKING:
    from orbitmq.broker.consumer_offsets import ConsumerOffsets
    from orbitmq.broker.delayed import DelayedMessages
    from orbitmq.broker.half_messages import HalfMessages
    from orbitmq.broker.replication.members import Members
    from orbitmq.broker.timers import Timers
    from orbitmq.storage.store import Store
    from orbitmq.transport.address import Address
    from orbitmq.transport.pool import Pool

logger = logging.getLogger(__name__)

_CALL_SECONDS: Final = 5.0
_PATIENCE_SECONDS: Final = 30.0  # with a slave that has much to put elsewhere, or stands still
_AGAIN_SECONDS: Final = 0.5

T = TypeVar("T", bound=JavaObject)


class _DoesNotStepDown(RequestFailed):
    pass


class HandingBack:
    def __init__(
        self,
        members: Members,
        pool: Pool,
        store: Store,
        offsets: ConsumerOffsets,
        delayed: DelayedMessages,
        timers: Timers | None,
        half_messages: HalfMessages,
    ) -> None:
        self._members = members
        self._pool = pool
        self._store = store
        self._offsets = offsets
        self._delayed = delayed
        self._timers = timers
        self._half_messages = half_messages

    async def take_back(self, own: Address, ha_address: Address) -> None:
        """From the slave with the smallest id, which is who acted. For one that cannot be asked a master waits half a minute.

        It is told first that its master is back, so that what it says does not change afterwards. If it has not stepped down by the
        end of that time, what it says is taken all the same: only what it does from there on is done again, without it everything.
        """
        here = HaAddresses(
            master_ha_address=str(ha_address), master_flush_offset=self._store.flushed_offset, master_address=str(own)
        )
        alive = await self._members.alive()
        slaves = sorted(broker_id for broker_id, address in alive.items() if broker_id > 0 and address != own)
        if not slaves or alive.get(0, own) != own:
            return
        address = alive[slaves[0]]
        give_up_at = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
        log_end: int | None = None
        has_refused = False
        while True:
            is_late = asyncio.get_running_loop().time() > give_up_at
            try:
                if log_end is None:  # asked once, and first: told of its master, a slave cuts off and copies
                    log_end = (await master_log(self._pool, address)).end
                if has_refused and is_late:
                    logger.error("%s goes on in this master's place, some of it may be done again", address)
                else:
                    await self._have_it_step_down(address, here)
                    has_refused = False
                await self._take_back_from(address, log_end)
                return
            except OrbitError as error:
                failure = error
            if isinstance(failure, _DoesNotStepDown):
                if not has_refused:
                    logger.warning("%s; it is asked again for %d seconds", failure, _PATIENCE_SECONDS)
                has_refused = True
            elif is_late or not isinstance(failure, TransportError):
                break
            if address not in (await self._members.alive()).values():
                break
            await asyncio.sleep(_AGAIN_SECONDS)
        logger.error(
            "cannot ask %s what it did in this master's place, some of it may be done again: %s", address, failure
        )

    async def _have_it_step_down(self, address: Address, here: HaAddresses) -> None:
        answer = await self._pool.call(address, new_request(RequestCode.EXCHANGE_BROKER_HA_INFO, here), _CALL_SECONDS)
        if answer.code != ResponseCode.SUCCESS:
            raise _DoesNotStepDown(
                answer.code,
                f"slave {address} does not step down for its master: {answer.remark}",
                hint="the user of innerClientAuthenticationCredentials has to be allowed to change the cluster"
                if answer.code == ResponseCode.NO_PERMISSION
                else "",
            )

    async def _take_back_from(self, address: Address, log_end: int) -> None:
        """Its log ended there. OrbitError: nothing was taken."""
        offsets = await self._fetch(address, RequestCode.GET_ALL_CONSUMER_OFFSET, tables.OffsetTable)
        delays = await self._fetch(address, RequestCode.GET_ALL_DELAY_OFFSET, tables.DelayTable)
        answer = await self._pool.call(address, new_request(RequestCode.GET_TIMER_CHECK_POINT), _CALL_SECONDS)
        has_lost = log_end > self._store.log.end
        self._offsets.take_back(
            offsets,
            lambda topic, queue_id: self._store.queue_range(topic, queue_id).max_offset,
            but_of=TRANSACTIONS if has_lost else "",
        )
        if has_lost:
            logger.warning(
                "the log here ends %d bytes before that of %s: delays, timers and transactions go on from what is here",
                log_end - self._store.log.end, address,
            )  # fmt: skip
            return
        self._delayed.take_back(delays)
        timers = unpack_timer_checkpoint(bytes(answer.body)) if answer.code == ResponseCode.SUCCESS else None
        if self._timers is not None and timers is not None:
            self._timers.take_back(timers, log_end)
        self._half_messages.forget_before()
        logger.info("took over what %s did in this master's place", address)

    async def _fetch(self, address: Address, code: RequestCode, kind: type[T]) -> T:
        answer = await self._pool.call(address, new_request(code), _CALL_SECONDS)
        if answer.code != ResponseCode.SUCCESS:
            raise RequestFailed(answer.code, f"slave {address} refused {code.name}: {answer.remark}")
        return read_object(kind, loads(bytes(answer.body), max_tokens=MAX_TOKENS_ASKED_FOR))

    async def close(self) -> None:
        await self._pool.close()
