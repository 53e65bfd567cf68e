"""What Prometheus scrapes of a name server, on a port of its own. Apache's name server has no such page.

/metrics   Prometheus' text format
/healthz   200 while this process answers at all
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from orbitmq.transport.http import HttpServer, Page

if TYPE_CHECKING:
    from orbitmq.nameserver.registry import RouteRegistry
    from orbitmq.transport.address import Address
    from orbitmq.transport.load_limits import Refusals
    from orbitmq.transport.network import Network
    from orbitmq.transport.server import Server

logger = logging.getLogger(__name__)

_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Exporter:
    def __init__(self, registry: RouteRegistry, server: Server, refusals: Refusals, network: Network | None) -> None:
        self._registry = registry
        self._connections = server.connections
        self._refusals = refusals
        self._server = HttpServer({"/metrics": self._scrape, "/healthz": self._health}, network)

    async def start(self, host: str, port: int) -> Address:
        address = await self._server.start(host, port)
        logger.info("metrics on http://%s/metrics", address)
        return address

    async def stop(self) -> None:
        await self._server.stop()

    async def _scrape(self) -> Page:
        return Page("\n".join(self._lines()) + "\n", content_type=_CONTENT_TYPE)

    async def _health(self) -> Page:
        return Page("ok\n")

    def _lines(self) -> list[str]:
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
        return lines
