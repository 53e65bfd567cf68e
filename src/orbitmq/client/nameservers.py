"""Talking to the name servers: one is chosen and kept while it answers; the next takes its place when it does not.

A host name stands for all its addresses: each is a name server of its own. They are looked up again now and then, as a published
list is.

Java: NettyRemotingClient.getAndCreateNameserverChannel, TopAddressing
"""

from __future__ import annotations

import ipaddress
import logging
from typing import TYPE_CHECKING, Final

from orbitmq.errors import ConnectFailed, TransportError
from orbitmq.transport.lookup import fetch_name_servers, resolve

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Sequence

    from orbitmq.protocol.command import Command
    from orbitmq.transport.address import Address

logger = logging.getLogger(__name__)

_LOOKUP_SECONDS: Final = 3.0
_UNRESOLVED: Final = "cannot resolve "
_HINT: Final = "is a name server running there? `orbitmq dev` starts one, with a broker"


class NameServers:
    """The name servers of a cluster; any of them can answer any question."""

    def __init__(
        self,
        addresses: Sequence[Address],
        lookup_url: str,
        randomness: random.Random,
        call: Callable[[Address, Command, float], Awaitable[Command]],
        *,
        resolve_names: bool,
    ) -> None:
        """`resolve_names` must be off where a certificate is compared with the name."""
        self._lookup_url = lookup_url
        self._given = tuple(addresses)
        self._named = [address for address in addresses if resolve_names and not _is_number(address.host)]
        self._name_of: dict[Address, Address] = {}  # address -> as it was given
        self._looked_up = False
        self._random = randomness
        self._call = call
        self._addresses: list[Address] = []
        self._current = 0
        self._use(list(addresses))

    @property
    def may_move(self) -> bool:
        """Whether looking them up again can find others."""
        return bool(self._lookup_url or self._named)

    @property
    def addresses(self) -> list[Address]:
        return list(self._addresses)

    async def everyone(self) -> list[Address]:
        """All there are, for what each of them has to be told."""
        if self.may_move and (not self._looked_up or not self._addresses):
            await self.look_up()
        return self.addresses

    def may_be_one(self, address: Address, other: Address) -> bool:
        """Whether the two may be one server: a name often stands for the IPv4 and the IPv6 address of the same machine."""
        given = self._name_of.get(address)
        return given is not None and given == self._name_of.get(other) and (":" in address.host) != (":" in other.host)

    async def call(self, request: Command, timeout_seconds: float) -> Command:
        """The answer of the first that gives one, whatever its code."""
        await self.everyone()
        failures: list[TransportError] = []
        for step in range(len(self._addresses)):
            index = (self._current + step) % len(self._addresses)
            try:
                answer = await self._call(self._addresses[index], request, timeout_seconds)
            except TransportError as error:
                failures.append(error)
                continue
            self._current = index
            return answer
        said = "; ".join(failure.message for failure in failures)
        is_unknown = all(failure.message.startswith(_UNRESOLVED) for failure in failures)
        raise ConnectFailed(
            f"no name server answers: {said}", hint=failures[0].hint if is_unknown and failures else _HINT
        )

    async def look_up(self) -> None:
        """Read the published list again, or the addresses behind host names."""
        if self._lookup_url:
            found = await fetch_name_servers(self._lookup_url, _LOOKUP_SECONDS)
        else:
            self._name_of = {address: given for given in self._given for address in await self._behind(given)}
            found = list(self._name_of)
        self._looked_up = True
        if sorted(found) != sorted(self._addresses):
            logger.info("name servers are now %s", "; ".join(map(str, found)))
            self._use(found)

    async def _behind(self, given: Address) -> list[Address]:
        if given not in self._named:
            return [given]
        try:
            return await resolve(given)
        except ConnectFailed:
            return [given]  # whoever connects to it will say what is wrong

    def _use(self, addresses: list[Address]) -> None:
        self._random.shuffle(addresses)  # so that not all clients ask the same one
        self._addresses = addresses
        self._current = 0


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
