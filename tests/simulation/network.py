"""Connections in memory. Bytes arrive in order within a connection, cut anywhere, after a while or never.

process killed      its peers are told so, and may lose what was on its way
power cut           its peers hear nothing; once the machine is back, what they sent before is answered by a reset
link down           bytes wait, in one direction or both, until the link is up again; new connections time out
reset               both ends lose a connection, and what was on its way on it
"""

from __future__ import annotations

import asyncio
import errno
import zlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from orbitmq.transport.address import Address
    from orbitmq.transport.network import Listener
    from tests.simulation.loop import Lane, SimulatedLoop

_CONNECT_PATIENCE_SECONDS: Final = 20.0
_HIGH_WATER_BYTES: Final = 64 << 10


class SimulatedNetwork:
    """All wires of the cluster."""

    def __init__(self, loop: SimulatedLoop, random: Random, trace: Callable[..., None]) -> None:
        self.loop = loop
        self.random = random
        self.trace = trace
        self.listening: dict[tuple[str, int], _Listening] = {}
        self.ends: list[End] = []  # of every connection that either side still has
        self.down: set[tuple[str, str]] = set()  # directions: from host, to host
        self.dark: set[str] = set()  # hosts without power
        self.slowness = 1.0
        self._ports = 40_000

    def delay(self) -> float:
        """Mostly a fraction of a millisecond, now and then much more."""
        delay = self.random.expovariate(1 / 0.0005)
        if self.random.random() < 0.01:
            delay += self.random.random() * 0.2
        return delay * self.slowness

    def next_port(self) -> int:
        self._ports += 1
        return self._ports

    # ---- faults

    def process_killed(self, host: str) -> None:
        for end in self._ends_of(host):
            end.die(tell_peer=True)
        self._forget_listeners(host)

    def power_cut(self, host: str) -> None:
        self.dark.add(host)
        for end in self._ends_of(host):
            end.die(tell_peer=False)
        self._forget_listeners(host)

    def power_on(self, host: str) -> None:
        """Whoever still sends to a connection that this host forgot is told that it is none."""
        self.dark.discard(host)
        for end in list(self.ends):
            if end.remote[0] == host and end.peer.dead and end.unsent:
                end.lose_later(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def miss(self, host: str) -> None:
        """Whoever is connected to a host without power finds that out, as keep-alives tell after a while."""
        for end in list(self.ends):
            if end.remote[0] == host and end.peer.dead:
                end.lose_later(ConnectionResetError(errno.ETIMEDOUT, "Connection timed out"))

    def cut_link(self, source: str, target: str) -> None:
        self.down.add((source, target))

    def mend_all(self) -> None:
        self.down.clear()
        self.slowness = 1.0
        for end in list(self.ends):
            end.go_on_sending()

    def reset_one(self) -> None:
        if self.ends:
            end = self.random.choice(self.ends)
            self.trace("reset", end.local[0], end.remote[0])
            for side in (end, end.peer):
                side.truncate()
                side.lose_later(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def _ends_of(self, host: str) -> list[End]:
        return [end for end in self.ends if end.local[0] == host]

    def _forget_listeners(self, host: str) -> None:
        for key in [key for key in self.listening if key[0] == host]:
            del self.listening[key]


class HostNetwork:
    """A `Network`: what one process sees of the wires."""

    def __init__(self, network: SimulatedNetwork, host: str, lane: Lane) -> None:
        self._network = network
        self._host = host
        self._lane = lane

    async def listen(
        self, accept: Callable[[], asyncio.Protocol], host: str | None, port: int, backlog: int
    ) -> Listener:
        key = (self._host, port or self._network.next_port())
        if key in self._network.listening:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        listening = self._network.listening[key] = _Listening(self._network, key, accept, self._lane)
        return listening

    async def connect(self, protocol: Callable[[], asyncio.Protocol], address: Address) -> None:
        network, there = self._network, (address.host, address.port)
        await asyncio.sleep(network.delay())
        ways = {(self._host, address.host), (address.host, self._host)}
        if ways & network.down or address.host in network.dark:
            await asyncio.sleep(_CONNECT_PATIENCE_SECONDS)
            raise OSError(errno.ETIMEDOUT, "Connection timed out")
        await asyncio.sleep(network.delay())
        listening = network.listening.get(there)
        if listening is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        here = (self._host, network.next_port())
        ours, theirs = End(network, here, there, self._lane), End(network, there, here, listening.lane)
        ours.peer, theirs.peer = theirs, ours
        network.ends += (ours, theirs)
        ours.open(protocol())
        network.loop.in_lane(listening.lane, lambda: theirs.open(listening.accept()))


class _Listening:
    def __init__(
        self, network: SimulatedNetwork, key: tuple[str, int], accept: Callable[[], asyncio.Protocol], lane: Lane
    ) -> None:
        self.accept = accept
        self.lane = lane
        self._network = network
        self._key = key

    def addresses(self) -> list[tuple[str, int]]:
        return [self._key]

    def close(self) -> None:
        if self._network.listening.get(self._key) is self:
            del self._network.listening[self._key]


class End(asyncio.Transport):
    """One side of a connection."""

    peer: End

    def __init__(self, network: SimulatedNetwork, local: tuple[str, int], remote: tuple[str, int], lane: Lane) -> None:
        super().__init__()
        self.local = local
        self.remote = remote
        self.dead = False  # its process or machine is gone, or it has lost the connection
        self.unsent = 0  # bytes on their way
        self._network = network
        self._loop = network.loop
        self._lane = lane
        self._protocol: asyncio.Protocol | None = None
        self._closing = False
        self._flight: list[_Piece] = []
        self._arrives = 0.0
        self._waiting: list[bytes] = []  # arrived while reading was paused, or before the protocol was there
        self._ended = False  # the other side closed, behind what waits
        self._reading = True
        self._high = _HIGH_WATER_BYTES
        self._paused_writing = False

    def open(self, protocol: asyncio.Protocol) -> None:
        if not self.dead:
            self._protocol = protocol
            protocol.connection_made(self)
            self._hand_over()

    # ---- asyncio.Transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self.remote, "sockname": self.local}.get(name, default)

    def is_closing(self) -> bool:
        return self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH_WATER_BYTES if high is None else high

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.dead or self._closing or not data:
            return
        whole = bytes(data)
        random = self._network.random
        if len(whole) > 1 and random.random() < 0.2:
            cut = random.randrange(1, len(whole))
            self._send(_Piece(whole[:cut]))
            self._send(_Piece(whole[cut:]))
        else:
            self._send(_Piece(whole))
        if self.peer.dead and self.remote[0] not in self._network.dark:
            self.lose_later(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
        if self.unsent > self._high and not self._paused_writing and self._protocol is not None:
            self._paused_writing = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._loop.in_lane(self._lane, self._hand_over)

    def is_reading(self) -> bool:
        return self._reading

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._send(_Piece(b""))
            self._loop.in_lane(self._lane, self._lose, None)

    def abort(self) -> None:
        self._closing = True
        if not self.dead:
            self.peer.lose_later(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
            self._loop.in_lane(self._lane, self._lose, None)

    # ---- on the way

    def _send(self, piece: _Piece) -> None:
        self.unsent += len(piece.data)
        self._flight.append(piece)
        if (self.local[0], self.remote[0]) not in self._network.down:
            self._schedule(piece)

    def _schedule(self, piece: _Piece) -> None:
        self._arrives = max(self._arrives, self._loop.time() + self._network.delay())
        piece.timer = self._loop.call_at(self._arrives, self._arrive, context=self.peer._lane.context)

    def go_on_sending(self) -> None:
        """The link is up again."""
        for piece in self._flight:
            if piece.timer is None:
                self._schedule(piece)

    def _arrive(self) -> None:
        """The first piece of the flight is there, unless the link went down meanwhile."""
        if not self._flight:
            return
        if (self.local[0], self.remote[0]) in self._network.down or self.remote[0] in self._network.dark:
            for piece in self._flight:
                piece.forget_timer()
            return
        piece = self._flight.pop(0)
        self.unsent -= len(piece.data)
        if not self.peer.dead:
            self._network.trace("arrive", self.local, self.remote, len(piece.data), zlib.crc32(piece.data))
            self.peer._take(piece.data)
        if self._paused_writing and self.unsent <= self._high // 4 and not self.dead and self._protocol is not None:
            self._paused_writing = False
            self._loop.in_lane(self._lane, self._protocol.resume_writing)

    def _take(self, data: bytes) -> None:
        if data:
            self._waiting.append(data)
        else:
            self._ended = True
        self._hand_over()

    def _hand_over(self) -> None:
        protocol = self._protocol
        if protocol is None:
            return
        while self._waiting and self._reading and not self._closing and not self.dead:
            protocol.data_received(self._waiting.pop(0))
        if self._ended and not self._waiting and not self._closing and not self.dead:
            protocol.eof_received()
            self.close()

    # ---- ends

    def truncate(self) -> None:
        """Of what is on its way, only the first part arrives."""
        keep = self._network.random.randrange(len(self._flight) + 1)
        for piece in self._flight[keep:]:
            piece.forget_timer()
            self.unsent -= len(piece.data)
        del self._flight[keep:]

    def die(self, *, tell_peer: bool) -> None:
        """The process at this end is gone."""
        self.dead = self._closing = True
        self._leave()
        if tell_peer:
            self.truncate()
            self.peer.lose_later(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def lose_later(self, error: OSError) -> None:
        if not self.dead:
            when = max(self.peer._arrives, self._loop.time() + self._network.delay())
            self._loop.call_at(when, self._lose, error, context=self._lane.context)

    def _lose(self, error: OSError | None) -> None:
        if self.dead:
            return
        self.dead = self._closing = True
        self._leave()
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def _leave(self) -> None:
        if self in self._network.ends:
            self._network.ends.remove(self)


class _Piece:
    """Some bytes on their way; none are the end of the stream."""

    __slots__ = ("data", "timer")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.timer: asyncio.TimerHandle | None = None

    def forget_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
