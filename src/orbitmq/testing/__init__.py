"""A real OrbitMQ server for tests: real wire, free ports, a temporary store, a clock that can be moved.

    from orbitmq.testing import Server

    with Server() as server:
        ...  # connect to server.address
        server.clock.advance(minutes=3)

With pytest, the fixture `mq_server` is one, without an import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orbitmq.testing.clock import MovableClock
    from orbitmq.testing.server import Server

__all__ = ["MovableClock", "Server"]


def __getattr__(name: str) -> object:
    """Every pytest run imports this package for its plugin; only those that want a server pay for one."""
    if name == "Server":
        from orbitmq.testing.server import Server

        return Server
    if name == "MovableClock":
        from orbitmq.testing.clock import MovableClock

        return MovableClock
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
