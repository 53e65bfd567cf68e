"""Messages that consumers could not handle: back for later, then to the dead letters."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.clock import ManualClock
from orbitmq.message.batch import BatchMember, encode_batch
from orbitmq.message.ids import parse_offset_message_id
from orbitmq.message.properties import encode_properties
from orbitmq.message.record import decode_records
from tests.broker.kit import LOCK, MAX_OFFSET, SEND_BACK, SEND_BATCH, Wire, no_table_saved, running, send_header, wire
from tests.raw_client import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from orbitmq.message.message import StoredMessage
    from orbitmq.protocol.command import Command


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def broker(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Broker]:
    async with running(tmp_path / "store", clock=clock) as running_broker:
        yield running_broker


async def send_back(client: Wire, message: StoredMessage, delay_level: int = 0, **changes: object) -> Command:
    header = {"offset": message.commit_log_offset, "group": "G", "delayLevel": delay_level, **changes}
    return await client.ask(SEND_BACK, header)


async def only_message(broker: Broker, client: Wire, topic: str) -> StoredMessage:
    await until(lambda: broker.state.store.queue_range(topic, 0).max_offset > 0, what=f"a message in {topic}")
    return (await client.messages(topic))[-1]


async def test_a_message_comes_back_later_with_one_more_attempt(
    client: Wire, broker: Broker, clock: ManualClock
) -> None:
    sent = await client.send("T", b"try", KEYS="k", TAGS="t")
    (first,) = await client.messages("T")

    assert (await send_back(client, first)).code == 0
    clock.advance(seconds=10)  # the third level

    again = await only_message(broker, client, "%RETRY%G")
    assert (again.body, again.reconsume_times, again.born_at_ms) == (b"try", 1, first.born_at_ms)
    assert again.properties["RETRY_TOPIC"] == "T"
    assert again.properties["ORIGIN_MESSAGE_ID"] == sent.fields["msgId"]
    assert again.properties["UNIQ_KEY"] == first.properties["UNIQ_KEY"]
    assert (again.properties["KEYS"], again.properties["TAGS"]) == ("k", "t")


@pytest.mark.parametrize(("delay_level", "goal"), [(0, "%RETRY%G"), (-1, "%DLQ%G")])
async def test_where_a_message_is_sent_back_to_is_kept_before_its_consumer_moves_on(
    tmp_path: Path, client: Wire, broker: Broker, delay_level: int, goal: str
) -> None:
    """A broker that is killed in between would have the copy, and know of no such topic."""
    await client.send("T", b"try")
    (first,) = await client.messages("T")
    async with wire(broker) as other:
        with no_table_saved() as may_save:
            answer = asyncio.ensure_future(send_back(client, first, delay_level))
            await until(lambda: broker.state.topics.get(goal) is not None, what="the topic")
            for _ in range(50):  # all that would happen meanwhile
                await other.ask(MAX_OFFSET, {"topic": "T", "queueId": 0})
            assert not answer.done()
            may_save.set()
            assert (await answer).code == 0
    assert goal in (tmp_path / "store" / "config" / "topics.json").read_text()


async def parked_is_delivered(broker: Broker) -> None:
    await until(lambda: all(at == end for at, end in broker.state.delayed.progress().values()), what="the next attempt")
    broker.state.store.dispatch()


async def test_each_attempt_waits_longer_until_the_dead_letters(
    client: Wire, broker: Broker, clock: ManualClock
) -> None:
    await client.send("T", b"hopeless")
    (message,) = await client.messages("T")
    first_id = message.offset_id
    waits = []
    for _ in range(16):
        assert (await send_back(client, message)).code == 0
        await client.send("U")  # a round trip: what was sent back is indexed by now
        waits += [level for level, (next_up, end) in broker.state.delayed.progress().items() if next_up < end]
        clock.advance(minutes=121)
        await parked_is_delivered(broker)
        message = (await client.messages("%RETRY%G"))[-1]
    assert waits == list(range(3, 19))

    assert (await send_back(client, message)).code == 0

    dead = await only_message(broker, client, "%DLQ%G")
    assert (dead.body, dead.reconsume_times) == (b"hopeless", 17)
    assert (dead.properties["ORIGIN_MESSAGE_ID"], dead.properties["RETRY_TOPIC"]) == (first_id, "T")


async def test_a_client_can_say_how_often_and_how_long(client: Wire, broker: Broker, clock: ManualClock) -> None:
    await client.send("T", b"x")
    (message,) = await client.messages("T")

    await send_back(client, message, 1)
    clock.advance(seconds=1)
    assert (await only_message(broker, client, "%RETRY%G")).reconsume_times == 1
    await send_back(client, message, maxReconsumeTimes=0)

    assert (await only_message(broker, client, "%DLQ%G")).body == b"x"


async def test_a_negative_delay_gives_up_at_once(client: Wire, broker: Broker) -> None:
    await client.send("T", b"x")
    (message,) = await client.messages("T")

    await send_back(client, message, -1)

    assert (await only_message(broker, client, "%DLQ%G")).body == b"x"


@pytest.mark.parametrize("delay_level", [0, -1])
async def test_a_message_that_claims_the_most_attempts_can_be_given_back(
    client: Wire, broker: Broker, delay_level: int
) -> None:
    await client.send("T", b"x", header={"reconsume_times": 2**31 - 1})
    (message,) = await client.messages("T")

    assert (await send_back(client, message, delay_level)).code == 0

    dead = await only_message(broker, client, "%DLQ%G")
    assert (dead.body, dead.reconsume_times) == (b"x", 2**31 - 1)


async def test_a_group_without_retry_queues_drops_the_message(client: Wire, broker: Broker) -> None:
    await client.send("T", b"x")
    (message,) = await client.messages("T")
    config = broker.state.groups.find("G")
    assert config is not None
    config.retry_queue_nums = 0

    assert (await send_back(client, message)).code == 0

    assert broker.state.delayed.progress() == {}


async def test_what_cannot_be_sent_back(tmp_path: Path) -> None:
    async with running(tmp_path / "1", autoCreateSubscriptionGroup="false") as broker, wire(broker) as client:
        await client.send("T", b"x")
        assert (await send_back(client, _stored(broker)[0])).code == 26
    async with running(tmp_path / "2", brokerPermission=4) as broker, wire(broker) as client:
        assert (await client.ask(SEND_BACK, {"offset": 0, "group": "G", "delayLevel": 0})).code == 16
    async with running(tmp_path / "3") as broker, wire(broker) as client:
        await client.send("T", b"x")
        message = _stored(broker)[0]
        for offset in (-1, 7, 10**9, 2**62):
            header = {"offset": offset, "group": "G", "delayLevel": 0}
            assert (await client.ask(SEND_BACK, header)).code == 1
        broker.state.topics.create_internal("%RETRY%Closed", 1, perm=4)
        assert (await send_back(client, message, group="Closed")).code == 16


def _stored(broker: Broker) -> list[StoredMessage]:
    return [message for buffer in broker.state.store.read("T", 0, 0).buffers for message in decode_records(buffer)]


async def test_a_send_to_a_retry_topic_goes_to_the_dead_letters_after_too_many(client: Wire, broker: Broker) -> None:
    """How clients send back what the broker did not take back."""
    kept = await client.send("%RETRY%G", b"kept", header={"reconsume_times": 3, "max_reconsume_times": 3})
    given_up = await client.send("%RETRY%G", b"given up", header={"reconsume_times": 4, "max_reconsume_times": 3})

    assert kept.code == given_up.code == 0
    assert await client.bodies("%RETRY%G") == [b"kept"]
    dead = await only_message(broker, client, "%DLQ%G")
    assert (dead.body, dead.properties["DELAY"]) == (b"given up", "-1")
    assert dead.commit_log_offset == parse_offset_message_id(given_up.fields["msgId"])[1]


async def test_a_group_that_consumes_in_order_goes_on_behind_the_dead_letter(
    client: Wire, broker: Broker, clock: ManualClock
) -> None:
    queue = {"topic": "T", "brokerName": "broker-a", "queueId": 0}
    lock = {"consumerGroup": "G", "clientId": "c1", "mqSet": [queue]}
    await client.send("T", b"only queues that there are can be locked")
    assert (await client.ask(LOCK, None, json.dumps(lock).encode())).code == 0

    await client.send("%RETRY%G", b"ordered", header={"reconsume_times": 1})
    assert (await only_message(broker, client, "%DLQ%G")).body == b"ordered"

    clock.advance(seconds=61)  # the lock has run out
    await client.send("%RETRY%G", b"again", header={"reconsume_times": 1})
    assert await client.bodies("%RETRY%G") == [b"again"]


async def test_a_retry_topic_of_a_group_that_may_not_be_made_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, autoCreateSubscriptionGroup="false") as broker, wire(broker) as client:
        assert (await client.send("%RETRY%G", b"x")).code == 26


@pytest.mark.parametrize(
    "wishes",
    [
        {"TRAN_MSG": "true", "PGROUP": "P"},
        {"TIMER_DELAY_SEC": "99999999999"},
        {"TIMER_DELIVER_MS": "1", "TIMER_DEL_UNIQKEY": "T+other"},
        {"DELAY": "many", "1ST_POP_TIME": "1"},
    ],
)
async def test_what_a_member_of_a_batch_asks_for_is_not_done_by_way_of_a_copy(
    client: Wire, broker: Broker, clock: ManualClock, wishes: dict[str, str]
) -> None:
    body = encode_batch([BatchMember(b"x", encode_properties(wishes | {"KEYS": "k"}))])
    assert (await client.ask(SEND_BATCH, send_header("T", 0, {}, {"batch": True}), body)).code == 0
    (message,) = await client.messages("T")

    assert (await send_back(client, message, 1)).code == 0
    assert (await send_back(client, message, -1)).code == 0
    clock.advance(seconds=1)

    again, dead = [await only_message(broker, client, topic) for topic in ("%RETRY%G", "%DLQ%G")]
    assert again.body == dead.body == b"x"
    assert again.properties["KEYS"] == dead.properties["KEYS"] == "k"
    assert (wishes.keys() & again.properties.keys()) <= {"PGROUP", "DELAY"}
    assert again.properties["DELAY"] == "1"
    assert len(broker.state.half_messages) == 0


async def test_a_copy_of_what_waited_says_so(client: Wire, broker: Broker, clock: ManualClock) -> None:
    await client.send("T", b"x", TIMER_DELAY_SEC="1")
    clock.advance(seconds=2)
    waited = await only_message(broker, client, "T")

    await send_back(client, waited, -1)

    dead = await only_message(broker, client, "%DLQ%G")
    assert dead.properties["TIMER_OUT_MS"] == waited.properties["TIMER_OUT_MS"]
    assert dead.properties["TIMER_DELAY_SEC"] == "1"


@pytest.mark.parametrize("prepared_flag", [0, 4])
@pytest.mark.parametrize(("times", "goal"), [(1, "%RETRY%G"), (17, "%DLQ%G")])
async def test_what_a_consumer_sends_to_be_retried_is_no_half_message_though_it_once_was_one(
    client: Wire, broker: Broker, clock: ManualClock, prepared_flag: int, times: int, goal: str
) -> None:
    """Java's clients before 4.6.1 send a committed message's properties as they got them; nobody would decide about it again."""
    header = {"reconsume_times": times, "max_reconsume_times": 16, "sys_flag": prepared_flag}
    was_one: dict[str, Any] = {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": "U", "REAL_TOPIC": "T", "REAL_QID": "0"}

    assert (await client.send("%RETRY%G", b"paid", header=header, DELAY="3", **was_one)).code == 0

    clock.advance(seconds=10)
    again = await only_message(broker, client, goal)
    assert (again.body, again.sys_flag, again.reconsume_times) == (b"paid", 0, times)
    assert len(broker.state.half_messages) == 0
