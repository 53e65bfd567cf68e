"""Talking to the name servers: one is chosen and kept while it answers; the next takes its place when it does not.

Java: NettyRemotingClient.getAndCreateNameserverChannel, TopAddressing
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from orbitmq.errors import ConnectFailed, TransportError
from orbitmq.transport.lookup import fetch_name_servers

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Sequence

    from orbitmq.protocol.command import Command
    from orbitmq.transport.address import Address

logger = logging.getLogger(__name__)

_LOOKUP_SECONDS: Final = 3.0
_HINT: Final = "is a name server running there? `orbitmq dev` starts one, with a broker"


class NameServers:
    """The name servers of a cluster; any of them can answer any question."""

    def __init__(
        self,
        addresses: Sequence[Address],
        lookup_url: str,
        randomness: random.Random,
        call: Callable[[Address, Command, float], Awaitable[Command]],
    ) -> None:
        self._lookup_url = lookup_url
        self._random = randomness
        self._call = call
        self._addresses: list[Address] = []
        self._current = 0
        self._use(list(addresses))

    @property
    def addresses(self) -> list[Address]:
        return list(self._addresses)

    async def call(self, request: Command, timeout_seconds: float) -> Command:
        """The answer of the first that gives one, whatever its code."""
        if not self._addresses:
            await self.look_up()
        failures: list[str] = []
        for step in range(len(self._addresses)):
            index = (self._current + step) % len(self._addresses)
            try:
                answer = await self._call(self._addresses[index], request, timeout_seconds)
            except TransportError as error:
                failures.append(error.message)
                continue
            self._current = index
            return answer
        raise ConnectFailed(f"no name server answers: {'; '.join(failures)}", hint=_HINT)

    async def look_up(self) -> None:
        """Read the published list again, if there is one."""
        if not self._lookup_url:
            return
        found = await fetch_name_servers(self._lookup_url, _LOOKUP_SECONDS)
        if sorted(found) != sorted(self._addresses):
            logger.info("name servers are now %s", "; ".join(map(str, found)))
            self._use(found)

    def _use(self, addresses: list[Address]) -> None:
        self._random.shuffle(addresses)  # so that not all clients ask the same one
        self._addresses = addresses
        self._current = 0
