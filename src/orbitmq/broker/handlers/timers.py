"""Taking timer messages back, and what others may know of the wheel. Java: RecallMessageProcessor, AdminBrokerProcessor"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.broker.sending import packed_host
from orbitmq.broker.timer_messages import recall_key
from orbitmq.errors import MessageError, RequestFailed
from orbitmq.message import properties as keys
from orbitmq.message.properties import encode_properties
from orbitmq.protocol.bodies.topics import PERM_WRITE
from orbitmq.protocol.codes import ResponseCode
from orbitmq.protocol.command import Command, answer, ok
from orbitmq.protocol.headers.send import MessageRecalled, RecallMessage, RecallRefused
from orbitmq.protocol.recall_handles import RecallHandle, read_handle
from orbitmq.storage.java_object import to_json

if TYPE_CHECKING:
    from orbitmq.broker.durability import Durability
    from orbitmq.broker.sending import Sending
    from orbitmq.broker.settings import BrokerConfiguration, Settings
    from orbitmq.broker.timers import Timers
    from orbitmq.broker.topics import Topics
    from orbitmq.clock import Clock
    from orbitmq.transport.connection import Connection

_TAG: Final = "_RECALL_TAG_"
_BODY: Final = b"0"


async def recall_message(
    sending: Sending,
    durability: Durability,
    topics: Topics,
    configuration: BrokerConfiguration,
    clock: Clock,
    request: Command,
    connection: Connection,
) -> Command:
    """Put a mark beside a timer message on the wheel: when their moment comes, neither is delivered.

    A refusal names the region, too: Java's client traces no recall without one.
    """
    header = request.read(RecallMessage)
    region = configuration.settings.region_id
    try:
        message_id, end = _put_mark(sending, topics, configuration.settings, clock.now_ms(), header, connection)
    except RequestFailed as refusal:
        return answer(refusal.code, str(refusal), RecallRefused(region=region))
    if not durability.is_immediate:
        await durability.keep_promise(end)
    return ok(MessageRecalled(msg_id=message_id, region=region))


def _put_mark(
    sending: Sending, topics: Topics, settings: Settings, now_ms: int, header: RecallMessage, connection: Connection
) -> tuple[str, int]:
    """The message's id, and where the log ends with the mark."""
    if not settings.recall_message_enable:
        raise RequestFailed(
            ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden", hint="set recallMessageEnable=true"
        )
    if settings.is_slave:
        raise RequestFailed(
            ResponseCode.SLAVE_NOT_AVAILABLE,
            "recall failed, broker service not available",
            hint="this broker is a slave; ask its master, brokerId 0",
        )
    may_recall = settings.broker_permission & PERM_WRITE or settings.allow_recall_when_broker_not_writeable
    if now_ms < settings.start_accept_send_request_time_stamp or not may_recall:
        raise RequestFailed(ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, broker service not available")
    if topics.get(header.topic) is None:
        raise RequestFailed(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic[:300]}] not exist")
    handle = read_handle(header.recall_handle)
    _check_handle(handle, header.topic, settings, now_ms)
    properties = {
        keys.TAGS: _TAG,
        keys.TIMER_DELETE_UNIQUE_KEY: recall_key(handle.topic, handle.unique_key),
        keys.UNIQUE_KEY: handle.unique_key,
        keys.TIMER_DELIVER_MS: str(handle.at_ms),
        keys.BORN_TIMESTAMP: str(now_ms),
        keys.PRODUCER_GROUP: header.producer_group or "",
    }
    try:
        text = encode_properties(properties).decode()
        appended, _, _ = sending.put(handle.topic, 0, _BODY, text, now_ms, packed_host(*connection.peer))
    except MessageError as error:
        raise RequestFailed(ResponseCode.ILLEGAL_OPERATION, f"recall handle is invalid: {error}") from error
    return handle.unique_key, appended.end


def _check_handle(handle: RecallHandle, topic: str, settings: Settings, now_ms: int) -> None:
    if handle.topic != topic:
        raise RequestFailed(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
    if handle.broker_name != settings.broker_name:
        raise RequestFailed(
            ResponseCode.ILLEGAL_OPERATION,
            "recall failed, broker service not available",
            hint=f"the message waits on broker {handle.broker_name[:100]}",
        )
    if not 0 < handle.at_ms - now_ms < settings.timer_max_delay_sec * 1000:
        raise RequestFailed(
            ResponseCode.ILLEGAL_OPERATION,
            "recall failed, timestamp invalid",
            hint="the message was delivered already, or is about to be",
        )


async def timer_checkpoint(timers: Timers | None, request: Command, connection: Connection) -> Command:
    """Seven numbers, as they stand in the file. For slaves."""
    if timers is None:
        raise RequestFailed(ResponseCode.SYSTEM_ERROR, "The checkpoint is null", hint="timerWheelEnable is false")
    return ok(body=timers.wheel.mark().pack())


async def timer_counts(timers: Timers | None, request: Command, connection: Connection) -> Command:
    """Messages that wait, by topic."""
    if timers is None:
        raise RequestFailed(
            ResponseCode.SYSTEM_ERROR, "The timerMessageStore is null", hint="timerWheelEnable is false"
        )
    return ok(body=to_json(timers.counts.table()))
