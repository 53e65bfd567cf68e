"""How a consumer behaves; the defaults are the Java client's where it has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal

from orbitmq.client.option_checks import check_seconds, check_whole
from orbitmq.client.process_queue import CacheLimits
from orbitmq.errors import ConfigError
from orbitmq.message.shares import averagely

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orbitmq.client.assignment import Strategy
    from orbitmq.client.hooks import ConsumeHook

Start = Literal["earliest", "latest"] | datetime
"""Where a group begins that has never consumed a queue before."""

DEFAULT_MAX_RETRIES: Final = 16
_MAX_BATCH: Final = 1024
_SECONDS: Final = {  # field -> option
    "consume_timeout_seconds": "consume_timeout",
    "suspend_seconds": "suspend",
    "commit_seconds": "commit_every",
    "close_timeout_seconds": "close_timeout",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """Checked when the consumer is made."""

    start: Start = "latest"
    broadcasting: bool = False
    orderly: bool = False
    strategy: Strategy = averagely
    concurrency: int = 20
    batch_size: int = 1
    pull_batch_size: int = 32
    cache: CacheLimits = field(default_factory=CacheLimits)
    max_retries: int | None = None
    """How often a message is delivered again before it is given up; None: 16, and without end for orderly consumers."""
    consume_timeout_seconds: float = 900.0
    suspend_seconds: float = 1.0
    """Orderly: how long a queue rests after its handler failed, whatever delay level it asked for."""
    commit_seconds: float = 5.0
    close_timeout_seconds: float = 30.0
    offset_directory: Path | None = None
    """Broadcasting: where offset files go; None is the Java client's place."""
    hooks: Sequence[ConsumeHook] = field(default=())

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.concurrency < 1:
            raise ConfigError(f"concurrency is {self.concurrency}", hint="give 1 or more")
        for name in ("batch_size", "pull_batch_size"):
            if not 1 <= getattr(self, name) <= _MAX_BATCH:
                raise ConfigError(f"{name} is {getattr(self, name)}", hint=f"give 1 to {_MAX_BATCH}")
        check_start(self.start)
        # At zero nobody would rest in between, which costs a processor.
        for name, option in _SECONDS.items():
            if name != "close_timeout_seconds" and getattr(self, name) <= 0:
                raise ConfigError(f"{option} is {getattr(self, name)}", hint="give seconds above 0")
        if self.max_retries is not None and self.max_retries < 0:
            raise ConfigError(f"max_retries must not be negative: {self.max_retries}", hint="None is the default")

    def _check_numbers(self) -> None:
        for name in ("concurrency", "batch_size", "pull_batch_size"):
            check_whole(name, getattr(self, name))
        if self.max_retries is not None:
            check_whole("max_retries", self.max_retries)
        for name in ("messages", "bytes", "span"):
            option, limit = "max_span" if name == "span" else f"max_cached_{name}", getattr(self.cache, name)
            check_whole(option, limit)
            if limit < 0:
                raise ConfigError(f"{option} is {limit}", hint="give 0 or more")
        for name, option in _SECONDS.items():
            check_seconds(option, getattr(self, name))


def check_count(wanted: int) -> None:
    """Of messages to fetch."""
    check_whole("max", wanted)
    if wanted < 1:
        raise ConfigError(f"max is {wanted}: no message can be had", hint="give 1 or more")


def check_start(start: Start) -> None:
    if not isinstance(start, datetime) and start not in ("earliest", "latest"):
        raise ConfigError(f"start {start!r} is unknown", hint='"earliest", "latest" or a datetime; to seek, an offset')
    if isinstance(start, datetime) and start.tzinfo is None:
        raise ConfigError("start has no time zone", hint="datetime.now(UTC), or .astimezone() for local time")


def consume_from_where(start: Start) -> str:
    """Java's word for it, which heartbeats carry."""
    if isinstance(start, datetime):
        return "CONSUME_FROM_TIMESTAMP"
    return "CONSUME_FROM_FIRST_OFFSET" if start == "earliest" else "CONSUME_FROM_LAST_OFFSET"
