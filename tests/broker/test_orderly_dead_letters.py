"""Dead letters of groups that consume in order: sent again, they are delivered, and no dead letters once more."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from orbitmq import ReceivedMessage, connect
from orbitmq.admin.dead_letters import letter_again, newest_dead_letters
from orbitmq.admin.sending import Outgoing, send_all
from orbitmq.admin.session import Session
from orbitmq.errors import OrbitError
from orbitmq.testing import Server
from tests.broker.kit import LOCK, SEND_V2, Wire, send_header

if TYPE_CHECKING:
    from orbitmq.admin.messages import MessageRow
    from orbitmq.broker.broker import Broker


async def test_a_dead_letter_sent_again_to_a_group_that_consumes_in_order_is_no_dead_letter_again(
    client: Wire, broker: Broker
) -> None:
    await client.send("T", b"x")
    await client.heartbeat("c", "G", {"T": "*", "%RETRY%G": "*"})
    queue = {"topic": "T", "brokerName": "broker-a", "queueId": 0}
    body = {"clientId": "c", "consumerGroup": "G", "mqSet": [queue]}
    assert (await client.ask(LOCK, None, json.dumps(body).encode())).code == 0

    answer = await client.ask(
        SEND_V2, send_header("%RETRY%G", 0, {"RETRY_TOPIC": "T"}), b"letter"
    )  # what `dlq resend` sends

    assert answer.code == 0
    assert broker.state.topics.get("%DLQ%G") is None
    assert await client.bodies("%RETRY%G") == [b"letter"]


def test_a_dead_letter_of_an_orderly_consumer_can_be_sent_again() -> None:
    """The whole way: a consumer gives a message up, an operator sends it to the group again."""

    async def run(address: str) -> int:
        fails, handled = True, asyncio.Event()

        async def handler(message: ReceivedMessage) -> None:
            if fails:
                raise ValueError("not yet")
            handled.set()

        async def letters() -> list[MessageRow]:
            try:
                return await newest_dead_letters(session, "G", 10)
            except OrbitError:  # there is no such topic yet
                return []

        async with connect(address) as client, client.producer("P") as producer, Session(client.config) as session:
            await producer.send("Ordered", b"x", order_key="k")
            async with client.consumer(
                "Ordered", group="G", orderly=True, start="earliest", handler=handler, suspend=0.05, max_retries=1
            ):
                while not (found := await letters()):
                    await asyncio.sleep(0.05)
                fails = False
                await send_all(session, [Outgoing(letter_again(row, "G", "group")) for row in found])
                await handled.wait()
                return len(await letters())

    with Server() as server:
        assert asyncio.run(run(server.address)) == 1
