"""pytest fixtures, there as soon as OrbitMQ is installed. They block and wait for nobody's event loop, so tests with asyncio, with
anyio and without either use them alike, and every worker of pytest-xdist has servers of its own.

    def test_orders(mq_server):
        with orbitmq.sync.connect(mq_server.address) as client: ...

    @pytest.mark.mq_cluster(masters=2, slaves=1)
    async def test_a_master_dies(mq_cluster):
        mq_cluster["a"].kill()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orbitmq.testing.cluster import Cluster
    from orbitmq.testing.server import Server

_KNOWN: Final = {"mq_server": ("settings",), "mq_cluster": ("masters", "slaves", "settings")}

# Servers are imported late: a test run that never asks for one does not pay for it.


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "mq_server(settings=None): broker settings of the fixture mq_server, Apache's names"
    )
    config.addinivalue_line(
        "markers", "mq_cluster(masters=2, slaves=0, settings=None): what the fixture mq_cluster is made of"
    )


@pytest.fixture
def mq_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of the test's own."""
    from orbitmq.testing.server import Server

    with Server(**_asked_for(request, "mq_server")) as server:
        yield server


@pytest.fixture(scope="session")
def mq_session_server() -> Iterator[Server]:
    """One server for the whole run: quicker, for tests that use topics and groups of their own."""
    from orbitmq.testing.server import Server

    with Server() as server:
        yield server


@pytest.fixture
def mq_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of the test's own: two masters, unless a mark says otherwise."""
    from orbitmq.testing.cluster import Cluster

    with Cluster(**_asked_for(request, "mq_cluster")) as cluster:
        yield cluster


def _asked_for(request: pytest.FixtureRequest, name: str) -> dict[str, Any]:
    mark = request.node.get_closest_marker(name)
    if mark is None:
        return {}
    unknown = [*map(repr, mark.args), *(key for key in mark.kwargs if key not in _KNOWN[name])]
    if unknown:
        known = ", ".join(f"{key}=..." for key in _KNOWN[name])
        raise pytest.UsageError(f"@pytest.mark.{name} does not take {', '.join(unknown)}: write {name}({known})")
    return dict(mark.kwargs)
