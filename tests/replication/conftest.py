"""What most tests of replication begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.replication.kit import Group, group_of_brokers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    """Nobody in it yet."""
    async with group_of_brokers(tmp_path) as running:
        yield running
