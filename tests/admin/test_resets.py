"""Resets where the broker leaves moving to the members, or leaves itself: what cannot be done as planned is not done otherwise."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from orbitmq.admin import resets
from orbitmq.admin.brokers import BrokerPlace, find_brokers
from orbitmq.admin.groups import create_group, is_online
from orbitmq.admin.resets import apply_reset, plan_reset
from orbitmq.admin.session import open_session
from orbitmq.errors import ConfigError, RequestFailed
from orbitmq.protocol.bodies.groups import GroupConfig
from orbitmq.protocol.codes import ResponseCode
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


async def test_a_broker_that_left_since_the_plan_is_named_and_nothing_is_moved(server: Server) -> None:
    async with open_session(server.address) as session:
        await create_group(session, GroupConfig(group_name="G"))
        steps = await plan_reset(session, "G", 0, topic="T")
        gone = msgspec.structs.replace(steps[0], broker="gone")
        with pytest.raises(RequestFailed, match="broker 'gone' has left since") as failed:
            await apply_reset(session, [*steps, gone], 0)
        assert failed.value.code == ResponseCode.BROKER_NOT_EXIST
        again = await plan_reset(session, "G", 0, topic="T")
        assert [step.committed for step in again] == [None, None]


async def test_a_broker_that_leaves_while_a_reset_is_planned_is_named(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def under_another_name(*arguments: object) -> list[BrokerPlace]:
        return [msgspec.structs.replace(place, broker="another") for place in await find_brokers(session)]

    async with open_session(server.address) as session:
        await create_group(session, GroupConfig(group_name="G"))
        monkeypatch.setattr(resets, "find_brokers", under_another_name)
        with pytest.raises(RequestFailed, match="broker 'test' has left since") as failed:
            await plan_reset(session, "G", "latest", topic="T")
    assert failed.value.code == ResponseCode.BROKER_NOT_EXIST
