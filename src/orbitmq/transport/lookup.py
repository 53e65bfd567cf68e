"""Finding name servers: by an HTTP look-up whose first line is a `;`-separated list, or by all addresses of a DNS name.

Java: TopAddressing, BrokerOuterAPI.dnsLookupAddressByDomain
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Final

from orbitmq.errors import ConfigError, ConnectFailed
from orbitmq.transport.address import Address, parse_addresses

_LOOKUP_HINT: Final = "its first line should read host:port;host:port"
_DEFAULT_DOMAIN: Final = "jmenv.tbsite.net"
_DEFAULT_PORT: Final = 8080


def published_list(page: str) -> str:
    """Where Apache's programs look name servers up; the environment says for Java's system property where that is.

    Java: MixAll.getWSAddr (-Drocketmq.namesrv.domain)
    """
    domain = os.environ.get("ROCKETMQ_NAMESRV_DOMAIN", _DEFAULT_DOMAIN)
    return f"http://{domain if ':' in domain else f'{domain}:{_DEFAULT_PORT}'}/rocketmq/{page}"


async def fetch_name_servers(url: str, timeout_seconds: float) -> list[Address]:
    """ConnectFailed when the page cannot be had or names nobody."""
    text = await asyncio.to_thread(_fetch, url, timeout_seconds)
    lines = text.strip().splitlines()
    try:
        addresses = parse_addresses(lines[0]) if lines else []
    except ConfigError as error:
        raise ConnectFailed(f"{url} names no name server: {error}", hint=_LOOKUP_HINT) from None
    if not addresses:
        raise ConnectFailed(f"{url} names no name server", hint=_LOOKUP_HINT)
    return addresses


def is_unresolved(error: BaseException) -> bool:
    return isinstance(error, socket.gaierror)


def unresolved(address: Address, error: OSError) -> ConnectFailed:
    return ConnectFailed(
        f"cannot resolve {address.host}: {error.strerror}", hint="is the name right, and does DNS work here?"
    )


async def resolve(address: Address) -> list[Address]:
    """Every address behind a host name. ConnectFailed when there is none."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise unresolved(address, error) from None
    return sorted({Address(str(entry[4][0]), address.port) for entry in found})


def _fetch(url: str, timeout_seconds: float) -> str:
    # Loaded only here: hardly any process looks its name servers up, and every client would pay for the import.
    import http.client
    import urllib.error
    import urllib.request

    if not url.startswith(("http://", "https://")):
        raise ConnectFailed(f"{url} is no HTTP address", hint="it begins with http:// or https://")
    try:
        with urllib.request.urlopen(url, timeout=timeout_seconds) as response:  # noqa: S310 - checked above
            body: bytes = response.read(1 << 16)
    except (OSError, urllib.error.URLError, http.client.HTTPException) as error:
        raise ConnectFailed(
            f"cannot look up name servers at {url}: {error}", hint="is the page there, and reachable from here?"
        ) from None
    return body.decode("utf-8", "replace")
