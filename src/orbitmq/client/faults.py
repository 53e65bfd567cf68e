"""Brokers to leave alone for a while, because they were slow or failed.

    latency of the last send, ms >=    50   100   550   1800   3000   5000   15000
    left alone for, ms                  0     0  2000   5000   6000  10000   30000

A failure counts as a latency of ten seconds. The time is only ever extended.

Java: MQFaultStrategy, LatencyFaultToleranceImpl
"""

from __future__ import annotations

from typing import Final

_TABLE_MS: Final = ((15000, 30000), (5000, 10000), (3000, 6000), (1800, 5000), (550, 2000))
_FAILURE_MS: Final = 10_000


class Faults:
    """When each broker may be chosen again, on the event loop's clock."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def sent(self, broker_name: str, latency_seconds: float, now: float) -> None:
        self._leave_alone(broker_name, latency_seconds * 1000, now)

    def failed(self, broker_name: str, now: float) -> None:
        self._leave_alone(broker_name, _FAILURE_MS, now)

    def is_available(self, broker_name: str, now: float) -> bool:
        return self._until.get(broker_name, 0.0) <= now

    def _leave_alone(self, broker_name: str, latency_ms: float, now: float) -> None:
        pause_ms = next((pause for latency, pause in _TABLE_MS if latency_ms >= latency), 0)
        if pause_ms:
            self._until[broker_name] = max(self._until.get(broker_name, 0.0), now + pause_ms / 1000)
