"""A listening port and the connections it accepted. Java: NettyRemotingServer"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from typing import TYPE_CHECKING, Final

from orbitmq.errors import ConfigError
from orbitmq.transport.address import Address
from orbitmq.transport.connection import Connection, Routes
from orbitmq.transport.express import ExpressRoutes, SwiftHandler, SwiftReader, by_first_bytes
from orbitmq.transport.limits import DEFAULT_LIMITS, Limits
from orbitmq.transport.network import Listener, Network, TcpNetwork
from orbitmq.transport.service import Service
from orbitmq.transport.tls import ServerTls, TlsSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.transport.congestion import Congestion
    from orbitmq.transport.doorman import Doorman
    from orbitmq.transport.request_times import RequestTimes

logger = logging.getLogger(__name__)


class Server:
    """Serves `routes` until stopped. `on_close` hears of every connection that is gone, for whatever reason."""

    def __init__(
        self,
        routes: Routes,
        *,
        express: ExpressRoutes | None = None,
        swift: SwiftHandler | None = None,
        reader: SwiftReader | None = None,
        limits: Limits = DEFAULT_LIMITS,
        tls: TlsSettings | None = None,
        times: RequestTimes | None = None,
        congestion: Congestion | None = None,
        on_close: Callable[[Connection], None] | None = None,
        network: Network | None = None,
        doorman: Doorman | None = None,
        believes_proxy: Callable[[str], bool] | None = None,
    ) -> None:
        """`believes_proxy`: whether that host may say in a PROXY header for whom it connects."""
        self.connections: dict[Connection, None] = {}  # in the order they came
        self._reader = reader
        self._limits = limits
        self._doorman = doorman
        self._tls = ServerTls(tls or TlsSettings())
        self._on_close = on_close
        self._service = Service(
            routes=routes,
            express=by_first_bytes(express or {}),
            swift=swift,
            reader=reader,
            server_tls=self._tls,
            times=times,
            congestion=congestion,
            on_open=self._admit,
            on_close=self._forget,
            on_source=doorman.arrived if doorman is not None else None,
            refusals=doorman.refusals if doorman is not None else None,
            believes_proxy=believes_proxy,
        )
        self._network = network or TcpNetwork()
        self._listener: Listener | None = None
        self._all_gone: asyncio.Event | None = None

    async def start(self, host: str, port: int) -> Address:
        """Listen; port 0 takes a free one. Returns the address that it is."""
        try:
            self._listener = await self._network.listen(self._new_connection, host, port, self._limits.backlog)
        except OSError as error:
            raise cannot_listen(host, port, error) from None
        if self._reader is not None:
            self._reader.start(asyncio.get_running_loop())
        return Address(*self._listener.addresses()[0])

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """Accept and read no more, answer what was accepted, close. What takes longer than the grace is cancelled."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in self.connections:
            connection.stop_reading()
        unfinished = {task for connection in self.connections for task in connection.unfinished}
        if unfinished:
            _, late = await asyncio.wait(unfinished, timeout=grace_seconds)
            for task in late:
                task.cancel()
            if late:
                logger.warning("gave up on %d requests that were still waiting", len(late))
                await asyncio.wait(late)
        for connection in list(self.connections):
            connection.close()
        if not await self._wait_until_all_are_gone(grace_seconds):
            for connection in list(self.connections):
                connection.abort()
            await self._wait_until_all_are_gone(grace_seconds)
        if self._reader is not None:
            self._reader.stop()

    async def _wait_until_all_are_gone(self, seconds: float) -> bool:
        if self.connections:
            self._all_gone = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._all_gone.wait()
        return not self.connections

    def _new_connection(self) -> Connection:
        self._tls.reload_if_changed()
        limits = self._limits if self._doorman is None else self._doorman.for_connections(self._limits)
        return Connection(self._service, limits=limits)

    def limits_changed(self) -> None:
        """Connections that are open are counted from now on, or no longer."""
        if self._doorman is not None:
            for connection in self.connections:
                self._doorman.watch(connection)

    def _admit(self, connection: Connection) -> None:
        self.connections[connection] = None
        if self._listener is None:  # the system had accepted it before we stopped listening
            connection.abort()
        elif self._doorman is not None:
            self._doorman.arrived(connection)

    def _forget(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        if self._doorman is not None:
            self._doorman.left(connection)
        if self._all_gone is not None and not self.connections:
            self._all_gone.set()
        if self._on_close is not None:
            self._on_close(connection)


ANOTHER_PORT: Final = "choose another port; 0 takes a free one"


def cannot_listen(host: str, port: int, error: OSError, way_out: str = ANOTHER_PORT) -> ConfigError:
    """`way_out`: how another port is chosen, where it is not the one that everybody thinks of."""
    where = Address(host, port)
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"{where} is in use by another process", hint=f"stop it, or {way_out}")
    if error.errno == errno.EACCES:
        return ConfigError(f"not allowed to listen on {where}", hint="ports below 1024 need privileges")
    return ConfigError(
        f"cannot listen on {where}: {error.strerror or error}", hint="is the host one of this machine's?"
    )
