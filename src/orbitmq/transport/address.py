"""`host:port` texts, as the protocol writes them everywhere."""

from __future__ import annotations

from typing import NamedTuple

from orbitmq.errors import ConfigError


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """`127.0.0.1:9876`, `broker.local:10911`, `[::1]:9876`, and Java's unbracketed `::1:9876`."""
    host, _, port = text.strip().rpartition(":")
    host = host.strip("[]")
    if not host or not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65535:
        raise ConfigError(f"{text[:300]!r} is not an address", hint="write host:port, for example 127.0.0.1:9876")
    return Address(host, int(port))


def parse_addresses(text: str) -> list[Address]:
    """A `;`-separated list, as in `namesrvAddr`."""
    return [parse_address(part) for part in text.split(";") if part.strip()]
