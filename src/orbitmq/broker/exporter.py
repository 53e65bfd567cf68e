"""The pages for scrapers and probes, on a port of their own.

    /metrics   Prometheus' text format
    /healthz   200 while this process answers at all
    /readyz    200 while messages are taken; otherwise 503 and why not

Java: BrokerMetricsManager (the Prometheus exporter); probes are ours
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING

from orbitmq.broker.metrics import CONTENT_TYPE, Metrics
from orbitmq.transport.http import HttpServer, Page

if TYPE_CHECKING:
    from orbitmq.storage.store import Store
    from orbitmq.transport.address import Address
    from orbitmq.transport.network import Network

logger = logging.getLogger(__name__)


class Exporter:
    def __init__(self, metrics: Metrics, store: Store, network: Network | None) -> None:
        self._metrics = metrics
        self._store = store
        pages = {"/metrics": self._scrape, "/healthz": self._health, "/readyz": self._readiness}
        self._server = HttpServer(pages, network)

    async def start(self, host: str, port: int) -> Address:
        address = await self._server.start(host, port)
        logger.info("metrics on http://%s/metrics", address)
        return address

    async def stop(self) -> None:
        await self._server.stop()

    async def _scrape(self) -> Page:
        return Page(await self._metrics.text(), content_type=CONTENT_TYPE)

    async def _health(self) -> Page:
        return Page("ok\n")

    async def _readiness(self) -> Page:
        if self._store.health.refuses_writes:
            return Page(f"{self._store.health.refuse()}\n", HTTPStatus.SERVICE_UNAVAILABLE)
        return Page("ok\n")
