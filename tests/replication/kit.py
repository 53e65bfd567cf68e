"""What the tests of replication share: a name server, a master and slaves in this process, and how to wait for a copy."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from orbitmq.broker.broker import Broker
from tests.broker.kit import PATIENCE_SECONDS, Wire, configuration
from tests.nameserver.running import running as running_name_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from orbitmq.clock import Clock
    from orbitmq.nameserver.server import NameServer


class Group:
    """A master and its slaves, each in a folder of its own under `directory`. Anyone can stop and come back."""

    def __init__(self, directory: Path, name_server: NameServer, clock: Clock | None = None) -> None:
        self._clock = clock
        self._directory = directory
        self.name_server = name_server
        self._brokers: list[Broker] = []

    async def master(self, folder: str = "master", **changes: object) -> Broker:
        return await self._start(folder, {"brokerId": 0, **changes})

    async def slave(self, number: int = 1, folder: str = "", **changes: object) -> Broker:
        slave = {"brokerId": number, "brokerRole": "SLAVE", "slaveReadEnable": "true"}
        return await self._start(folder or f"slave-{number}", {**slave, **changes})

    async def stop(self, broker: Broker) -> None:
        self._brokers.remove(broker)
        await broker.stop()

    async def stop_all(self) -> None:
        """Slaves first: the loop leaves a connection unclosed that is accepted in the moment in which its port closes."""
        for broker in sorted(self._brokers, key=lambda broker: broker.state.copying is None):
            await self.stop(broker)

    async def _start(self, folder: str, changes: dict[str, object]) -> Broker:
        settings = {"namesrvAddr": str(self.name_server.address), "registerNameServerPeriod": 10_000, **changes}
        broker = Broker(configuration(self._directory / folder, settings), clock=self._clock)
        await broker.start()
        self._brokers.append(broker)
        return broker


@asynccontextmanager
async def group_of_brokers(directory: Path) -> AsyncIterator[Group]:
    async with running_name_server(directory / "names") as name_server:
        group = Group(directory, name_server)
        try:
            yield group
        finally:
            await group.stop_all()


def wire(broker: Broker) -> Wire:
    """To be closed by whoever asks for it, before the broker stops."""
    assert broker.address is not None
    return Wire(broker.address)


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for it; a test that would wait for ever says for what."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"never came true: {what}") from None


async def copied(master: Broker, *slaves: Broker) -> None:
    """Wait until the slaves have, and have indexed, what the master has."""
    end = master.state.store.log.end
    await until(
        lambda: all(slave.state.store.dispatched_offset == end for slave in slaves), "slaves have the whole log"
    )


def log_bytes(broker: Broker) -> bytes:
    """The whole log as it stands."""
    log = broker.state.store.log
    return b"".join(bytes(segment.memory)[: log.end - segment.start] for segment in log.files.segments)
