"""The usual pull: one that finds messages. Its answer is a short header and views of the log, nothing copied on the way.

Pulls that find nothing, are held or refused, or must be sent to another offset are left to `pull.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.protocol import versions
from orbitmq.protocol.codes import FLAG_RESPONSE
from orbitmq.protocol.frame import MAX_FRAME_BYTES, lengths
from orbitmq.protocol.headers.pull import PullMessage
from orbitmq.protocol.whole_request import UNREADABLE, reader

if TYPE_CHECKING:
    from orbitmq.broker.pulling import Pulling
    from orbitmq.transport.connection import Connection

_FOUND: Final = (
    b'{"code":0,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"%%d","minOffset":"%%d","maxOffset":"%%d",'
    b'"topicSysFlag":"%%d","groupSysFlag":"%%d"},"flag":%d,"language":"PYTHON","opaque":%%d,"remark":"FOUND",'
    b'"serializeTypeCurrentRPC":"JSON","version":%d}' % (FLAG_RESPONSE, versions.OURS)
)

_read: Final = reader(PullMessage)


class PullExpress:
    """An express handler (transport/express.py) for one code, with JSON headers."""

    def __init__(self, pulling: Pulling, code: int) -> None:
        self._pulling = pulling
        self._code = code

    def __call__(self, connection: Connection, header: bytes, _body: bytes) -> bytes | None:
        try:
            request = _read(header)
        except UNREADABLE:
            return None
        if request.code != self._code or request.flag:
            return None
        found = self._pulling.find(request.extFields)
        if found is None:
            return None
        result, topic, group = found
        answer = _FOUND % (
            result.next_offset,
            result.min_offset,
            result.max_offset,
            topic.topic_sys_flag,
            group.group_sys_flag,
            request.opaque,
        )
        length = 4 + len(answer) + result.total_bytes
        if length + 4 > MAX_FRAME_BYTES:
            return None
        connection.queue_pieces([lengths(length, len(answer)) + answer, *result.buffers], 4 + length)
        return b""
