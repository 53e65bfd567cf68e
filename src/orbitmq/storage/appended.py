"""What an append comes to: where a message went, or why it can never be stored.

Java: AppendMessageResult, PutMessageStatus
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NoReturn

import msgspec

from orbitmq.errors import MessageError
from orbitmq.message.ids import offset_message_id
from orbitmq.message.properties import MAX_PROPERTIES_BYTES

if TYPE_CHECKING:
    import struct


class AppendCode(IntEnum):
    """Why an append was refused, as the response code a client understands. Java: PutMessageStatus"""

    SYSTEM_ERROR = 1
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14


class Appended(msgspec.Struct, gc=False):
    """Where a message (or the first of a batch) went."""

    commit_log_offset: int
    end: int  # durable once the log is flushed to here
    queue_offset: int
    stored_at_ms: int


class AppendedBatch(msgspec.Struct):
    commit_log_offsets: list[int]
    end: int
    queue_offset: int  # of the first; the others follow without a gap
    stored_at_ms: int

    def message_ids(self, store_host: bytes) -> list[str]:
        return [offset_message_id(store_host, offset) for offset in self.commit_log_offsets]


def out_of_range(error: struct.error) -> MessageError:
    return MessageError(f"a number does not fit into its field of the record: {error}", code=AppendCode.MESSAGE_ILLEGAL)


def refuse_batch(members: int, most: int) -> NoReturn:
    raise MessageError(
        f"the records of a batch of {members} messages take more than {most} bytes",
        hint="send fewer at once, or fewer properties with all of them",
        code=AppendCode.MESSAGE_ILLEGAL,
    )


def refuse_size(body: int, body_limit: int, properties: int) -> NoReturn:
    if properties > MAX_PROPERTIES_BYTES:
        raise MessageError(
            f"properties take {properties} bytes; up to {MAX_PROPERTIES_BYTES} can be stored",
            code=AppendCode.MESSAGE_ILLEGAL,
        )
    raise MessageError(
        f"the body has {body} bytes; this broker takes up to {body_limit}",
        hint="send smaller messages, or raise maxMessageSize",
        code=AppendCode.MESSAGE_ILLEGAL,
    )
