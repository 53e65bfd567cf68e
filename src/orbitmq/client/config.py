"""What `connect` was told: one value that says which clients can share their connections."""

from __future__ import annotations

import os
import random
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from orbitmq.client.option_checks import check_seconds
from orbitmq.clock import Clock, SystemClock
from orbitmq.errors import ConfigError
from orbitmq.protocol.signing import Credentials
from orbitmq.transport.address import Address, parse_addresses

if TYPE_CHECKING:
    from orbitmq.transport.network import Network

DEFAULT_INSTANCE_NAME: Final = "DEFAULT"
_NAME_SERVERS_VARIABLE: Final = "NAMESRV_ADDR"
_SYSTEM_CLOCK: Final = SystemClock()
_RANDOMNESS: Final = random.Random()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Everything about a client that its producers and consumers have in common."""

    name_servers: tuple[Address, ...]
    lookup_url: str = ""  # where the list of name servers is published, instead of a fixed list
    credentials: Credentials | None = None
    tls: ssl.SSLContext | None = None
    namespace: str = ""
    instance_name: str = DEFAULT_INSTANCE_NAME
    unit_name: str = ""
    vip_channel: bool = False  # send to the broker's second port, two below its first
    timeout_seconds: float = 3.0
    route_refresh_seconds: float = 30.0
    heartbeat_seconds: float = 30.0
    lookup_seconds: float = 120.0
    clock: Clock = field(default=_SYSTEM_CLOCK)
    randomness: random.Random = field(default=_RANDOMNESS, compare=False)
    network: Network | None = None  # the operating system's

    def __post_init__(self) -> None:
        for name in ("timeout_seconds", "route_refresh_seconds", "heartbeat_seconds", "lookup_seconds"):
            check_seconds(name.removesuffix("_seconds"), getattr(self, name))
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be above 0", hint="give seconds, for example 3.0")


def name_server_source(given: str | Iterable[str] | None) -> tuple[tuple[Address, ...], str]:
    """A fixed list of addresses, or the URL of a page that names them; by default what NAMESRV_ADDR says."""
    text = given if isinstance(given, str) else ";".join(_texts(given)) if given is not None else ""
    text = text or os.environ.get(_NAME_SERVERS_VARIABLE, "")
    if text.startswith(("http://", "https://")):
        return (), text
    addresses = tuple(dict.fromkeys(parse_addresses(text.replace(",", ";"))))
    if not addresses:
        raise ConfigError(
            "no name server is given",
            hint=f'connect("127.0.0.1:9876"), or set {_NAME_SERVERS_VARIABLE}; several are separated by ";"',
        )
    return addresses, ""


def credentials_from(given: Credentials | tuple[str, str] | tuple[str, str, str] | None) -> Credentials | None:
    if given is None or isinstance(given, Credentials):
        return given
    # Two letters could be taken for a key and its secret. What is wrong is not shown: a secret is in it.
    if not isinstance(given, str) and isinstance(given, Sequence) and 2 <= len(given) <= 3:
        key, secret, token = (*given, "")[:3]
        if all(isinstance(part, str) for part in (key, secret, token or "")):
            return Credentials(key, secret, token or "")
    raise ConfigError("credentials are no pair of texts", hint='credentials=("access key", "secret key")')


def tls_from(given: ssl.SSLContext | bool | None) -> ssl.SSLContext | None:
    """True trusts the authorities that this machine trusts; a context says it in detail."""
    if isinstance(given, ssl.SSLContext):
        return given
    if given is not None and given not in (True, False):  # 1 and 0, as settings say it, are equal to these
        raise ConfigError(f"tls is {given!r}", hint='True, or a context: ssl.create_default_context(cafile="ca.pem")')
    return ssl.create_default_context() if given else None


def _texts(given: Iterable[object]) -> list[str]:
    parts = list(given) if isinstance(given, Iterable) else [given]
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) < len(parts):
        raise ConfigError(f"name servers {given!r} are no text", hint='write "127.0.0.1:9876", several parted by ";"')
    return texts
