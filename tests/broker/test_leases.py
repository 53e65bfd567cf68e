"""Leasing messages: what a pop gives, how a lease is settled, and what is refused."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from orbitmq.message import properties as keys
from orbitmq.message.batch import BatchMember, encode_batch
from orbitmq.message.properties import encode_properties
from tests.broker.kit import PATIENCE_SECONDS, SEND_BATCH, SEND_V2, Wire, running, send_header, wire
from tests.broker.lease_kit import BATCH_ACK, NOTIFICATION, PEEK, POLLING_INFO, LeaseClient, Leased

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from orbitmq.protocol.bodies.leases import BatchAck
    from orbitmq.protocol.command import Command

pytestmark = pytest.mark.usefixtures("loops")

T, ONE_QUEUE = "Leases", {"default_topic_queue_nums": 1}


@pytest.fixture
def consumer(client: Wire) -> LeaseClient:
    return LeaseClient(client)


def bodies(leased: list[Leased]) -> list[bytes]:
    return [each.body for each in leased]


async def send(client: Wire, *texts: bytes, topic: str = T, **properties: str) -> None:
    for text in texts:
        assert (await client.send(topic, text, 0, header=ONE_QUEUE, **properties)).code == 0


async def within_patience(answer: asyncio.Future[Command]) -> Command:
    return await asyncio.wait_for(answer, PATIENCE_SECONDS)


# ---- pop


async def test_what_is_leased_is_not_given_again(client: Wire, consumer: LeaseClient) -> None:
    await send(client, b"a", b"b", b"c")
    first = await consumer.pop(T, maxMsgNums=2)
    assert bodies(first) == [b"a", b"b"]
    assert bodies(await consumer.pop(T)) == [b"c"]
    assert await consumer.pop(T) == []
    assert bodies(await LeaseClient(client, "other").pop(T)) == [b"a", b"b", b"c"]  # another group has its own leases


async def test_a_pop_says_where_its_messages_are_from_and_what_is_left(client: Wire, consumer: LeaseClient) -> None:
    await send(client, b"a", b"b", b"c")
    answer = await consumer.ask_pop(T, maxMsgNums=2, invisibleTime=7000)
    fields = answer.fields
    assert (answer.code, answer.remark) == (0, "FOUND")
    assert fields["startOffsetInfo"] == "0 0 0"
    assert fields["msgOffsetInfo"] == "0 0 0,1"
    assert fields["restNum"] == "1"
    assert fields["invisibleTime"] == "7000"
    assert 0 <= int(fields["reviveQid"]) < 8
    nothing = await LeaseClient(client, "late").ask_pop(T, bornTime=1)
    assert (nothing.code, nothing.fields["popTime"]) == (210, "0")  # its client waits no longer


async def test_a_pop_takes_from_all_queues_or_from_the_one_it_names(client: Wire, consumer: LeaseClient) -> None:
    for queue_id in range(4):
        await client.send(T, b"%d" % queue_id, queue_id)
    assert bodies(await consumer.pop(T, queueId=2)) == [b"2"]
    assert sorted(bodies(await consumer.pop(T))) == [b"0", b"1", b"3"]


async def test_a_pop_filters_by_tag_and_by_sql(client: Wire, consumer: LeaseClient) -> None:
    await send(client, b"red", TAGS="red", size="1")
    await send(client, b"blue", TAGS="blue", size="2")
    await send(client, b"green", TAGS="green", size="3")
    assert bodies(await consumer.pop(T, exp="blue || green", expType="TAG")) == [b"blue", b"green"]
    assert await consumer.pop(T) == []  # what did not match is passed over for good
    by_sql = LeaseClient(client, "sql")
    assert bodies(await by_sql.pop(T, exp="size < 3", expType="SQL92")) == [b"red", b"blue"]
    assert (await by_sql.ask_pop(T, exp="size <", expType="SQL92")).code == 23


async def test_a_new_group_begins_at_the_oldest_or_at_the_newest(tmp_path: Path) -> None:
    async with running(tmp_path, initPopOffsetByCheckMsgInMem=False) as broker, wire(broker) as client:
        await send(client, b"a", b"b", b"c")
        assert bodies(await LeaseClient(client, "oldest").pop(T, initMode=0)) == [b"a", b"b", b"c"]
        assert bodies(await LeaseClient(client, "newest").pop(T, initMode=1)) == [b"c"]


async def test_a_group_with_too_much_leased_gets_no_more(tmp_path: Path) -> None:
    async with (
        running(tmp_path, enablePopMessageThreshold=True, popInflightMessageThreshold=1) as broker,
        wire(broker) as client,
    ):
        consumer = LeaseClient(client)
        await send(client, b"a", b"b", b"c")
        first = await consumer.pop(T, maxMsgNums=2)
        assert await consumer.pop(T) == []
        assert (await consumer.ack(first[0])).code == 0
        assert bodies(await consumer.pop(T)) == [b"c"]


async def test_peeking_leases_nothing(client: Wire, consumer: LeaseClient) -> None:
    await send(client, b"a", b"b")
    header = {"consumerGroup": "LG", "topic": T, "queueId": -1, "maxMsgNums": 1}
    answer = await client.ask(PEEK, header)
    assert (answer.code, answer.fields["restNum"]) == (0, "2")
    assert bodies(await consumer.pop(T)) == [b"a", b"b"]
    assert (await client.ask(PEEK, header)).code == 19


# ---- waiting


async def test_a_pop_waits_for_a_message(client: Wire, consumer: LeaseClient) -> None:
    await send(client, b"a")
    await consumer.pop(T)
    for queue_id in (-1, 0):
        held = await consumer.hold_pop(T, queueId=queue_id)
        asked = {"consumerGroup": "LG", "topic": T, "queueId": queue_id}
        assert (await client.ask(POLLING_INFO, asked)).fields["pollingNum"] == "1"
        await send(client, b"next")
        assert bodies(consumer.leased(T, await within_patience(held))) == [b"next"]
        assert (await client.ask(POLLING_INFO, asked)).fields["pollingNum"] == "0"


async def test_of_many_that_wait_each_message_wakes_one(client: Wire, consumer: LeaseClient) -> None:
    await send(client, b"0")
    await consumer.pop(T)
    held = [await consumer.hold_pop(T, maxMsgNums=1) for _ in range(3)]
    await client.ask(POLLING_INFO, {"consumerGroup": "LG", "topic": T, "queueId": -1})  # all three are held now
    await send(client, b"1", b"2", b"3")
    answers = [await within_patience(answer) for answer in held]
    assert [bodies(consumer.leased(T, answer)) for answer in answers] == [[b"1"], [b"2"], [b"3"]]


async def test_a_pop_waits_no_longer_than_it_said(client: Wire, consumer: LeaseClient) -> None:
    await send(client, b"a")
    await consumer.pop(T)
    answer = await within_patience(await consumer.hold_pop(T, pollTime=300))
    assert (answer.code, answer.fields["msgOffsetInfo"]) == (210, "")


async def test_who_waits_is_kept_no_longer_for_a_clock_that_is_ahead_of_the_brokers(
    broker: Broker, client: Wire, consumer: LeaseClient
) -> None:
    """Else a message would be leased to a client that gave up long ago."""
    await send(client, b"a")
    await consumer.pop(T)
    hour_ahead = broker.state.clock.now_ms() + 3_600_000
    pop = await consumer.hold_pop(T, pollTime=300, bornTime=hour_ahead)
    place = {"consumerGroup": "LG", "topic": T, "queueId": -1, "pollTime": 300, "bornTime": hour_ahead}
    notification = await client.start(NOTIFICATION, place)
    assert (await within_patience(pop)).code == 210
    assert (await within_patience(notification)).fields["hasMsg"] == "false"


async def test_no_more_may_wait_than_the_broker_allows(tmp_path: Path) -> None:
    async with running(tmp_path, popPollingSize=1) as broker, wire(broker) as client:
        consumer = LeaseClient(client)
        await send(client, b"a")
        await consumer.pop(T)
        held = [await consumer.hold_pop(T) for _ in range(3)]
        done, _ = await asyncio.wait(held, timeout=PATIENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        assert [answer.result().code for answer in done] == [209]


async def test_a_notification_tells_of_a_message_without_leasing_it(client: Wire, consumer: LeaseClient) -> None:
    await send(client, b"a")
    header = {"consumerGroup": "LG", "topic": T, "queueId": -1, "pollTime": 60_000, "bornTime": 0}
    assert (await client.ask(NOTIFICATION, header)).fields["hasMsg"] == "true"
    await consumer.pop(T)
    assert (await client.ask(NOTIFICATION, {**header, "pollTime": 0})).fields["hasMsg"] == "false"
    held = await client.start(NOTIFICATION, header)
    await send(client, b"b")
    assert (await within_patience(held)).fields["hasMsg"] == "true"
    assert bodies(await consumer.pop(T)) == [b"b"]


# ---- settling


async def test_leases_are_settled_one_by_one_or_together(broker: Broker, client: Wire, consumer: LeaseClient) -> None:
    await send(client, b"a", b"b", b"c", b"d")
    leased = await consumer.pop(T)
    in_flight = broker.state.open_leases.in_flight
    assert in_flight(T, "LG", 0) == 4
    assert (await consumer.ack(leased[1])).code == 0
    assert (await consumer.ack_batch([leased[0], leased[3]])).code == 0
    assert in_flight(T, "LG", 0) == 1
    assert (await consumer.ack(leased[1])).code == 0  # said twice, meant once
    assert in_flight(T, "LG", 0) == 1


async def test_an_extended_lease_has_a_new_handle_and_the_old_one_is_settled(
    broker: Broker, client: Wire, consumer: LeaseClient
) -> None:
    await send(client, b"a")
    (leased,) = await consumer.pop(T)
    again = await consumer.extended(leased, 30_000)
    assert again.handle.pop_time_ms > leased.handle.pop_time_ms
    assert again.handle.invisible_ms == 30_000
    once_more = await consumer.extended(again, 20_000)
    assert once_more.handle.pop_time_ms > again.handle.pop_time_ms
    assert broker.state.open_leases.in_flight(T, "LG", 0) == 1
    assert (await consumer.ack(once_more)).code == 0
    assert broker.state.open_leases.in_flight(T, "LG", 0) == 0


async def test_a_handle_from_before_a_restart_still_counts(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, wire(broker) as client:
        await send(client, b"a", b"b")
        leased = await LeaseClient(client).pop(T)
    async with running(tmp_path) as broker, wire(broker) as client:
        consumer = LeaseClient(client)
        assert (await consumer.ack(leased[0])).code == 0
        assert (await consumer.extend(leased[1], 1000)).code == 0
        assert await consumer.pop(T) == []


# ---- refusals


async def test_a_handle_that_was_never_given_is_refused_and_changes_nothing(
    broker: Broker, client: Wire, consumer: LeaseClient
) -> None:
    await send(client, b"a", b"b", b"c")
    leased, other = await consumer.pop(T, maxMsgNums=2)
    handle = leased.handle
    written = broker.state.store.log.end
    forged = (
        handle._replace(pop_time_ms=handle.pop_time_ms + 1),
        handle._replace(start_offset=1),
        handle._replace(broker_name="broker-b"),
        handle._replace(revive_queue=77),
        handle._replace(invisible_ms=10**17),
        handle._replace(revive_queue=999, offset=2),  # as of an ordered lease
        handle._replace(offset=2),  # there, and not leased
        handle._replace(offset=1),  # leased, by another handle than the request says
    )
    for each in forged:
        pretended = leased._replace(handle=each)
        changes = {"offset": 0} if each == forged[-1] else {}
        assert (await consumer.ack(pretended, **changes)).code == 13, each
        assert (await consumer.extend(pretended, 60_000, **changes)).code == 13, each
    assert (await LeaseClient(client, "thief").ack(leased)).code == 13
    assert (await consumer.ack_batch([leased], pt=handle.pop_time_ms + 1)).code == 13
    assert (await consumer.ack_batch([leased], c="thief")).code == 13
    for place_or_time in ({"rq": -3}, {"rq": 77}, {"it": 10**17}, {"it": 2**63 - 1}, {"it": -1}):
        assert (await consumer.ack_batch([leased], **place_or_time)).code == 13, place_or_time
    assert broker.state.store.log.end == written
    assert broker.state.open_leases.in_flight(T, "LG", 0) == 2
    assert (await consumer.ack_batch([leased, other])).code == 0


async def test_somebodys_timer_message_is_no_checkpoint(client: Wire, consumer: LeaseClient, broker: Broker) -> None:
    await send(client, b"a", b"b", b"c")
    leased, *_ = await consumer.pop(T, maxMsgNums=1)
    made_up = leased.handle._replace(start_offset=2, offset=2, pop_time_ms=1234567)
    checkpoint = {
        "bm": 0, "bn": "broker-a", "c": "LG", "d": [0], "it": 60_000, "n": 1, "pt": 1234567, "q": 0, "ro": 0, "so": 2, "t": T,
    }  # fmt: skip
    like_one = {"UNIQ_KEY": f"{T}@0@2@LG@1234567@broker-a@ck", "TAGS": "ck", "TIMER_DELAY_MS": "600000"}
    sent = await client.ask(SEND_V2, send_header("Mine", 0, like_one), json.dumps(checkpoint).encode())
    assert sent.code == 0, sent
    assert (await consumer.extend(leased._replace(handle=made_up), 1000)).code == 13
    assert (await consumer.ack(leased._replace(handle=made_up))).code == 13
    assert broker.state.open_leases.in_flight(T, "LG", 0) == 1


async def test_what_makes_no_sense_is_refused_with_a_code(client: Wire, consumer: LeaseClient) -> None:
    await send(client, b"a")
    (leased,) = await consumer.pop(T)
    for changes, code in (
        ({"maxMsgNums": 33}, 29),
        ({"maxMsgNums": 0}, 29),
        ({"queueId": 9}, 29),
        ({"invisibleTime": -1}, 29),
        ({"invisibleTime": 2**62}, 29),
        ({"exp": "||"}, 23),
    ):
        answer = await consumer.ask_pop(T, **changes)
        assert (answer.code, answer.fields["popTime"]) == (code, "0"), changes
    assert (await consumer.ask_pop("Nowhere")).code == 17
    assert (await consumer.ack(leased, topic="Nowhere")).code == 17
    assert (await consumer.ack(leased, queueId=9)).code == 13
    assert (await consumer.ack(leased, offset=99)).code == 208
    assert (await consumer.extend(leased, 1000, offset=99)).code == 208
    assert (await consumer.extend(leased, -1)).code == 29
    assert (await consumer.ack(leased, extraInfo="not a handle")).code == 29
    assert (await client.ask(200151, None, b"")).code == 208
    assert (await client.ask(200151, None, b'{"acks":[{"c":1}]}')).code == 29
    assert (await consumer.ack_batch([leased], b="*")).code == 29


async def test_leases_wait_for_the_disk_when_sends_do(tmp_path: Path) -> None:
    async with running(tmp_path, flushDiskType="SYNC_FLUSH") as broker, wire(broker) as client:
        consumer = LeaseClient(client)
        held = None
        await send(client, b"a")
        (leased,) = await consumer.pop(T)
        assert broker.state.store.flushed_offset >= broker.state.store.log.end
        assert (await consumer.ack(leased)).code == 0
        assert broker.state.store.flushed_offset >= broker.state.store.log.end
        held = await consumer.hold_pop(T)
        await send(client, b"b")
        assert bodies(consumer.leased(T, await within_patience(held))) == [b"b"]


async def test_others_are_served_between_the_acks_of_a_large_batch(
    broker: Broker, client: Wire, consumer: LeaseClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(client, b"a")
    (leased,) = await consumer.pop(T)
    made_up = {"c": "LG", "t": T, "q": 0, "rq": 0, "pt": 1, "it": 1000, "b": "AQ=="}
    acks = [{**made_up, "so": number} for number in range(1000)]
    acks.append({**made_up, "so": 0, "pt": leased.handle.pop_time_ms, "rq": leased.handle.revive_queue})
    done = 0
    done_at_turn: list[int] = []
    ack_batch = broker.state.settling.ack_batch

    def noted(ack: BatchAck, broker_name: str) -> int:
        nonlocal done
        if not done:
            asyncio.get_running_loop().call_soon(lambda: done_at_turn.append(done))
        done += 1
        return ack_batch(ack, broker_name)

    monkeypatch.setattr(broker.state.settling, "ack_batch", noted)
    answer = await client.ask(BATCH_ACK, None, json.dumps({"brokerName": "broker-a", "acks": acks}).encode())
    assert answer.code == 13
    assert "1000 of 1001 refused" in str(answer.remark)
    assert done == 1001
    assert done_at_turn[0] < 1001
    assert broker.state.open_leases.in_flight(T, "LG", 0) == 0

    acks = [made_up | {"so": 0}] * 10_001
    answer = await client.ask(BATCH_ACK, None, json.dumps({"brokerName": "broker-a", "acks": acks}).encode())
    assert "up to 10000 are taken at once" in str(answer.remark)
    assert done == 1001


async def test_a_handle_that_a_producer_made_up_settles_nothing(
    broker: Broker, client: Wire, consumer: LeaseClient
) -> None:
    await send(client, b"victim")
    (victim,) = await consumer.pop(T)
    told = {keys.POP_CHECK_POINT: victim.handle.text(), "color": "red"}
    await send(client, b"single", **told)
    await send(client, b"delayed", **told, DELAY="1")
    member = BatchMember(b"member", encode_properties(told))
    for properties, body in ((told, [BatchMember(b"of a batch")]), ({}, [member, BatchMember(b"plain")])):
        header = send_header(T, 0, properties, {"batch": True})
        assert (await client.ask(SEND_BATCH, header, encode_batch(body))).code == 0
    # One that a broker took which did not look.
    broker.state.topics.create_internal(f"%RETRY%LG_{T}", 1)
    old = encode_properties({**told, "1ST_POP_TIME": "1"})
    broker.state.store.append(f"%RETRY%LG_{T}", 0, b"retried", old, 1, bytes(8), 0, 0, 1)
    broker.state.store.dispatch()

    seen: dict[bytes, Leased] = {}
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(seen) < 6:
            seen.update({leased.body: leased for leased in await consumer.pop(T)})
            await asyncio.sleep(0.02)

    assert sorted(seen) == [b"delayed", b"member", b"of a batch", b"plain", b"retried", b"single"]
    for leased in seen.values():
        assert leased.handle.offset == leased.message.queue_offset
        assert leased.message.properties.get("color") == (None if leased.body == b"plain" else "red")
        assert leased.message.raw_properties.count(b"POP_CK") == (leased.body == b"retried")
        assert (await consumer.ack(leased)).code == 0
    assert broker.state.open_leases.in_flight(T, "LG", 0) == 1, "that of the victim"
