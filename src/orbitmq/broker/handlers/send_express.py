"""The usual send, on the shortest way into the store: one message for a known topic that takes any kind.

Everything else (new topics, batches, retries, refusals) is left to `send.py`, which also says what is
right: whatever is stored and answered here would be stored and answered there, byte for byte.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from orbitmq.broker.sending import is_special, packed_host, wants_to_wait
from orbitmq.errors import OrbitError
from orbitmq.message.properties import MULTI_DISPATCH
from orbitmq.message.sysflags import INNER_BATCH
from orbitmq.protocol.codes import ResponseCode
from orbitmq.protocol.frame import frame_prefix, whole_frames
from orbitmq.protocol.headers.send import SignedSendV2
from orbitmq.protocol.whole_request import UNREADABLE
from orbitmq.transport.request_times import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.access.express import ExpressDoor
    from orbitmq.broker.durability import Durability
    from orbitmq.broker.receipts import Receipts
    from orbitmq.broker.sending import Sending
    from orbitmq.protocol.headers.send import SendMessage, SendMessageV2
    from orbitmq.protocol.whole_request import WholeRequest
    from orbitmq.transport.connection import Connection
    from orbitmq.transport.request_times import RequestTimes

_SUCCESS: Final = b'{"code":0,'
_PREFIX_BYTES: Final = 8


class SendExpress:
    """An express handler (transport/express.py) for one code and codec; `read` takes the header apart."""

    def __init__(
        self,
        sending: Sending,
        durability: Durability,
        receipts: Receipts,
        times: RequestTimes,
        code: int,
        read: Callable[[bytes], WholeRequest[SendMessage]]
        | Callable[[bytes], WholeRequest[SendMessageV2]]
        | Callable[[bytes], WholeRequest[SignedSendV2]],
        door: ExpressDoor | None = None,
    ) -> None:
        """With a `door`, `read` gives signed sends."""
        self._sending = sending
        self._durability = durability
        self._receipts = receipts
        self._served = times.of(Kind(code))
        self._code = code
        self._read = read
        self._door = door

    def __call__(self, connection: Connection, header: bytes, body: bytes) -> bytes | None:
        try:
            request = self._read(header)
        except UNREADABLE:
            return None
        fields = request.extFields
        sending, durability = self._sending, self._durability
        topic, queue_id, properties = fields.topic, fields.queue_id, fields.properties
        plain = sending.plain_topic(topic)
        if (
            plain is None
            or request.code != self._code
            or request.flag
            or not 0 <= queue_id < plain.queues
            or fields.batch
            or not body
            or fields.sys_flag & INNER_BATCH
            or not (durability.is_immediate or durability.has_room)
        ):
            return None
        if self._door is not None and not (
            isinstance(fields, SignedSendV2)
            and MULTI_DISPATCH not in properties  # light queues, which the door does not ask about
            and self._door.admits(self._code, fields, body, connection.peer.host)
        ):
            return None
        recall_handle = ""
        try:
            if is_special(properties):
                appended, unique_key, recall_handle = sending.put(
                    topic,
                    queue_id,
                    body,
                    properties,
                    fields.born_timestamp,
                    packed_host(*connection.peer),
                    fields.flag,
                    fields.sys_flag,
                    fields.reconsume_times,
                )
                at, end = appended.commit_log_offset, appended.end
            else:
                text, unique_key = sending.complete(properties)
                appended = sending.store.append(
                    topic,
                    queue_id,
                    body,
                    text.encode(),
                    fields.born_timestamp,
                    packed_host(*connection.peer),
                    fields.flag,
                    fields.sys_flag,
                    fields.reconsume_times,
                )
                at, end = appended.commit_log_offset, appended.end
                plain.count(end - at)
        except OrbitError:
            if self._door is not None and isinstance(fields, SignedSendV2):
                self._door.give_back(fields, body)
            return None  # nothing was stored; the ordinary handler will hear the same, and can say it
        receipt = self._receipts.frame(at, queue_id, appended.queue_offset, unique_key, request.opaque, recall_handle)
        if durability.is_immediate or not wants_to_wait(properties):
            served = self._served
            if not served.fresh:
                served.unsettled.append(served)
            served.fresh += 1
            return receipt
        connection.owe()
        durability.tell(end, partial(self._pay, connection, receipt, connection.last_activity))
        return b""

    def _pay(self, connection: Connection, receipt: bytes, arrived: float, verdict: ResponseCode) -> None:
        connection.note_paid(self._code, verdict, arrived)
        connection.pay(receipt if verdict is ResponseCode.SUCCESS else _with_code(receipt, verdict))


def pay_run(connection: Connection, durability: Durability, end: int, receipts: bytes, count: int, code: int) -> None:
    """Answer a run of sends at once, when the last of them is as safe as promised."""
    connection.owe(count)
    durability.tell(end, partial(_pay_run, connection, receipts, count, code, connection.last_activity), count)


def _pay_run(
    connection: Connection, receipts: bytes, count: int, code: int, arrived: float, verdict: ResponseCode
) -> None:
    connection.note_paid(code, verdict, arrived, count)
    if verdict is not ResponseCode.SUCCESS:
        receipts = b"".join(_with_code(receipt, verdict) for receipt in whole_frames(receipts))
    connection.pay(receipts, count)


def _with_code(receipt: bytes, verdict: ResponseCode) -> bytes:
    """The message is stored; whether it would survive what the broker promises it survives is not known."""
    header = receipt[_PREFIX_BYTES:].replace(_SUCCESS, b'{"code":%d,' % verdict, 1)
    return frame_prefix(len(header), 0) + header
