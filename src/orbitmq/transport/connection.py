"""One connection, used in both directions: it serves the peer's requests and carries our own calls.

    bytes ─> preamble ─> TLS? ─> frames ─> commands ─┬─> answers to our calls
                                                     └─> routes[code](command, connection) ─> one write per chunk

What happens between a frame and its answer stands in serving.py, what all connections of a server share in service.py.

Java: NettyRemotingAbstract
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from orbitmq.errors import (
    ConnectionLost,
    FrameError,
    FrameTooLarge,
    OrbitError,
    RequestFailed,
    TransportError,
)
from orbitmq.protocol import command as commands
from orbitmq.protocol.codes import FLAG_ONEWAY
from orbitmq.protocol.command import Command
from orbitmq.protocol.frame import CODEC_JSON, HEADER_LENGTH_MASK, MAX_FRAME_BYTES, Frame, FrameDecoder
from orbitmq.transport.address import Address
from orbitmq.transport.calls import Calls
from orbitmq.transport.congestion import LARGE_READ_BYTES, unread_in_system
from orbitmq.transport.express import BINARY_START_BYTES, JSON_START_BYTES, MOST_SWIFT_HEADER_BYTES
from orbitmq.transport.late_answers import LateAnswers
from orbitmq.transport.limits import DEFAULT_LIMITS, Limits
from orbitmq.transport.outgoing import Outgoing, encoded_answer
from orbitmq.transport.preamble import TRUSTED_PROXIES, Preamble
from orbitmq.transport.reading import Reading
from orbitmq.transport.request_times import Kind, Result
from orbitmq.transport.serving import Serving

if TYPE_CHECKING:
    from orbitmq.transport.express import SwiftHandler
    from orbitmq.transport.service import Service
    from orbitmq.transport.tls import TlsLayer

logger = logging.getLogger(__name__)

Handler = Callable[[Command, "Connection"], Coroutine[Any, Any, Command | None]]
"""Answers a request. None: no answer now; whoever keeps the connection may call `Connection.answer` later."""

Routes = Mapping[int, Handler]

_LEAST_BYTES_A_SECOND: Final = 1024  # of a frame that has begun
_REFUSED_SECONDS: Final = 5.0  # for a connection too many to ask something and be told
_SILENT_SECONDS: Final = 1.0  # of a peer that is asked something: when a call times out then, it may be gone
_LAST_LOOK_SECONDS: Final = 0.05
_WHY_LOST: Final = "was it stopped? if not, is it a RocketMQ server, and does it want TLS?"
_UNKNOWN_PEER: Final = Address("unknown", 0)


class Connection(asyncio.Protocol):
    __slots__ = (
        "_backlog",
        "_calls",
        "_congestion",
        "_decoder",
        "_express",
        "_flush_scheduled",
        "_idle_timer",
        "_is_doubted",
        "_late",
        "_limits",
        "_loop",
        "_out",
        "_preamble",
        "_reading",
        "_service",
        "_serving",
        "_stopped_reading",
        "_swift",
        "_times",
        "_tls",
        "_transport",
        "_unfinished",
        "_unheard_since",
        "_write_paused",
        "_written_at",
        "closed",
        "last_activity",
        "leaving",
        "meter",
        "peer",
    )

    def __init__(
        self, service: Service, *, limits: Limits = DEFAULT_LIMITS, client_tls: TlsLayer | None = None
    ) -> None:
        self.peer: Address = _UNKNOWN_PEER  # behind a proxy: the client that the proxy names
        self.closed = False
        self.last_activity = 0.0  # of the peer: when it was last heard
        self.meter: Callable[[int], None] | None = None  # asked with the size of each request; raises if it is too much
        self.leaving: asyncio.TimerHandle | None = None  # of one that is turned away
        self._service = service
        self._limits = limits
        # These four are asked at every read.
        self._express = service.express
        self._swift = service.swift if _may_be_swift(limits) else None
        self._times = service.times
        self._congestion = service.congestion
        self._preamble = Preamble() if service.server_tls is not None else None
        self._tls = client_tls
        self._decoder = FrameDecoder(limits.max_frame_bytes, limits.max_header_bytes)
        self._late = LateAnswers(self, limits.max_unanswered, service.times, self._go_on_reading)
        self._calls = Calls(limits.max_calls, self._was_late)
        self._out = Outgoing()
        self._serving = Serving(self, service, self._out, self._late, self._calls)
        self._backlog = self._serving.backlog
        self._idle_timer: asyncio.TimerHandle | None = None
        self._unfinished: tuple[object, int] | None = None  # a frame that had begun when the idle timer last looked
        self._written_at = 0.0  # besides answers that were written when something was heard
        self._unheard_since = 0.0  # when a call was made that timed out, and nothing was heard
        self._is_doubted = False
        self._flush_scheduled = False
        self._write_paused = False
        self._stopped_reading = False

    # ---- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._loop = asyncio.get_running_loop()
        self._reading = Reading(self, self._transport, self._service.reader if self._swift is not None else None)
        self._transport.set_write_buffer_limits(high=self._limits.write_pause_bytes)
        peer = transport.get_extra_info("peername")
        if peer:
            self.peer = Address(peer[0], peer[1])
        self.last_activity = self._loop.time()
        self._idle_timer = self._loop.call_later(self._limits.idle_seconds, self._close_if_idle)
        if self._tls is not None:
            self._tls.start()
            self._transport.write(self._tls.pending())
        if self._service.on_open is not None:
            self._service.on_open(self)

    def data_received(self, data: bytes) -> None:
        self.last_activity = self._loop.time()
        congestion = self._congestion
        if congestion is not None:
            size = len(data)
            congestion.read_bytes += size
            if size >= LARGE_READ_BYTES:
                congestion.crowded[self] = None
        if self._preamble is not None or self._tls is not None:
            try:
                if self._preamble is not None:
                    data = self._choose_layers(self._preamble, data)
                if self._tls is not None and data:
                    data = self._decrypt(self._tls, data)
            except (FrameError, TransportError) as error:
                self.refuse(error)
                return
        if data and self._express and not (self._backlog or self._out.pieces or self._write_paused or self.meter):
            if congestion is not None and congestion.refuse is not None:
                data = self._without_run(congestion.refuse, data)
            if data and self._swift is not None:
                data = self._without_run(self._swift, data)
            if data and self._answer_single(data):
                return
        if not data:
            return
        frames = self._decoder.feed(data)
        if self._backlog:  # reading is being paused: keep the order
            self._backlog.extend(frames)
        elif frames:
            self._serving.process(frames)
        if self._decoder.failure is not None and not self._backlog:
            self.refuse(self._decoder.failure)

    def pause_writing(self) -> None:
        self._write_paused = True
        self._reading.pause()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._go_on_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._reading.end()
        for timer in (self._idle_timer, self.leaving):
            if timer is not None:
                timer.cancel()
        self._backlog.clear()
        self._out.clear()
        self._calls.fail(ConnectionLost(f"the connection to {self.peer} closed before it answered", hint=_WHY_LOST))
        if self._service.on_close is not None:
            self._service.on_close(self)

    # ---- what the rest of the house calls

    async def call(self, request: Command, timeout_seconds: float) -> Command:
        """Send a request and wait for its answer, whatever its code. CallTimeout, ConnectionLost."""
        return await self.start_call(request, timeout_seconds)

    def start_call(self, request: Command, timeout_seconds: float) -> asyncio.Future[Command]:
        """As `call`, for callers that keep many in flight and want no task each."""
        if self.closed:
            raise ConnectionLost(f"the connection to {self.peer} is closed", hint=_WHY_LOST)
        self._calls.check_room(self.peer)
        request.opaque = self._calls.next_opaque()
        pieces = commands.encode_pieces(request)
        future = self._calls.expect(request.opaque, self.peer, timeout_seconds)
        self._send(pieces)
        return future

    @property
    def is_behind(self) -> bool:
        """Whether the peer reads more slowly than it is written to: who can wait with a notice should."""
        return self._write_paused

    def unread_bytes(self) -> int:
        """What waits before it is read; 0 while it is left unread on purpose: that says nothing of others' waits."""
        if self.closed or self._stopped_reading or self.must_pause() or self._transport.is_closing():
            return 0
        return unread_in_system(self._transport.get_extra_info("socket"))

    def notify(self, request: Command) -> None:
        """Send a one-way request: nobody answers it. Dropped when the connection is gone."""
        if self.closed:
            return
        request.flag |= FLAG_ONEWAY
        request.opaque = self._calls.next_opaque()
        self._send(commands.encode_pieces(request))

    def answer(self, request: Command, answer: Command, *, is_held: bool = True) -> None:
        """Answer a request whose handler returned None (`is_held`), or has waited. Dropped when the connection is gone or it was one-way."""
        if self._times is not None and request.code in self._service.routes:
            seconds = self._loop.time() - request.arrived
            self._times.note_later(request, answer, seconds, is_written=not self.closed, is_held=is_held)
        if not self.closed and not request.flag & FLAG_ONEWAY:
            self._send(encoded_answer(request, answer, self.peer))

    def answer_with(self, request: Command, frame: list[bytes | memoryview]) -> None:
        """`answer` a request whose handler returned None, and wants an answer, with a frame of one's own making that says success."""
        if self._times is not None:
            result = Result.NOT_WRITTEN if self.closed else Result.SUCCESS
            self._times.of(Kind(request.code, 0, result, True)).add(self._loop.time() - request.arrived)
        if not self.closed:
            self._send(frame)

    def owe(self, answers: int = 1) -> None:
        """An express handler took requests and will `pay` their answers later."""
        self._late.owe(answers)

    def forgive(self) -> None:
        """The answer that was owed comes another way."""
        self._late.owe(-1)

    def pay(self, frames: bytes, answers: int = 1) -> None:
        """The answers' whole frames. Dropped when the connection is gone."""
        was_full = self._late.pay(answers)
        if not self.closed:
            self._send([frames])
            if was_full:
                self._go_on_reading()

    def note_paid(self, code: int, verdict: int, arrived: float, answers: int = 1) -> None:
        """That requests which arrived then are being paid now."""
        if self._times is not None:
            result = Result.NOT_WRITTEN if self.closed else Result.SUCCESS
            self._times.of(Kind(code, verdict, result)).add(self._loop.time() - arrived, answers)

    def queue_pieces(self, pieces: list[bytes | memoryview], size: int) -> None:
        """For express handlers: an answer too large to be copied together. It leaves with the others of the chunk."""
        self._out.pieces += pieces
        self._out.size += size

    def turn_away(self, refusal: RequestFailed) -> None:
        """Answer the first request with this, then close; close soon if none comes."""

        def refuse(_size: int) -> None:
            raise refusal.with_traceback(None)  # or it would remember every time

        self.meter = refuse
        self.leaving = self._loop.call_later(_REFUSED_SECONDS, self.close)

    def let_in(self) -> None:
        """It may stay after all: a proxy has named another peer."""
        if self.leaving is not None:
            self.leaving.cancel()
            self.leaving = None
            self.meter = None

    def close(self) -> None:
        """Send what is waiting, then close."""
        if not self.closed:
            self._reading.end()
            self.flush()
            self._transport.close()

    def abort(self) -> None:
        """Close at once. Whoever has more to tell it may know by `closed`, before the event loop says so."""
        if not self.closed:
            self.closed = True
            self._reading.end()
            self._transport.abort()

    @property
    def unfinished(self) -> set[asyncio.Future[None]]:
        """What to wait for until every request that was accepted is answered."""
        return self._late.unfinished()

    def stop_reading(self) -> None:
        """For good: what was read and not begun yet is dropped, as if it had never arrived."""
        if not self.closed:
            self._stopped_reading = True
            self._backlog.clear()
            self._reading.pause()

    # ---- what serving calls, besides `write_out`, `flush`, `must_pause`, `settle_times` and `refuse` below

    def pause_reading(self) -> None:
        self._reading.pause()

    # ---- what a swift reader calls, besides `data_received` and `abort`; it notes `last_activity` and looks at `meter`

    @property
    def is_mid_frame(self) -> bool:
        """Whether what comes next is not the beginning of a frame."""
        return self._decoder.is_waiting or self._decoder.failure is not None

    @property
    def beginning(self) -> bytearray | None:
        """Of a frame that waits for its end, nothing between two; None if what comes next must be given to `data_received`."""
        return self._decoder.held if self._decoder.can_join else None

    def hold(self, data: bytes) -> None:
        """The beginning of a frame, or more of it, but not its end."""
        self._decoder.feed(data)
        if self._decoder.failure is not None:
            self.refuse(self._decoder.failure)

    def forget_beginning(self) -> None:
        """It is given to `data_received` again, or was answered, with what came behind it."""
        self._decoder.forget_held()

    def pause_if_full(self) -> None:
        if self._late.is_full():
            self._reading.pause()

    def read_by_loop(self) -> None:
        """It has ended or failed: the event loop will see that and say so."""
        self._reading.by_loop()

    # ---- bytes to frames

    def _choose_layers(self, preamble: Preamble, data: bytes) -> bytes:
        preamble.feed(data)
        believes_proxy = self._service.believes_proxy
        if preamble.is_proxied and believes_proxy is not None and not believes_proxy(self.peer.host):
            raise TransportError(
                "it sent a PROXY header, and is not believed", hint=f"if it is your proxy, name it in {TRUSTED_PROXIES}"
            )
        if not preamble.done:
            return b""
        self._preamble = None
        if preamble.source is not None:
            self.peer = preamble.source
            if self._service.on_source is not None:
                self._service.on_source(self)
                if self._transport.is_closing():  # nobody who comes from there is let in
                    return b""
        assert self._service.server_tls is not None
        self._tls = self._service.server_tls.layer(is_tls=preamble.is_tls)
        return preamble.rest

    def _decrypt(self, tls: TlsLayer, data: bytes) -> bytes:
        try:
            was_handshaken = tls.handshaken
            plain = tls.receive(data)
        finally:
            # Also when it failed: the alert tells the peer why.
            if reply := tls.pending():
                self._transport.write(reply)
        if tls.handshaken and not was_handshaken:
            self.flush()  # what was said before the handshake was done
        return plain

    # ---- frames to answers

    def _without_run(self, swift: SwiftHandler, data: bytes) -> bytes:
        """What is left of a read when the swift handler has answered what it could."""
        decoder = self._decoder
        if decoder.failure is not None or self._late.is_full():
            return data
        if decoder.is_waiting:
            data = decoder.joined(data)
        taken, answers = swift(self, data)
        if answers:
            self._transport.write(answers if self._tls is None else self._tls.encrypt(answers))
            self.settle_times(self.last_activity)
        elif taken and self._late.is_full():
            self._reading.pause()
        if taken and self._tls is None and not (self.must_pause() or self._stopped_reading):
            self._reading.hand_over()
        return data[taken:] if taken else data

    def _answer_single(self, data: bytes) -> bool:
        """One read, one usual request: most reads from many clients are that, and have the shortest way of all."""
        word = self._decoder.only_frame(data)
        codec = word >> 24
        start = JSON_START_BYTES if codec == CODEC_JSON else BINARY_START_BYTES
        express = self._express.get(data[8 : 8 + start])
        if express is None or not word:
            return False
        body_at = 8 + (word & HEADER_LENGTH_MASK)
        header, body = data[8:body_at], data[body_at:]
        try:
            answered = express(self, header, body)
        except Exception as error:  # as for every handler: whatever it is, the peer gets an answer
            self._serving.queue_failure(commands.decode(Frame(codec, header, body)), error)
            answered = b""
        if answered:
            self._transport.write(answered if self._tls is None else self._tls.encrypt(answered))
            if self._times is not None:
                self._times.settle(self._loop.time() - self.last_activity)
            return True
        if answered is None:
            self._out.write_follows = True
            self._serving.step(Frame(codec, header, body))
            self._out.write_follows = False
        self.write_out()
        if self._times is not None and self._times.unsettled:
            self._times.settle(self._loop.time() - self.last_activity)
        if self._late.is_full():
            self._reading.pause()
        return True

    def must_pause(self) -> bool:
        return self._write_paused or self._late.is_full()

    def _go_on_reading(self) -> None:
        if self.closed or self._stopped_reading or self._transport.is_closing() or self.must_pause():
            return
        if self._backlog:
            frames = list(self._backlog)
            self._backlog.clear()
            self._serving.process(frames)
        if self._backlog or self.must_pause():
            return
        if self._decoder.failure is not None:
            self.refuse(self._decoder.failure)
        else:
            self._reading.by_loop()

    def settle_times(self, arrived: float) -> None:
        if self._times is not None and self._times.unsettled:
            self._times.settle(self._loop.time() - arrived)

    # ---- answers to bytes

    def _send(self, pieces: list[bytes | memoryview]) -> None:
        """Queue a frame; all that is queued in one turn of the loop leaves in one write, unless it is much."""
        self._out.add(pieces)
        if self._out.size > self._limits.write_pause_bytes:
            self.flush()  # now, or nobody would see how little the peer reads before all of it is made
        elif not self._out.write_follows and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        self._written_at = self._loop.time()
        self.write_out()

    def write_out(self) -> None:
        self._flush_scheduled = False
        if not self._out.pieces or self.closed:
            return
        if self._tls is not None and not self._tls.handshaken:
            return
        self._out.write_to(self._transport, self._tls)
        if self._write_paused and self._transport.get_write_buffer_size() > self._limits.write_abort_bytes:
            logger.warning("closed %s: it left %d bytes unread", self.peer, self._transport.get_write_buffer_size())
            self.abort()

    # ---- time

    def _close_if_idle(self) -> None:
        quiet = self._loop.time() - max(self.last_activity, self._written_at)
        if quiet < self._limits.idle_seconds and self._is_trickling():
            logger.warning("closed %s: it began a frame long ago, and hardly goes on with it", self.peer)
            self.close()
        elif quiet < self._limits.idle_seconds:
            self._idle_timer = self._loop.call_later(self._limits.idle_seconds - quiet, self._close_if_idle)
        elif unsent := self._transport.get_write_buffer_size():
            # An orderly close waits until the peer has read the rest, and this one does not read.
            logger.warning("closed %s: it left %d bytes unread", self.peer, unsent)
            self.abort()
        else:
            if self._decoder.is_waiting:
                logger.warning("closed %s: half a frame, and nothing more for %.0f s", self.peer, quiet)
            self.close()

    def _was_late(self, asked_at: float) -> None:
        """A call timed out. A peer that said nothing at all meanwhile may not be there: a firewall that forgot the connection tells
        nobody, and neither does a host without power, while a new connection may work at once. Java: clientCloseSocketIfTimeout

        While bytes of ours are still to be sent, it may not have got the question, nor we have read the answer.
        """
        if not self._service.leaves_silent_peers or self.closed or self.last_activity > asked_at or self._is_sending():
            return
        if self._unheard_since < self.last_activity:
            self._unheard_since = asked_at
        if not self._is_doubted and self._loop.time() - self._unheard_since >= _SILENT_SECONDS:
            self._is_doubted = True
            # Not at once: where this process stood still, what has come meanwhile is read first.
            self._loop.call_later(_LAST_LOOK_SECONDS, self._leave_if_silent)

    def _leave_if_silent(self) -> None:
        self._is_doubted = False
        if not (self.closed or self._is_sending()) and self.last_activity <= self._unheard_since:
            silent = self._loop.time() - self._unheard_since
            logger.warning("closed %s: asked for %.1f s, it has said nothing", self.peer, silent)
            self.abort()

    def _is_sending(self) -> bool:
        return bool(self._out.pieces) or self._transport.get_write_buffer_size() > 0

    def _is_trickling(self) -> bool:
        """Whether the frame that had begun at the last look still has not ended, and not for want of our reading it."""
        before, self._unfinished = self._unfinished, None if self.must_pause() else self._decoder.unfinished
        if before is None or self._unfinished is None or before[0] is not self._unfinished[0]:
            return False
        return self._unfinished[1] - before[1] < self._limits.idle_seconds * _LEAST_BYTES_A_SECOND

    def refuse(self, error: OrbitError) -> None:
        """The peer does not speak our protocol: say so once, answer what was well-formed, close."""
        if self._service.refusals is not None and isinstance(error, FrameTooLarge):
            self._service.refusals.by_key[error.limit] += 1
        self._out.write_follows = False
        self._backlog.clear()
        lost = ConnectionLost(f"{self.peer} speaks another language: {error.message}", hint=error.hint)
        # Whoever is told tells the user. Python prints warnings of a program that keeps no log: it would be said twice.
        logger.log(logging.INFO if self._calls.fail(lost) else logging.WARNING, "closed %s: %s", self.peer, error)
        self.close()


def _may_be_swift(limits: Limits) -> bool:
    """Swift handlers and readers look at no limits, so only where there are none of the connection's own."""
    return limits.max_frame_bytes >= MAX_FRAME_BYTES and limits.max_header_bytes >= MOST_SWIFT_HEADER_BYTES
