"""The end of a transaction, and another beginning. Java: EndTransactionProcessor, AdminBrokerProcessor"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from orbitmq.access.needs import Action, topic_need
from orbitmq.broker import names
from orbitmq.errors import RequestFailed
from orbitmq.message import properties as keys
from orbitmq.message.ids import parse_offset_message_id
from orbitmq.message.properties import property_finder
from orbitmq.message.record import decode_raw
from orbitmq.protocol.codes import ResponseCode
from orbitmq.protocol.command import Command, ok
from orbitmq.protocol.headers.admin import ResumeHalfMessage
from orbitmq.protocol.headers.transactions import COMMIT, ROLLBACK, UNKNOWN, EndTransaction
from orbitmq.protocol.signing import ACCESS_KEY

if TYPE_CHECKING:
    from orbitmq.access.gate import Door
    from orbitmq.broker.durability import Durability
    from orbitmq.broker.half_messages import HalfMessages
    from orbitmq.storage.store import Store
    from orbitmq.transport.connection import Connection

_find_topic: Final = property_finder(keys.REAL_TOPIC)


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
    await asyncio.sleep(0)  # all who decide in this turn share a record of it
    half_messages.record_decisions()  # usually it is there by now; without it, the decision is forgotten
    half_messages.require_recorded(header.tran_state_table_offset)
    if not durability.is_immediate:
        await durability.keep_promise(store.log.end)
    return ok()


async def resume_checks(
    half_messages: HalfMessages,
    store: Store,
    durability: Durability,
    compares_topic: bool,
    request: Command,
    connection: Connection,
) -> Command:
    """A transaction that was given up after too many questions is open again, and its producer is asked anew.

    Only what the broker itself put aside; Java makes a half message of whatever the id leads to. With access control, the topic
    has to be the one that the message is for, or where it lies.
    """
    header = request.read(ResumeHalfMessage)
    _, offset = parse_offset_message_id(header.msg_id)
    record = store.message_at(offset)
    message = decode_raw(record) if record is not None else None
    topic = (_find_topic(message.properties) or b"").decode("utf-8", "replace") if message is not None else ""
    if message is None or message.topic != names.DISCARDED_HALF_TOPIC or not topic:
        raise RequestFailed(
            ResponseCode.SYSTEM_ERROR,
            f"there is no transaction at {offset} that was given up",
            hint=f"give the offset id of a message in {names.DISCARDED_HALF_TOPIC}",
        )
    if compares_topic and header.topic and header.topic not in (topic, names.DISCARDED_HALF_TOPIC):
        raise RequestFailed(ResponseCode.NO_PERMISSION, "the message is for another topic than the one that is named")
    appended = half_messages.take_up_again(message, topic)
    await durability.keep_promise(appended.end)
    return ok()
