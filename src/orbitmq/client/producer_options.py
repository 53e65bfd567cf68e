"""How a producer behaves; the defaults are the Java client's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from orbitmq.client.codecs import JSON, Codec
from orbitmq.client.option_checks import check_seconds, check_whole
from orbitmq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orbitmq.client.hooks import SendHook

CompressionKind = Literal["zlib", "lz4", "zstd"]

_MAX_MESSAGE_BYTES: Final = 4 << 20
_ZLIB_LEVELS: Final = 9
_WHOLE: Final = (
    "retries", "compress_over_bytes", "compression_level", "max_message_bytes", "max_batch_messages", "max_in_flight",
    "max_in_flight_bytes", "create_queues", "accumulate_bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """Checked when the producer is made."""

    timeout_seconds: float = 3.0
    retries: int = 2
    retry_unconfirmed: bool = False
    fault_tolerance: bool = False
    compression: CompressionKind | None = "zlib"
    compress_over_bytes: int = 4096
    compression_level: int = 5
    max_message_bytes: int = _MAX_MESSAGE_BYTES
    max_batch_messages: int = 1024
    max_in_flight: int = 16_384
    max_in_flight_bytes: int = 32 << 20
    create_queues: int = 4
    accumulate: bool = False
    accumulate_bytes: int = 32 << 10
    accumulate_seconds: float = 0.010
    codec: Codec = JSON
    hooks: Sequence[SendHook] = field(default=())

    def __post_init__(self) -> None:
        for name in _WHOLE:
            check_whole(name, getattr(self, name))
        check_seconds("timeout", self.timeout_seconds)
        check_seconds("accumulate_seconds", self.accumulate_seconds)
        positive = ("timeout_seconds", "max_message_bytes", "max_batch_messages", "max_in_flight", "create_queues")
        for name in positive:
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}", hint="give a number above 0")
        if self.compression == "zlib" and not -1 <= self.compression_level <= _ZLIB_LEVELS:
            raise ConfigError(
                f"compression_level is {self.compression_level}", hint=f"zlib has levels from 0 to {_ZLIB_LEVELS}"
            )
        if self.retries < 0:
            raise ConfigError(f"retries must not be negative: {self.retries}", hint="0 tries once")
