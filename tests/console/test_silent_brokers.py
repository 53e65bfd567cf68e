"""A broker that hangs: what the others have is shown, and whose part is missing is said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orbitmq.sync import connect
from orbitmq.testing import Cluster
from tests.console.visitor import TOKEN, Visitor, console_of, read

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES = ("/topics", "/groups/Readers", "/messages?topic=Orders", "/dead-letters")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(masters=2) as running:
        running.create_topic("Orders", queues=1)
        with connect(running.address) as client:
            with client.producer("shop") as producer:
                for number in range(8):
                    producer.send("Orders", f"number {number}".encode())
            read(client, "Orders", "Readers", 8)
        yield running


def test_every_page_shows_what_the_others_have_and_names_the_silent_one(cluster: Cluster) -> None:
    with console_of(cluster.address, timeout=4.0) as url:
        visitor = Visitor(url)
        visitor.get(f"/enter?token={TOKEN}")
        assert all(visitor.json(path)["missing"] == [] for path in PAGES)
        cluster["b"].pause()
        try:
            for path in PAGES:
                assert [one["address"] for one in visitor.json(path)["missing"]] == [cluster["b"].address]
            page = visitor.get("/topics/Orders")
            assert f"What broker {cluster['b'].address} has is missing here" in page.words
            assert "a:0 @ 0" in page.words
            assert "b:0 @ 0" not in page.words
        finally:
            cluster["b"].resume()
