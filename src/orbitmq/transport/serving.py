"""Requests to answers, on one connection: each frame to its handler, and all answers of a read into one write.

A handler's coroutine is stepped once, on the spot. One that finishes without waiting joins the single write for all
frames of the chunk and costs no task; one that waits becomes a task and answers later, in any order. During that first
step there is no current task, so a handler must reach its first real wait before it uses `asyncio.timeout` and the like.
The most frequent requests are not even made a command of: see express.py.

Back-pressure: when too many handlers wait or too many bytes are unsent, reading pauses, and frames already read wait too.

Java: NettyRemotingAbstract.processRequestCommand
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from orbitmq.errors import HeaderError, RequestFailed
from orbitmq.protocol import command as commands
from orbitmq.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE
from orbitmq.protocol.frame import CODEC_JSON
from orbitmq.transport.express import BINARY_START_BYTES, JSON_START_BYTES
from orbitmq.transport.failures import failure_answer, refuse_unknown_code
from orbitmq.transport.outgoing import encoded_answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.protocol.command import Command
    from orbitmq.protocol.frame import Frame
    from orbitmq.transport.calls import Calls
    from orbitmq.transport.connection import Connection
    from orbitmq.transport.late_answers import LateAnswers
    from orbitmq.transport.outgoing import Outgoing
    from orbitmq.transport.service import Service

_FLUSH_BYTES: Final = 256 * 1024


class Serving:
    __slots__ = ("_calls", "_connection", "_express", "_late", "_out", "_routes", "_times", "backlog")

    def __init__(
        self, connection: Connection, service: Service, out: Outgoing, late: LateAnswers, calls: Calls
    ) -> None:
        """`calls`: whose answers come in between."""
        self.backlog: deque[Frame] = deque()  # read, and not begun yet
        self._connection = connection
        self._express = service.express
        self._routes = service.routes
        self._times = service.times
        self._out = out
        self._late = late
        self._calls = calls

    def process(self, frames: list[Frame]) -> None:
        connection, out = self._connection, self._out
        out.write_follows = True
        arrived = connection.last_activity
        express_of, meter = self._express.get, connection.meter
        for index, frame in enumerate(frames):
            codec, header, body = frame
            if meter is not None and not self._is_within(meter, frame):
                continue
            express = express_of(header[:JSON_START_BYTES] if codec == CODEC_JSON else header[:BINARY_START_BYTES])
            try:
                answered = express(connection, header, body) if express is not None else None
            except Exception as error:  # as for every handler: whatever it is, the peer gets an answer
                self.queue_failure(commands.decode(frame), error)
                continue
            if answered:
                out.pieces.append(answered)
                out.size += len(answered)
            elif answered is None and not self.step(frame):
                break
            elif self._late.is_full():
                self._hold_back(frames, index)
                break
            if out.size >= _FLUSH_BYTES:
                connection.flush()
                if connection.must_pause():
                    self._hold_back(frames, index)
                    break
        out.write_follows = False
        if out.pieces:
            connection.write_out()  # `data_received` has just noted the time
        connection.settle_times(arrived)
        if connection.leaving is not None:
            connection.close()

    def step(self, frame: Frame) -> bool:
        """The ordinary way. False: the peer does not speak our protocol."""
        try:
            command = commands.decode(frame)
        except HeaderError as error:
            self._connection.refuse(error)
            return False
        if command.flag & FLAG_RESPONSE:
            self._calls.take(command)
            return True
        command.arrived = self._connection.last_activity
        coroutine = self._routes.get(command.code, refuse_unknown_code)(command, self._connection)
        try:
            waiting_for = coroutine.send(None)
        except StopIteration as finished:
            if finished.value is not None:
                self._queue_answer(command, finished.value)
        except Exception as error:  # whatever it is, the peer gets an answer
            self.queue_failure(command, error)
        else:
            self._late.finish(command, coroutine, waiting_for)
        return True

    def _is_within(self, meter: Callable[[int], None], frame: Frame) -> bool:
        """False: it was too much, and the peer is told so."""
        try:
            meter(len(frame.header) + len(frame.body))
        except RequestFailed as refusal:
            try:
                command = commands.decode(frame)
            except HeaderError:
                return True  # what does not speak our protocol is dealt with there
            if command.flag & FLAG_RESPONSE:
                return True  # we asked for it
            self.queue_failure(command, refusal)
            return False
        return True

    def queue_failure(self, request: Command, error: Exception) -> None:
        self._queue_answer(request, failure_answer(request, error, self._connection.peer))

    def _queue_answer(self, request: Command, answer: Command) -> None:
        if self._times is not None and request.code in self._routes:
            self._times.note(request, answer)
        if not request.flag & FLAG_ONEWAY:
            self._out.add(encoded_answer(request, answer, self._connection.peer))

    def _hold_back(self, frames: list[Frame], done: int) -> None:
        """The frames behind number `done` wait until the connection may go on."""
        self.backlog.extend(frames[done + 1 :])
        self._connection.pause_reading()
