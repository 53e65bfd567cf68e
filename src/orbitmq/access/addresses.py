"""Where a request may come from: single addresses, networks (`10.0.0.0/8`), and the patterns of 4.x access files.

    10.1.2.3        10.1.2.*        10.1.1-5.*        10.1.2.{3,4}        *        2001:db8::*        2001:db8::/32

Java: IPAddressUtils; NetaddressStrategyFactory, AclUtils
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from orbitmq.errors import ConfigError

_ALTERNATIVES: Final = re.compile(r"\{([^{}]*)\}")
_RANGE: Final = re.compile(r"([0-9A-Fa-f]+)-([0-9A-Fa-f]+)")
_EVERYWHERE: Final = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})


class AddressPattern:
    """One line of a list; several patterns in it are parted by commas."""

    __slots__ = ("_everywhere", "_fields", "_networks", "text")

    def __init__(self, text: str) -> None:
        """ConfigError for what is no address, network or pattern."""
        self.text = text
        self._everywhere = False
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        self._fields: list[tuple[str, list[tuple[int, int]]]] = []
        for part in _split(text):
            self._add(part)

    def matches(self, address: str) -> bool:
        if self._everywhere:
            return True
        try:
            ip = ipaddress.ip_address(address.partition("%")[0])  # a zone says by which of our interfaces it came
        except ValueError:
            return False
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        if any(ip in network for network in self._networks if network.version == ip.version):
            return True
        separator = "." if ip.version == 4 else ":"
        values = list(ip.packed) if ip.version == 4 else [int(part, 16) for part in ip.exploded.split(":")]
        return any(
            mark == separator and all(low <= value <= high for value, (low, high) in zip(values, fields, strict=False))
            for mark, fields in self._fields
        )

    def _add(self, part: str) -> None:
        if part in _EVERYWHERE:
            self._everywhere = True
            return
        alternatives = _ALTERNATIVES.search(part)
        if alternatives is not None:
            for choice in alternatives[1].split(","):
                self._add(part[: alternatives.start()] + choice.strip() + part[alternatives.end() :])
            return
        try:
            self._networks.append(ipaddress.ip_network(part, strict=False))
        except ValueError:
            self._fields.append(_pattern(part))


def _split(text: str) -> list[str]:
    """At commas outside braces."""
    return [part.strip() for part in re.split(r",(?![^{]*\})", text) if part.strip()]


def _pattern(part: str) -> tuple[str, list[tuple[int, int]]]:
    separator, base, top, count = (":", 16, 0xFFFF, 8) if ":" in part else (".", 10, 255, 4)
    texts = part.split(separator)
    if separator == ":" and "" in texts:  # `::` stands for zeroes up to a final star
        at = texts.index("")
        rest = [text for text in texts[at + 1 :] if text]
        texts = texts[:at] + ["0"] * (count - at - len(rest)) + rest
    fields = [_field(text, base, top) for text in texts]
    if len(fields) != count or None in fields:
        raise ConfigError(
            f"{part!r} is no address or pattern of addresses",
            hint="such as 10.1.2.3, 10.1.2.*, 10.1.1-5.* or 10.0.0.0/8",
        )
    return separator, [field for field in fields if field is not None]


def _field(text: str, base: int, top: int) -> tuple[int, int] | None:
    if text == "*":
        return 0, top
    try:
        found = _RANGE.fullmatch(text)
        low, high = (int(found[1], base), int(found[2], base)) if found else (int(text, base), int(text, base))
    except ValueError:
        return None
    return (low, high) if 0 <= low <= high <= top else None
