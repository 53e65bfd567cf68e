"""Our own requests on a connection, until their answers come. One timer serves them all. Java: ResponseFuture"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from orbitmq.errors import CallTimeout, OrbitError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.protocol.command import Command
    from orbitmq.transport.address import Address

_OPAQUE_MASK: Final = 0x7FFF_FFFF
_WHY_LATE: Final = "is it a RocketMQ server, and not overloaded? more time may help."


class Calls:
    __slots__ = ("_loop", "_most", "_next_opaque", "_on_late", "_timer", "_timer_at", "_waiting")

    def __init__(self, most: int, on_late: Callable[[float], None]) -> None:
        """`most` may wait at once. `on_late` hears of each that is not answered in time: when it was made."""
        self._most = most
        self._on_late = on_late
        self._waiting: dict[int, tuple[asyncio.Future[Command], float, float, Address]] = {}
        self._next_opaque = 0
        self._loop: asyncio.AbstractEventLoop | None = None  # of the first call: most connections never make one
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def next_opaque(self) -> int:
        """An id for the next request."""
        opaque = self._next_opaque
        self._next_opaque = (opaque + 1) & _OPAQUE_MASK
        return opaque

    def check_room(self, peer: Address) -> None:
        if len(self._waiting) >= self._most:
            raise TransportError(
                f"{len(self._waiting)} calls to {peer} are unanswered", hint="wait for some before sending more"
            )

    def expect(self, opaque: int, peer: Address, timeout_seconds: float) -> asyncio.Future[Command]:
        """The answer to come, or CallTimeout."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        made_at = loop.time()
        deadline = made_at + timeout_seconds
        future: asyncio.Future[Command] = loop.create_future()
        self._waiting[opaque] = (future, deadline, made_at, peer)
        if self._timer is None or deadline < self._timer_at:
            self._aim_at(loop, deadline)
        return future

    def take(self, answer: Command) -> None:
        call = self._waiting.pop(answer.opaque, None)
        if call is not None and not call[0].done():
            call[0].set_result(answer)
        # Otherwise nobody waits any more: it came after its timeout.

    def fail(self, error: OrbitError) -> bool:
        """No answer will come any more. Whether anybody waited for one, and so hears of it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        unanswered = [future for future, _, _, _ in waiting.values() if not future.done()]
        for future in unanswered:
            future.set_exception(type(error)(error.message, hint=error.hint))
        return bool(unanswered)

    def _aim_at(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = loop.call_at(deadline, self._expire, loop)

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        """Fail what is late, and aim at the next deadline."""
        self._timer = None
        now = loop.time()
        for opaque, (future, deadline, made_at, peer) in list(self._waiting.items()):
            if future.done():
                del self._waiting[opaque]
            elif deadline <= now:
                del self._waiting[opaque]
                future.set_exception(CallTimeout(f"{peer} did not answer in time", hint=_WHY_LATE))
                self._on_late(made_at)
        if self._waiting:
            self._aim_at(loop, min(deadline for _, deadline, _, _ in self._waiting.values()))
