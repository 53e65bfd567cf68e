"""Who consumes which queues when the broker decides, and whether it pulls or leases."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.broker.kit import Wire, running, wire
from tests.broker.lease_kit import ALL_REQUEST_MODES, QUERY_ASSIGNMENT, SET_REQUEST_MODE

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from orbitmq.protocol.command import Command

T, G = "Shared", "SG"


async def members(broker: Broker, count: int) -> list[Wire]:
    """So many clients of the group, each with a connection of its own."""
    assert broker.address is not None
    joined = [Wire(broker.address) for _ in range(count)]
    await joined[0].send(T)
    for number, member in enumerate(joined):
        await member.heartbeat(f"client-{number}", G, {T: "*"})
    return joined


async def assigned(client: Wire, number: int, **changes: Any) -> list[tuple[int, str]] | None:
    body = {
        "topic": T,
        "consumerGroup": G,
        "clientId": f"client-{number}",
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
        **changes,
    }
    answer = await client.ask(QUERY_ASSIGNMENT, None, json.dumps(body).encode())
    assert answer.code == 0, answer
    queues = json.loads(answer.body).get("messageQueueAssignments")
    if queues is None:
        return None
    assert all(each["messageQueue"]["topic"] == changes.get("topic", T) for each in queues)
    return sorted((each["messageQueue"]["queueId"], each["mode"]) for each in queues)


async def set_mode(client: Wire, **changes: Any) -> Command:
    body = {"topic": T, "consumerGroup": G, "mode": "POP", "popShareQueueNum": 0, **changes}
    return await client.ask(SET_REQUEST_MODE, None, json.dumps(body).encode())


@pytest.mark.parametrize(("strategy", "shares"), [("AVG", [[0, 1], [2], [3]]), ("AVG_BY_CIRCLE", [[0, 3], [1], [2]])])
async def test_queues_are_shared_by_the_strategy_that_is_asked_for(
    broker: Broker, strategy: str, shares: list[list[int]]
) -> None:
    clients = await members(broker, 3)
    for number, share in enumerate(shares):
        got = await assigned(clients[number], number, strategyName=strategy)
        assert got == [(queue_id, "PULL") for queue_id in share]
    for client in clients:
        await client.close()


async def test_who_leases_shares_all_queues_or_those_of_some(broker: Broker) -> None:
    clients = await members(broker, 4)
    assert (await set_mode(clients[0])).code == 0
    assert await assigned(clients[0], 0) == [(-1, "POP")]
    assert (await set_mode(clients[0], popShareQueueNum=1)).code == 0
    assert await assigned(clients[0], 0) == [(0, "POP"), (1, "POP")]
    assert await assigned(clients[3], 3) == [(0, "POP"), (3, "POP")]
    for client in clients:
        await client.close()


async def test_a_light_queue_which_stands_in_no_route_is_shared_as_one_of_this_broker(tmp_path: Path) -> None:
    async with running(tmp_path, namesrvAddr="127.0.0.1:1") as broker:
        clients = await members(broker, 2)
        assert await assigned(clients[0], 0, topic="%LMQ%house") == [(0, "PULL")]
        assert await assigned(clients[1], 1, topic="%LMQ%house") == []
        for client in clients:
            await client.close()


async def test_what_cannot_be_answered_is_left_to_the_client(broker: Broker) -> None:
    (client,) = await members(broker, 1)
    assert await assigned(client, 0, topic="Nowhere") is None
    assert await assigned(client, 0, consumerGroup="nobody") is None
    assert await assigned(client, 0, strategyName="MACHINE_ROOM") is None
    assert await assigned(client, 7) == []  # no member: nothing is its own
    assert await assigned(client, 7, messageModel="BROADCASTING") == [(n, "PULL") for n in range(4)]
    await client.close()


async def test_modes_are_checked_kept_and_told(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        (client,) = await members(broker, 1)
        assert (await set_mode(client, topic="Nowhere")).code == 17
        assert (await set_mode(client, topic=f"%RETRY%{G}")).code == 16
        assert (await set_mode(client, mode="PUSH")).code == 29
        assert (await client.ask(SET_REQUEST_MODE, None, b"[]")).code == 29
        assert (await set_mode(client, popShareQueueNum=3)).code == 0
        await client.close()
    async with running(tmp_path) as broker, wire(broker) as client:
        table = json.loads((await client.ask(ALL_REQUEST_MODES)).body)
        mode = {"consumerGroup": G, "mode": "POP", "popShareQueueNum": 3, "topic": T}
        assert table == {"messageRequestModeMap": {T: {G: mode}}}


async def test_a_group_leases_from_all_topics_where_that_is_the_default(tmp_path: Path) -> None:
    async with running(tmp_path, defaultMessageRequestMode="POP") as broker:
        (client,) = await members(broker, 1)
        assert await assigned(client, 0) == [(-1, "POP")]
        await client.close()
