"""Reading a topic that changes meanwhile: it comes to an end."""

from __future__ import annotations

import asyncio

from orbitmq.admin.messages import TopicReader, Window
from orbitmq.admin.session import open_session
from orbitmq.admin.topics import delete_topic
from orbitmq.sync import connect
from orbitmq.testing import Server
from tests.raw_client import PATIENCE_SECONDS

SENT = 40  # more than is fetched at once


async def test_reading_ends_where_the_topic_was_made_anew() -> None:
    with Server() as server:
        server.create_topic("T", queues=1)
        with connect(server.address) as client, client.producer("P") as producer:
            for number in range(SENT):
                producer.send("T", f"number {number}".encode())
        async with open_session(server.address) as session, asyncio.timeout(PATIENCE_SECONDS):
            found: list[int] = []
            async for row in TopicReader(session).read("T", Window()):
                if not found:
                    await delete_topic(session, "T")
                    server.create_topic("T", queues=1)
                found.append(row.offset)
    assert found == list(range(len(found)))
    assert len(found) < SENT
