"""The doorman of a server: how many may come in, all together and from each address, and how much each address may ask.

Who is one too many is let in as far as to be told so: its first request is answered with the refusal, then it is closed.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from orbitmq.transport.load_limits import MAX_CONNECTIONS, MAX_CONNECTIONS_PER_ADDRESS, Refusals
from orbitmq.transport.rates import Rates

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.clock import Clock
    from orbitmq.errors import RequestFailed
    from orbitmq.transport.connection import Connection
    from orbitmq.transport.limits import Limits
    from orbitmq.transport.load_limits import LoadLimits

_MOST_WAITING_FOR_REFUSAL: Final = 64
_NETWORK_BITS: Final = 64


def counted_as(host: str) -> str:
    """An address, or of IPv6 its network: who has one of those addresses has all 2**64 of them."""
    if ":" not in host:
        return host
    try:
        ip = ipaddress.IPv6Address(host.partition("%")[0])  # a zone says by which of our interfaces it came
    except ValueError:
        return host
    return str(ip.ipv4_mapped or ipaddress.IPv6Network((ip, _NETWORK_BITS), strict=False))


class Doorman:
    """One for all ports of a server."""

    def __init__(self, limits: Callable[[], LoadLimits], clock: Clock, refusals: Refusals) -> None:
        self.refusals = refusals
        self._limits = limits
        self._rates = Rates("address", limits, clock, refusals)
        self._inside: dict[Connection, str] = {}
        self._by_address: Counter[str] = Counter()
        self._turned_away: set[Connection] = set()

    def for_connections(self, usual: Limits) -> Limits:
        """The usual limits of a connection, with the sizes that are in force."""
        limits = self._limits()
        return replace(usual, max_frame_bytes=limits.max_frame_bytes, max_header_bytes=limits.max_header_bytes)

    def arrived(self, connection: Connection) -> None:
        """A new connection, or one of which a proxy has just said where it comes from."""
        self.left(connection)
        address = counted_as(connection.peer.host)
        refusal = self._refusal(address)
        if refusal is None:
            self._inside[connection] = address
            self._by_address[address] += 1
            connection.let_in()
            self.watch(connection)
        elif len(self._turned_away) < _MOST_WAITING_FOR_REFUSAL:
            self._turned_away.add(connection)
            connection.turn_away(refusal)
        else:
            connection.abort()

    def left(self, connection: Connection) -> None:
        self._turned_away.discard(connection)
        address = self._inside.pop(connection, None)
        if address is not None:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

    def watch(self, connection: Connection) -> None:
        """Count what it asks, if that is limited now."""
        self._rates.refresh()
        if connection not in self._turned_away:
            limited = self._rates.are_limited
            connection.meter = partial(self._rates.take, counted_as(connection.peer.host)) if limited else None

    def _refusal(self, address: str) -> RequestFailed | None:
        limits = self._limits()
        if limits.max_connections and len(self._inside) >= limits.max_connections:
            return self.refusals.refused(MAX_CONNECTIONS, limits.max_connections, "connections to this server")
        most = limits.max_connections_per_address
        if most and self._by_address[address] >= most:
            return self.refusals.refused(MAX_CONNECTIONS_PER_ADDRESS, most, f"connections from {address}")
        return None
