"""A name server's figures as Prometheus reads them. Apache's name server has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orbitmq.nameserver.registry import RouteRegistry
    from orbitmq.transport.load_limits import Refusals
    from orbitmq.transport.server import Server


class Metrics:
    def __init__(self, registry: RouteRegistry, server: Server, refusals: Refusals) -> None:
        self._registry = registry
        self._connections = server.connections
        self._refusals = refusals

    async def text(self) -> str:
        figures = {
            "orbitmq_nameserver_brokers": ("Brokers that are registered.", self._registry.broker_count),
            "orbitmq_nameserver_topics": ("Topics of these brokers.", self._registry.topic_count),
            "orbitmq_nameserver_connections": ("Open connections.", len(self._connections)),
        }
        lines = []
        for name, (help_text, value) in figures.items():
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} gauge", f"{name} {value}"]
        lines += ["# HELP orbitmq_refused_total Refused by a limit.", "# TYPE orbitmq_refused_total counter"]
        lines += [f'orbitmq_refused_total{{limit="{key}"}} {count}' for key, count in self._refusals.by_key.items()]
        return "\n".join(lines) + "\n"
