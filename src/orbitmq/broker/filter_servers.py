"""Filter servers that registered here: kept while they are connected and passed on to the name servers, never launched.

Java: FilterServerManager (gone in 5.x; clients of 4.x may still bring theirs)
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orbitmq.broker.registration import Registration
    from orbitmq.transport.connection import Connection

logger = logging.getLogger(__name__)


class FilterServers:
    def __init__(self, registration: Registration) -> None:
        self._registration = registration
        self._addresses: dict[Connection, str] = {}

    def register(self, address: str, connection: Connection) -> None:
        if self._addresses.get(connection) != address:
            logger.info("filter server %s registered", address)
            self._addresses[connection] = address
            self._tell()

    def connection_closed(self, connection: Connection) -> None:
        address = self._addresses.pop(connection, None)
        if address is not None:
            logger.info("filter server %s is gone", address)
            self._tell()

    def _tell(self) -> None:
        """With the next registration."""
        self._registration.filter_servers = sorted(set(self._addresses.values()))
