"""The slaves of this broker: each is sent the log as it grows, and says how much of it it has.

A slave that lags is sent as much as its socket takes, a megabyte a turn, so that messages can be taken in between. While messages
come in that need not reach it, one far behind is sent half as much again as comes in, or what is left of the machine for sends would be
little; where sends wait for slaves, there is nothing to be gained. A send that must reach slaves waits here until enough have it.

Java: DefaultHAService, DefaultHAConnection, GroupTransferService
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from orbitmq.broker.replication.pace import Allowance
from orbitmq.broker.replication.wire import PIECE, Handshake, Reports
from orbitmq.errors import FrameError
from orbitmq.protocol.codes import ResponseCode
from orbitmq.transport.address import Address
from orbitmq.transport.network import TcpNetwork, TlsNetwork
from orbitmq.transport.server import cannot_listen
from orbitmq.transport.tls import SteadyContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.storage.store import Store
    from orbitmq.transport.network import Listener, Network

logger = logging.getLogger(__name__)

_BACKLOG: Final = 64
_WAY_OUT: Final = "give slaves another port with haListenPort: it is listenPort + 1 where none is set"
_MOST_SLAVES: Final = 64
_MOST_STRANGERS: Final = 64  # who have not yet proved who they are, and have only so long for it
_HANDSHAKE_SECONDS: Final = 5.0
_BURST_BYTES: Final = 1 << 20
_UNSENT_BYTES: Final = 4 << 20  # in a connection's buffer; then the slave has to take some first
_WATCH_SECONDS: Final = 1.0
_FAR_BYTES: Final = 8 << 20  # behind the end of the log
_FAR_PIECE_BYTES: Final = 256 << 10  # Java's slaves take pieces of up to 4 MB
_FETCHED_BYTES: Final = 16 << 20  # of the log, before they are sent: they may have to come from the disk
_FETCH_BYTES: Final = 4 << 20  # at a time
_PACE_SECONDS: Final = 0.02
_LEAST_PACE: Final = 32 << 20  # bytes a second
_PACE_FACTOR: Final = 1.5  # of what comes in; with 2, where all share one machine, sends kept 61 % of their rate
_GROWS: Final = 1 << 20  # bytes a second, from which on messages are coming in


class SlaveState(NamedTuple):
    address: str
    acked: int
    next_offset: int  # what it is sent next
    bytes_per_second: int


class _Waiting(NamedTuple):
    end: int  # of the log, as it was when the message was stored
    until: float  # the loop's time
    told: Callable[[ResponseCode], None]


class Slaves:
    """Everyone who copies this broker's log."""

    def __init__(
        self,
        store: Store,
        configuration: BrokerConfiguration,
        network: Network | None = None,
        handshake: Callable[[str], Handshake] | None = None,
    ) -> None:
        """`handshake`: for a slave at that address, if slaves have to say who they are."""
        self._handshake = handshake
        steady = self._tls = SteadyContext(configuration.tls) if configuration.settings.ha_tls else None
        self._store = store
        self._configuration = configuration
        self._copies = configuration.settings.copies_awaited  # a change counts from the next start on
        self._network = TlsNetwork(lambda: steady.context) if steady is not None else network or TcpNetwork()
        self._listener: Listener | None = None
        self._connections: dict[_Slave, None] = {}  # in the order they came
        self._strangers: dict[_Slave, None] = {}  # the same; they take no slave's place
        self._waiting: deque[_Waiting] = deque()  # by log offset, ascending
        self._timer: asyncio.TimerHandle | None = None
        self._end_seen, self._seen_at = store.log.end, 0.0
        self.pace = 0  # bytes a second for slaves that are far behind; 0: as fast as they take it
        self._loop = asyncio.get_running_loop()

    async def start(self, host: str, port: int) -> Address:
        """Port 0 takes a free one. ConfigError when it cannot be had."""
        try:
            self._listener = await self._network.listen(self._accept, host or None, port, _BACKLOG)
        except OSError as error:
            raise cannot_listen(host, port, error, _WAY_OUT) from None
        return Address(*self._listener.addresses()[0])

    def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._timer is not None:
            self._timer.cancel()
        self.drop_connections()

    def drop_connections(self) -> None:
        for slave in [*self._connections, *self._strangers]:
            slave.abort()

    async def watch(self) -> None:
        """Signs of life for slaves that have everything; an end for those that give none."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            self.set_pace()
            settings = self._configuration.settings
            for slave in list(self._connections):
                slave.watch(settings.ha_send_heartbeat_interval / 1000, settings.ha_housekeeping_interval / 1000)

    def set_pace(self) -> None:
        """Once a second."""
        now, end = self._loop.time(), self._store.log.end
        grown = int((end - self._end_seen) / max(now - self._seen_at, _WATCH_SECONDS / 2))
        self._end_seen, self._seen_at = end, now
        self.pace = max(_LEAST_PACE, int(_PACE_FACTOR * grown)) if grown > _GROWS and not self._copies else 0

    def push(self) -> None:
        """The log has grown."""
        for slave in self._connections:
            slave.push()

    def states(self) -> list[SlaveState]:
        return [slave.state() for slave in self._connections if slave.acked is not None]

    def in_sync(self) -> list[SlaveState]:
        """Those that lag so little that they count."""
        gap = self._configuration.settings.ha_max_gap_not_in_sync
        return [state for state in self.states() if self._store.log.end - state.acked < gap]

    # ---- sends that wait for slaves

    def tell(self, end: int, copies: int, told: Callable[[ResponseCode], None]) -> None:
        """`told` hears once so many slaves have the log up to `end`, or that they do not. The message is stored here in any case.

        Apache 5.x lets each send wait for its time limit even when no slave is there; 4.x says so at once, and so do we.
        """
        if len(self.states()) < copies:
            told(ResponseCode.SLAVE_NOT_AVAILABLE)
        elif self._copied(copies) >= end:
            told(ResponseCode.SUCCESS)
        else:
            limit_seconds = self._configuration.settings.slave_timeout / 1000
            self._waiting.append(_Waiting(end, self._loop.time() + limit_seconds, told))
            if self._timer is None:
                self._timer = self._loop.call_later(limit_seconds, self._give_up)

    def acked(self) -> None:
        """Some slave has more: whoever waited for that goes on."""
        waiting = self._waiting
        if waiting:
            copied = self._copied(self._copies)
            while waiting and waiting[0].end <= copied:
                waiting.popleft().told(ResponseCode.SUCCESS)

    def _give_up(self) -> None:
        """One timer for all: who came first has waited longest."""
        self._timer = None
        waiting, now = self._waiting, self._loop.time()
        while waiting and waiting[0].until <= now:
            waiting.popleft().told(ResponseCode.FLUSH_SLAVE_TIMEOUT)
        if waiting and self._timer is None:  # who was told may have begun another wait
            self._timer = self._loop.call_at(waiting[0].until, self._give_up)

    def _copied(self, copies: int) -> int:
        """At least so many slaves have the log up to here."""
        acks = sorted((state.acked for state in self.states()), reverse=True)
        return acks[copies - 1] if 0 < copies <= len(acks) else -1

    # ---- connections

    def _accept(self) -> asyncio.Protocol:
        if self._tls is not None:
            self._tls.reload_if_changed()
        return _Slave(self, self._store, self._configuration, self._handshake)

    def knocked(self, slave: _Slave) -> None:
        """One that has to prove who it is. The oldest such goes for it: who belongs here is done within a turn or two."""
        if len(self._strangers) >= _MOST_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.abort()
        self._strangers[slave] = None

    def joined(self, slave: _Slave) -> bool:
        self._strangers.pop(slave, None)
        if len(self._connections) >= _MOST_SLAVES:
            logger.warning("refused a slave: %d are connected already", len(self._connections))
            return False
        self._connections[slave] = None
        return True

    def left(self, slave: _Slave) -> None:
        self._connections.pop(slave, None)
        self._strangers.pop(slave, None)


class _Slave(asyncio.Protocol):
    def __init__(
        self,
        slaves: Slaves,
        store: Store,
        configuration: BrokerConfiguration,
        new_handshake: Callable[[str], Handshake] | None,
    ) -> None:
        self._new_handshake = new_handshake
        self._handshake: Handshake | None = None  # while it is not done
        self._proof: Handshake | None = None  # from then on
        self._deadline: asyncio.TimerHandle | None = None  # of the handshake
        self.acked: int | None = None  # None: it has not said yet what it has
        self._slaves = slaves
        self._store = store
        self._log = store.log
        self._configuration = configuration
        self._reports = Reports()
        self._next = 0
        self._is_full = False
        self._is_scheduled = False
        self._allowance = Allowance()
        self._fetched_to = 0
        self._sent_this_second = self._sent_last_second = 0
        self._loop = asyncio.get_running_loop()
        self._heard = self._told = self._loop.time()

    # ---- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES)
        peer = transport.get_extra_info("peername")  # None: gone before we looked, as scanners of ports are
        self._peer = str(Address(*peer[:2])) if peer else ""
        if peer and self._new_handshake is not None:
            self._handshake = self._new_handshake(peer[0])
            self._deadline = self._loop.call_later(_HANDSHAKE_SECONDS, self._give_up_handshake)
            self._slaves.knocked(self)
        elif not peer or not self._slaves.joined(self):
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        try:
            if self._handshake is not None:
                answer, data = self._handshake.feed(data)
                self._transport.write(answer)
                if self._handshake.is_done and not self._end_handshake():
                    return
            offset = self._reports.feed(data)
        except FrameError as error:
            self._end(f"what it says makes no sense: {error}")
            return
        if offset is None:
            return
        if self.acked is None:
            if not self._begin(offset):
                return
        elif offset > self._next:
            self._end(f"it says it has the log up to {offset}, and was sent {self._next}")
            return
        self.acked = offset
        self._slaves.acked()
        self.push()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self.push()

    def connection_lost(self, _error: Exception | None) -> None:
        self._slaves.left(self)
        if self._deadline is not None:
            self._deadline.cancel()
        if self.acked is not None:
            logger.info("slave %s left; it has the log up to %d of %d", self._peer, self.acked, self._log.end)

    # ---- sending

    def push(self) -> None:
        """Send what there is, within reason.

        With synchronous flush that is what is on the disk here: a slave that got more would serve, after a power cut of this
        master, messages that never were, and consumers would pass over those that take their places.
        """
        if self.acked is None or self._is_full or self._transport.is_closing():
            return
        settings = self._configuration.settings
        end, most = self._store.confirmed_offset, settings.ha_transfer_batch_size
        is_far = end - self._next > _FAR_BYTES
        pace = self._slaves.pace if is_far else 0
        if pace and self._is_scheduled:
            return
        left = min(self._allowance.due(pace, self._loop.time()), _UNSENT_BYTES) if pace else _BURST_BYTES
        if is_far:
            most = max(most, _FAR_PIECE_BYTES)
            self._fetch(end)
        if settings.ha_flow_control_enable:
            left = min(left, settings.max_ha_transfer_byte_in_second - self._sent_this_second)
        start = self._next
        parts: list[bytes | memoryview] = []
        while self._next < end and left > 0:
            piece = self._log.files.slice(self._next, min(most, left, end - self._next))
            if piece is None:
                self._end(f"what it needs, from {self._next} on, is deleted here: its store has to be made anew")
                return
            parts += (PIECE.pack(self._next, len(piece)), piece)
            self._next += len(piece)
            left -= len(piece)
        if parts:
            self._sent_this_second += self._next - start
            if pace:
                self._allowance.sent(self._next - start)
            self._told = self._loop.time()
            self._transport.writelines(parts)
        if self._next < end and not self._is_scheduled and (parts or pace):
            self._is_scheduled = True
            if pace:
                self._loop.call_later(_PACE_SECONDS, self._push_again)
            else:
                self._loop.call_soon(self._push_again)

    def _fetch(self, log_end: int) -> None:
        """Have what it is sent next in memory: this thread is not to wait for the disk."""
        start, end = max(self._next, self._fetched_to), min(self._next + _FETCHED_BYTES, log_end)
        if end - start >= _FETCH_BYTES:
            self._log.files.fetch(start, end)
            self._fetched_to = end

    def watch(self, heartbeat_seconds: float, patience_seconds: float) -> None:
        now = self._loop.time()
        self._sent_last_second, self._sent_this_second = self._sent_this_second, 0
        if now - self._heard > patience_seconds:
            self._end(f"nothing heard from it for {now - self._heard:.0f} seconds")
        elif self._proof is not None and not self._proof.still_counts:
            self._end("who it is may copy the log no longer, or has another key")
        elif self.acked is not None:
            self.push()
            if now - self._told > heartbeat_seconds and not self._is_full:
                self._told = now
                self._transport.write(PIECE.pack(self._next, 0))

    def state(self) -> SlaveState:
        return SlaveState(self._peer, self.acked or 0, self._next, self._sent_last_second)

    def abort(self) -> None:
        self._transport.abort()

    def _end_handshake(self) -> bool:
        """Whether there is room for it."""
        self._proof, self._handshake = self._handshake, None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        is_in = self._slaves.joined(self)
        if not is_in:
            self._transport.abort()
        return is_in

    def _give_up_handshake(self) -> None:
        self._end(f"it has not proved who it is within {_HANDSHAKE_SECONDS:.0f} seconds")

    def _push_again(self) -> None:
        self._is_scheduled = False
        self.push()

    def _begin(self, offset: int) -> bool:
        """Where its copy goes on. One that has nothing begins with the last file, as Java's slaves expect it."""
        log = self._log
        if offset > log.end:
            self._end(f"it has {offset - log.end} bytes more than this master: one of the two logs went another way")
            return False
        self._next = offset or log.end - log.end % log.files.segment_bytes
        logger.info(
            "slave %s joined: it has the log up to %d and is sent it from %d on", self._peer, offset, self._next
        )
        return True

    def _end(self, reason: str) -> None:
        logger.error("closing the connection of slave %s: %s", self._peer, reason)
        self._transport.abort()
