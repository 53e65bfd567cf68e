"""What is behind an address, for a test to make and to look at: topics, and what was sent to them.

All of it over the wire. Messages are read from every queue, without a consumer group of the test's own.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from orbitmq.admin.session import open_session
from orbitmq.admin.topics import TopicPlan, create_topic, topic_route
from orbitmq.client.portal import enter, leave
from orbitmq.client.sync import connect
from orbitmq.errors import RequestFailed
from orbitmq.message.properties import RESERVED
from orbitmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orbitmq.client.received import ReceivedMessage

_GROUP: Final = "orbitmq-testing"
_AT_ONCE: Final = 256
_LOOK_AGAIN_SECONDS: Final = 0.02
_PATIENCE_SECONDS: Final = 30.0  # for one answer
_SHOWN_AT_MOST: Final = 20


class Contents:
    """What `Server` and `Cluster` have in common: an address, and topics behind it."""

    address: str

    def create_topic(
        self, topic: str, *, queues: int = 4, ordered: bool = False, attributes: Mapping[str, str] | None = None
    ) -> None:
        """Make it on every master, with so many queues on each; when this returns, clients find it.

        `attributes` as Apache's, such as {"message.type": "FIFO"}.
        """
        plan = TopicPlan(
            topic=topic,
            read_queues=queues,
            write_queues=queues,
            ordered=ordered,
            attributes=dict(attributes or {}),
        )
        portal = enter()
        try:
            portal.run(_created(self.address, plan))
        finally:
            leave(portal)

    def sent(self, topic: str) -> list[ReceivedMessage]:
        """Everything in the topic now, oldest first; nothing if there is no such topic. Nobody's offsets are touched.

        Delayed messages appear when their time has come, half messages when they are committed.
        """
        found: list[ReceivedMessage] = []
        with connect(self.address, timeout=_PATIENCE_SECONDS) as client, client.pull_consumer(group=_GROUP) as consumer:
            try:
                queues = consumer.queues(topic)
            except RequestFailed as error:
                if error.code == ResponseCode.TOPIC_NOT_EXIST:
                    return []
                raise
            for queue in queues:
                offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
                while offset < end:
                    fetched = consumer.fetch(queue, offset=offset, max=_AT_ONCE)
                    if fetched.next_offset <= offset:
                        break
                    found += fetched.messages
                    offset = fetched.next_offset
        return sorted(found, key=lambda message: (message.stored_at, message.queue, message.queue_offset))

    def expect(
        self,
        topic: str,
        *,
        count: int = 1,
        body: bytes | None = None,
        tag: str | None = None,
        key: str | None = None,
        properties: dict[str, str] | None = None,
        timeout: float = 30.0,
    ) -> list[ReceivedMessage]:
        """Wait until at least `count` messages are like that, and return them. AssertionError says what was there instead.

        It blocks: what runs on the test's own event loop stands still meanwhile. If that is what should send them, wait with
        `await asyncio.to_thread(server.expect, ...)`.
        """
        deadline = time.monotonic() + timeout
        given = (("body", body), ("tag", tag), ("key", key), ("properties", properties))
        wanted = ", ".join(f"{name}={value!r}" for name, value in given if value is not None)
        while True:
            there = self.sent(topic)
            alike = [message for message in there if _is_like(message, body, tag, key, properties or {})]
            if len(alike) >= count:
                return alike
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{len(alike)} of {count} expected messages in {topic}{f' with {wanted}' if wanted else ''}; "
                    f"there are {len(there)}:{''.join(map(_shown, there[:_SHOWN_AT_MOST]))}{_loop_hint()}"
                )
            time.sleep(_LOOK_AGAIN_SECONDS)


def _shown(message: ReceivedMessage) -> str:
    own = {name: value for name, value in message.properties.items() if name not in RESERVED}
    labels = (("tag", message.tag), ("keys", list(message.keys)), ("properties", own))
    told = "".join(f", {name}={value!r}" for name, value in labels if value)
    return f"\n  body={message.body[:80]!r}{told} at {message.queue.broker_name}/{message.queue.queue_id}@{message.queue_offset}"


def _loop_hint() -> str:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return ""
    return (
        "\n(`expect` was called on an event loop, which stood still meanwhile; if it should have sent them, "
        "wait with `await asyncio.to_thread(server.expect, ...)`)"
    )


async def _created(address: str, plan: TopicPlan) -> None:
    async with open_session(address, timeout=_PATIENCE_SECONDS) as session:
        places = await create_topic(session, plan)
        while True:  # a broker tells its name server a moment after it has answered
            try:
                route = await topic_route(session, plan.topic)
            except RequestFailed as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
            else:
                if len(route.queue_datas) >= len(places):
                    return
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)


def _is_like(
    message: ReceivedMessage, body: bytes | None, tag: str | None, key: str | None, properties: dict[str, str]
) -> bool:
    return (
        (body is None or message.body == body)
        and (tag is None or message.tag == tag)
        and (key is None or key in message.keys)
        and properties.items() <= message.properties.items()
    )
