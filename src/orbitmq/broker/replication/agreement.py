"""Where a slave's log stops being its master's.

The copying protocol knows offsets only. A master that lost its tail in a power cut and went on writing has other messages at the
same offsets, and a slave that believed it had them would serve what never was. So before it copies on, a slave compares: its last
record with the master's at that place, by the request that looks up a message by its id, which Apache's brokers answer too. Two
logs that agree in one record agree in all before it, so if the last differs, the first that does is found by halving. A file whose
first record differs is not looked through: that may be all of them, again and again, when the master has deleted what a slave has.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.errors import BodyError, RequestFailed
from orbitmq.protocol.bodies.route import KvTable
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import request as new_request
from orbitmq.protocol.headers.admin import ViewMessage

if TYPE_CHECKING:
    from orbitmq.storage.replica import Replica
    from orbitmq.storage.store import Store
    from orbitmq.transport.address import Address
    from orbitmq.transport.pool import Pool

_CALL_SECONDS: Final = 5.0
_NOT_THERE: Final = "can not find message"  # Java's words; the code alone stands for failures of any kind


async def master_record(pool: Pool, master: Address, offset: int) -> bytes | None:
    """The record at a log offset of the master; None if it has none there.

    TransportError if it cannot be asked, RequestFailed if it will not say: that is no sign of another log.
    """
    answer = await pool.call(
        master, new_request(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(offset=offset)), _CALL_SECONDS
    )
    if answer.code == ResponseCode.SUCCESS:
        return bytes(answer.body)
    if answer.code == ResponseCode.SYSTEM_ERROR and _NOT_THERE in (answer.remark or ""):
        return None
    raise RequestFailed(answer.code, f"master {master} does not show its message at {offset}: {answer.remark}")


class MasterLog(NamedTuple):
    start: int
    end: int


async def master_log(pool: Pool, master: Address) -> MasterLog:
    """Where the master's log begins and ends. TransportError, RequestFailed as above; BodyError for what is no number."""
    answer = await pool.call(master, new_request(RequestCode.GET_BROKER_RUNTIME_INFO), _CALL_SECONDS)
    if answer.code != ResponseCode.SUCCESS:
        raise RequestFailed(answer.code, f"master {master} does not say where its log begins: {answer.remark}")
    table = KvTable.from_json(answer.body).table
    try:
        return MasterLog(int(table.get("commitLogMinOffset", "-1")), int(table.get("commitLogMaxOffset", "0")))
    except ValueError as error:
        raise BodyError(f"master {master} does not say in numbers where its log is: {error}") from None


class Agreement(NamedTuple):
    end: int  # of the last record that both logs have
    is_whole: bool  # nothing but a piece of a record, or the blank end of a file, stands behind it


async def agreement(store: Store, replica: Replica, pool: Pool, master: Address) -> Agreement | None:
    """None if no record here is the master's."""
    is_whole = True
    for segment in reversed(store.log.files.segments):
        if store.record_at(segment.start) is not None and not await _agrees(store, pool, master, segment.start):
            is_whole = False
            continue
        starts = await asyncio.to_thread(replica.record_starts, segment)  # a walk through a gigabyte
        if not starts:
            continue
        if await _agrees(store, pool, master, starts[-1]):
            return Agreement(_end_of(store, starts[-1]), is_whole)
        is_whole = False
        if starts[0] != segment.start and not await _agrees(store, pool, master, starts[0]):
            continue
        agreeing, differing = 0, len(starts) - 1
        while differing - agreeing > 1:
            middle = (agreeing + differing) // 2
            if await _agrees(store, pool, master, starts[middle]):
                agreeing = middle
            else:
                differing = middle
        return Agreement(_end_of(store, starts[agreeing]), is_whole)
    return None


async def _agrees(store: Store, pool: Pool, master: Address, offset: int) -> bool:
    own = store.record_at(offset)
    return own is not None and await master_record(pool, master, offset) == bytes(own)


def _end_of(store: Store, offset: int) -> int:
    record = store.record_at(offset)
    assert record is not None, "it was there a moment ago"
    return offset + len(record)
