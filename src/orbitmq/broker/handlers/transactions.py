"""The end of a transaction. Java: EndTransactionProcessor"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from orbitmq.access.needs import Action, topic_need
from orbitmq.errors import RequestFailed
from orbitmq.protocol.codes import ResponseCode
from orbitmq.protocol.command import Command, ok
from orbitmq.protocol.headers.transactions import COMMIT, ROLLBACK, UNKNOWN, EndTransaction
from orbitmq.protocol.signing import ACCESS_KEY

if TYPE_CHECKING:
    from orbitmq.access.gate import Door
    from orbitmq.broker.durability import Durability
    from orbitmq.broker.half_messages import HalfMessages
    from orbitmq.storage.store import Store
    from orbitmq.transport.connection import Connection


async def end_transaction(
    half_messages: HalfMessages,
    store: Store,
    durability: Durability,
    gate: Door | None,
    request: Command,
    connection: Connection,
) -> Command | None:
    """Commit or roll back; answered once that is as safe as a message. "Unknown" gets no answer, as in Java: the broker asks again.

    Behind a gate it takes the right to send to the message's topic, whatever topic the request names, if any.
    """
    header = request.read(EndTransaction)
    decision = header.commit_or_rollback
    if decision == UNKNOWN:
        return None
    topic = half_messages.topic_of(header.tran_state_table_offset)
    if gate is not None and topic is not None:
        who = request.fields.get(ACCESS_KEY, "")
        if not gate.allows(request.code, who, topic_need(topic, (Action.PUB,)), connection.peer.host):
            raise RequestFailed(ResponseCode.NO_PERMISSION, f"User:{who} may not decide on messages of this topic")
    if decision == COMMIT:
        half_messages.commit(header.tran_state_table_offset, header.commit_log_offset, header.producer_group)
    elif decision == ROLLBACK:
        half_messages.roll_back(header.tran_state_table_offset, header.commit_log_offset, header.producer_group)
    else:
        raise RequestFailed(
            ResponseCode.SYSTEM_ERROR, f"{decision} is no decision", hint="8 commits, 12 rolls back, 0 is not known yet"
        )
    if not durability.is_immediate:
        await asyncio.sleep(0)  # all who decide in this turn share a record of it
        half_messages.record_decisions()  # usually it is there by now; without it, the decision is forgotten
        await durability.keep_promise(store.log.end)
    return ok()
