"""The pages for scrapers and probes, on a port of their own.

    /metrics   Prometheus' text format
    /healthz   200 while this process answers at all
    /readyz    brokers only: 200 while messages are taken; otherwise 503 and why not

Java: BrokerMetricsManager (the Prometheus exporter); Apache's name server has none, and probes are ours
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from orbitmq.transport.http import HttpServer, Page

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from orbitmq.transport.address import Address
    from orbitmq.transport.network import Network

logger = logging.getLogger(__name__)

_WAY_OUT: Final = "choose another port with metricsPromExporterPort; 0 takes a free one"
_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Exporter:
    """`text` is what is scraped; `unready` says why requests are refused, if they are."""

    def __init__(
        self,
        text: Callable[[], Awaitable[str]],
        network: Network | None,
        *,
        unready: Callable[[], str | None] | None = None,
    ) -> None:
        async def scrape() -> Page:
            return Page(await text(), content_type=_CONTENT_TYPE)

        async def health() -> Page:
            return Page("ok\n")

        pages = {"/metrics": scrape, "/healthz": health}
        if unready is not None:

            async def readiness() -> Page:
                reason = unready()
                return Page("ok\n") if reason is None else Page(f"{reason}\n", HTTPStatus.SERVICE_UNAVAILABLE)

            pages["/readyz"] = readiness
        self._server = HttpServer(pages, network)

    async def start(self, host: str, port: int) -> Address:
        address = await self._server.start(host, port, _WAY_OUT)
        logger.info("metrics on http://%s/metrics", address)
        return address

    async def stop(self) -> None:
        await self._server.stop()
