"""Real OrbitMQ servers for tests: real wire, free ports, temporary stores, a clock that can be moved, faults on demand.

    from orbitmq.testing import Server

    with Server() as server:
        ...  # connect to server.address
        server.clock.advance(minutes=3)
        server.expect("Orders", body=b"hello")

`Cluster` is several brokers, each a process that can be killed. With pytest, the fixtures `mq_server` and `mq_cluster` are one of
each, without an import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orbitmq.testing.clock import MovableClock
    from orbitmq.testing.cluster import Cluster, ClusterBroker
    from orbitmq.testing.server import Server

__all__ = ["Cluster", "ClusterBroker", "MovableClock", "Server"]

_MODULES = {"Cluster": "cluster", "ClusterBroker": "cluster", "MovableClock": "clock", "Server": "server"}


def __getattr__(name: str) -> object:
    """Every pytest run imports this package for its plugin; only those that want a server pay for one."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"orbitmq.testing.{_MODULES[name]}"), name)
