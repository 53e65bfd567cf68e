"""Which address this broker gives to others, and why. Java: BrokerConfig.brokerIP1, NetworkUtil.getLocalAddress"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from orbitmq.transport.local_address import local_address

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orbitmq.broker.settings import Settings
    from orbitmq.transport.address import Address


class Advertised(NamedTuple):
    host: str
    reason: str


def advertised_host(settings: Settings, name_servers: Iterable[Address]) -> Advertised:
    if settings.broker_ip1:
        return Advertised(settings.broker_ip1, "brokerIP1 says so")
    bound = settings.bind_address
    if bound not in ("", "0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return Advertised(bound, "it is the only address this broker listens on")
    host = local_address(name_servers)
    if Path("/.dockerenv").exists():
        return Advertised(host, "it is this container's address; set brokerIP1 if clients are outside")
    return Advertised(host, "it is the address this machine uses towards the name servers")
