"""How much one connection may ask of a process."""

from __future__ import annotations

from dataclasses import dataclass

from orbitmq.protocol.frame import MAX_FRAME_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds per connection. Past a soft one reading pauses; past a hard one the connection is closed."""

    max_frame_bytes: int = MAX_FRAME_BYTES
    max_header_bytes: int = MAX_FRAME_BYTES
    idle_seconds: float = 120.0  # no byte in either direction: closed, on both sides, as Apache does
    max_unanswered: int = 16_384  # requests whose handler is still waiting; then reading pauses
    max_calls: int = 65_535  # our own requests awaiting an answer; one more is refused
    write_pause_bytes: int = 1 << 20  # unsent bytes at which reading pauses
    write_abort_bytes: int = 64 << 20  # unsent bytes of a peer that does not read at all
    connect_seconds: float = 3.0
    backlog: int = 1024


DEFAULT_LIMITS = Limits()
