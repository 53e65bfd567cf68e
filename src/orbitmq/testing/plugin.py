"""pytest fixtures, there as soon as OrbitMQ is installed.

def test_orders(mq_server):
    with orbitmq.sync.connect(mq_server.address) as client: ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orbitmq.testing.server import Server


@pytest.fixture
def mq_server() -> Iterator[Server]:
    """A server of the test's own."""
    yield from _running()


@pytest.fixture(scope="session")
def mq_session_server() -> Iterator[Server]:
    """One server for the whole run: quicker, for tests that use topics and groups of their own."""
    yield from _running()


def _running() -> Iterator[Server]:
    # Imported late: a test run that never asks for a server does not pay for one.
    from orbitmq.testing.server import Server

    with Server() as server:
        yield server
