"""Messages whose handler never ends: after a while they are given back, so that their queue can go on.

Java: ProcessQueue.cleanExpiredMsg
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orbitmq.client.process_queue import ProcessQueue
    from orbitmq.client.received import Settler

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 16
_LEVEL: Final = 3


async def give_back_expired(queues: Iterable[ProcessQueue], settler: Settler, seconds: float) -> None:
    """Those at the head of a queue that were handed out longer than `seconds` ago."""
    now = asyncio.get_running_loop().time()
    for held in list(queues):
        for message in held.head(_AT_ONCE):
            if not message.taken_at or now - message.taken_at <= seconds:
                break
            logger.warning("%r is being handled for more than %g s: it is given back", message, seconds)
            await settler.retry([message], _LEVEL)
