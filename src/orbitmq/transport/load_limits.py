"""What strangers and users may ask of a server, under our own names; part of the broker's and the name server's settings.

0 means no limit. A change counts at once; sizes of frames and headers for connections opened from then on. What is refused is
answered with SYSTEM_BUSY (2) and names the limit, its figure and the key; a frame too large ends its connection, and the log names
both. Everything refused is counted by key.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Final

import msgspec

from orbitmq.errors import RequestFailed
from orbitmq.protocol.codes import ResponseCode
from orbitmq.protocol.frame import MAX_FRAME_BYTES

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]

MAX_CONNECTIONS: Final = "orbitmq.maxConnections"
MAX_CONNECTIONS_PER_ADDRESS: Final = "orbitmq.maxConnectionsPerAddress"
MAX_FRAME: Final = "orbitmq.maxFrameBytes"
MAX_HEADER: Final = "orbitmq.maxHeaderBytes"


class LoadLimits(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    max_connections: _Count = msgspec.field(default=0, name=MAX_CONNECTIONS)
    max_connections_per_address: _Count = msgspec.field(default=0, name=MAX_CONNECTIONS_PER_ADDRESS)
    requests_per_second_per_address: _Count = msgspec.field(default=0, name="orbitmq.requestsPerSecondPerAddress")
    bytes_per_second_per_address: _Count = msgspec.field(default=0, name="orbitmq.bytesPerSecondPerAddress")
    requests_per_second_per_user: _Count = msgspec.field(default=0, name="orbitmq.requestsPerSecondPerUser")
    bytes_per_second_per_user: _Count = msgspec.field(default=0, name="orbitmq.bytesPerSecondPerUser")
    max_frame_bytes: Annotated[int, msgspec.Meta(ge=64 << 10, le=MAX_FRAME_BYTES)] = msgspec.field(
        default=MAX_FRAME_BYTES, name=MAX_FRAME
    )
    max_header_bytes: Annotated[int, msgspec.Meta(ge=4 << 10, le=MAX_FRAME_BYTES)] = msgspec.field(
        default=1 << 20, name=MAX_HEADER
    )

    @property
    def limits_addresses(self) -> bool:
        """Whether it matters which address somebody has."""
        return bool(
            self.max_connections_per_address
            or self.requests_per_second_per_address
            or self.bytes_per_second_per_address
        )


class Refusals:
    """How often each limit said no; shared by all parts of a server."""

    def __init__(self) -> None:
        self.by_key: Counter[str] = Counter()

    def refused(self, key: str, most: int, what: str, code: int = ResponseCode.SYSTEM_BUSY) -> RequestFailed:
        """The error to raise, counted."""
        self.by_key[key] += 1
        cure = f"later again, or raise {key}" if code == ResponseCode.SYSTEM_BUSY else f"raise {key}"
        return RequestFailed(code, f"[LIMIT] {what}: at most {most:,}", hint=cure)
