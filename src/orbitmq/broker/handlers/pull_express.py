"""The usual pull: one that finds messages, or waits for them. Its answer is a short header and views of the log, not copied.

Pulls that find nothing and do not wait, are refused, or must be sent elsewhere are left to `pull.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.broker.pull_answers import found_frame
from orbitmq.protocol.command import Command
from orbitmq.protocol.headers.pull import PullMessage
from orbitmq.protocol.whole_request import UNREADABLE, reader
from orbitmq.storage.reading import ReadStatus
from orbitmq.transport.request_times import Kind

if TYPE_CHECKING:
    from orbitmq.broker.pulling import Pulling
    from orbitmq.transport.connection import Connection
    from orbitmq.transport.request_times import RequestTimes

_read: Final = reader(PullMessage)


class PullExpress:
    """An express handler (transport/express.py) for one code, with JSON headers."""

    def __init__(self, pulling: Pulling, times: RequestTimes, code: int) -> None:
        self._pulling = pulling
        self._served = times.of(Kind(code))
        self._code = code

    def __call__(self, connection: Connection, header: bytes, _body: bytes) -> bytes | None:
        try:
            request = _read(header)
        except UNREADABLE:
            return None
        if request.code != self._code or request.flag:
            return None
        pulling, fields = self._pulling, request.extFields
        found = pulling.find(fields)
        if found is None:
            return None
        result, topic, group, wishes = found
        if result.status is not ReadStatus.FOUND:
            # Whoever answers it later needs no more of the request than this.
            kept = Command(self._code, opaque=request.opaque)
            kept.arrived = connection.last_activity
            if not pulling.hold(result, fields, wishes, kept, connection):
                return None
            pulling.commit_if_asked(fields)
            return b""
        pieces = found_frame(result, topic, group, request.opaque)
        if pieces is None:
            return None
        pulling.commit_if_asked(fields)
        pulling.handed_out(
            fields.consumer_group,
            fields.topic,
            fields.queue_id,
            result.next_offset,
            result.count,
            result.total_bytes,
        )
        served = self._served
        if not served.fresh:
            served.unsettled.append(served)
        served.fresh += 1
        connection.queue_pieces(pieces, len(pieces[0]) + result.total_bytes)
        return b""
