"""The newest messages of a topic: the right ones, without fetching many times as many."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.admin.messages import TopicReader
from orbitmq.admin.session import open_session
from orbitmq.message import Message, QueueRef
from orbitmq.sync import connect
from orbitmq.testing import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

QUEUES = 8


class Counting(TopicReader):
    fetched = 0

    async def fetch(self, *arguments: Any, **options: Any) -> Any:
        found = await super().fetch(*arguments, **options)
        self.fetched += len(found)
        return found


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        running.create_topic("T", queues=QUEUES)
        yield running


def fill(server: Server, queue_ids: list[int]) -> list[str]:
    """A message into each of these queues, one after the other; their bodies, the newest first."""
    bodies = [f"number {number}" for number in range(len(queue_ids))]
    with connect(server.address) as client, client.producer("P") as producer:
        for queue_id, body in zip(queue_ids, bodies, strict=True):
            producer.send_message(Message("T", body.encode()), queue=QueueRef("T", "test", queue_id), timeout=60)
            time.sleep(0.002)  # so that no two are stored in the same millisecond
    return bodies[::-1]


@pytest.mark.parametrize(
    "queue_ids",
    [
        pytest.param([number % QUEUES for number in range(QUEUES * 16)], id="evenly"),
        pytest.param([0] * 30 + [1] * 10, id="in one queue, then another"),
        pytest.param([number % 3 for number in range(9)], id="fewer than wanted"),
    ],
)
async def test_the_newest_are_found_without_fetching_much_more(server: Server, queue_ids: list[int]) -> None:
    bodies = fill(server, queue_ids)
    async with open_session(server.address) as session:
        reader = Counting(session)
        assert [row.body for row in await reader.newest("T", 16)] == bodies[:16]
    assert reader.fetched <= 32  # where 16 of each queue were fetched it was 128
