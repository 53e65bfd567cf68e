"""One look into a queue at an offset, outside of any group's work. Java: DefaultMQPullConsumerImpl.pullSyncImpl"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.client.cluster import refusal
from orbitmq.client.questions import ask_reader
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.headers.pull import PULL_SUBSCRIPTION, PULL_SUSPEND, PullMessage, PullResult

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orbitmq.client.cluster import Cluster
    from orbitmq.client.filters import Subscription
    from orbitmq.client.incoming import Incoming
    from orbitmq.client.received import ReceivedMessage
    from orbitmq.message import QueueRef

_AT_ONCE: Final = 1024  # what a broker may be asked for in one request
_TIMEOUT_SECONDS: Final = 10.0


class Fetched:
    """The messages found, and where to look next."""

    __slots__ = ("max_offset", "messages", "min_offset", "next_offset")

    def __init__(self, messages: list[ReceivedMessage], next_offset: int, min_offset: int, max_offset: int) -> None:
        self.messages = messages
        self.next_offset = next_offset
        self.min_offset = min_offset
        """The first message still kept."""
        self.max_offset = max_offset
        """One beyond the last message."""

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    def __repr__(self) -> str:
        return f"Fetched({len(self.messages)} messages, next_offset={self.next_offset}, max_offset={self.max_offset})"


class Fetcher:
    """Fetches for one group."""

    def __init__(self, cluster: Cluster, group: str, incoming: Incoming) -> None:
        self._cluster = cluster
        self._group = group
        self._incoming = incoming

    async def fetch(
        self,
        queue: QueueRef,
        public_queue: QueueRef,
        subscription: Subscription,
        offset: int,
        count: int,
        wait_seconds: float,
    ) -> Fetched:
        """Up to `count` messages from `offset` on; with none there, the broker waits up to `wait_seconds` for one."""
        messages: list[ReceivedMessage] = []
        while True:
            wanted = count - len(messages)
            wait = 0.0 if messages else wait_seconds
            result, found = await self._pull(queue, public_queue, subscription, offset, wanted, wait)
            messages += found[:wanted]
            moved_on = result.next_begin_offset != offset
            offset = result.next_begin_offset if len(found) <= wanted else messages[-1].queue_offset + 1
            if len(messages) >= count or offset >= result.max_offset or not moved_on:
                return Fetched(messages, offset, result.min_offset, result.max_offset)

    async def _pull(
        self,
        queue: QueueRef,
        public_queue: QueueRef,
        subscription: Subscription,
        offset: int,
        count: int,
        wait_seconds: float,
    ) -> tuple[PullResult, list[ReceivedMessage]]:
        header = PullMessage(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=min(count, _AT_ONCE),
            sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if wait_seconds else 0),
            suspend_timeout_millis=round(wait_seconds * 1000),
            subscription=subscription.expression,
            expression_type=subscription.expression_type,
            bname=queue.broker_name,
        )
        seconds = wait_seconds + _TIMEOUT_SECONDS
        answer = await ask_reader(
            self._cluster, queue.broker_name, RequestCode.PULL_MESSAGE, header, seconds, vip=False
        )
        if answer.code not in _ANSWERS:
            raise refusal(answer)
        found = []
        if answer.code == ResponseCode.SUCCESS:
            found = self._incoming.messages(answer.body, public_queue, subscription, None)
        return answer.read(PullResult), found


_ANSWERS: Final = frozenset({
    ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
})  # fmt: skip
