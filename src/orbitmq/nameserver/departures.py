"""Brokers about to be forgotten, gathered for one turn of the event loop.

Forgetting a broker walks all topics; when a machine dies with a hundred brokers on it, one walk is enough for all.

Java: BatchUnregistrationService
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from orbitmq.errors import RequestFailed
from orbitmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.nameserver.registry import Departure, RouteRegistry


class Departures:
    def __init__(self, registry: RouteRegistry, capacity: Callable[[], int]) -> None:
        self._registry = registry
        self._capacity = capacity
        self._waiting: dict[Departure, None] = {}

    def ask(self, departure: Departure) -> None:
        """A broker says that it leaves. RequestFailed when too many do at once."""
        if len(self._waiting) >= self._capacity():
            raise RequestFailed(
                ResponseCode.SYSTEM_ERROR, f"{len(self._waiting)} brokers are leaving already; try again"
            )
        self.add(departure)

    def add(self, departure: Departure) -> None:
        """A broker is gone. There is no refusing that, so no limit either: at most all known brokers are."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        self._waiting[departure] = None

    def flush(self) -> None:
        """Forget them now: before a broker is registered again that left a moment ago."""
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            self._registry.unregister(waiting)
