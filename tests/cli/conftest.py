from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orbitmq.testing import Server
from tests.cli.kit import Command

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(settings={"traceTopicEnable": "true", "enablePropertyFilter": "true"}) as running:
        yield running


@pytest.fixture(scope="module")
def orbitmq(server: Server) -> Command:
    return Command(server.address)
