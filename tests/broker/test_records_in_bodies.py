"""A body may hold what looks like a record of any topic. An offset that leads into one is believed by nothing that publishes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from orbitmq.message.ids import offset_message_id
from orbitmq.message.record import USUAL_HEAD_BYTES, crc31, encode_record, topic_field
from orbitmq.protocol.codes import RequestCode
from tests.broker.kit import SEND_V2, Wire, send_header

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker
    from orbitmq.protocol.command import Command

pytestmark = pytest.mark.usefixtures("loops")

MINE, SECRET = "Mine", "Secret"
HALF_TOPIC, DISCARDED_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
HALF: Final = {"PGROUP": "P", "REAL_TOPIC": SECRET, "REAL_QID": "0", "TRAN_MSG": "true"}


class Forger:
    """May send to its own topic, and knows from a receipt where the next message will lie."""

    def __init__(self, client: Wire, broker: Broker) -> None:
        self._client = client
        self._log = broker.state.store.log

    async def embed(
        self, topic: str, queue_offset: int, properties: dict[str, str], *, knows_place: bool = True
    ) -> int:
        """Where the forged record lies in the log."""
        place = self._log.end + USUAL_HEAD_BYTES
        written = "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
        host = bytes((6, 6, 6, 6, 0, 0, 0, 1))
        forged = encode_record(
            topic_field(topic), 0, 0, queue_offset, place if knows_place else 0, 0, 1, host, 1, host, 0, 0, b"forged",
            crc31(b"forged"), written,
        )  # fmt: skip
        sent = await self._client.ask(SEND_V2, send_header(MINE, 0, {"UNIQ_KEY": "x"}), bytes(forged))
        assert (sent.code, int(sent.fields["msgId"][16:], 16) + USUAL_HEAD_BYTES) == (0, place)
        return place


@pytest.fixture
async def forger(client: Wire, broker: Broker) -> Forger:
    assert (await client.send(SECRET, b"honest", 0)).code == 0
    return Forger(client, broker)


async def _half(client: Wire) -> Command:
    header = send_header(MINE, 0, {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": "u"}, {"sys_flag": 4})
    receipt = await client.ask(SEND_V2, header, b"half")
    assert receipt.code == 0, receipt
    return receipt


@pytest.mark.parametrize("decision", [8, 12], ids=["commit", "rollback"])
async def test_no_transaction_ends_with_a_half_message_that_is_a_body(
    client: Wire, broker: Broker, forger: Forger, decision: int
) -> None:
    receipt = await _half(client)
    number = int(receipt.fields["queueOffset"])

    async def end(place: int) -> int:
        header = {"producerGroup": "P", "tranStateTableOffset": number, "msgId": "u", "commitOrRollback": decision}
        return (await client.ask(RequestCode.END_TRANSACTION, {**header, "commitLogOffset": place})).code

    places = [await forger.embed(HALF_TOPIC, number, HALF, knows_place=known) for known in (True, False)]
    for place in places:
        assert await end(place) == 1
    assert await client.bodies(SECRET) == [b"honest"]
    assert list(broker.state.half_messages.undecided) == [number]
    assert await end(int(receipt.fields["msgId"][16:], 16)) == 0
    assert await end(int(receipt.fields["msgId"][16:], 16)) == 0  # decided before
    assert [await end(place) for place in places] == [1, 1]
    assert await client.bodies(SECRET) == [b"honest"]


async def test_no_transaction_is_taken_up_again_that_is_a_body(client: Wire, broker: Broker, forger: Forger) -> None:
    place = await forger.embed(DISCARDED_TOPIC, 0, HALF)
    answer = await client.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": offset_message_id(bytes(8), place)})
    assert answer.code == 1, answer
    assert not broker.state.half_messages.undecided


@pytest.mark.parametrize("queue_offset", [0, 1, -1, 2**62], ids=["that of another", "the next", "none", "far"])
async def test_a_body_is_neither_sent_back_nor_handed_over(
    client: Wire, broker: Broker, forger: Forger, queue_offset: int
) -> None:
    place = await forger.embed(SECRET, queue_offset, {"KEYS": "k"})
    beat = b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[]}]}'
    assert (await client.ask(RequestCode.HEART_BEAT, None, beat)).code == 0

    async def back(offset: int) -> Command:
        header = {"offset": offset, "group": "G", "delayLevel": -1, "originTopic": SECRET}
        return await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)

    refused = await back(place)
    assert (refused.code, "look message by offset failed" in (refused.remark or "")) == (1, True)
    header = {"consumerGroup": "G", "clientId": "nobody", "topic": SECRET}
    refused = await client.ask(
        RequestCode.CONSUME_MESSAGE_DIRECTLY, {**header, "msgId": offset_message_id(bytes(8), place)}
    )
    assert "can not find message" in (refused.remark or "")
    (honest,) = await client.messages(SECRET)
    assert (await back(honest.commit_log_offset)).code == 0
    assert broker.state.store.queue_range("%DLQ%G", 0).max_offset == 1


async def test_a_record_that_names_another_place_is_not_shown(client: Wire, forger: Forger) -> None:
    place = await forger.embed(SECRET, 0, {}, knows_place=False)
    assert (await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": place})).code == 1
    assert (await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": place - USUAL_HEAD_BYTES})).code == 0
