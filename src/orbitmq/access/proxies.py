"""Whose word counts on where a connection comes from: proxies that say so in a PROXY header.

Who is believed may name any address, so may have as many as it likes: limits by address would be none, and white addresses open to
all. Unless the settings name proxies, everyone is believed, as by Apache's servers, only where no address matters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.access.addresses import AddressPattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.access.settings import AccessSettings

_LOOPBACK: Final = AddressPattern("127.0.0.0/8, ::1")


class TrustedProxies:
    def __init__(self, settings: Callable[[], AccessSettings], *, is_guarded: bool) -> None:
        """`is_guarded`: whether there is a gate, of whichever kind. Limits may change while the server runs."""
        self._settings = settings
        self._is_guarded = is_guarded
        self._named = settings().proxies()

    def believes(self, address: str) -> bool:
        """Asked with the address of who is connected, once it has sent a PROXY header."""
        if self._named:
            return any(pattern.matches(address) for pattern in self._named)
        return not (self._is_guarded or self._settings().limits_addresses) or _LOOPBACK.matches(address)
