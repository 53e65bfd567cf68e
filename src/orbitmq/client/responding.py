"""Handlers whose return value is the reply to the request they were given.

Java: none; its listeners make the reply and send it themselves
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import TYPE_CHECKING, Any

from orbitmq.client.requests import is_request
from orbitmq.client.workers import is_async
from orbitmq.errors import OrbitError

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.client.codecs import Codec
    from orbitmq.client.producer import Producer
    from orbitmq.client.received import ReceivedMessage
    from orbitmq.client.workers import Handler

logger = logging.getLogger(__name__)


def responding(handler: Callable[[Any], Any], codec: Codec, producer: Callable[[], Producer]) -> Handler:
    """A handler that replies with what `handler` returns, encoded by the codec. What it raises delivers the request again, as always.

    A reply that cannot be delivered is logged and given up: by the time the request came again, nobody would wait for it.
    """

    async def respond(message: ReceivedMessage) -> None:
        found = handler(message) if is_async(handler) else await asyncio.to_thread(handler, message)
        value = await found if inspect.isawaitable(found) else found
        if not is_request(message):
            return
        try:
            await producer().reply(message, codec.encode(value))
        except OrbitError as error:
            logger.warning("the reply to %r is lost: %s", message, error)

    return respond
