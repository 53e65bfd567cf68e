"""Two thousand idle connections: everyone else is served as if they were not there."""

from __future__ import annotations

import asyncio
import gc
import resource
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from orbitmq.transport.connection import Connection
from tests.nameserver.running import addresses, register, route, running
from tests.raw_client import raw_client, until

if TYPE_CHECKING:
    from pathlib import Path

CROWD = 2000


def open_connections() -> set[Connection]:
    return {thing for thing in gc.get_objects() if type(thing) is Connection and not thing.closed}


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2 * CROWD + 200, reason="the limit on open files is too low"
)
async def test_two_thousand_idle_connections_disturb_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = open_connections()  # left open by other tests of this process
    async with running(tmp_path) as server:
        address = server.address
        assert address is not None
        async with AsyncExitStack() as stack:
            writers = []
            for _ in range(CROWD // 100):
                opened = await asyncio.gather(
                    *(asyncio.open_connection(address.host, address.port) for _ in range(100))
                )
                writers += [writer for _, writer in opened]
            for writer in writers:
                stack.callback(writer.close)
            await until(lambda: len(server._server.connections) == CROWD)
            async with raw_client(address) as client:
                await register(client)
                for _ in range(100):
                    assert addresses(await route(client, "TopicA")) != {}
        await until(lambda: not server._server.connections)
        gc.collect()
        assert open_connections() - before == set()
    # The one broker's connection was closed; nothing else was worth a line.
    assert [record.getMessage() for record in caplog.records] == [
        "lost the connection to broker 10.0.0.1:10911: its routes are gone"
    ]
