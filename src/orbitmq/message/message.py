"""What a message is: to the program that sends it, and to the one that gets it back.

Java: Message, MessageExt, MessageQueue
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from orbitmq.message import properties as names
from orbitmq.message.hosts import host_text
from orbitmq.message.ids import offset_message_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Message:
    """A message to send. Tag, keys and delay live in `properties`, as they do on the wire."""

    __slots__ = ("body", "flag", "properties", "topic")

    def __init__(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str = "",
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
    ) -> None:
        self.topic = topic
        self.body = body
        self.flag = flag
        self.properties: dict[str, str] = dict(properties or {})
        joined = keys if isinstance(keys, str) else names.KEY_SEPARATOR.join(keys)
        # Plain texts, also of members of enums: who formats those gets their names.
        if tag:
            self.properties[names.TAGS] = str.__str__(tag)
        if joined:
            self.properties[names.KEYS] = str.__str__(joined)

    @property
    def tag(self) -> str:
        """A message has one tag, though its property is called TAGS."""
        return self.properties.get(names.TAGS, "")

    @property
    def keys(self) -> list[str]:
        """By which tools find it; a text with blanks between them on the wire."""
        return self.properties.get(names.KEYS, "").split()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return (self.topic, self.body, self.flag, self.properties) == (
            other.topic,
            other.body,
            other.flag,
            other.properties,
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Message(topic={self.topic!r}, body={len(self.body)} bytes, properties={self.properties!r})"


class StoredMessage(msgspec.Struct, kw_only=True):
    """A message with its place in the log. Hosts stay packed: `born_address` and `store_address` give them as text."""

    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    properties: dict[str, str]
    raw_properties: bytes  # exactly as stored, for whoever must write the record again
    flag: int
    sys_flag: int
    born_at_ms: int
    born_host: bytes
    stored_at_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    commit_log_offset: int
    size: int
    body_crc: int

    @property
    def tags(self) -> str:
        return self.properties.get(names.TAGS, "")

    @property
    def keys(self) -> list[str]:
        """By which tools find it; a text with blanks between them on the wire."""
        return self.properties.get(names.KEYS, "").split()

    @property
    def offset_id(self) -> str:
        """The id that says where the message is stored."""
        return offset_message_id(self.store_host, self.commit_log_offset)

    @property
    def message_id(self) -> str:
        """The id its producer gave it; of a message without one, where it is stored."""
        return self.properties.get(names.UNIQUE_KEY) or self.offset_id

    @property
    def born_address(self) -> str:
        return host_text(self.born_host)

    @property
    def store_address(self) -> str:
        return host_text(self.store_host)


class QueueRef(msgspec.Struct, frozen=True, order=True):
    """One queue of a topic on one broker. Sorts as Java's does, which decides who gets which queue in a rebalance."""

    topic: str
    broker_name: str
    queue_id: int
