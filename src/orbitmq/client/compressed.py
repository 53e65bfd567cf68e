"""Messages that are stored compressed: inflated when somebody asks for the body, not when they arrive.

A few thousand bytes can inflate to a thousand times as many. Many such messages that wait, or stand in one list, take no more room
than the broker's answer did; who reads one body after the other holds one. A small body is kept, a large one inflated anew each time.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from orbitmq.client.received import ReceivedMessage
from orbitmq.errors import MessageError
from orbitmq.message.compression import DEFAULT_LIMIT_BYTES, plain_body

if TYPE_CHECKING:
    from orbitmq.client.process_queue import ProcessQueue
    from orbitmq.message import QueueRef, StoredMessage

logger = logging.getLogger(__name__)

_MOST_KEPT_BYTES: Final = 32 << 10


class CompressedMessage(ReceivedMessage):
    __slots__ = ("_plain",)

    def __init__(self, stored: StoredMessage, topic: str, queue: QueueRef, holder: ProcessQueue | None) -> None:
        super().__init__(stored, topic, b"", queue, holder)
        self._plain: bytes | None = None

    @property
    def body(self) -> bytes:
        """As its producer gave it; as it is stored, if it cannot be inflated."""
        if self._plain is not None:
            return self._plain
        stored = self.stored
        plain = inflated(stored)
        if plain is stored.body or len(plain) <= _MOST_KEPT_BYTES:
            self._plain = plain
        return plain

    @body.setter
    def body(self, body: bytes) -> None:
        self._plain = body


def inflated(stored: StoredMessage, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> bytes:
    try:
        return plain_body(stored.body, stored.sys_flag, limit_bytes)
    except MessageError as error:
        # The handler must decide: dropping it here would lose it, failing here would stop the whole queue.
        logger.error("message %s is given as it is stored: %s", stored.message_id, error)
        return stored.body
