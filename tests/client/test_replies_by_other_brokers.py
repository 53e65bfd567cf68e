"""A request goes to a broker of its topic; its reply may come through any broker of the cluster, as Java's responders choose."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from orbitmq import connect
from orbitmq.protocol.codes import RequestCode
from tests.broker.kit import running, send_header, wire
from tests.client.suite import queues_of
from tests.nameserver.running import running as running_name_server

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.message.message import StoredMessage
    from tests.broker.kit import Wire


async def test_a_reply_comes_through_a_broker_that_has_no_queue_of_the_requests_topic(tmp_path: Path) -> None:
    async with running_name_server(tmp_path / "nameserver") as name_server:
        name_servers = str(name_server.address)
        async with (
            running(tmp_path / "a", namesrvAddr=name_servers) as first,
            running(tmp_path / "b", namesrvAddr=name_servers, brokerName="broker-b") as second,
            wire(first) as at_first,
            wire(second) as at_second,
            connect(name_servers) as client,
            client.producer("Asker") as asker,
        ):
            assert (await at_first.send("Asked", b"makes the topic")).code == 0
            assert second.state.topics.get("Asked") is None
            async with client.pull_consumer("Routes") as reader:
                queue = (await queues_of(reader, "Asked"))[1]

            asking = asyncio.create_task(asker.request("Asked", b"?", queue=queue, timeout=20))
            asked = await _first_message(at_first, "Asked", queue.queue_id)
            properties = {key: asked.properties[key] for key in ("REPLY_TO_CLIENT", "CORRELATION_ID", "TTL")}
            header = send_header("DefaultCluster_REPLY_TOPIC", 0, properties | {"MSG_TYPE": "reply"})
            while not asking.done() and (await at_second.ask(RequestCode.SEND_REPLY_MESSAGE_V2, header, b"!")).code:
                await asyncio.sleep(0.05)  # Java's responders, too, try again

            assert (await asking).body == b"!"


async def _first_message(at: Wire, topic: str, queue_id: int) -> StoredMessage:
    async with asyncio.timeout(20):
        while not (found := await at.messages(topic, queue_id)):
            await asyncio.sleep(0.01)
    return found[0]
