"""A message that its topic keeps in one record with others fails alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orbitmq import ReceivedMessage, RetryLater, connect
from orbitmq.message.batch import BatchMember, encode_batch
from orbitmq.message.properties import encode_properties
from tests.broker.kit import SEND_BATCH, Wire, send_header
from tests.client.scripted import eventually
from tests.topic_names import fresh_name

if TYPE_CHECKING:
    from orbitmq.testing.server import Server


@pytest.mark.parametrize("orderly", [False, True])
async def test_of_a_batch_in_one_record_only_what_failed_comes_again(
    mq_session_server: Server, orderly: bool, request: pytest.FixtureRequest
) -> None:
    topic = fresh_name(request)
    mq_session_server.create_topic(topic, queues=1, attributes={"queue.type": "BatchCQ"})
    # The broker takes no such member back. The client puts it there itself, and would else guess how many queues there are.
    mq_session_server.create_topic(f"%RETRY%{topic}", queues=1)
    members = [
        BatchMember(b"%d" % number, encode_properties({"UNIQ_KEY": f"U{number}", "KEYS": f"k{number}"}))
        for number in range(4)
    ]
    attempts: list[tuple[bytes, int, str, list[str]]] = []

    async def handler(message: ReceivedMessage) -> None:
        attempts.append((message.body, message.attempt, message.topic, message.keys))
        if message.body == b"2" and message.attempt < 3:
            raise RetryLater(delay_level=1)

    async with connect(mq_session_server.address) as client:
        async with client.producer("P") as producer:
            address = producer.cluster.master((await producer.queues(topic))[0].broker_name)
        assert address is not None
        wire = Wire(address)
        header = send_header(topic, 0, {"UNIQ_KEY": "outer"}, {"batch": True})
        assert (await wire.ask(SEND_BATCH, header, encode_batch(members))).fields["batchUniqId"] == "outer"
        await wire.close()
        async with client.consumer(
            topic, group=topic, start="earliest", handler=handler, orderly=orderly, max_retries=5, suspend=0.05
        ):
            await eventually(lambda: len(attempts) == 6, 20)
    first = [(b"%d" % number, 1, topic, [f"k{number}"]) for number in range(4)]
    again = [(b"2", attempt, topic, ["k2"]) for attempt in (2, 3)]
    assert sorted(attempts) == sorted(first + again)
