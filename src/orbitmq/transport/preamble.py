"""A new connection's first bytes: an optional PROXY protocol header, then TLS or plain frames.

A plain frame starts with 0x00 (its length is below 16 MiB), TLS with 0x16, PROXY v1 with the text `PROXY `, v2 with a
12-byte signature; so one byte decides, and nothing is ambiguous.

Java: NettyRemotingServer.HandshakeHandler and TlsModeHandler, netty's HAProxyMessageDecoder
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from typing import Final

from orbitmq.errors import ConfigError, FrameError
from orbitmq.transport.address import Address, parse_address

TRUSTED_PROXIES: Final = "orbitmq.trustedProxies"  # the setting that says who may begin with a PROXY header
_TLS_HANDSHAKE: Final = 0x16
_V1_START: Final = b"PROXY "
_V1_MAX_BYTES: Final = 107
_V2_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_V2_FIXED: Final = struct.Struct(
    ">12s"  # signature
    "B"  # version in the high four bits, command in the low: 0 LOCAL, 1 PROXY
    "B"  # address family in the high four bits, transport in the low
    "H"  # bytes that follow
)


class Preamble:
    """Feed it until `done`; then `is_tls`, `source` (if a proxy named one) and the `rest` of the stream are known.

    `is_proxied` as soon as there was a header, whether or not it named a source.
    """

    __slots__ = ("_held", "done", "is_proxied", "is_tls", "rest", "source")

    def __init__(self) -> None:
        self._held = b""
        self.done = False
        self.is_proxied = False
        self.is_tls = False
        self.rest = b""
        self.source: Address | None = None

    def feed(self, data: bytes) -> None:
        """FrameError when a PROXY header is begun and then broken."""
        data = self._held + data
        if not data:
            return
        # One header alone: behind that of a proxy which named nobody, another would be its client's.
        if not self.is_proxied and data[0] in (_V1_START[0], _V2_SIGNATURE[0]):
            taken = self._take_v1(data) if data[0] == _V1_START[0] else self._take_v2(data)
            if taken == 0:
                self._held = data
                return
            self.is_proxied = True
            data = data[taken:]
            if not data:
                self._held = b""
                return
        self.is_tls = data[0] == _TLS_HANDSHAKE
        self.rest = data
        self._held = b""
        self.done = True

    def _take_v1(self, data: bytes) -> int:
        """Bytes taken, 0 when more are needed."""
        end = data.find(b"\r\n", 0, _V1_MAX_BYTES)
        if end < 0:
            if len(data) >= _V1_MAX_BYTES or not _V1_START.startswith(data[: len(_V1_START)]):
                raise FrameError(f"neither a frame nor a PROXY header: {data[:20]!r}")
            return 0
        parts = data[:end].decode("latin-1").split(" ")
        if parts[:2] == ["PROXY", "UNKNOWN"]:
            return end + 2
        try:
            start, family, source, _, port, _ = parts
            if start != "PROXY" or family not in ("TCP4", "TCP6"):
                raise ValueError(family)
            self.source = parse_address(f"{ipaddress.ip_address(source)}:{port}")
        except (ValueError, ConfigError):
            raise FrameError(f"broken PROXY header: {data[:end]!r}") from None
        return end + 2

    def _take_v2(self, data: bytes) -> int:
        if not _V2_SIGNATURE.startswith(data[: len(_V2_SIGNATURE)]):
            raise FrameError(f"neither a frame nor a PROXY header: {data[:20]!r}")
        if len(data) < _V2_FIXED.size:
            return 0
        _, version_command, family, length = _V2_FIXED.unpack_from(data)
        end: int = _V2_FIXED.size + length
        if version_command >> 4 != 2:
            raise FrameError(f"PROXY header of version {version_command >> 4} is unknown")
        if len(data) < end:
            return 0
        addresses = data[_V2_FIXED.size : end]
        if version_command & 0xF == 1:
            self.source = _v2_source(family >> 4, addresses)
        return end


def _v2_source(family: int, addresses: bytes) -> Address | None:
    layouts = {1: (socket.AF_INET, 4), 2: (socket.AF_INET6, 16)}
    if family not in layouts:
        return None
    kind, size = layouts[family]
    if len(addresses) < 2 * size + 4:
        raise FrameError("PROXY header is too short for its addresses")
    (port,) = struct.unpack_from(">H", addresses, 2 * size)
    return Address(socket.inet_ntop(kind, addresses[:size]), port)
