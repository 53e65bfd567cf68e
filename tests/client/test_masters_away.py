"""One of two masters is away: what does not need it goes on."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest

from orbitmq import ReceivedMessage, connect
from orbitmq.errors import OrbitError
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import Command, ok
from orbitmq.protocol.headers.send import SendReceipt
from tests.client.scripted import eventually, scripted_cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from orbitmq.transport.connection import Connection


async def test_a_request_goes_out_while_one_of_the_masters_is_away() -> None:
    async with (
        scripted_cluster(brokers=2, topics={"T": 1}) as cluster,
        connect(cluster.address) as client,
        client.producer("P") as producer,
    ):
        await producer.send("T", b"warm up")  # the route is known
        await cluster.stop("broker-b")  # killed; the route still names it
        for _ in range(4):
            await producer.send("T", b"plain")  # sends fall over to the other master at once
        sent_before = len(cluster.broker.received(RequestCode.SEND_MESSAGE_V2))
        with pytest.raises(OrbitError) as caught:
            await producer.request("T", b"?", timeout=1.5)
        assert "was sent, but no reply came" in str(caught.value), repr(caught.value)
        assert len(cluster.broker.received(RequestCode.SEND_MESSAGE_V2)) > sent_before


async def test_a_delayed_send_goes_out_while_one_of_the_masters_is_away() -> None:
    async with (
        scripted_cluster(brokers=2, topics={"T": 1}) as cluster,
        connect(cluster.address) as client,
        client.producer("P") as producer,
    ):
        await producer.send("T", b"warm up")
        await cluster.stop("broker-b")
        for _ in range(4):
            await producer.send("T", b"plain")
        await producer.send("T", b"later", delay=timedelta(seconds=10), timeout=2)


async def test_a_reply_goes_another_way_when_the_broker_of_the_request_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two masters know who asked. The one that has the request dies while it is being answered."""
    replies: list[str] = []

    def taker(name: str) -> Callable[[Command, Connection], Awaitable[Command]]:
        async def take(command: Command, connection: Connection) -> Command:
            replies.append(name)
            return ok(SendReceipt(msg_id="7F0000010000000200000000000000AB", queue_id=0, queue_offset=0))

        return take

    async with scripted_cluster(brokers=2, topics={"T": 1, "c_REPLY_TOPIC": 1}) as cluster:
        for broker in cluster.brokers:
            routes = {**broker.routes(), RequestCode.SEND_REPLY_MESSAGE_V2: taker(broker.name)}
            port = broker.address.port
            await cluster.stop(broker.name)
            monkeypatch.setattr(broker, "routes", partial(dict, routes))
            await cluster.start_broker(broker, port)
        cluster.broker.put("T", 0, b"?", REPLY_TO_CLIENT="asker", CORRELATION_ID="1", CLUSTER="c", TTL="3000")
        async with connect(cluster.address) as client, client.producer("P") as producer:
            await producer.queues("c_REPLY_TOPIC")
            asked: list[ReceivedMessage] = []

            async def handler(message: ReceivedMessage) -> None:
                asked.append(message)

            async with client.consumer("T", group="G", start="earliest", handler=handler):
                await eventually(lambda: asked)
            await cluster.stop("broker-a")
            await producer.reply(asked[0], b"!", timeout=3)
        assert replies == ["broker-b"]
