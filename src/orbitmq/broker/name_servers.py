"""Which name servers this broker registers with: a fixed list, every address of a DNS name, or a published list.

Java: BrokerOuterAPI.fetchNameServerAddr, updateNameServerAddressListByDnsLookup
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from orbitmq.errors import OrbitError
from orbitmq.transport.address import Address, parse_addresses
from orbitmq.transport.lookup import fetch_name_servers, published_list, resolve

if TYPE_CHECKING:
    from orbitmq.broker.settings import BrokerConfiguration

logger = logging.getLogger(__name__)

_LOOKUP_SECONDS: Final = 3.0
_PAGE: Final = "nsaddr"


class NameServers:
    def __init__(self, configuration: BrokerConfiguration) -> None:
        self.addresses: list[Address] = []
        self._configuration = configuration

    @property
    def refresh_seconds(self) -> float:
        """A published list changes more often than a setting does."""
        return 10.0 if self._configuration.settings.fetch_namesrv_addr_by_address_server else 120.0

    async def refresh(self) -> bool:
        """Look again; whether the list changed. When the look-up fails, the known ones stay."""
        try:
            found = await self._look_up()
        except OrbitError as error:
            logger.warning("kept the known name servers: %s", error)
            return False
        if found == self.addresses:
            return False
        self.addresses = found
        if found:
            logger.info("name servers: %s", "; ".join(map(str, found)))
        return True

    async def _look_up(self) -> list[Address]:
        settings = self._configuration.settings
        if settings.namesrv_addr:
            listed = parse_addresses(settings.namesrv_addr)
            if not settings.fetch_name_srv_addr_by_dns_lookup:
                return listed
            return sorted({found for address in listed for found in await resolve(address)})
        if settings.fetch_namesrv_addr_by_address_server:
            return sorted(await fetch_name_servers(published_list(_PAGE), _LOOKUP_SECONDS))
        return []
