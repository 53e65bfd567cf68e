"""A broker for the test, and a client of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.broker.kit import Wire, running, wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbitmq.broker.broker import Broker


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(tmp_path / "store") as running_broker:
        yield running_broker


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Wire]:
    async with wire(broker) as open_client:
        yield open_client
