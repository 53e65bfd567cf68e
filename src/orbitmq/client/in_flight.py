"""How much may be on its way at once. A sender beyond that waits for earlier messages to be answered."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable


class InFlight:
    """A gate counted in messages and bytes, first come first served. Whatever its size, a message passes when it is alone."""

    __slots__ = ("_empty", "_max_bytes", "_max_messages", "_waiting", "bytes", "messages")

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.messages = 0
        self.bytes = 0
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._empty: asyncio.Event | None = None  # there while somebody waits for it

    def enter(self, size: int) -> Awaitable[None] | None:
        """None: go on. Otherwise wait for this first."""
        if self._waiting or not self._has_room(size):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((turn, size))
            return self._wait(turn, size)
        self.messages += 1
        self.bytes += size
        return None

    def leave(self, size: int) -> None:
        self.messages -= 1
        self.bytes -= size
        if self._waiting:
            self._admit()
        if self._empty is not None and not self.messages:
            self._empty.set()

    async def until_empty(self) -> None:
        """Until everything that passed has left again, and what its senders had still to send after it."""
        while self.messages:
            self._empty = asyncio.Event()
            await self._empty.wait()

    async def _wait(self, turn: asyncio.Future[None], size: int) -> None:
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._admit()  # those behind us may fit where we did not
            else:
                self.leave(size)  # our turn had come
            raise

    def _has_room(self, size: int) -> bool:
        if not self.messages:
            return True
        return self.messages < self._max_messages and self.bytes + size <= self._max_bytes

    def _admit(self) -> None:
        while self._waiting:
            turn, size = self._waiting[0]
            if not turn.done():
                if not self._has_room(size):
                    return
                self.messages += 1
                self.bytes += size
                turn.set_result(None)
            self._waiting.popleft()
