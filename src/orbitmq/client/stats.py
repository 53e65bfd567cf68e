"""Counters: plain numbers that only ever grow, to be read at any time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ProducerStats:
    """What a producer did so far."""

    sent: int = 0
    """Requests answered with success; a batch counts as one."""
    sent_bytes: int = 0
    sent_oneway: int = 0
    failed: int = 0
    retried: int = 0
    """Attempts beyond the first."""


@dataclass(slots=True)
class ConsumerStats:
    """What a consumer did so far."""

    pulls: int = 0
    received: int = 0
    received_bytes: int = 0
    acked: int = 0
    retried: int = 0
    """Messages given back to be delivered again."""
    failed: int = 0
    """Calls of the handler that raised."""
    rebalances: int = 0
