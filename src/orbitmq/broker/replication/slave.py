"""Copying the master's log: connect, make sure that it is the same log, and append what comes.

A slave that has nothing copies everything the master has; Apache's begins with the master's last file, and so does this one with
syncFromLastFile=true. As a report of 0 means "the last file" on the wire, it fetches the first record by itself.

Java: DefaultHAClient
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, cast

from orbitmq.broker.replication.agreement import agreement, master_log, master_record
from orbitmq.broker.replication.wire import CHALLENGE_BYTES, REPORT, Pieces, hello, proof
from orbitmq.errors import ConnectFailed, OrbitError, StorageError
from orbitmq.message.record import stored_at_ms
from orbitmq.protocol.signing import SigningKey
from orbitmq.storage.written_here import is_written_here, mark_a_copy
from orbitmq.tasks import set_within
from orbitmq.transport.network import TcpNetwork, TlsNetwork
from orbitmq.transport.tls import ClientTls

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.clock import Clock
    from orbitmq.protocol.signing import Credentials
    from orbitmq.storage.store import Store
    from orbitmq.transport.address import Address
    from orbitmq.transport.network import Network
    from orbitmq.transport.pool import Pool

logger = logging.getLogger(__name__)

_CONNECT_SECONDS: Final = 3.0  # the system alone would try for two minutes, whoever becomes the master meanwhile
_AGAIN_SECONDS: Final = 1.0
_DOUBT_SECONDS: Final = 5.0  # then a master that cannot be asked is taken for gone
_WATCH_SECONDS: Final = 1.0
_FAR_BYTES: Final = 256 << 20  # behind the master


class Copying:
    """Follows one master at a time; which, `follow` says."""

    def __init__(
        self, store: Store, configuration: BrokerConfiguration, clock: Clock, pool: Pool, network: Network | None = None
    ) -> None:
        self.master: Address | None = None  # where it takes requests
        self.ha_address: Address | None = None  # where it sends its log from
        self.bytes_per_second = 0
        self.master_end = 0  # of its log, when it was last asked
        self.on_lost: Callable[[], None] = lambda: None  # the master may have come back elsewhere: ask for it
        self.on_cut: Callable[[int], None] = lambda since_ms: (
            None
        )  # the log here lost what the master's has not, stored since then
        self.before_copying: Callable[[], Awaitable[None]] = _nothing_to_do  # topics come before their messages
        self._store = store
        self._replica = store.follow()
        self._configuration = configuration
        self._clock = clock
        self._pool = pool
        self._network = network or TcpNetwork()
        if configuration.settings.ha_tls:
            self._network = TlsNetwork(ClientTls(configuration.tls.outgoing).newest)
        self._changed = asyncio.Event()
        self._stream: _Stream | None = None
        self._failure = ""
        self._is_compared = False
        # This broker was a master: its log may end with what nobody acknowledged, and its successor has something else there; its
        # groups may be done with that.
        self.was_master = is_written_here(store.disk, store.config.directory)
        self._loop = asyncio.get_running_loop()
        self._doubtful_until = self._loop.time() + _DOUBT_SECONDS

    @property
    def is_connected(self) -> bool:
        return self._stream is not None

    @property
    def may_serve(self) -> bool:
        """Whether what is here can be read: it is the master's log, or a copy of one, and there is no master that could say it is
        not its own. What a former master wrote itself is no copy: its successor may just be out of reach.
        """
        return self._is_compared or (not self.was_master and self._loop.time() > self._doubtful_until)

    @property
    def lag_bytes(self) -> int:
        """What the master had more than this slave has, by what it last said of its log, every three seconds."""
        return max(0, self.master_end - self._store.log.end)

    @property
    def heard_at_ms(self) -> int:
        return self._stream.heard_at_ms if self._stream is not None else 0

    @property
    def told_at_ms(self) -> int:
        return self._stream.told_at_ms if self._stream is not None else 0

    def follow(self, master: Address | None, ha_address: Address | None) -> None:
        """What a name server says: who the master is now; None: there is none."""
        if (master, ha_address) != (self.master, self.ha_address):
            logger.info("the master is %s, its log is copied from %s", master, ha_address)
            if master not in (None, self.master):  # another's log, perhaps
                self._is_compared = False
                self._doubtful_until = self._loop.time() + _DOUBT_SECONDS
            self.master, self.ha_address = master, ha_address
            self._changed.set()
            self.disconnect()

    def is_copy_now(self) -> None:
        """A former master has its successor's log, and its positions, on its disk."""
        mark_a_copy(self._store.disk, self._store.config.directory)
        self.was_master = False

    def disconnect(self) -> None:
        if self._stream is not None:
            self._stream.abort()

    async def close(self) -> None:
        self.disconnect()
        await self._pool.close()

    def report(self) -> None:
        """More of the log is safe here: tell the master."""
        if self._stream is not None:
            self._stream.report()

    async def run(self) -> None:
        """Copy for ever; after each failure, try again."""
        while True:
            self._changed.clear()
            if self.ha_address is None:
                await self._changed.wait()
                continue
            try:
                await self._copy(self.ha_address)
            except Exception as error:  # whatever it is: a slave that gave up would lag for ever
                unforeseen = None if isinstance(error, OrbitError | OSError) else error
                if str(error) != self._failure:  # not each second anew
                    logger.warning("cannot copy the log of %s: %s", self.ha_address, error, exc_info=unforeseen)
                self._failure = str(error)
            self.on_lost()
            await set_within(self._changed, _AGAIN_SECONDS)

    async def _copy(self, ha_address: Address) -> None:
        await self.before_copying()
        if self.master is not None:
            if self._replica.end:
                await self._agree(self.master)
            elif not self._configuration.settings.sync_from_last_file:
                await self._begin(self.master)
            self._is_compared = not self._changed.is_set()
            if self._is_compared and self.was_master:
                self._store.flush()  # also what an earlier try has cut off: it must not come back, and be taken for a copy
        await self._until_safe()
        if self._changed.is_set():  # another master meanwhile
            return
        settings = self._configuration.settings
        stream = _Stream(self._store, self._clock, settings.own_credentials() if settings.ha_authentication else None)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await self._network.connect(lambda: stream, ha_address)
        except TimeoutError:
            raise ConnectFailed(
                f"{ha_address} does not answer", hint="is the master there, and haListenPort open?"
            ) from None
        except ValueError as error:
            raise ConnectFailed(f"no host can have the name {ha_address.host}: {error}", hint="see brokerIP2") from None
        if self._changed.is_set():
            stream.abort()
            return
        self._stream = stream
        self._failure = ""
        logger.info("copying the log of %s from %d on", ha_address, self._replica.end)
        try:
            await self._watch(stream)
        finally:
            self._stream = None
            self._replica.pass_through(enabled=False)
            stream.abort()

    async def _watch(self, stream: _Stream) -> None:
        while not stream.ended.done():
            await asyncio.wait((stream.ended,), timeout=_WATCH_SECONDS)
            settings = self._configuration.settings
            self.bytes_per_second = stream.take_received()
            self._replica.pass_through(enabled=self.lag_bytes > _FAR_BYTES)
            stream.watch(settings.ha_send_heartbeat_interval, settings.ha_housekeeping_interval)
        reason = stream.ended.result()
        logger.warning("the connection to the master's log at %s ended: %s", self.ha_address, reason)

    async def _agree(self, master: Address) -> None:
        """Cut off what the master has not, or has otherwise. Copies of whole records are kept in the store's folder.

        The blank end of a file goes as well: a master that lost it may have filled the file meanwhile.
        """
        agreed = await agreement(self._store, self._replica, self._pool, master)
        if agreed is None:
            raise StorageError(
                f"the log here and that of master {master} have no message in common",
                hint="stop this slave, move its store away and start it again: it copies everything",
            )
        if agreed.is_whole:
            if agreed.end < self._replica.end:
                self._replica.cut(agreed.end)
            return
        first = self._store.record_at(agreed.end)
        since_ms = stored_at_ms(first) if first is not None else self._clock.now_ms()
        kept = self._store.config.directory / "diverged" / str(self._clock.now_ms())
        logger.error(
            "this slave's log differs from its master's from %d on; %d bytes are cut off and kept in %s",
            agreed.end, self._replica.end - agreed.end, kept,
        )  # fmt: skip
        self._replica.cut(agreed.end, kept)
        self._store.flush()  # a power cut must not bring back index entries of what is cut off
        self.on_cut(since_ms)

    async def _begin(self, master: Address) -> None:
        """The first record of an empty slave."""
        start = (await master_log(self._pool, master)).start  # going on without would begin with the last file
        record = await master_record(self._pool, master, start) if start >= 0 else None
        if record is not None:
            self._replica.append([(start, record)])
            self._store.dispatch()

    async def _until_safe(self) -> None:
        """The first report acknowledges all that is here: with synchronous flush, it has to be on the disk."""
        if self._store.confirmed_offset >= self._replica.end:
            return
        loop = asyncio.get_running_loop()
        safe: asyncio.Future[None] = loop.create_future()

        def from_flusher(error: StorageError | None) -> None:
            loop.call_soon_threadsafe(_settle, safe, error)

        self._store.when_durable(self._replica.end, from_flusher)
        await safe


async def _nothing_to_do() -> None:
    pass


def _settle(future: asyncio.Future[None], error: StorageError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


class _Stream(asyncio.Protocol):
    """One connection to a master's log."""

    def __init__(self, store: Store, clock: Clock, credentials: Credentials | None) -> None:
        """With credentials, the master is told who this is before anything else."""
        self._credentials = credentials
        self._challenge = b""
        assert store.replica is not None
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.heard_at_ms = self.told_at_ms = clock.now_ms()
        self._store = store
        self._replica = store.replica
        self._clock = clock
        self._pieces = Pieces()
        self._reported = -1
        self._received = 0
        self._heard = self._told = asyncio.get_running_loop().time()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._credentials is None:
            self._tell(self._replica.end)
        else:
            self._transport.write(hello(self._credentials.access_key))

    def data_received(self, data: bytes) -> None:
        self._heard = asyncio.get_running_loop().time()
        self.heard_at_ms = self._clock.now_ms()
        self._received += len(data)
        if self._credentials is not None:
            data = self._prove(self._credentials, data)
        try:
            self._replica.append((offset, piece) for offset, piece in self._pieces.feed(data) if piece)
            self._store.dispatch()
        except OrbitError as error:
            self._finish(str(error))
            return
        self.report()

    def _prove(self, credentials: Credentials, data: bytes) -> bytes:
        """Answer the master's challenge, once it is here; what comes behind it."""
        missing = CHALLENGE_BYTES - len(self._challenge)
        self._challenge += data[:missing]
        if len(self._challenge) == CHALLENGE_BYTES and self._transport is not None:
            self._transport.write(proof(SigningKey(credentials.secret_key), self._challenge))
            self._credentials = None
            self._tell(self._replica.end)
        return data[missing:]

    def connection_lost(self, error: Exception | None) -> None:
        self._finish(str(error) if error is not None else "the master closed it")

    def report(self) -> None:
        confirmed = self._store.confirmed_offset
        if self._credentials is not None:
            return  # the master does not listen to that yet
        if confirmed > self._reported:
            self._tell(confirmed)

    def watch(self, heartbeat_ms: int, patience_ms: int) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._heard > patience_ms / 1000:
            self._finish(f"nothing heard from the master for {now - self._heard:.0f} seconds")
        elif self._credentials is None and now - self._told > heartbeat_ms / 1000:
            self._tell(max(self._reported, self._store.confirmed_offset))

    def take_received(self) -> int:
        received, self._received = self._received, 0
        return received

    def abort(self) -> None:
        self._finish("closed here")

    def _tell(self, offset: int) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._reported = offset
            self._told = asyncio.get_running_loop().time()
            self.told_at_ms = self._clock.now_ms()
            self._transport.write(REPORT.pack(offset))

    def _finish(self, reason: str) -> None:
        if self._transport is not None:
            self._transport.abort()
        if not self.ended.done():
            self.ended.set_result(reason)
