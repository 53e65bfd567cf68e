"""Resets where the broker leaves moving to the members: what cannot be done as planned is not done otherwise."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from orbitmq.admin.brokers import find_brokers
from orbitmq.admin.groups import is_online
from orbitmq.admin.resets import apply_reset, plan_reset
from orbitmq.admin.session import open_session
from orbitmq.errors import ConfigError
from orbitmq.sync import connect
from orbitmq.testing import Server
from tests.raw_client import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

QUEUE = ("test", 0)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(settings={"useServerSideResetOffset": "false"}) as running:
        running.create_topic("T", queues=2)
        yield running


async def test_one_queue_of_running_members_is_not_moved_together_with_all_others(server: Server) -> None:
    async with open_session(server.address) as session, asyncio.timeout(PATIENCE_SECONDS):
        (place,) = await find_brokers(session)
        with connect(server.address) as client, client.consumer("T", group="G", handler=lambda message: None):
            while not await is_online(session, "G", place):
                await asyncio.sleep(0.01)
            with pytest.raises(ConfigError, match="all queues of a topic at once"):
                await plan_reset(session, "G", "latest", topic="T", queue=QUEUE)
            assert {step.way for step in await plan_reset(session, "G", "latest", topic="T")} == {"members"}
        while await is_online(session, "G", place):
            await asyncio.sleep(0.01)
        (step,) = await plan_reset(session, "G", "latest", topic="T", queue=QUEUE)
        assert step.way == "commit"
        await apply_reset(session, [step], "latest")
