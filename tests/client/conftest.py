"""What most tests of the client begin with: a cluster that does as it is told, and a client of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orbitmq import Client, connect
from tests.client.scripted import ScriptedCluster, scripted_cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    async with scripted_cluster(topics={"T": 2}) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: ScriptedCluster) -> AsyncIterator[Client]:
    async with connect(cluster.address) as client:
        yield client
