"""The usual end of a transaction: a decision about a half message that is there, on a broker that waits for no disk and has room.

All else is left to `transactions.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.errors import OrbitError
from orbitmq.protocol.codes import FLAG_ONEWAY, RequestCode
from orbitmq.protocol.command import ok_frame
from orbitmq.protocol.headers.transactions import COMMIT, ROLLBACK, EndTransaction
from orbitmq.protocol.whole_request import UNREADABLE, reader
from orbitmq.transport.request_times import Kind, Result

if TYPE_CHECKING:
    from orbitmq.broker.durability import Durability
    from orbitmq.broker.half_messages import HalfMessages
    from orbitmq.transport.connection import Connection
    from orbitmq.transport.request_times import RequestTimes

_read: Final = reader(EndTransaction)


class EndExpress:
    """An express handler (transport/express.py), for JSON headers."""

    def __init__(self, half_messages: HalfMessages, durability: Durability, times: RequestTimes) -> None:
        self._half_messages = half_messages
        self._durability = durability
        self._served = times.of(Kind(RequestCode.END_TRANSACTION))
        self._served_oneway = times.of(Kind(RequestCode.END_TRANSACTION, result=Result.ONEWAY))

    def __call__(self, _connection: Connection, header: bytes, _body: bytes) -> bytes | None:
        if not self._durability.is_immediate or not self._half_messages.is_sure_to_record:
            return None
        try:
            request = _read(header)
        except UNREADABLE:
            return None
        if request.code != RequestCode.END_TRANSACTION or request.flag & ~FLAG_ONEWAY:
            return None
        fields = request.extFields
        if fields.commit_or_rollback == COMMIT:
            decide = self._half_messages.commit
        elif fields.commit_or_rollback == ROLLBACK:
            decide = self._half_messages.roll_back
        else:
            return None
        try:
            decide(fields.tran_state_table_offset, fields.commit_log_offset, fields.producer_group)
        except OrbitError:
            return None  # nothing was changed; the ordinary handler will hear the same, and can say it
        served = self._served_oneway if request.flag & FLAG_ONEWAY else self._served
        if not served.fresh:
            served.unsettled.append(served)
        served.fresh += 1
        return b"" if request.flag & FLAG_ONEWAY else ok_frame(request.opaque)
