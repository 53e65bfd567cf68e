"""Small sends of one topic, gathered for a moment and sent as one batch; each caller still gets its own receipt.

Java: ProduceAccumulator
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from orbitmq.client.delays import is_delayed
from orbitmq.errors import MessageError
from orbitmq.message import properties as names

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from orbitmq.client.receipts import Receipt
    from orbitmq.message import Message

# Messages that differ in these do not share a batch: topic, whether to wait for the disk, seconds until it must be stored.
_Kind = tuple[str, str, float]


class _Gathering:
    __slots__ = ("body_bytes", "bytes", "deadline", "messages", "timer", "waiting")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline  # of the first to come, by the event loop's clock
        self.messages: list[Message] = []
        self.waiting: list[asyncio.Future[Receipt]] = []
        self.body_bytes = 0
        self.bytes = 0  # of the request
        self.timer: asyncio.TimerHandle | None = None


class Accumulator:
    """Gathers until bodies of `max_bytes` or `max_messages` are there or `seconds` have passed, whichever is first, and never more than a request holds."""

    def __init__(
        self,
        send: Callable[[list[Message], float], Awaitable[list[Receipt]]],
        size_of: Callable[[Message], int],
        max_bytes: int,
        max_messages: int,
        max_request_bytes: int,
        seconds: float,
    ) -> None:
        """`send` takes messages and the seconds it has for them; a MessageError of it says that nothing was sent. What is gathered
        is one request: when it fails, all are told so. `size_of` says how many of its bytes a message takes, or more.
        """
        self._send = send
        self._size_of = size_of
        self._max_request_bytes = max_request_bytes
        self._max_bytes = max_bytes
        self._max_messages = max_messages
        self._seconds = seconds
        self._gathering: dict[_Kind, _Gathering] = {}
        self._sending: set[asyncio.Task[None]] = set()

    def suits(self, message: Message) -> bool:
        """Large messages gain nothing, delayed ones cannot be batched."""
        return len(message.body) < self._max_bytes and not is_delayed(message.properties)

    async def add(self, message: Message, timeout_seconds: float) -> Receipt:
        loop = asyncio.get_running_loop()
        size = self._size_of(message)
        kind = (message.topic, message.properties.get(names.WAIT, ""), timeout_seconds)
        gathering = self._gathering.get(kind)
        if gathering is not None and gathering.bytes + size > self._max_request_bytes:
            self._flush(kind)
            gathering = None
        if gathering is None:
            gathering = self._gathering[kind] = _Gathering(loop.time() + timeout_seconds)
            gathering.timer = loop.call_later(self._seconds, self._flush, kind)
        receipt: asyncio.Future[Receipt] = loop.create_future()
        gathering.messages.append(message)
        gathering.waiting.append(receipt)
        gathering.body_bytes += len(message.body)
        gathering.bytes += size
        if gathering.body_bytes >= self._max_bytes or len(gathering.messages) >= self._max_messages:
            self._flush(kind)
        return await receipt

    async def close(self) -> None:
        """Send what was gathered and wait for it."""
        for kind in list(self._gathering):
            self._flush(kind)
        await asyncio.gather(*self._sending)

    def _flush(self, kind: _Kind) -> None:
        gathering = self._gathering.pop(kind)
        if gathering.timer is not None:
            gathering.timer.cancel()
        task = asyncio.create_task(self._send_gathered(gathering), name=f"batch for {kind[0]}")
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send_gathered(self, gathering: _Gathering) -> None:
        """One batch, one task: its outcome is told to everyone who waits, whatever it is."""
        try:
            receipts = await self._send(gathering.messages, _left(gathering))
        except MessageError as error:
            if len(gathering.messages) == 1:
                _fail(gathering, error)
            else:
                await self._send_one_by_one(gathering)
        except BaseException as error:
            _fail(gathering, error)
            if not isinstance(error, Exception):
                raise
        else:
            for future, receipt in zip(gathering.waiting, receipts, strict=True):
                if not future.done():
                    future.set_result(receipt)

    async def _send_one_by_one(self, gathering: _Gathering) -> None:
        """One of them cannot be sent, which is no concern of those it happened to meet."""
        alone = []
        for message, waiting in zip(gathering.messages, gathering.waiting, strict=True):
            one = _Gathering(gathering.deadline)
            one.messages.append(message)
            one.waiting.append(waiting)
            alone.append(self._send_gathered(one))
        await asyncio.gather(*alone)


def _left(gathering: _Gathering) -> float:
    return max(0.0, gathering.deadline - asyncio.get_running_loop().time())


def _fail(gathering: _Gathering, error: BaseException) -> None:
    for future in gathering.waiting:
        if not future.done():
            future.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
