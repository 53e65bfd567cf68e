"""What a broker says of a message it took. Java: SendResult, SendStatus"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.errors import RequestFailed
from orbitmq.message import QueueRef
from orbitmq.protocol.codes import ResponseCode
from orbitmq.protocol.headers.send import SendReceipt

if TYPE_CHECKING:
    from orbitmq.protocol.command import Command


class SendStatus(StrEnum):
    """How safe the message is. In every case it is stored; the others say what was not confirmed in time."""

    STORED = "SEND_OK"
    DISK_LATE = "FLUSH_DISK_TIMEOUT"
    REPLICA_LATE = "FLUSH_SLAVE_TIMEOUT"
    REPLICA_MISSING = "SLAVE_NOT_AVAILABLE"


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """Proof that a broker has a message, and where."""

    message_id: str
    """The id its producer gave it, by which tools find it."""
    offset_id: str
    """The id that says where it is stored."""
    queue: QueueRef
    queue_offset: int
    status: SendStatus = SendStatus.STORED
    transaction_id: str = ""
    recall_handle: str = ""
    region: str = ""
    traceable: bool = True


STATUS_BY_CODE: Final[dict[int, SendStatus]] = {
    ResponseCode.SUCCESS: SendStatus.STORED,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.DISK_LATE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.REPLICA_LATE,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.REPLICA_MISSING,
}
_CODES: Final = {status: code for code, status in STATUS_BY_CODE.items()}


def unconfirmed(status: SendStatus, topic: str) -> RequestFailed:
    """The failure of a send for those to whom only STORED is success. It may be stored all the same."""
    return RequestFailed(
        _CODES[status],
        f"what was sent to topic {topic!r} is not as safe as its broker promises: {status}",
        hint="is the disk slow, or a slave away? sent again, it may be stored twice",
    )


def receipt_of(answer: Command, topic: str, broker_name: str, message_id: str) -> Receipt:
    header = answer.read(SendReceipt)
    return Receipt(
        message_id=message_id,
        offset_id=header.msg_id,
        queue=QueueRef(topic, broker_name, header.queue_id),
        queue_offset=header.queue_offset,
        status=STATUS_BY_CODE[answer.code],
        transaction_id=header.transaction_id or "",
        recall_handle=header.recall_handle or "",
        region=header.region or "",
        traceable=header.trace_on != "false",
    )


def batch_receipts_of(answer: Command, topic: str, broker_name: str, message_ids: list[str]) -> list[Receipt]:
    """One receipt a message: the members of a batch stand one behind the other in their queue."""
    whole = receipt_of(answer, topic, broker_name, "")
    offset_ids = whole.offset_id.split(",")
    if len(offset_ids) != len(message_ids):
        offset_ids = [whole.offset_id] * len(message_ids)  # a batch topic stores the batch as one record
    return [
        msgspec.structs.replace(
            whole, message_id=message_id, offset_id=offset_id, queue_offset=whole.queue_offset + number
        )
        for number, (message_id, offset_id) in enumerate(zip(message_ids, offset_ids, strict=True))
    ]
