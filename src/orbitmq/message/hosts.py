"""Where a message came from and where it is kept: an IP address and a port, as the record stores them.

    offset  size     field
    0       4 or 16  address, network order
    4 | 16  4        port

Packed bytes are what travels through the append path; text is made only when somebody looks.

Java: MessageExt.socketAddress2ByteBuffer
"""

from __future__ import annotations

import ipaddress
from typing import Final

from orbitmq.errors import MessageError

IPV4_HOST_BYTES: Final = 8
IPV6_HOST_BYTES: Final = 20

_PORT_BYTES: Final = 4


def pack_host(address: str, port: int) -> bytes:
    """`address` is a literal IPv4 or IPv6 address; names are resolved by whoever knows the network."""
    try:
        return ipaddress.ip_address(address).packed + port.to_bytes(_PORT_BYTES, "big")
    except (ValueError, OverflowError) as error:
        raise MessageError(f"{address}:{port} is not an IP address and port") from error


def unpack_host(packed: bytes) -> tuple[str, int]:
    if len(packed) not in (IPV4_HOST_BYTES, IPV6_HOST_BYTES):
        raise MessageError(f"a host takes 8 or 20 bytes, not {len(packed)}")
    return str(ipaddress.ip_address(packed[:-_PORT_BYTES])), int.from_bytes(packed[-_PORT_BYTES:], "big", signed=True)


def host_text(packed: bytes) -> str:
    """`127.0.0.1:10911`, `[::1]:10911`."""
    address, port = unpack_host(packed)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
