from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orbitmq.testing import Server
from tests.console.visitor import TOKEN, Visitor, console_of

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(settings={"traceTopicEnable": "true"}) as running:
        yield running


@pytest.fixture(scope="module")
def url(server: Server) -> Iterator[str]:
    """A console that may change things."""
    with console_of(server.address, allow_changes=True) as url:
        yield url


@pytest.fixture
def visitor(url: str) -> Visitor:
    """Somebody who came in with the token."""
    visitor = Visitor(url)
    assert visitor.get(f"/enter?token={TOKEN}").status == 200
    return visitor
