"""Route queries that somebody asked before, answered without being read again.

Clients ask for the same routes over and over, and two equal questions differ only in their request id. So a question is
known by its header without the id, and its answer is the encoded route with the id put in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.errors import OrbitError
from orbitmq.protocol import versions
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.frame import lengths
from orbitmq.protocol.headers.nameserver import GetRoute
from orbitmq.protocol.whole_request import UNREADABLE, reader

if TYPE_CHECKING:
    from orbitmq.nameserver.opening import Opening
    from orbitmq.nameserver.route_answers import RouteAnswers
    from orbitmq.transport.connection import Connection

_MOST_QUESTIONS: Final = 50_000  # kept at once; askers can vary a question without end
_LONGEST_QUESTION_BYTES: Final = 1024

_OPAQUE: Final = b'"opaque":'  # inside a text its quotes would be escaped
_BEFORE_OPAQUE: Final = b'{"code":0,"flag":1,"language":"PYTHON","opaque":'
_BEHIND_OPAQUE: Final = b',"serializeTypeCurrentRPC":"JSON","version":%d}' % versions.OURS
_HEADER_BYTES: Final = len(_BEFORE_OPAQUE) + len(_BEHIND_OPAQUE)
_ZERO: Final = ord("0")

_read: Final = reader(GetRoute)


class RouteExpress:
    """An express handler (transport/express.py) for GET_ROUTEINFO_BY_TOPIC with JSON headers."""

    def __init__(self, answers: RouteAnswers, opening: Opening) -> None:
        self._answers = answers
        self._opening = opening
        self._known: dict[bytes, bytes] = {}  # question without its id -> body of the answer
        self._generation = -1

    def __call__(self, connection: Connection, header: bytes, _body: bytes) -> bytes | None:
        if self._answers.generation != self._generation:
            self._known.clear()
            self._generation = self._answers.generation
        start = header.find(_OPAQUE) + len(_OPAQUE)
        end = header.find(b",", start)
        opaque = header[start:end]
        question = header[:start] + header[end:]
        body = self._known.get(question)
        if body is None or not opaque.isdigit() or opaque[0] == _ZERO:
            body = self._learn(header, question, opaque)
            if body is None:
                return None
        length = _HEADER_BYTES + len(opaque)
        return b"".join((lengths(4 + length + len(body), length), _BEFORE_OPAQUE, opaque, _BEHIND_OPAQUE, body))

    def _learn(self, header: bytes, question: bytes, opaque: bytes) -> bytes | None:
        """The body of the answer, kept from now on; None for what only the ordinary handler can answer."""
        try:
            request = _read(header)
        except UNREADABLE:
            return None
        wanted = request.extFields
        if request.code != RequestCode.GET_ROUTEINFO_BY_TOPIC or request.flag or opaque != b"%d" % request.opaque:
            return None
        standard = request.version >= versions.FIRST_WITH_STANDARD_JSON or bool(wanted.accept_standard_json_only)
        try:
            # Once open, it stays open until a setting changes; then everything here is forgotten.
            self._opening.check()
            if wanted.zone_mode and wanted.zone_name:
                body = self._answers.body_in_zone(wanted.topic, wanted.zone_name, standard=standard)
            else:
                body = self._answers.body(wanted.topic, standard=standard)
        except OrbitError:
            return None
        if len(question) <= _LONGEST_QUESTION_BYTES:
            if len(self._known) >= _MOST_QUESTIONS:
                self._known.clear()
            self._known[question] = body
        return body
