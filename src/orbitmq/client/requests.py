"""Asking over messages: a request carries who asks and a correlation id; the reply comes back through a broker.

    asker ─ request, an ordinary message ─> broker ─> responder
    asker <─ push (326) ─ broker <─ reply (325), to the reply topic of the request's cluster ─ responder

Java: DefaultMQProducerImpl.request, RequestFutureHolder, MessageUtil.createReplyMessage
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.errors import AlreadyClosed, CallTimeout, MessageError
from orbitmq.message import Message
from orbitmq.message import properties as names
from orbitmq.message.compression import plain_body
from orbitmq.message.properties import decode_properties
from orbitmq.protocol.command import Command, ok
from orbitmq.protocol.headers.send import PushReply

if TYPE_CHECKING:
    from orbitmq.clock import Clock
    from orbitmq.transport.connection import Connection

logger = logging.getLogger(__name__)

_REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"
_REPLY: Final = "reply"
_COPIED: Final[tuple[str, ...]] = (names.CORRELATION_ID, names.REPLY_TO_CLIENT, names.TTL)


class _Waiting(NamedTuple):
    asker: object
    reply: asyncio.Future[Message]


class Requests:
    """Who waits for which reply, in one client instance."""

    def __init__(self, client_id: str, clock: Clock) -> None:
        self._client_id = client_id
        self._clock = clock
        self._waiting: dict[str, _Waiting] = {}

    def expect(
        self, request: Message, asker: object, correlation_id: str, timeout_seconds: float
    ) -> asyncio.Future[Message]:
        """Make the message a request. The id is to be given to `forget` in the end."""
        request.properties[names.CORRELATION_ID] = correlation_id
        request.properties[names.REPLY_TO_CLIENT] = self._client_id
        request.properties[names.TTL] = str(round(timeout_seconds * 1000))
        reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = _Waiting(asker, reply)
        return reply

    def forget(self, correlation_id: str) -> None:
        del self._waiting[correlation_id]

    def leave(self, asker: object) -> None:
        """Who asked is closed: nobody waits for its replies any more."""
        for correlation_id, (whose, reply) in self._waiting.items():
            if whose is asker and not reply.done():
                reply.set_exception(
                    AlreadyClosed(
                        f"the producer was closed before a reply to request {correlation_id} came",
                        hint="close it when the replies are there",
                    )
                )
                reply.exception()  # which nobody looks at whose request did not leave

    async def arrived(self, request: Command, connection: Connection) -> Command:
        """The handler of a reply that a broker pushes to us."""
        header = request.read(PushReply)
        properties = decode_properties(header.properties)
        waiting = self._waiting.get(properties.get(names.CORRELATION_ID, ""))
        if waiting is None or waiting.reply.done():
            logger.info("a reply from %s came too late, or was none of ours", header.born_host)
            return ok()
        properties[names.ARRIVE_TIME] = str(self._clock.now_ms())
        body = plain_body(request.body, header.sys_flag)
        waiting.reply.set_result(Message(header.topic, body, properties=properties, flag=header.flag))
        return ok()


def is_request(message: Message) -> bool:
    return names.REPLY_TO_CLIENT in message.properties


def reply_to(request: Message, body: bytes) -> Message:
    """The message that answers `request`."""
    if not is_request(request):
        raise MessageError(
            "this message is no request: nobody waits for a reply", hint="requests come from `request()`"
        )
    cluster = request.properties.get(names.CLUSTER)
    if not cluster:
        raise MessageError("this request does not say which cluster it came through", hint="reply to received messages")
    copied = {name: request.properties[name] for name in _COPIED if name in request.properties}
    return Message(cluster + _REPLY_TOPIC_SUFFIX, body, properties={names.MESSAGE_TYPE: _REPLY, **copied})


def no_reply(topic: str, seconds: float, *, sent: bool) -> CallTimeout:
    if sent:
        return CallTimeout(
            f"a request to topic {topic!r} was sent, but no reply came within {seconds:g} s",
            hint="does a responder consume the topic? a longer timeout= gives it more time",
        )
    return CallTimeout(
        f"a request to topic {topic!r} was not sent within {seconds:g} s",
        hint="is the broker overloaded or unreachable?",
    )
