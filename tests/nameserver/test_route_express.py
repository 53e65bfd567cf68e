"""Questions asked again: the same answer under another id, until anything changes; and questions that only look the same."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

import pytest

from orbitmq.nameserver.route_answers import RouteAnswers
from orbitmq.protocol import command as commands
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import Command
from orbitmq.protocol.frame import frame_bytes
from orbitmq.transport.server import Server
from tests.line import connected
from tests.mutations import mutated
from tests.nameserver.running import addresses, register, route, running, topic_table
from tests.raw_client import raw_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbitmq.nameserver.server import NameServer
    from tests.raw_client import RawClient

WRITE = 2


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NameServer]:
    async with running(tmp_path) as name_server:
        yield name_server


@pytest.fixture
async def client(server: NameServer) -> AsyncIterator[RawClient]:
    async with raw_client(server.address) as open_client:
        yield open_client


async def ask_raw(client: RawClient, header: bytes) -> Command:
    client.send(frame_bytes(header, b""))
    return await client.answer()


async def test_the_same_question_has_the_same_answer_under_every_id(client: RawClient) -> None:
    await register(client)
    bodies = set()
    for opaque in (0, 7, 7, 10, 2_147_483_647, -1, 99):
        frame = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, opaque=opaque, fields={"topic": "TopicA"}, language="JAVA")
        client.send(commands.encode(frame))
        answer = await client.answer()
        assert (answer.code, answer.opaque, answer.flag, answer.language) == (0, opaque, 1, "PYTHON")
        bodies.add(answer.body)
    assert len(bodies) == 1


async def test_a_change_is_seen_by_the_next_question(client: RawClient) -> None:
    await register(client)
    for _ in range(3):
        assert addresses(await route(client, "TopicA")) == {"broker-a": {0: "10.0.0.1:10911"}}
    await register(client, "broker-b", address="10.0.0.2:10911", topics=topic_table("TopicA", "TopicC"))
    for _ in range(3):
        assert set(addresses(await route(client, "TopicA"))) == {"broker-a", "broker-b"}
    await client.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    found = await route(client, "TopicA")
    assert found is not None
    assert [queues.perm & WRITE for queues in found.queue_datas] == [0, WRITE]


async def test_a_topic_that_comes_is_found_though_it_was_asked_for_before(client: RawClient) -> None:
    for _ in range(3):
        assert await route(client, "TopicA") is None
    await register(client)
    assert await route(client, "TopicA") is not None


@pytest.mark.parametrize(
    "header",
    [
        b'{"code":105,"opaque":5,"extFields":{"topic":"TopicA"}}',  # Go's order
        b'{"code":105,"extFields":{"topic":"TopicA"},"opaque":5}',
        b'{"code":105,"extFields":{"topic":"TopicA"},"opaque": 5 ,"flag":0}',
        b'{"code":105,"extFields":{"opaque":9,"topic":"TopicA"},"opaque":5}',  # a field of that name
        b'{"code":105,"extFields":{"topic":"TopicA","x":"\\"opaque\\":3,"},"opaque":5}',
        b'{"code":105,"extFields":{"topic":"TopicA"},"remark":"opaque","opaque":5,"version":"453"}',
    ],
)
async def test_however_the_question_is_written_its_own_id_comes_back(client: RawClient, header: bytes) -> None:
    await register(client)
    for _ in range(3):
        answer = await ask_raw(client, header)
        assert (answer.code, answer.opaque) == (0, 5)
        assert b"TopicA" not in answer.body
        assert b"broker-a" in answer.body


async def test_however_many_zones_are_asked_for_an_answer_is_kept_once(server: NameServer, client: RawClient) -> None:
    await register(client, __ZONE_NAME="near")
    answers = RouteAnswers(server.registry, server.kv_config, server.configuration)
    bodies = [answers.body_in_zone("TopicA", f"nowhere {number}", standard=True) for number in range(100)]
    assert len(set(map(id, bodies))) == 1
    near = [answers.body_in_zone("TopicA", zone, standard=True) for zone in ("near", "Near", "NEAR")]
    assert len(set(map(id, near))) == 1
    assert b"broker-a" in near[0]
    assert b"broker-a" not in bodies[0]
    await client.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    assert answers.body_in_zone("TopicA", "near", standard=True) != near[0]


async def test_a_question_without_an_id_or_with_a_broken_one_is_not_answered_from_memory(client: RawClient) -> None:
    await register(client)
    assert (await ask_raw(client, b'{"code":105,"extFields":{"topic":"TopicA"},"flag":0}')).opaque == 0
    assert (await ask_raw(client, b'{"code":105,"extFields":{"topic":"TopicA"},"opaque":5,"flag":0}')).opaque == 5
    # As fastjson reads it.
    assert (await ask_raw(client, b'{"code":105,"extFields":{"topic":"TopicA"},"opaque":05,"flag":0}')).opaque == 5
    client.send(frame_bytes(b'{"code":105,"extFields":{"topic":"TopicA"},"opaque":5x,"flag":0}', b""))
    assert await client.is_closed_by_the_server()


async def test_a_one_way_question_is_not_answered(client: RawClient) -> None:
    await register(client)
    for flag in (0, 2, 0):
        client.send(client.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TopicA"}, flag=flag))
    assert [(await client.answer()).opaque for _ in range(2)] == [2, 4]


async def test_a_damaged_question_is_answered_as_without_express(server: NameServer) -> None:
    logging.disable()  # a line for each of them would be many
    try:
        ordinary = Server(server._server._service.routes)
        await ordinary.start("127.0.0.1", 0)
        chance = random.Random(105)
        async with raw_client(server.address) as client:
            await register(client)
            frame = client.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TopicA"})
            for _ in range(800):
                damaged = mutated(frame, chance)
                assert said(ordinary, damaged) == said(server._server, damaged) == said(server._server, damaged), (
                    damaged
                )
        await ordinary.stop()
    finally:
        logging.disable(logging.NOTSET)


def said(server: Server, frame: bytes) -> tuple[bytes, bool]:
    connection, line = connected(server)
    connection.data_received(frame)
    connection.connection_lost(None)
    return bytes(line.written), line.closed
