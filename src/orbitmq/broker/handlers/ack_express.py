"""The usual ack: of a leased message that is there, by a handle that fits. All else is left to `leases.py`.

Its answer waits for the end of the turn, when the acks of one lease are written together (`leases/settling.py`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from orbitmq.errors import OrbitError
from orbitmq.protocol import command as commands
from orbitmq.protocol.codes import FLAG_RESPONSE, RequestCode, ResponseCode
from orbitmq.protocol.command import Command, ok_frame
from orbitmq.protocol.headers.leases import AckMessage
from orbitmq.protocol.lease_texts import parse_handle
from orbitmq.protocol.whole_request import UNREADABLE, reader
from orbitmq.transport.failures import failure_answer

if TYPE_CHECKING:
    from orbitmq.broker.durability import Durability
    from orbitmq.broker.leases.settling import Settling
    from orbitmq.broker.topics import Topics
    from orbitmq.storage.store import Store
    from orbitmq.transport.connection import Connection

_START: Final = b'{"code":%d,' % RequestCode.ACK_MESSAGE  # other codes begin with the same eleven bytes
_read: Final = reader(AckMessage)


class AckExpress:
    """An express handler (transport/express.py), for JSON headers."""

    def __init__(self, settling: Settling, topics: Topics, store: Store, durability: Durability) -> None:
        self._settling = settling
        self._topics = topics
        self._store = store
        self._durability = durability

    def __call__(self, connection: Connection, header: bytes, _body: bytes) -> bytes | None:
        if not header.startswith(_START):
            return None
        try:
            request = _read(header)
            fields = request.extFields
            topic, queue_id, offset = fields.topic, fields.queue_id, fields.offset
            if request.flag or not self._is_there(topic, queue_id, offset, offset):
                return None
            handle = parse_handle(fields.extra_info)
            told = partial(self._written, connection, request.opaque, connection.last_activity)
            connection.owe()
            try:
                self._settling.ack(fields.consumer_group, topic, queue_id, offset, handle, told)
            except OrbitError:
                connection.forgive()
                return None  # nothing was changed; the ordinary handler will hear the same, and can say it
        except UNREADABLE:
            return None
        return b""

    def together(self, group: str, topic: str, queue_id: int, extra_info: str, offsets: list[int]) -> bool:
        """Acks by handles of one lease that came in one read, written now. False, and nothing done: each has to be looked at."""
        if not self._is_there(topic, queue_id, min(offsets), max(offsets)):
            return False
        try:
            return self._settling.ack_together(group, topic, queue_id, offsets, parse_handle(extra_info))
        except OrbitError:
            return False

    def _is_there(self, topic: str, queue_id: int, first: int, last: int) -> bool:
        config = self._topics.get(topic)
        if config is None or not 0 <= queue_id < config.read_queue_nums:
            return False
        low, high = self._store.queue_range(topic, queue_id)
        return low <= first and last <= high

    def _written(self, connection: Connection, opaque: int, arrived: float, outcome: int | OrbitError) -> None:
        if isinstance(outcome, OrbitError):
            _refuse(connection, opaque, arrived, outcome)
        elif not outcome or self._durability.is_immediate:
            _pay(connection, opaque, arrived)
        else:
            self._durability.tell(outcome, partial(self._settled, connection, opaque, arrived))

    def _settled(self, connection: Connection, opaque: int, arrived: float, verdict: ResponseCode) -> None:
        broken = self._durability.broken_promise(verdict)
        if broken is None:
            _pay(connection, opaque, arrived)
        else:
            _refuse(connection, opaque, arrived, broken)


def _pay(connection: Connection, opaque: int, arrived: float) -> None:
    connection.note_paid(RequestCode.ACK_MESSAGE, ResponseCode.SUCCESS, arrived)
    connection.pay(ok_frame(opaque))


def _refuse(connection: Connection, opaque: int, arrived: float, why: OrbitError) -> None:
    request = Command(RequestCode.ACK_MESSAGE, opaque=opaque)
    failure = failure_answer(request, why, connection.peer)
    failure.opaque, failure.flag = opaque, failure.flag | FLAG_RESPONSE
    connection.note_paid(RequestCode.ACK_MESSAGE, failure.code, arrived)
    connection.pay(commands.encode(failure))
