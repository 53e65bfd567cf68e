"""The IP address under which this machine is known to another: part of client ids and message ids.

Java walks the network interfaces; asking the routing table gives the address the peer will really see.

Java: NetworkUtil.getLocalAddress
"""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orbitmq.transport.address import Address

# Never contacted: connecting a datagram socket sends nothing, it only looks up the route.
_SOMEWHERE_ELSE: Final = ("192.0.2.1", 9)
_LOOPBACK: Final = "127.0.0.1"


def local_address(towards: Iterable[Address]) -> str:
    """The literal address used towards the first reachable of `towards`; a loopback one only if there is nothing else."""
    candidates = [_source_of(address) for address in (*towards, _SOMEWHERE_ELSE)]
    found = [candidate for candidate in candidates if candidate is not None]
    public = [candidate for candidate in found if not ipaddress.ip_address(candidate).is_loopback]
    return (public or found or [_LOOPBACK])[0]


def _source_of(address: tuple[str, int]) -> str | None:
    host, port = address
    try:
        literal = ipaddress.ip_address(host)
    except ValueError:
        return None  # a name: resolving it could block, and the route to elsewhere is as good
    family = socket.AF_INET if literal.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            source: str = probe.getsockname()[0]
    except OSError:
        return None
    return source.partition("%")[0]
