"""Asking a cluster that may be restarting: the same question again, after a pause, over a fresh route, until time is up."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, TypeVar

from orbitmq.errors import OrbitError, RequestFailed, TransportError
from orbitmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable

    from orbitmq.client.cluster import Cluster

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 2.0
_PASSING: Final = frozenset({
    ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLOW_CONTROL, ResponseCode.GO_AWAY,
})  # fmt: skip
# A send that is stored, but not yet as safely as the broker promises. Each attempt leaves one more copy, so they are few.
_STORED_EACH_TIME: Final = frozenset({
    ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE,
})  # fmt: skip
_COPY_PAUSE_SECONDS: Final = 1.0


def may_pass(error: OrbitError, also: Collection[int] = ()) -> bool:
    """Whether the same question can get an answer a little later. `also`: refusals that pass where it is asked."""
    if isinstance(error, RequestFailed):
        return error.code in _PASSING or error.code in _STORED_EACH_TIME or error.code in also
    return isinstance(error, TransportError)


async def patiently(
    cluster: Cluster,
    topics: Iterable[str],
    seconds: float,
    question: Callable[[], Awaitable[T]],
    also: Collection[int] = (),
) -> T:
    """The answer; the last failure when none came within `seconds`. Between attempts the topics' routes are fetched.

    The pauses between them grow, without end where each attempt leaves a copy.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    pause = _FIRST_PAUSE_SECONDS
    complained = False
    while True:
        try:
            return await question()
        except OrbitError as error:
            leaves_copies = isinstance(error, RequestFailed) and error.code in _STORED_EACH_TIME
            if leaves_copies:
                pause = max(pause, _COPY_PAUSE_SECONDS)
            if not may_pass(error, also) or loop.time() + pause >= deadline:
                raise
            if not complained:
                logger.warning("%s; asking again for up to %.0f s", error, seconds)
                complained = True
        await asyncio.sleep(pause)
        pause = 2 * pause if leaves_copies else min(2 * pause, _LONGEST_PAUSE_SECONDS)
        await _fresh_routes(cluster, topics)


async def _fresh_routes(cluster: Cluster, topics: Iterable[str]) -> None:
    for topic in topics:
        try:
            await cluster.fetch_route(topic)
        except OrbitError as error:
            logger.debug("no fresh route of topic %s: %s", topic, error)  # the question itself will say what is wrong
