"""Records from a pull answer, made into the messages a handler gets.

Java: PullAPIWrapper.processPullResult, MessageDecoder
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.client.compressed import CompressedMessage, inflated
from orbitmq.client.names import LIGHT_PREFIX
from orbitmq.client.namespaces import unwrapped, wrapped
from orbitmq.client.received import ReceivedMessage, received_briefly
from orbitmq.errors import MessageError
from orbitmq.message import StoredMessage
from orbitmq.message import properties as names
from orbitmq.message.batch import decode_batch
from orbitmq.message.properties import decode_properties, property_finder
from orbitmq.message.record import decode_briefly
from orbitmq.message.sysflags import COMPRESSED, INNER_BATCH, NEED_UNWRAP

if TYPE_CHECKING:
    from orbitmq.client.filters import Subscription
    from orbitmq.client.process_queue import ProcessQueue
    from orbitmq.message import QueueRef
    from orbitmq.message.record import BriefRecord

logger = logging.getLogger(__name__)

_BATCH: Final = NEED_UNWRAP | INNER_BATCH
# Of all compressed batches in one answer: no client compresses batches, and none that brokers take by default is larger plain.
_MOST_BATCH_BYTES: Final = 4 << 20
_find_tag: Final = property_finder(names.TAGS)


class Incoming:
    """Decodes what comes from the queues of one group."""

    def __init__(self, namespace: str, retry_topic: str) -> None:
        self._namespace = namespace
        self._retry_topic = retry_topic
        self._wire_topics: dict[str, bytes] = {}

    def messages(
        self, body: bytes, queue: QueueRef, subscription: Subscription, holder: ProcessQueue | None
    ) -> list[ReceivedMessage]:
        """Those of a pull answer that the subscription wants."""
        usual: list[BriefRecord] = []
        received: list[ReceivedMessage] = []
        tags = subscription.tags
        unwrapping = Unwrapping()
        for record in decode_briefly(body, self._wire_topic(queue.topic)):
            if type(record) is tuple:
                if not tags or _tag(record[-1]) in tags:
                    usual.append(record)
                continue
            received += received_briefly(body, usual, queue.topic, queue, holder)
            usual = []
            assert isinstance(record, StoredMessage)
            members = unwrapping.messages(record)
            received += [self.message(one, queue, holder) for one in members if not tags or subscription.wants(one)]
        return received + received_briefly(body, usual, queue.topic, queue, holder)

    def _wire_topic(self, topic: str) -> bytes:
        """As records of the queue name it; empty for the retry topic, whose messages each come from a topic of their own."""
        wire = self._wire_topics.get(topic)
        if wire is None:
            name = wrapped(self._namespace, topic)
            wire = self._wire_topics[topic] = b"" if name == self._retry_topic else name.encode()
        return wire

    def message(self, stored: StoredMessage, queue: QueueRef, holder: ProcessQueue | None) -> ReceivedMessage:
        topic = stored.topic
        if topic == self._retry_topic:  # delivered again: the handler sees the topic it was sent to
            topic = stored.properties.get(names.RETRY_TOPIC, topic)
        if self._namespace:
            topic = unwrapped(self._namespace, topic)
        message: ReceivedMessage
        if stored.sys_flag & COMPRESSED:
            message = CompressedMessage(stored, topic, queue, holder)
        else:
            message = ReceivedMessage(stored, topic, stored.body, queue, holder)
        if queue.topic.startswith(LIGHT_PREFIX):
            message.queue_offset = _place_in(queue.topic, stored)
        return message


class Unwrapping:
    """Takes the batches of one answer apart that are stored as one record each."""

    __slots__ = ("_bytes_left",)

    def __init__(self) -> None:
        self._bytes_left = _MOST_BATCH_BYTES

    def messages(self, stored: StoredMessage) -> list[StoredMessage]:
        """Those of a batch; of any other record itself."""
        if stored.sys_flag & _BATCH != _BATCH:
            return [stored]
        members = _unwrapped(stored, self._bytes_left)
        if stored.sys_flag & COMPRESSED:
            self._bytes_left = max(0, self._bytes_left - sum(len(one.body) for one in members))
        return members


def _tag(raw_properties: bytes) -> str:
    return (_find_tag(raw_properties) or b"").decode("utf-8", "replace")


def _place_in(light_queue: str, stored: StoredMessage) -> int:
    """A record's own offset is that of its topic's queue; its places in light queues stand in a property."""
    names_of_queues = stored.properties.get(names.MULTI_DISPATCH, "").split(",")
    offsets = stored.properties.get(names.MULTI_QUEUE_OFFSET, "").split(",")
    for name, offset in zip(names_of_queues, offsets, strict=False):
        if name == light_queue and offset.isdecimal():
            return int(offset)
    return stored.queue_offset


def _unwrapped(stored: StoredMessage, limit_bytes: int) -> list[StoredMessage]:
    """The members of a batch that is stored as one record, each with its own place in the queue; itself if it cannot be read."""
    body = inflated(stored, limit_bytes) if stored.sys_flag & COMPRESSED else stored.body
    try:
        members = decode_batch(body)
    except MessageError as error:
        logger.error("batch %s is given as it is stored: %s", stored.message_id, error)
        return [msgspec.structs.replace(stored, sys_flag=stored.sys_flag & ~(_BATCH | COMPRESSED))]
    return [
        msgspec.structs.replace(
            stored,
            body=member.body,
            flag=member.flag,
            properties=decode_properties(member.properties),
            raw_properties=member.properties,
            queue_offset=stored.queue_offset + number,
            sys_flag=stored.sys_flag & ~(_BATCH | COMPRESSED),
        )
        for number, member in enumerate(members)
    ]
