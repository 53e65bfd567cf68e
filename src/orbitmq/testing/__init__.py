"""A real OrbitMQ server for tests: real wire, free ports, a temporary store, a clock that can be moved.

    from orbitmq.testing import Server

    with Server() as server:
        ...  # connect to server.address
        server.clock.advance(minutes=3)

With pytest, the fixture `mq_server` is one, without an import.
"""

from orbitmq.testing.clock import MovableClock
from orbitmq.testing.server import Server

__all__ = ["MovableClock", "Server"]
