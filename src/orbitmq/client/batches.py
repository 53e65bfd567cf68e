"""Many messages in one request: how they are encoded, and where a long list is cut.

Java: MessageBatch, MessageDecoder.encodeMessages
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.client.delays import is_delayed
from orbitmq.client.hooks import Sending
from orbitmq.client.outgoing import properties_text
from orbitmq.errors import MessageError
from orbitmq.message import properties as names
from orbitmq.message.batch import BatchMember, encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orbitmq.message import Message

_ALONE: Final = "alone"
MEMBER_OVERHEAD: Final = 22  # five numbers and the length of the properties


class Batch(msgspec.Struct):
    """Consecutive messages that travel together; one that must travel alone is a batch of itself."""

    sendings: list[Sending]
    members: list[BatchMember]

    @property
    def must_be_single(self) -> bool:
        return is_delayed(self.sendings[0].properties)

    def body(self) -> bytes:
        return encode_batch(self.members)

    def ids(self) -> list[str]:
        return [sending.properties[names.UNIQUE_KEY] for sending in self.sendings]


def batch_items(bodies: Iterable[object]) -> list[object]:
    """MessageError for a single body: texts, bytes and models are made of parts as well, and each would become a message."""
    if type(bodies) is not list and _is_single(bodies):
        raise MessageError("a batch is a list of bodies, not one body", hint="send() takes one; or give it in a list")
    return list(bodies)


def _is_single(bodies: object) -> bool:
    if not isinstance(bodies, Iterable) or isinstance(bodies, str | bytes | bytearray | memoryview | Mapping):
        return True
    return hasattr(bodies, "model_dump_json")  # pydantic's give their fields


def split(sendings: Sequence[Sending], flags: Sequence[int], max_bytes: int, max_messages: int) -> Iterator[Batch]:
    """Batches within both limits, in the order given. Messages that differ in WAIT, or are delayed, are not mixed."""
    batch = Batch([], [])
    size, batch_kind = 0, _ALONE
    for sending, flag in zip(sendings, flags, strict=True):
        member = BatchMember(sending.body, properties_text(sending.properties).encode(), flag)
        member_size = MEMBER_OVERHEAD + len(member.body) + len(member.properties)
        kind = _kind(sending.properties)
        if batch.members and (
            kind != batch_kind or kind == _ALONE or size + member_size > max_bytes or len(batch.members) >= max_messages
        ):
            yield batch
            batch = Batch([], [])
            size = 0
        batch_kind = kind
        batch.sendings.append(sending)
        batch.members.append(member)
        size += member_size
    if batch.members:
        yield batch


def by_group(messages: Sequence[Message]) -> dict[str | None, list[int]]:
    """Message group -> the places of its messages, which must go to one queue; None: of those that have none."""
    groups: dict[str | None, list[int]] = {}
    for place, message in enumerate(messages):
        groups.setdefault(message.properties.get(names.SHARDING_KEY), []).append(place)
    return groups


def alike(
    bodies: Sequence[bytes], ids: Sequence[str], shared: Mapping[str, str], max_bytes: int, max_messages: int
) -> Iterator[tuple[list[str], bytes]]:
    """Batches of bodies that differ in nothing else: their ids, and the encoded members. The properties' text is made once."""
    text = properties_text({**shared, names.UNIQUE_KEY: ids[0]}).encode()
    head, end = text[: -len(ids[0]) - 1], text[-1:]
    overhead = MEMBER_OVERHEAD + len(text)
    start, size = 0, 0
    for number, body in enumerate(bodies):
        member_size = overhead + len(body)
        if number > start and (size + member_size > max_bytes or number - start >= max_messages):
            yield _encoded_alike(bodies[start:number], ids[start:number], head, end)
            start, size = number, 0
        size += member_size
    yield _encoded_alike(bodies[start:], ids[start:], head, end)


def _encoded_alike(bodies: Sequence[bytes], ids: Sequence[str], head: bytes, end: bytes) -> tuple[list[str], bytes]:
    pairs = zip(bodies, ids, strict=True)
    return list(ids), encode_batch([BatchMember(body, head + one.encode() + end) for body, one in pairs])


def _kind(properties: Mapping[str, str]) -> str:
    """Messages of one kind can travel together: those that wait for the disk, or do not."""
    return _ALONE if is_delayed(properties) else properties.get(names.WAIT, "")
