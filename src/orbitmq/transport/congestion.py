"""How long requests wait before they are read: bytes that lie unread in the system's buffers, by the pace at which bytes are read.

A server that cannot keep up reads each connection less often, and what clients send waits where nobody sees it. A read that brings a
lot says that more may be waiting behind it; only such connections are looked at, and only when somebody asks.

Java: BrokerFastFailure, which looks at the oldest request of a thread pool's queue
"""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from orbitmq.transport.connection import Connection
    from orbitmq.transport.express import Refuser

LARGE_READ_BYTES: Final = 64 << 10
_LONGEST_SECONDS: Final = 1.0  # between looks; beyond that the process stood still, and nothing was read for most of it


class Congestion:
    """Of all connections of a server."""

    __slots__ = ("_looked_at", "crowded", "read_bytes", "refuse")

    def __init__(self) -> None:
        self.read_bytes = 0  # since the last look
        self.crowded: dict[Connection, None] = {}  # whose last read, since then, brought a lot
        self.refuse: Refuser | None = None  # sees every read first, while not all can be served
        self._looked_at = 0.0

    def look(self, now: float) -> float:
        """Seconds that what is unread now will have waited when it is read; `now` is the event loop's time."""
        elapsed, self._looked_at = min(now - self._looked_at, _LONGEST_SECONDS), now
        read_bytes, self.read_bytes = self.read_bytes, 0
        crowded, self.crowded = self.crowded, {}
        unread = 0
        for connection in crowded:
            waiting = connection.unread_bytes()
            if waiting:
                unread += waiting
                self.crowded[connection] = None  # it may not be read from again before the next look
        return unread * elapsed / read_bytes if read_bytes else 0.0


def unread_in_system(sock: socket.socket | None) -> int:
    """What lies in its buffer, and as much again if that is full: then the peer's fills too, which nobody sees here.

    0 where nobody knows, as in a simulated network.
    """
    if sock is None or sock.fileno() < 0:
        return 0
    import fcntl  # not on Windows, where clients run and nobody asks this
    import termios

    unread = int.from_bytes(fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)
    # The system counts its own book-keeping in: a buffer is full long before so many bytes are in it.
    is_full = unread > sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 4
    return 2 * unread if is_full else unread
