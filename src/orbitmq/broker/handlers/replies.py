"""Replies, on their way from who was asked to who asked. Java: ReplyMessageProcessor"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final

from orbitmq.broker.compaction import check_key
from orbitmq.broker.message_types import check_message_type
from orbitmq.broker.sending import packed_host
from orbitmq.errors import RequestFailed, StorageError, TransportError
from orbitmq.message import properties as keys
from orbitmq.message.hosts import host_text
from orbitmq.message.properties import decode_properties, encode_properties
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command
from orbitmq.protocol.command import request as new_request
from orbitmq.protocol.headers.send import PushReply, SendMessage, SendMessageV2

if TYPE_CHECKING:
    from orbitmq.broker.clients import Clients
    from orbitmq.broker.receipts import Receipts
    from orbitmq.broker.sending import Sending
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.clock import Clock
    from orbitmq.transport.connection import Connection

logger = logging.getLogger(__name__)

_PUSH_SECONDS: Final = 10.0


async def send_reply(
    sending: Sending,
    clients: Clients,
    receipts: Receipts,
    configuration: BrokerConfiguration,
    clock: Clock,
    header_type: type[SendMessage] | type[SendMessageV2],
    request: Command,
    connection: Connection,
) -> Command:
    """Hand the reply to the client that waits for it; it is kept as well, whether that worked or not, if the store takes it."""
    header = request.read(header_type)
    try:
        sending.check_open()
        topic = sending.topic_for(header)
        queue_id = sending.queue_for(header, topic)
        if topic.attributes:
            check_message_type(topic, header.properties)
            check_key(topic, header.properties)
        offset = queue_offset = 0
        if configuration.settings.store_reply_message_enable:
            with contextlib.suppress(StorageError):  # who waits needs no copy of it; the log says what ails the store
                appended, _, _ = sending.put(
                    header.topic,
                    queue_id,
                    request.body,
                    header.properties,
                    header.born_timestamp,
                    packed_host(*connection.peer),
                    header.flag,
                    header.sys_flag,
                )
                offset, queue_offset = appended.commit_log_offset, appended.queue_offset
    except RequestFailed as error:
        return receipts.refused(error)
    receipt = receipts.stored_batch([offset], queue_id, queue_offset, None)
    failure = await _push(clients, configuration, clock, receipts.store_host, header, request.body, connection)
    if failure:
        receipt.code = ResponseCode.SYSTEM_ERROR
        receipt.remark = failure
    return receipt


async def _push(
    clients: Clients,
    configuration: BrokerConfiguration,
    clock: Clock,
    store_host: bytes,
    header: SendMessage | SendMessageV2,
    body: bytes,
    connection: Connection,
) -> str:
    """Why it could not be handed over; empty when it was."""
    properties = decode_properties(header.properties)
    asker_id = properties.get(keys.REPLY_TO_CLIENT, "")
    asker = clients.producer_by_id(asker_id)
    if asker is None:
        return f"push reply message fail, channel of <{asker_id}> not found."
    now_ms = clock.now_ms()
    settings = configuration.settings
    properties[keys.PUSH_REPLY_TIME] = str(now_ms)
    properties[keys.REGION] = settings.region_id
    properties[keys.TRACE_ON] = "true" if settings.trace_on else "false"
    push = PushReply(
        producer_group=header.producer_group,
        topic=header.topic,
        default_topic=header.default_topic,
        default_topic_queue_nums=header.default_topic_queue_nums,
        queue_id=max(header.queue_id, 0),
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        flag=header.flag,
        born_host=str(connection.peer),
        store_host=host_text(store_host),
        store_timestamp=now_ms,
        properties=encode_properties(properties).decode(),
        reconsume_times=header.reconsume_times,
        unit_mode=header.unit_mode,
    )
    try:
        answer = await asker.connection.call(
            new_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, push, body), _PUSH_SECONDS
        )
    except TransportError as error:
        return f"push reply message to {asker_id}fail: {error}"
    return "" if answer.code == ResponseCode.SUCCESS else f"push reply message to {asker_id}fail: {answer.remark}"
