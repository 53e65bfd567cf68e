"""Connections to other processes: one per address, opened when first needed, reopened after a back-off when lost.

Java: NettyRemotingClient
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Final

from orbitmq.errors import ConnectFailed, OrbitError
from orbitmq.tasks import shared
from orbitmq.transport.connection import Connection, Routes
from orbitmq.transport.limits import DEFAULT_LIMITS, Limits
from orbitmq.transport.lookup import is_unresolved, unresolved
from orbitmq.transport.network import Network, TcpNetwork
from orbitmq.transport.service import Service
from orbitmq.transport.tls import TlsLayer

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from orbitmq.protocol.command import Command
    from orbitmq.transport.address import Address

logger = logging.getLogger(__name__)

_FIRST_BACK_OFF_SECONDS: Final = 0.1
_LONGEST_BACK_OFF_SECONDS: Final = 5.0


class Pool:
    """`routes` answer what the other side asks on our connections: brokers ask their clients things."""

    def __init__(
        self,
        routes: Routes | None = None,
        *,
        limits: Limits = DEFAULT_LIMITS,
        tls: Callable[[], ssl.SSLContext] | None = None,
        randomness: random.Random | None = None,
        network: Network | None = None,
        on_open: Callable[[Address, Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
        sign: Callable[[Command], None] | None = None,
    ) -> None:
        """`sign` proves to the other side who sends a request; it may only add fields. `tls` is asked for each connection."""
        self._sign = sign
        self._service = Service(routes=routes or {}, on_close=on_close, leaves_silent_peers=True)
        self._limits = limits
        self._tls = tls
        self._random = randomness or random.Random()
        self._network = network or TcpNetwork()
        self._on_open = on_open
        self._slots: dict[Address, _Slot] = {}
        self._closed = False

    async def call(self, address: Address, request: Command, timeout_seconds: float) -> Command:
        """The answer, whatever its code. ConnectFailed, ConnectionLost, CallTimeout."""
        if self._sign is not None:
            self._sign(request)
        connection = self.open_connection(address) or await self.connection(address)
        return await connection.call(request, timeout_seconds)

    async def notify(self, address: Address, request: Command) -> None:
        if self._sign is not None:
            self._sign(request)
        (await self.connection(address)).notify(request)

    async def connection(self, address: Address) -> Connection:
        """The open connection to `address`. While backing off from a failure it fails at once, with that cause."""
        slot = self._slots.setdefault(address, _Slot())
        if slot.connection is not None and not slot.connection.closed:
            return slot.connection
        if self._closed:
            raise self._given_up(address)
        if slot.connecting is None:
            if slot.failure is not None and asyncio.get_running_loop().time() < slot.retry_at:
                # A new one each time: an exception that is raised again keeps every frame it passed through.
                raise ConnectFailed(slot.failure.message, hint=slot.failure.hint)
            slot.connecting = asyncio.create_task(self._connect(address, slot))
            slot.connecting.add_done_callback(_look_at_failure)
        # One impatient caller must not take the connection from the others that wait for it.
        return await shared(slot.connecting, lambda: self._given_up(address))

    def open_connection(self, address: Address) -> Connection | None:
        """The connection to `address` if there is one now: for callers that must not wait."""
        slot = self._slots.get(address)
        if slot is None or slot.connection is None or slot.connection.closed:
            return None
        return slot.connection

    def retire(self, connection: Connection) -> None:
        """Give no more work to a connection whose server says goodbye; it closes itself once nobody uses it."""
        for slot in self._slots.values():
            if slot.connection is connection:
                slot.connection = None

    def drop(self, address: Address) -> None:
        """Forget an address that is no longer in use, and close its connection; who waits for one gets ConnectFailed."""
        slot = self._slots.pop(address, None)
        if slot is None:
            return
        if slot.connecting is not None:
            slot.connecting.cancel()
        if slot.connection is not None:
            slot.connection.close()

    async def close(self) -> None:
        self._closed = True
        connecting = [slot.connecting for slot in self._slots.values() if slot.connecting is not None]
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        open_connections = [slot.connection for slot in self._slots.values() if slot.connection is not None]
        for connection in open_connections:
            connection.close()
        await asyncio.sleep(0)
        self._slots.clear()

    async def _connect(self, address: Address, slot: _Slot) -> Connection:
        client_tls = TlsLayer(self._tls(), server_name=address.host) if self._tls is not None else None
        connection = Connection(self._service, limits=self._limits, client_tls=client_tls)
        try:
            async with asyncio.timeout(self._limits.connect_seconds):
                await self._network.connect(lambda: connection, address)
        except (OSError, TimeoutError, ValueError) as error:  # the last: a name that no host can have
            slot.failures += 1
            slot.retry_at = asyncio.get_running_loop().time() + self._back_off_seconds(slot.failures)
            slot.failure = _connect_failed(address, error)
            raise slot.failure from None
        else:
            slot.failures = 0
            slot.failure = None
            slot.connection = connection
            if self._on_open is not None:
                self._on_open(address, connection)
            return connection
        finally:
            slot.connecting = None

    def _given_up(self, address: Address) -> ConnectFailed:
        if self._closed:
            return ConnectFailed("this pool is closed", hint="what it was opened for has been closed")
        return ConnectFailed(f"{address} is no longer in use", hint="its broker is gone, or has another address now")

    def _back_off_seconds(self, failures: int) -> float:
        longest = min(_LONGEST_BACK_OFF_SECONDS, _FIRST_BACK_OFF_SECONDS * 2 ** min(failures - 1, 10))
        return self._random.uniform(longest / 2, longest)


class _Slot:
    """What is known about one address."""

    __slots__ = ("connecting", "connection", "failure", "failures", "retry_at")

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.connecting: asyncio.Task[Connection] | None = None
        self.failure: OrbitError | None = None
        self.failures = 0
        self.retry_at = 0.0


def _look_at_failure(task: asyncio.Task[Connection]) -> None:
    """Everyone who waited may have given up; asyncio must not report the failure as overlooked."""
    if not task.cancelled():
        task.exception()


def _connect_failed(address: Address, error: OSError | TimeoutError | ValueError) -> ConnectFailed:
    if isinstance(error, ConnectionRefusedError):
        return ConnectFailed(f"nothing listens on {address}", hint="is the server running, and is the port right?")
    if isinstance(error, TimeoutError):
        return ConnectFailed(
            f"{address} does not answer", hint="is the host right, and does a firewall let us through?"
        )
    if isinstance(error, OSError) and is_unresolved(error):
        return unresolved(address, error)
    reason = error.strerror if isinstance(error, OSError) else None
    return ConnectFailed(f"cannot connect to {address}: {reason or error}", hint="is the address right?")
