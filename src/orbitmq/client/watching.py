"""When the hooks of a consumer are called: around each call of its handler or, without one, from handing a message out to its being settled."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from orbitmq.client.hooks import Consuming
from orbitmq.errors import RetryLater

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orbitmq.client.hooks import ConsumeHook
    from orbitmq.client.received import ReceivedMessage, Settler

logger = logging.getLogger(__name__)


class Watchers:
    """The hooks of one consumer. One that fails costs nobody a message, and is told of once."""

    def __init__(self, hooks: Sequence[ConsumeHook], group: str) -> None:
        self._hooks = hooks
        self._group = group
        self._failed: set[int] = set()  # their ids

    def begin(self, messages: Sequence[ReceivedMessage]) -> Watch:
        consuming = Consuming(self._group, messages)
        for hook in self._hooks:
            self._call(hook, hook.before_consume, consuming)
        return Watch(self, consuming)

    def end(self, consuming: Consuming) -> None:
        for hook in reversed(self._hooks):
            self._call(hook, hook.after_consume, consuming)

    def _call(self, hook: ConsumeHook, method: Callable[[Consuming], None], consuming: Consuming) -> None:
        try:
            method(consuming)
        except Exception as error:
            if id(hook) not in self._failed:
                self._failed.add(id(hook))
                logger.error(
                    "hook %r of group %s failed; its messages are handled all the same",
                    hook,
                    self._group,
                    exc_info=error,
                )


class Watch:
    """Of messages that are being handled, from when it is made."""

    __slots__ = ("_began", "_consuming", "_watchers")

    def __init__(self, watchers: Watchers, consuming: Consuming) -> None:
        self._watchers = watchers
        self._consuming = consuming
        self._began = asyncio.get_running_loop().time()

    def end(self, error: BaseException | None) -> None:
        self._consuming.error = error
        self._consuming.seconds = asyncio.get_running_loop().time() - self._began
        self._watchers.end(self._consuming)


class WatchedSettler:
    """A `Settler` for those who iterate: hooks hear of it before the message is settled, the first time that it is."""

    def __init__(self, watchers: Watchers, settler: Settler) -> None:
        self._watchers = watchers
        self._settler = settler
        self._handed_out: dict[int, Watch] = {}  # by the id of the message, which the watch keeps alive

    def hand_out(self, message: ReceivedMessage) -> None:
        self._handed_out[id(message)] = self._watchers.begin([message])

    def ack(self, messages: list[ReceivedMessage]) -> None:
        self._end(messages, None)
        self._settler.ack(messages)

    async def retry(self, messages: list[ReceivedMessage], delay_level: int) -> None:
        self._end(messages, RetryLater(delay_level=delay_level))
        await self._settler.retry(messages, delay_level)

    def report(self, messages: list[ReceivedMessage], error: Exception) -> int:
        self._end(messages, error)
        return self._settler.report(messages, error)

    def _end(self, messages: list[ReceivedMessage], error: Exception | None) -> None:
        for message in messages:
            watch = self._handed_out.pop(id(message), None)
            if watch is not None:
                watch.end(error)
