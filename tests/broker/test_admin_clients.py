"""Who is connected, and questions that are passed on to a client."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from orbitmq import fastjson
from orbitmq.broker.handlers import admin_clients
from orbitmq.message.record import decode_records
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command, ok
from orbitmq.transport.pool import Pool
from tests.broker.kit import HEART_BEAT, Wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orbitmq.broker.broker import Broker
    from orbitmq.transport.connection import Connection

RUNNING_INFO = RequestCode.GET_CONSUMER_RUNNING_INFO
CONSUME_DIRECTLY = RequestCode.CONSUME_MESSAGE_DIRECTLY
STATUS = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS


class Consumer:
    """A connected consumer of group G that answers what brokers ask."""

    def __init__(self, broker: Broker) -> None:
        assert broker.address is not None
        self._address = broker.address
        self.asked: list[Command] = []
        self.is_silent = False
        self._pool = Pool(
            {
                RUNNING_INFO: self._answer,
                CONSUME_DIRECTLY: self._answer,
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._ignore,
            }
        )

    async def join(self, client_id: str, version: int = 479) -> None:
        beat = {
            "clientID": client_id,
            "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": [{"topic": "T"}]}],
            "producerDataSet": [{"groupName": "P"}],
        }
        request = Command(HEART_BEAT, body=json.dumps(beat).encode(), language="GO", version=version)
        assert (await self._pool.call(self._address, request, 20)).code == 0

    async def leave(self) -> None:
        await self._pool.close()

    async def _answer(self, request: Command, connection: Connection) -> Command | None:
        self.asked.append(request)
        return None if self.is_silent else ok(body=b'{"spoken":true}')

    async def _status(self, request: Command, connection: Connection) -> Command | None:
        self.asked.append(request)
        body = b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":1,"topic":"T"}:5}}'
        return None if self.is_silent else ok(body=body)

    async def _ignore(self, request: Command, connection: Connection) -> None: ...


@pytest.fixture
async def consumer(broker: Broker) -> AsyncIterator[Consumer]:
    joined = Consumer(broker)
    await joined.join("client-1")
    yield joined
    await joined.leave()


async def test_consumers_of_a_group_are_listed_with_what_they_subscribe_to(client: Wire, consumer: Consumer) -> None:
    answer = await client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "G"})
    body = json.loads(answer.body)
    (connected,) = body["connectionSet"]
    assert (connected["clientId"], connected["language"], connected["version"]) == ("client-1", "GO", 479)
    assert connected["clientAddr"].startswith("127.0.0.1:")
    assert body["subscriptionTable"]["T"]["subString"] == "*"
    assert (body["consumeType"], body["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
    nobody = await client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "nobody"})
    assert (nobody.code, nobody.remark) == (206, "the consumer group[nobody] not online")


async def test_members_that_subscribe_to_something_else_are_named(
    broker: Broker, client: Wire, consumer: Consumer
) -> None:
    async def differing() -> list[str] | None:
        answer = await client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "G"})
        found: list[str] | None = json.loads(answer.body).get("differingClients")
        return found

    assert await differing() is None
    await client.heartbeat("client-2", "G", {"T": "only-this"})
    assert await differing() == ["client-2"]


async def test_producers_are_listed(client: Wire, consumer: Consumer) -> None:
    answer = await client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "P"})
    assert json.loads(answer.body)["connectionSet"][0]["clientId"] == "client-1"
    nobody = await client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "nobody"})
    assert (nobody.code, nobody.remark) == (1, "the producer group[nobody] not exist")
    (producer,) = json.loads((await client.ask(RequestCode.GET_ALL_PRODUCER_INFO)).body)["data"]["P"]
    assert producer["remoteIP"].startswith("/127.0.0.1:")
    assert producer["lastUpdateTimestamp"] > 0


async def test_a_consumer_does_not_get_the_signature_of_who_asks(client: Wire, consumer: Consumer) -> None:
    names = {"consumerGroup": "G", "clientId": "client-1"}
    signature = {"AccessKey": "root", "Signature": "c2lnbmVk", "SecurityToken": "token"}
    assert (await client.ask(RUNNING_INFO, {**names, **signature})).code == 0
    assert consumer.asked[-1].fields == names


async def test_a_consumer_is_asked_for_its_running_info(client: Wire, consumer: Consumer) -> None:
    fields = {"consumerGroup": "G", "clientId": "client-1", "jstackEnable": "true"}
    answer = await client.ask(RUNNING_INFO, fields)
    assert (answer.code, answer.body) == (0, b'{"spoken":true}')
    assert consumer.asked[0].fields == fields


async def test_a_message_is_handed_to_a_consumer_past_its_queue(client: Wire, consumer: Consumer) -> None:
    receipt = await client.send("T", b"handed over")
    fields = {"consumerGroup": "G", "clientId": "client-1", "msgId": receipt.fields["msgId"], "topic": "T"}
    answer = await client.ask(CONSUME_DIRECTLY, fields)
    assert answer.body == b'{"spoken":true}'
    (asked,) = consumer.asked
    assert asked.fields == {**fields, "brokerName": "broker-a", "topicSysFlag": "0", "groupSysFlag": "0"}
    assert [message.body for message in decode_records(asked.body)] == [b"handed over"]


async def test_messages_that_are_not_there_are_handed_to_nobody(client: Wire, consumer: Consumer) -> None:
    for message_id in ("7F00000100002A9F0000000000000400", "nonsense", ""):
        fields = {"consumerGroup": "G", "clientId": "client-1", "msgId": message_id}
        assert (await client.ask(CONSUME_DIRECTLY, fields)).code in (1, 29)
    assert consumer.asked == []


async def test_a_consumer_that_is_not_there_cannot_be_asked(client: Wire, consumer: Consumer) -> None:
    for group, client_id in (("G", "nobody"), ("nobody", "client-1")):
        answer = await client.ask(RUNNING_INFO, {"consumerGroup": group, "clientId": client_id})
        assert (answer.code, answer.remark) == (1, f"The Consumer <{group}> <{client_id}> not online")


async def test_a_consumer_that_does_not_answer_is_waited_for_and_given_up(
    client: Wire, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_clients, "_ANSWER_SECONDS", 0.05)
    consumer.is_silent = True
    answer = await client.ask(RUNNING_INFO, {"consumerGroup": "G", "clientId": "client-1"})
    assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT


async def test_a_consumer_that_leaves_instead_of_answering(client: Wire, consumer: Consumer) -> None:
    consumer.is_silent = True
    asking = asyncio.ensure_future(client.ask(RUNNING_INFO, {"consumerGroup": "G", "clientId": "client-1"}))
    while not consumer.asked:
        await asyncio.sleep(0.01)
    await consumer.leave()
    answer = await asking
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "invoke consumer <G> <client-1>" in (answer.remark or "")


async def test_consumers_too_old_for_questions_are_not_asked(broker: Broker, client: Wire) -> None:
    old = Consumer(broker)
    await old.join("old", version=27)
    answer = await client.ask(RUNNING_INFO, {"consumerGroup": "G", "clientId": "old"})
    assert (answer.code, "too low" in (answer.remark or "")) == (1, True)
    status = await client.ask(STATUS, {"topic": "T", "group": "G"})
    assert (status.code, "does not support" in (status.remark or "")) == (1, True)
    assert old.asked == []
    await old.leave()


async def test_members_say_where_they_are(
    broker: Broker, client: Wire, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that says nothing does not keep the others from being heard."""
    monkeypatch.setattr(admin_clients, "_STATUS_SECONDS", 0.05)
    silent = Consumer(broker)
    silent.is_silent = True
    await silent.join("client-2")
    answer = await client.ask(STATUS, {"topic": "T", "group": "G", "clientAddr": ""})
    table = fastjson.loads(answer.body)["consumerTable"]
    assert {name: list(offsets.values()) for name, offsets in table.items()} == {"client-1": [5]}
    asked_before = len(consumer.asked)
    await client.ask(STATUS, {"topic": "T", "group": "G", "clientAddr": "client-2"})
    assert len(consumer.asked) == asked_before
    nobody = await client.ask(STATUS, {"topic": "T", "group": "nobody"})
    assert nobody.code == ResponseCode.SYSTEM_ERROR
    await silent.leave()
